"""Weight files: one dictionary of named arrays, read and written for all three packages.

`read` and `write` are the way in and out; `read_pretrained` reads one layer out of a model's folder; `check` checks
arrays against a config; `convert` turns one variant into an equal one; `rotary_layout` reorders columns for the other
layout of rotary positions; `tensors` reads arrays of any safetensors file. An index of shards is read as one file.
A file that is refused raises a `WeightFileError`.
"""

from attn_np.weights import _errors
from attn_np.weights._check import LayerWeights, check, requested_dtype, require_layer_of
from attn_np.weights._convert import convert
from attn_np.weights._draw import draw
from attn_np.weights._errors import *  # noqa: F403
from attn_np.weights._io import read, write
from attn_np.weights._paths import PathArg
from attn_np.weights._pretrained import Pretrained, pop_on_read, read_pretrained
from attn_np.weights._rotary import rotary_layout
from attn_np.weights._shards import tensors

__all__ = [
    "LayerWeights",
    "PathArg",
    "Pretrained",
    "check",
    "convert",
    "draw",
    "pop_on_read",
    "read",
    "read_pretrained",
]
__all__ += ["requested_dtype", "require_layer_of", "rotary_layout", "tensors", "write"]
__all__ += _errors.__all__
