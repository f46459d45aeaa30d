"""The contract of all three packages: configs, axes, checks and examples, with the standard library alone."""

import contextlib
import difflib
import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from attn_np.contract._base import Arg as Arg
from attn_np.contract._base import Config as Config
from attn_np.contract._base import Param as Param
from attn_np.contract._base import Preset as Preset
from attn_np.contract._base import annotated_names as annotated_names
from attn_np.contract._base import check_config as check_config
from attn_np.contract._base import check_index as check_index
from attn_np.contract._base import device_error as device_error
from attn_np.contract._base import field_error as field_error
from attn_np.contract._base import float_dtype_name as float_dtype_name
from attn_np.contract._base import memoized_check as memoized_check
from attn_np.contract._base import require as require
from attn_np.contract._base import under_prefix as under_prefix
from attn_np.contract._tape import Scope as Scope
from attn_np.contract._tape import record as record
from attn_np.contract._tape import scope as scope
from attn_np.contract._tape import tap_step as tap_step
from attn_np.contract._tape import wants_intermediates as wants_intermediates


@cache
def variants() -> tuple[str, ...]:
    """Names of every variant, in alphabetical order: one contract module each."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def did_you_mean(name: Any, known: tuple[str, ...] | list[str]) -> str:
    """A hint for the end of an error message: the known names closest to `name`, else all known ones."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) if isinstance(name, str) else []
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose one of {', '.join(known)}"


def get(variant: str) -> ModuleType:
    """The contract module of a variant; for a preset, that of its variant.

    Raises:
        ValueError: there is no such variant; the message names the nearest.
    """
    if variant not in variants():
        if variant in presets():
            return get(presets()[variant][0])
        known, names = [*variants(), *presets()], importlib.import_module(f"{__name__}._names")
        fix = names.meant(variant, variant_by_class_name(), known) if isinstance(variant, str) else ""
        fix = fix or did_you_mean(variant, known)
        raise ValueError(f"expected the name of a variant, got {variant!r}; {fix}")
    return importlib.import_module(f"{__name__}.{variant}")


@cache
def presets() -> dict[str, tuple[str, Preset]]:
    """Every preset by name, with its variant."""
    by_name = [
        (name, (variant, preset))
        for variant in variants()
        for name, preset in getattr(get(variant), "PRESETS", {}).items()
    ]
    return dict(sorted(by_name))


def config(variant: str, /, **fields: Any) -> Config:
    """The Config of a variant or a preset, from fields as `build` and weight files pass them.

    Raises:
        ValueError: unknown variant, or a value that the contract refuses.
        TypeError: a field that the variant does not have, or a missing one.
    """
    cls = get(variant).Config
    names = cls.fields()
    if variant not in variants():
        fields = {**presets()[variant][1].fields, **fields}
    for name in fields:
        if name not in names:
            fix = importlib.import_module(f"{__name__}._names").field_meant(name, names)
            raise TypeError(f"{variant}: expected one of its fields, got {name!r}; {fix}")
    missing = [name for name in cls.required() if name not in fields]
    if missing:
        raise TypeError(f"{variant}: expected a value for {', '.join(missing)}, got none; pass {missing[0]}=")
    return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})


def examples(variant: str) -> dict[str, Config]:
    """Two to five configs of a variant, by a short name; for nearly every pair of axes one where their sizes differ.

    Those of a preset are those of its variant that may have its fields, with them.
    """
    found = get(variant).EXAMPLES
    if variant not in presets():
        return found
    fields, own = presets()[variant][1].fields, {}
    for name, example in found.items():
        with contextlib.suppress(ValueError):  # an example whose other fields do not go with the preset's
            own[name] = replace(example, **fields)
    return own


@cache
def variant_by_class_name() -> dict[str, str]:
    """Class name to variant, over all variants."""
    return {get(name).Config.class_name: name for name in variants()}
