"""Compare any two modules: run both, listen to their submodules, and say where they part."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.ports.modules.bounds import gap
from parity_tests.ports.modules.choose import side_of
from parity_tests.ports.modules.comparison import ModuleComparison
from parity_tests.ports.modules.names import Names, copied, pairs, translated
from parity_tests.ports.modules.recordings import Recording, load_modules
from parity_tests.ports.modules.rows import Row
from parity_tests.ports.modules.sides import Caller, Mode, Side, as_numpy, go_on, record
from parity_tests.ports.modules.terminal import done, progress
from parity_tests.ports.modules.walk import compare_recordings
from parity_tests.ports.zero_key import refuse_zero_key, variants_in

__all__ = [
    "ModuleComparison",
    "Recording",
    "Row",
    "compare_modules",
    "compare_recordings",
    "load_modules",
    "record_modules",
]


def compare_modules(
    a: Any,
    b: Any,
    inputs: Any,
    *,
    names: Names = None,
    weights: str | None = "copy",
    calls: tuple[Caller, Caller] = (None, None),
    framework: str | None = None,
    tokens: Any = None,
) -> ModuleComparison:
    """Run two modules on the same inputs and weights, and find the first submodule that differs.

    Both run in float64 and in their own types, and the difference of the two runs gives the bounds
    (`parity_tests.ports.modules.bounds`). Neither module is changed. Nothing is put into evaluation mode: do that
    first.

    Args:
        a, b: torch modules, Flax NNX modules, Linen modules as `(module, variables)` or, if it gets the weights of the
            other, alone; or a function.
        inputs: positional inputs in a tuple, or keyword inputs in a dictionary, of both; arrays of any framework,
            nested as the modules take them.
        names: names in a to names in b, such as `{"layers.{i}.mlp": "blocks.{i}.ffn"}`; of modules, which holds for all
            inside, or of weights. Equal names need none. With axes for a weight that is stored in another order:
            `{"q_proj.weight": ("w_q", "(h k) d -> d h k")}`. Kernels of Flax are turned without.
        weights: "copy" runs b with the weights of a; a function then takes a dictionary of them first, under the names
            that `names` gives them. None leaves each side its own.
        calls: functions that call a and b, as `call(module, *inputs)`, where they are not called alike.
        framework: whose arrays a function takes: "numpy", "torch" or "jax".
        tokens: which positions of a padded batch hold tokens, `b t`, as a mask of 1 and 0 or of booleans. Others are
            compared nowhere, and take no part in the output whose gradients are compared. By default an input of this
            form by the name of `attention_mask`, but where there are inputs of a decoder as well; False compares all.

    Returns:
        Where they part, and every submodule that both have; `print` it.

    Raises:
        ValueError, TypeError: names, weights, inputs or outputs that do not fit.
    """
    if weights not in ("copy", None):
        raise ValueError(f"compare_modules: expected weights= 'copy' or None, got {weights!r}; choose one")
    for module, other_module in ((a, b), (b, a)):
        if isinstance(module, type):
            raise TypeError(
                f"compare_modules: expected a module, got the class {module.__name__}; build one of it first"
            )
        refuse_zero_key("compare_modules", module, tuple(variants_in(other_module)))
    one, other = (
        side_of(module, call, framework, weights == "copy" and module is b, inputs)
        for module, call in zip((a, b), calls, strict=True)
    )
    one.adapted, other.adapted = (call is not None for call in calls)
    held = tokens_of(tokens, inputs)
    recorded = record(one, inputs, tokens=held, say=progress("a", one))
    params: dict[str, Any] = {}
    if weights == "copy" and not other.weights:
        params = renamed(recorded, names)
    elif weights == "copy":
        params = copied(recorded, pairs(recorded, other, names, need_all=True))
    partner = record(other, inputs, params, held, progress("b", other, params))

    def local(of_a: Any, of_b: Any) -> Any:
        return go_on(one, recorded, of_a), go_on(other, partner, of_b)

    result = compare_recordings(recorded, partner, names, local if one.constants or other.constants else None)
    if not result.agree:
        refuse_chance(("a", one, recorded), ("b", other, partner))
    done()
    return result


def tokens_of(tokens: Any, inputs: Any) -> np.ndarray | None:
    """Which positions hold tokens, as booleans; None where all are compared.

    Raises:
        ValueError: anything else than 0 and 1 for each position of each row.
    """
    if tokens is None and isinstance(inputs, Mapping) and not any(str(key).startswith("decoder") for key in inputs):
        mask = inputs.get("attention_mask")
        mask = None if mask is None else as_numpy(mask)
        fits = mask is not None and mask.ndim == 2 and mask.dtype.kind in "biu" and np.isin(mask, (0, 1)).all()
        return mask == 1 if fits and mask.any() and not mask.all() else None  # type: ignore[union-attr] - it fits
    if tokens is None or tokens is False:
        return None
    mask = as_numpy(tokens)
    if mask.ndim != 2 or not np.isin(mask, (0, 1)).all() or not mask.any():
        raise ValueError(
            f"compare_modules: expected tokens= 1 for each position that holds one and 0 for padding, of shape "
            f"(batch, time), got the shape {mask.shape}; give the mask of padding before it is one of pairs or a bias"
        )
    return mask == 1


def refuse_chance(*sides: tuple[str, Side, Recording]) -> None:
    """Two runs of one side that differ would be taken for a mistake.

    Raises:
        ValueError: a side gives other numbers when it is run again.
    """
    for name, side, recording in sides:
        again = side.run(*side.given, recording.weights, Mode("float64", exact=True, gradients=False)).calls[-1].outputs
        if any(gap(x, again[key]) for key, x in recording.exact.calls[-1].outputs.items()):
            raise ValueError(
                f"compare_modules: expected equal numbers from equal runs, but two runs of {name} give other numbers; "
                f"call eval() first, as dropout belongs to training, and leave nothing else to chance"
            )


def renamed(recording: Recording, names: Names) -> dict[str, Any]:
    """The weights of a recording under the names that a function has for them, in their own axes."""
    return {translated(name, names)[0]: x for name, x in recording.weights.items()}


def record_modules(
    module: Any,
    inputs: Any,
    path: str | PathLike[str] | None = None,
    *,
    like: str | PathLike[str] | None = None,
    names: Names = None,
    call: Caller = None,
    framework: str | None = None,
    tokens: Any = None,
    overwrite: bool = False,
) -> Recording:
    """Run one module, listen to its submodules, and write all of it to a file for `compare_recordings`.

    Args:
        module, inputs, call, framework, tokens: as for `compare_modules`.
        path: the file to write; None writes none.
        like: the recording of the other side, whose weights this module gets.
        names: names of the other side's to names in this module.
        overwrite: replace the file to write, where it exists.

    Returns:
        The recording.

    Raises:
        ValueError, TypeError: names, weights or inputs that do not fit.
    """
    if path is not None and Path(path).exists():
        is_read = like is not None and Path(path).samefile(like)
        fix = "which is read; name another" if is_read else "which exists; name another or pass overwrite=True"
        if is_read or not overwrite:
            raise ValueError(f"record_modules: expected a new file, got {fspath(path)}, {fix}")
    side = side_of(module, call, framework, like is not None, inputs)
    side.adapted = call is not None
    params: Mapping[str, Any] = {}
    if like is not None:
        other = load_modules(like)
        params = copied(other, pairs(other, side, names, need_all=True)) if side.weights else renamed(other, names)
    recording = record(side, inputs, dict(params), tokens_of(tokens, inputs), progress("the module", side, params))
    done()
    if path is not None:
        recording.save(path)
    return recording
