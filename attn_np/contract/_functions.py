"""The contracts of the functions below the layers: the checks of their arguments, with the standard library alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as short
from sys import float_info
from typing import Any

from attn_np.contract import alibi, t5_bias
from attn_np.contract._attend import Options
from attn_np.contract._band import FAR, Limits
from attn_np.contract._base import FLOATS, INTEGERS, Spec, check_present, field_error, is_integer, is_number, require
from attn_np.contract._patterns import Pattern, Window, check_pattern
from attn_np.contract._rotary import LAYOUTS, Rotary


def numpy_scalar_to_python(x: Any) -> Any:
    """A number as Python has it, where it is NumPy's; anything else as it is."""
    return x.item() if type(x).__module__ == "numpy" and x.shape == () else x


def python_numbers(to_python_scalar: Callable[[Any], Any], scale: Any, softcap: Any, rate: Any) -> dict[str, Any]:
    """Options of `attend` as Python's numbers; a softcap of 0 is none, as other libraries have it."""
    softcap = to_python_scalar(softcap)
    none = is_number(softcap) and softcap == 0
    return {"scale": to_python_scalar(scale), "softcap": None if none else softcap, "rate": to_python_scalar(rate)}


def python_window(x: Any, to_python_scalar: Callable[[Any], Any]) -> Any:
    """The limits of a window as a tuple of Python's integers; a number alone is the left one."""
    x = to_python_scalar(x)
    if isinstance(x, tuple | list):
        return tuple(to_python_scalar(n) for n in x)
    return (x, None) if is_integer(x) else x


def as_pattern(causal: bool, window: Limits | None, pattern: Pattern | None) -> Pattern | None:
    """Causality, window and pattern as one pattern; None if nothing depends on positions."""
    left, right = window or (None, None)
    if not causal and left is right is None:
        return pattern
    band = Window(left, 0 if causal else right)
    return band if pattern is None else band & pattern


def check_offset_and_lengths(
    specs: Mapping[str, Spec | None], offset: Any, causal: Any, window: Any, pattern: Any
) -> None:
    """Refuse an offset or lengths that cannot be right, and a window or pattern beside them that cannot.

    Args:
        specs: of q, k, lengths and of an offset that is an array.
        offset: one that is not an array.
        causal, window, pattern: as `attend` gets them.

    Raises:
        ValueError: a shape that does not fit, an offset that is not an integer, or a window that cannot be right.
        TypeError: no q or k, arrays of offsets or lengths of another dtype, or what is not a pattern.
    """
    words: dict[str, Any] = {"scale": None, "softcap": None, "normalize_over": "keys", "implementation": "auto"}
    Options(causal=causal, window=window, **words)
    if not isinstance(pattern, Pattern):
        check_pattern("attend", pattern, {}, lambda *_: None)
    q, k = specs["q"], specs["k"]
    for name, spec in (("q", q), ("k", k)):
        shape = check_present("attend", name, spec)[0]
        fits, fix = len(shape) in (3, 4), "put its axes in this order"
        require(fits, "attend", f"{name} with three or four axes", shape, fix)
    if offset is not None and (not is_integer(offset)):
        expected = "offset as an integer, or an array of integers of shape (b,)"
        raise field_error("attend", expected, repr(offset), "0 is the first key")
    for name in ("offset", "lengths"):
        spec, shape = specs[name], q[0][:1] if q else ()
        if spec is not None and spec[1] not in INTEGERS:
            raise TypeError(f"attend: expected {name} as integers, got {spec[1]}; convert it")
        fits = spec is None or spec[0] == shape
        require(fits, "attend", f"{name} of shape (b,) = {shape}", spec and spec[0], "give one for each sequence")


def check_terms(terms: Any, term_class: type) -> None:
    """Refuse `terms` that are not `Term`s.

    Args:
        terms: as `attend` gets them.
        term_class: the class of the package's terms.

    Raises:
        TypeError: naming the type of what is not a term.
    """
    for one in terms if isinstance(terms, list | tuple) else () if terms is None else (terms,):
        if not isinstance(one, term_class):
            got = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
            expected = "attend: expected terms to be one or several of `terms`, such as terms.Slopes(slopes), or None"
            raise TypeError(f"{expected}, got {got}; pass an array of what is added to the scores as bias=")


def check_floats_by_axes(who: str, name: str, axes: str, spec: Spec | None) -> None:
    """Refuse what is no array of floats with these axes.

    Raises:
        ValueError: another number of axes.
        TypeError: no floats.
    """
    check_floats(who, name, spec)
    shape = spec[0] if spec else ()
    require(len(shape) == len(axes.split()), who, f"{name} of shape ({', '.join(axes.split())})", shape, "reshape it")


def check_term_bias(name: str, spec: Spec | None, heads: int, positions: Any) -> None:
    """Refuse what a term's method `bias` returned.

    Raises:
        ValueError: another shape than one number for each head, or for all, and each relative position.
        TypeError: no floats.
    """
    shape, dtype = spec if spec is not None else ((), "None")
    n = positions.shape[0]
    # Not `in`: under torch.compile sizes may be symbols, which no `in` finds.
    fits = len(shape) == 2 and (shape[0] == 1 or shape[0] == heads) and shape[1] == n
    if not fits:
        expected = f"bias(relative_position) of shape (h, n) = ({heads}, {n}), or (1, {n}) for all heads"
        got = shape if spec is not None else "None"
        raise field_error(name, expected, got, "return a number for each head and position")
    if dtype not in FLOATS:
        raise TypeError(f"{name}: expected floats from bias(relative_position), got {dtype}; convert them")


def check_offset(values: tuple[int, ...] | None) -> None:
    """Refuse positions of the first query beyond those that masks can tell apart.

    Args:
        values: the least and the largest, or the only one; None where they are not known.

    Raises:
        ValueError: naming the one that is too far.
    """
    for n in values or ():
        if abs(n) > FAR // 2:
            expected = f"offset from {-FAR // 2} to {FAR // 2}"
            raise field_error("attend", expected, n, "count positions from the first key")


def check_rate_has_keep(rate: Any, keep: Any) -> None:
    """Refuse a dropout rate without `keep`: a function draws nothing.

    Raises:
        ValueError: naming the rate.
    """
    if keep is None and is_number(rate) and 0 < rate < 1:
        fix = "draw it (b h t s, True where a weight is not dropped), or leave rate out"
        raise field_error("attend", "keep= with rate=", f"rate={rate} alone", fix)


def check_lengths(value_range: tuple[int, int] | None) -> None:
    """Refuse lengths below 0, if the least and the largest are known.

    Raises:
        ValueError: naming the least.
    """
    if value_range is not None and value_range[0] < 0:
        raise field_error("attend", "lengths from 0", value_range[0], "count the keys of each sequence that are real")


def check_weights(spec: Spec | None, shape: tuple[int, ...]) -> None:
    """Refuse what a `softmax_fn` returned unless it is an array of weights of this shape.

    Raises:
        ValueError: nothing, or another shape.
        TypeError: no floats.
    """
    fix = "return a weight for each score"
    require(spec is not None, "attend", "an array from softmax_fn", None, fix)
    check_floats("attend", "the weights of softmax_fn", spec)
    got = spec and spec[0]
    require(got == shape, "attend", f"weights of shape {shape} from softmax_fn, as the scores", got, fix)


def check_lse_options(normalize_over: str, has_softmax_fn: bool) -> None:
    """Refuse `return_lse=True` without the softmax over the keys.

    Raises:
        ValueError: naming the option.
    """
    expected = "return_lse=True with the softmax over the keys"
    got = "softmax_fn" if has_softmax_fn else repr(normalize_over)
    require(not has_softmax_fn and normalize_over == "keys", "attend", expected, got, "leave one of them out")


def checked_parts(parts: Any) -> list[Any]:
    """The parts of a call of `merge`, which must be pairs.

    Raises:
        ValueError: there is none, or one is not a pair.
    """
    pairs = list(parts) if isinstance(parts, list | tuple) else []
    are_pairs = bool(pairs) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    are_triples = bool(pairs) and all(isinstance(one, list | tuple) and len(one) == 3 for one in pairs)
    got = f"a list of {len(pairs)}" if isinstance(parts, list | tuple) else type(parts).__name__
    got, fix = ("triples", "leave the weights out") if are_triples else (got, "take them from return_lse=True")
    require(are_pairs, "merge", "a list of pairs (context, lse), at least one", got, fix)
    return pairs


def check_part_specs(parts: list[tuple[Spec | None, Spec | None]]) -> None:
    """Refuse parts that cannot be joined.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: no arrays, or no floats.
    """
    first, fix = parts[0][0], "take both from return_lse=True"
    for context, lse in parts:
        check_present("merge", "context", context, fix)
        check_present("merge", "lse", lse, fix)
        check_floats("merge", "context", context)
        check_floats("merge", "lse", lse)
        require(
            context == first,
            "merge",
            f"contexts of one shape and dtype {first}",
            context,
            "merge contexts of the same queries",
        )
        shape = context[0] if context else (0, 0)
        require(len(shape) in (3, 4), "merge", "contexts b t h v, or b t v without heads", shape, "put axes in order")
        lse_shape = (shape[0], *shape[2:-1], shape[1])
        require(
            lse is not None and lse[0] == lse_shape,
            "merge",
            f"lse of shape {lse_shape}",
            lse and lse[0],
            "put its axes in this order",
        )


def check_floats(who: str, name: str, spec: Spec | None) -> None:
    """Refuse an array that is missing or holds no floats.

    Raises:
        TypeError: naming the array that is missing, or the dtype.
    """
    dtype = check_present(who, name, spec)[1]
    if dtype not in FLOATS:
        fix = f"convert it to one of {', '.join(FLOATS)}"
        raise TypeError(f"{who}: expected {name} of a float dtype, got {dtype}; {fix}")


def check_scores(who: str, scores: Spec | None, mask: Spec | None, axis: Any, alpha: Any = 1.0) -> None:
    """Refuse scores that are not floats, a mask that does not fit, or an axis or alpha that cannot be right.

    Raises:
        ValueError: a shape, an axis or an alpha that cannot be right.
        TypeError: a dtype that cannot be right.
    """
    check_floats(who, "scores", scores)
    shape = scores[0] if scores else ()
    rank = len(shape)
    is_axis = is_integer(axis) and -rank <= axis < rank
    require(is_axis, who, f"axis to be one of the scores' {rank} axes", repr(axis), "count from 0, or back from -1")
    if mask is not None:
        if mask[1] != "bool":
            fix = "pass mask == 1, or add a bias to the scores"
            raise TypeError(f"{who}: expected a boolean mask (True = may attend), got {mask[1]}; {fix}")
        sizes = tuple(shape[rank - len(mask[0]) :])
        fits = len(mask[0]) <= rank and all(n in (1, size) for n, size in zip(mask[0], sizes, strict=True))
        fix = "add axes of size 1 where it does not vary"
        require(fits, who, f"mask broadcastable to the scores' shape {shape}", mask[0], fix)
    if not is_number(alpha) or not 1 <= alpha <= float_info.max:
        raise field_error(who, "alpha to be a finite number from 1", short(alpha), "1 is softmax, 2 is sparsemax")


@dataclass(frozen=True, kw_only=True)
class RotaryAnglesOptions(Rotary):
    """The options of `rotary_angles`, checked as the fields of a layer with rotary positions are.

    Attributes:
        xpos: the divisor of positions in xPos, which scales pair i by decays()[i]^(position / xpos); None: no scaling.
    """

    width: int
    rope_base: float = 10000.0
    rope_layout: str = "half"
    max_positions: int | None = None
    rope_scaling: str | None = None
    rope_scaling_factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    yarn_truncate: bool = True
    attention_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    sections: tuple[int, ...] | None = None
    sections_interleaved: bool = False
    xpos: float | None = None

    def __post_init__(self) -> None:
        self.check_positive("width")
        self.require(self.width % 2 == 0, "an even width", self.width, "two dimensions rotate together")
        self.check_rotary()
        self.check_number("xpos")
        self.require(self.xpos != 0, "xpos other than 0", 0, "leave it out for none")
        self.check_sections("sections")

    def sizes(self) -> dict[str, int]:
        return {"k": self.width}

    def check_positions(self, spec: Spec, limited: bool) -> None:
        """Refuse positions that lack the axis of sections, or have no limit.

        Args:
            spec: of the positions.
            limited: whether max_positions was passed, or the positions are known.

        Raises:
            ValueError: another first axis than one entry for each section, or no limit.
        """
        self.require(limited, "max_positions in a compiled program", "none", "set it above every position")
        count = None if self.sections is None else len(self.sections)
        expected = f"positions with a first axis of {count}, one entry for each section"
        self.require(count is None or spec[0][:1] == (count,), expected, spec[0], "stack them along axis 0")

    def decays(self) -> tuple[float, ...]:
        """The factor of each pair that xPos raises to the power of position / xpos (Sun et al. 2022, section 3)."""
        pairs = self.width // 2
        return tuple((2 * i / self.width + 0.4) / 1.4 for i in range(pairs))


RotaryAnglesOptions.variant = "rotary_angles"


def integer_positions(spec: Spec | None) -> Spec:
    """The spec of positions, which must be integers.

    Raises:
        TypeError: no positions, or no integers.
    """
    spec = check_present("rotary_angles", "positions", spec)
    if spec[1] not in INTEGERS:
        raise TypeError(f"rotary_angles: expected positions as integers, got {spec[1]}; count from 0")
    return spec


def check_angles_or_positions(specs: Mapping[str, Spec | None], has_sin: bool, options: tuple[str, ...]) -> None:
    """Refuse cosines without sines, and options of positions beside angles.

    Args:
        specs: of x and cos, which may be positions.
        has_sin: whether the call has sines.
        options: the names of those that are given.

    Raises:
        ValueError: options beside angles.
        TypeError: no array, or cosines alone.
    """
    check_floats("rotate", "x", specs["x"])
    expected, fix = "no options of positions beside cos and sin", "they are options of rotary_angles"
    require(not (has_sin and options), "rotate", expected, ", ".join(options), fix)
    fix = "pass positions, or both results of rotary_angles"
    dtype = check_present("rotate", "cos", specs["cos"], fix)[1]
    if not has_sin and dtype not in INTEGERS:
        raise TypeError(f"rotate: expected cos and sin, or positions as integers, got {dtype} alone; {fix}")


def check_rotation(x: Spec | None, cos: Spec | None, sin: Spec | None, layout: Any, compute_dtype: str) -> None:
    """Refuse what cannot be rotated.

    Args:
        x, cos, sin: the arrays of a call of `rotate`.
        compute_dtype: the dtype that x is computed in.

    Raises:
        ValueError: a shape that does not fit, or an unknown layout.
        TypeError: a dtype that does not fit.
    """
    check_floats("rotate", "x", x)
    require(layout in LAYOUTS, "rotate", f"layout to be one of {', '.join(LAYOUTS)}", repr(layout), "set layout=")
    shape = x[0] if x else (0, 0, 0)
    require(len(shape) in (3, 4), "rotate", "x of shape (b, t, h, k) or (b, t, k)", shape, "put its axes in this order")
    for name, spec in (("cos", cos), ("sin", sin)):
        angles_shape, dtype = check_present("rotate", name, spec)
        if dtype != compute_dtype:
            raise TypeError(
                f"rotate: expected {name} of dtype {compute_dtype}, as x is computed in, got {dtype}; "
                "make it by rotary_angles with this dtype="
            )
        fits = len(angles_shape) in (2, 3) and angles_shape[-2] == shape[1]
        fits = fits and angles_shape[:-2] in ((), (1,), shape[:1])
        if not fits:
            expected = f"{name} of shape (t, r) or (b, t, r), with t={shape[1]} and b={shape[0]} or 1"
            raise field_error("rotate", expected, angles_shape, "make them by rotary_angles for the positions of x")
    pairs, width = cos[0][-1] if cos else 0, shape[-1]
    if cos != sin:
        raise field_error("rotate", "cos and sin of one shape", f"{cos} and {sin}", "make both by rotary_angles")
    if 2 * pairs > width:
        raise field_error("rotate", f"at most {width // 2} pairs", pairs, "x has two entries for each")


def alibi_slopes(num_heads: Any) -> tuple[float, ...]:
    """How much ALiBi lowers a score for each position of distance, one number for each head.

    For a power of two a geometric sequence down to 2^-8; for another number the sequence of the next lower power, then
    every second slope of the sequence for twice that power (Press et al. 2022, arXiv:2108.12409, and their code).

    Args:
        num_heads: how many heads there are, from 1.

    Raises:
        ValueError: no number of heads.
    """
    num_heads = numpy_scalar_to_python(num_heads)
    is_count = is_integer(num_heads) and num_heads > 0
    require(is_count, "alibi_slopes", "num_heads to be an int from 1", repr(num_heads), "set num_heads")
    return alibi.slopes(num_heads)


@dataclass(frozen=True, kw_only=True)
class RelativeBucketsOptions(t5_bias.Config):
    """The options of `relative_buckets`, checked as the fields of `t5_bias` are."""

    d_model: int = 1
    num_heads: int = 1


RelativeBucketsOptions.variant = "relative_buckets"


def check_relative_positions(spec: Spec | None) -> None:
    """Refuse relative positions that are not signed integers.

    Raises:
        TypeError: no relative positions, or their dtype.
    """
    dtype = check_present("relative_buckets", "relative_positions", spec)[1]
    if dtype not in INTEGERS or dtype.startswith("u"):
        raise TypeError(
            f"relative_buckets: expected relative_positions as signed integers, got {dtype}; take key minus query"
        )
