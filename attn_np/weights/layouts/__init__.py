"""Layouts: the names and axes of weights in other libraries' files, or in a variant of ours: one module per origin.

A module has one `LAYOUT`, and its file name is the layout's name.
"""

import importlib
import pkgutil
from functools import cache

from attn_np.contract import did_you_mean
from attn_np.weights.layouts._base import Layout as Layout
from attn_np.weights.layouts._base import Table as Table
from attn_np.weights.layouts._kin import with_kin


@cache
def names() -> tuple[str, ...]:
    """Names of every layout, in alphabetical order: one module each."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


@cache
def get(name: str) -> Layout:
    """A layout by its name.

    Raises:
        ValueError: there is no such layout; the message names the nearest, or the one that reads a model's type.
    """
    if name not in names():
        of_type = next((layout for layout in names() if name in get(layout).model_types), None)
        got = repr(name) if of_type is None else f"{name!r}, a model_type that layout {of_type} reads"
        fix = did_you_mean(name, names()) if of_type is None else f"pass {of_type!r}, or leave layout= out"
        raise ValueError(f"weights: expected the name of a layout, got {got}; {fix}")
    return with_kin(name, importlib.import_module(f"{__name__}.{name}").LAYOUT)
