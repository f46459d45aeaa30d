"""The check of new values for a layer's parameters, with the standard library alone."""

from collections.abc import Callable, Mapping
from typing import Any

from attn_np.contract._base import check_present, field_error, require


def checked_params(
    variant: str,
    params: Mapping[str, Any],
    values: Any,
    check_arrays: Callable[..., object],
    dtype_name: Callable[[Any], str],
) -> dict[str, Any]:
    """New values of a layer's parameters, in the order of these; refuses all of them if one does not fit.

    Only shapes and dtype names are looked at, so the arrays may be traced.

    Args:
        params: the parameters as they are.
        values: the new ones; each is read once.
        check_arrays: the package's `checked_specs`.
        dtype_name: the package's name of an array's dtype.

    Raises:
        ValueError: a name that is missing or unknown, or another shape or dtype than the parameter's.
        TypeError: no dictionary, or a value that is no array of the package.
    """
    if not isinstance(values, Mapping):
        fix = "pass one such as params() returns"
        raise TypeError(f"{variant}: expected a dictionary of arrays by name, got {type(values).__name__}; {fix}")
    missing, unknown = [n for n in params if n not in values], [n for n in values if n not in params]
    if missing or unknown:
        parts = [f"none for {', '.join(missing)}"] * bool(missing)
        parts += [f"the unknown {', '.join(map(str, unknown))}"] * bool(unknown)
        expected, fix = "a value for each of the layer's parameters and no others", "pass the names of params()"
        raise field_error(variant, expected, " and ".join(parts), fix)
    values = {name: values[name] for name in params}
    check_arrays(variant, **values)
    for name, x in params.items():
        given: Any = values[name]
        check_present(variant, name, given, "give one, or leave the layer as it is")
        shape, dtype = tuple(x.shape), dtype_name(x)
        require(tuple(given.shape) == shape, variant, f"{name} of shape {shape}", tuple(given.shape), "reshape it")
        fits, fix = dtype_name(given) == dtype, "convert it, or build the layer with another dtype"
        require(fits, variant, f"{name} of dtype {dtype}, as the layer has", dtype_name(given), fix)
    return values
