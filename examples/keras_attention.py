"""A Keras layer's weights in a layer of this library, and back.

Keras calls its layer with the query, the value and then the key, and causality is an argument of the call; ours takes
query, key and value, and is causal or not. The layout `keras_mha` has Keras's names, in both directions: the paths of
its weights, with `/` or `.` between their parts.

Run it: `pip install keras`, then `python examples/keras_attention.py`.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import attn_torch

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported
import keras


def main() -> None:
    """Carry the weights over, compare the outputs, and carry them back."""
    theirs = keras.layers.MultiHeadAttention(num_heads=3, key_dim=5, name="attention")
    x, memory = np.random.default_rng(0).normal(size=(2, 2, 7, 8)).astype(np.float32)
    want = theirs(x, value=memory, key=memory, use_causal_mask=True)  # the first call makes the weights
    arrays = {weight.path: np.array(keras.ops.convert_to_numpy(weight)) for weight in theirs.weights}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "theirs.safetensors"
        save_file(arrays, file)
        ours = attn_torch.load(file, layout="keras_mha", prefix="attention.", causal=True)
        y = ours(torch.from_numpy(x), torch.from_numpy(memory))
        difference = np.abs(y.detach().numpy() - keras.ops.convert_to_numpy(want)).max()
        print(f"{ours.config}\nlargest difference of the outputs: {difference:.1e}")

        attn_torch.save(ours, file, layout="keras_mha", prefix="attention.")
        back = load_file(file)
    same = all(np.array_equal(x, back[path.replace("/", ".")]) for path, x in arrays.items())
    theirs.set_weights([back[path.replace("/", ".")] for path in arrays])
    print(f"written back: the same bits: {same}")


if __name__ == "__main__":
    main()
