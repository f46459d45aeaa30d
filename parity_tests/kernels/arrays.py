"""Arrays between the case's form and a kernel's: layouts, types, frameworks and views with strides."""

from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.kernels.canonical import Array
from parity_tests.kernels.limits import Limits

# Axes of the case's arrays; queries, keys, values and outputs have the same letters in a layout.
LETTERS = {
    "q": "bthd", "k": "bthd", "v": "bthd", "y": "bthd", "bias": "bhts", "sinks": "h", "slopes": "h", "beta": "btg",
    "state": "ngkv", "last": "ngkv", "lse": "bht",
}  # fmt: skip
WIDE = ("slopes", "sinks", "log_decay", "state", "last", "lse")
OF_HEADS = ("q", "y", "bias", "sinks", "slopes", "lse")


def letters_of(name: str, layout: str) -> str:
    """The axes of a case's array; those of decays are the layout's own."""
    return layout if name == "log_decay" else LETTERS[name]


def layout_of(name: str, layout: str, limits: Limits) -> str:
    """The layout that a kernel has for an array."""
    if name == "lse":
        return limits.lse_layout
    return layout.replace("kv", "vk") if name in ("state", "last") and limits.state_layout == "vk" else layout


def by_heads(x: Array, axis: int, group: int, back: bool) -> Array:
    """Query heads in the order of `head_map="interleaved"`, or back: r of each of g key heads, or g of each of r."""
    n = x.shape[axis]
    if n == 1:  # of all heads
        return x
    sizes = (n // group, group) if back else (group, n // group)
    shape = x.shape
    split = x.reshape(*shape[:axis], *sizes, *shape[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(shape)


def laid(x: Array, name: str, layout: str, limits: Limits, group: int) -> Array:
    """A case's array in a kernel's layout."""
    letters, layout = letters_of(name, layout), layout_of(name, layout, limits)
    if x.ndim != len(letters):
        return x
    if limits.head_map == "interleaved" and name in OF_HEADS:
        x = by_heads(x, letters.index("h"), group, back=False)
    gone = tuple(i for i, letter in enumerate(letters) if letter not in layout)
    x, letters = np.squeeze(x, gone), "".join(letter for letter in letters if letter in layout)
    return x.transpose([letters.index(letter) for letter in layout])


def unlaid(x: Array, name: str, layout: str, limits: Limits, group: int) -> Array:
    """A kernel's array in the case's layout."""
    letters, layout = letters_of(name, layout), layout_of(name, layout, limits)
    if x.ndim != len(layout):
        return x
    kept = [letter for letter in letters if letter in layout]
    x = x.transpose([layout.index(letter) for letter in kept])
    x = np.expand_dims(x, tuple(i for i, letter in enumerate(letters) if letter not in layout))
    if limits.head_map == "interleaved" and name in OF_HEADS:
        x = by_heads(x, letters.index("h"), group, back=True)
    return x


def strided(x: Array) -> Array:
    """The same numbers as a view whose last axis alone is dense, with NaN between its rows."""
    if x.ndim < 2:
        return x
    wide = np.full((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1]), np.nan).astype(x.dtype)
    wide[..., ::2, :] = x
    return wide[..., ::2, :]


class NumPy:
    """A kernel's framework: how arrays are made and read there."""

    name = "numpy"

    def prepare(self, limits: Limits) -> dict[str, Any]:
        """Set the framework up; returns names that the snippets know."""
        return {}

    def array(self, x: Array, views: bool, device: str) -> Any:
        x = np.array(x)
        return strided(x) if views and x.dtype.kind not in "biu" else x

    def numpy(self, x: Any) -> Array:
        return np.asarray(x)

    def dtype(self, x: Any) -> str:
        return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


class Torch(NumPy):
    name = "torch"

    def prepare(self, limits: Limits) -> dict[str, Any]:
        import torch

        return {"torch": torch}

    def array(self, x: Array, views: bool, device: str) -> Any:
        import torch

        bits = x.dtype == DTYPES["bfloat16"]
        x = np.array(x)
        wide = strided(x) if views and x.dtype.kind not in "biu" else x
        made = torch.from_numpy(wide.view(np.int16)).view(torch.bfloat16) if bits else torch.from_numpy(wide)
        return made.to(device)

    def numpy(self, x: Any) -> Array:
        import torch

        x = x.detach().cpu()
        return x.to(torch.float64).numpy() if x.is_floating_point() else x.numpy()


class Jax(NumPy):
    name = "jax"

    def prepare(self, limits: Limits) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", "float64" in limits.dtypes)
        return {"jax": jax, "jnp": jnp}

    def array(self, x: Array, views: bool, device: str) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(np.array(x))


FRAMEWORKS: dict[str, NumPy] = {x.name: x for x in (NumPy(), Torch(), Jax())}
