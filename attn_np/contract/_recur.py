"""The contract of `recur`: the checks of its arguments, with the standard library alone."""

from collections.abc import Mapping
from reprlib import repr as short
from sys import float_info
from typing import Any

from attn_np.contract._base import FLOATS, INTEGERS, Spec, check_present, field_error, is_integer, is_number, require
from attn_np.contract._states import FORMS

# Whether a rule decays the state, and whether it erases a key's old value.
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def has_delta_rule(rule: str) -> bool:
    """Whether a rule removes the old value of a key before it writes the new one."""
    return RULES[rule][1]


def check_recur(
    specs: Mapping[str, Spec | None], rule: Any, form: Any, chunk_size: Any, scale: Any, compute_dtype: str
) -> None:
    """Refuse a call of `recur` that cannot be right.

    Args:
        specs: of q, k, v, beta, decay, state, documents and erase_key.
        compute_dtype: the dtype that q is computed in.

    Raises:
        ValueError: a shape that does not fit, an unknown word, or a decay that is missing or has no use.
        TypeError: a dtype that does not fit.
    """
    for name, word, choices in (("rule", rule, tuple(RULES)), ("form", form, FORMS)):
        is_known = isinstance(word, str) and word in choices
        require(is_known, "recur", f"{name} to be one of {', '.join(choices)}", repr(word), f"set {name}=")
    is_count = is_integer(chunk_size) and chunk_size > 0
    require(is_count, "recur", "chunk_size to be an integer of at least 1", repr(chunk_size), "64 is usual")
    fits = scale is None or (is_number(scale) and abs(scale) <= float_info.max)
    fix = "leave it out for 1/sqrt(K), and multiply q by what is learned"
    require(fits, "recur", "scale to be a finite int or float", short(scale), fix)
    q, k, v = (spec_or_default(specs, name, ()) for name in "qkv")
    for name, (shape, _) in (("q", q), ("k", k), ("v", v)):
        require(len(shape) == 4, "recur", f"{name} with four axes", shape, "batch, positions, heads, width")
    (b, t, h, width), (g, value_width) = q[0], v[0][2:]
    shapes = {"k": (b, t, g, width), "v": (b, t, g, value_width), "state": (b, g, width, value_width)}
    fix = "q is b t h k, k is b t g k, v is b t g v, a state is b g k v"
    for name, shape in (shapes | {"beta": (b, t, g), "erase_key": k[0]}).items():
        spec = specs.get(name)
        require(spec is None or spec[0] == shape, "recur", f"{name} of shape {shape}", spec and spec[0], fix)
    require(h > 0 and width > 0, "recur", "q with at least one head and a width", q[0], "q is b t h k")
    if g <= 0 or h % g:
        raise field_error(
            "recur", f"queries with a multiple of the {g} heads of keys and values", h, "repeat some heads"
        )
    decays = RULES[rule][0]
    has_decay = specs["decay"] is not None
    expected = f"decay= with rule={rule!r}" if decays else f"no decay= with rule={rule!r}"
    other = "delta" if rule == "gated_delta" else "linear"
    fix = f"rule={other!r} has none" if decays else f"rule={'gated' if rule == 'linear' else 'gated_delta'!r} has one"
    require(has_decay == decays, "recur", expected, "one" if has_decay else "none", fix)
    shape = spec_or_default(specs, "decay", (g,))[0]
    decay_shapes = (g,), (g, width), (b, t, g), (b, t, g, width)
    if shape not in decay_shapes:
        expected = f"decay of shape (g,), (g, k), (b, t, g) or (b, t, g, k), with b={b}, t={t}, g={g}, k={width}"
        raise field_error("recur", expected, shape, "give one for each head, or for each channel of the keys")
    erases, rules = specs.get("erase_key") is not None, "rule='delta' and rule='gated_delta' have one"
    fits = not erases or has_delta_rule(rule)
    require(fits, "recur", f"no erase_key= with rule={rule!r}", "one", rules)
    documents = specs.get("documents")
    if documents is not None:
        fix = "one number for each position"
        require(documents[0] == (b, t), "recur", f"documents of shape {(b, t)}", documents[0], fix)
        if documents[1] not in INTEGERS:
            fix = "pass the number of each position's document"
            raise TypeError(f"recur: expected documents of integers, got {documents[1]}; {fix}")
    for name, spec in specs.items():
        if name == "documents":
            continue
        allowed = {"q": FLOATS, "k": (q[1],), "v": (q[1],), "erase_key": (q[1],), "state": (compute_dtype,)}.get(
            name, (q[1], compute_dtype)
        )
        if spec is not None and spec[1] not in allowed:
            raise TypeError(f"recur: expected {name} of dtype {' or '.join(allowed)}, got {spec[1]}; convert it")


def check_decay(value_range: tuple[float, float] | None) -> None:
    """Refuse decays outside 0 to 1, if the least and the largest are known.

    Raises:
        ValueError: naming the range.
    """
    if value_range is not None and (value_range[0] < 0 or value_range[1] > 1):
        got, fix = f"{value_range[0]:g} to {value_range[1]:g}", "pass the factor itself, not its logarithm"
        raise field_error("recur", "decay from 0 to 1", got, fix)


def check_qkv_present(specs: Mapping[str, Spec | None]) -> None:
    """Refuse a call of `recur` without queries, keys or values.

    Raises:
        TypeError: naming the first that is missing.
    """
    for name in "qkv":
        check_present("recur", name, specs[name])


def spec_or_default(specs: Mapping[str, Spec | None], name: str, default: tuple[int, ...]) -> Spec:
    """The spec of an argument, or one with the shape `default` if it was left out."""
    return specs[name] or (default, "")
