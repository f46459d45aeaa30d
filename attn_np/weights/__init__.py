"""Weight files: one dictionary of named arrays, read and written for all three trees.

`read` and `write` are the way in and out; `read_pretrained` reads one layer out of a model's folder; `check` says
whether arrays fit a config; `convert` turns one variant into an equal one; `rotary_layout` moves the columns that
rotary positions pair; `tensors` reads arrays of any safetensors file. An index of shards is read as one file. Every
refusal of a file is a `WeightFileError`.
"""

from attn_np.weights import _errors
from attn_np.weights._check import WeightFile, check, require_savable, wanted_dtype
from attn_np.weights._draw import draw
from attn_np.weights._errors import *  # noqa: F403
from attn_np.weights._files import read, write
from attn_np.weights._foreign import convert
from attn_np.weights._pretrained import Pretrained, once, read_pretrained
from attn_np.weights._rotary import rotary_layout
from attn_np.weights._shards import tensors

__all__ = ["Pretrained", "WeightFile", "check", "convert", "draw", "once", "read", "read_pretrained"]
__all__ += ["require_savable", "rotary_layout", "tensors", "wanted_dtype", "write"]
__all__ += _errors.__all__
