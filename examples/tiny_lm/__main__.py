"""Train the model three times, from the same weights on the same batches: `python examples/tiny_lm`.

It takes a minute or two on two cores, and writes `tiny_lm.png` into the current folder.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_lm import flax_lm, numpy_lm, torch_lm
from tiny_lm.shared import Config, batches, decode, first_weights


def main() -> None:
    """Print the losses as they come, the largest gap between them, and what each model writes; draw the curves."""
    import matplotlib.pyplot as plt

    config, start, curves = Config(), "the dog", {}
    for name, program in {"NumPy": numpy_lm, "Flax": flax_lm, "PyTorch": torch_lm}.items():
        began, curves[name] = time.perf_counter(), []
        model = program.TinyLM(config, first_weights(config))
        for step, loss in enumerate(program.train(model, batches(config)), 1):
            curves[name].append(loss)
            if step % 20 == 0:
                print(f"\r{name:8} step {step:3} of {config.steps}  loss {loss:.4f}", end="", flush=True)
        print(f"  {time.perf_counter() - began:.0f} s  writes: {start}{decode(program.write(model, start, 60))}")
    losses = np.array(list(curves.values()))
    print(f"largest gap between the curves: {np.ptp(losses, axis=0).max():.1e}")
    figure, axes = plt.subplots()
    for (name, curve), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        axes.plot(curve, style, label=name)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig("tiny_lm.png")


argparse.ArgumentParser(prog="python examples/tiny_lm", description=__doc__).parse_args()
main()
