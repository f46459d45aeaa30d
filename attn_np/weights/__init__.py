"""Weight files: one dictionary of named arrays, read and written for all three packages.

`read` and `write` are the way in and out; `read_pretrained` reads one layer out of a model's folder, and
`read_pretrained_layers` one after the other; `check` checks arrays against a config; `convert` turns one variant into
an equal one; `rotary_layout` reorders columns for the other layout of rotary positions; `tensors` reads arrays of any
safetensors file. An index of shards is read as one file.
A file that is refused raises a `WeightFileError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_np.weights._check import LayerWeights as LayerWeights
    from attn_np.weights._check import check as check
    from attn_np.weights._check import requested_dtype as requested_dtype
    from attn_np.weights._check import require_config as require_config
    from attn_np.weights._check import require_layer_of as require_layer_of
    from attn_np.weights._convert import convert as convert
    from attn_np.weights._draw import draw as draw
    from attn_np.weights._errors import *  # noqa: F403
    from attn_np.weights._io import read as read
    from attn_np.weights._io import write as write
    from attn_np.weights._paths import PathArg as PathArg
    from attn_np.weights._pretrained import Pretrained as Pretrained
    from attn_np.weights._pretrained import pop_on_read as pop_on_read
    from attn_np.weights._pretrained import read_pretrained as read_pretrained
    from attn_np.weights._pretrained import read_pretrained_layers as read_pretrained_layers
    from attn_np.weights._rotary import rotary_layout as rotary_layout
    from attn_np.weights._shards import tensors as tensors

# The names of each file, loaded when one is asked for: making a layer needs `draw` alone.
NAMES = {
    "_check": ("LayerWeights", "check", "requested_dtype", "require_config", "require_layer_of"),
    "_convert": ("convert",),
    "_draw": ("draw",),
    "_io": ("read", "write"),
    "_paths": ("PathArg",),
    "_pretrained": ("Pretrained", "pop_on_read", "read_pretrained", "read_pretrained_layers"),
    "_rotary": ("rotary_layout",),
    "_shards": ("tensors",),
}
FILES = {name: file for file, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*FILES, *import_module(f"{__name__}._errors").__all__]
    if name not in FILES and (name.startswith("_") or name not in import_module(f"{__name__}._errors").__all__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{FILES.get(name, '_errors')}"), name)


def __dir__() -> list[str]:
    return __getattr__("__all__")
