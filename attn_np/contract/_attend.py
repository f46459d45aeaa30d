"""The contract of `attend`: the check of its arguments, with the standard library alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_np.contract._base import FLOATS, Arg, Config, Spec, field_error, is_number, require
from attn_np.contract._tape import wants_intermediates

# "auto" takes the fast path where it computes the same and no tape asks for intermediates; "fused" takes it or raises.
IMPLEMENTATIONS = ("auto", "textbook", "fused")

# The axis of the scores along which the weights add up to 1.
SOFTMAX_AXIS = {"keys": -1, "queries": -2}


@dataclass(frozen=True, kw_only=True)
class AttendArguments(Config):
    """The arrays of a call of `attend`, checked as the arguments of a layer are."""

    head_axis: bool

    def sizes(self) -> dict[str, int]:
        return {}

    def arguments(self) -> dict[str, Arg]:
        arguments = {
            "q": Arg("b t h k"),
            "k": Arg("b s g k"),
            "v": Arg("b s g v"),
            "mask": Arg("b h t s", "mask", optional=True),
            "bias": Arg("b h t s", "bias", optional=True),
            "sinks": Arg("h", "bias", optional=True),
            "keep": Arg("b h t s", "keep", optional=True),
        }
        return arguments if self.head_axis else {name: arg.without("h", "g") for name, arg in arguments.items()}


AttendArguments.variant = "attend"
WITH_HEADS, WITHOUT_HEADS = AttendArguments(head_axis=True), AttendArguments(head_axis=False)


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    """The options of a call of `attend`, checked as the fields of a layer's Config are."""

    causal: bool
    window: tuple[int | None, int | None] | None
    scale: float | None
    softcap: float | None
    normalize_over: str
    implementation: str

    def __post_init__(self) -> None:
        self.check_one_of("implementation", IMPLEMENTATIONS)
        self.check_one_of("normalize_over", tuple(SOFTMAX_AXIS))
        self.check_flag("causal")
        self.check_window("window")
        self.check_number("scale")
        self.check_number("softcap", above=0.0)


Options.variant = "attend"


def takes_fast_path(
    implementation: str,
    tape: Any,
    supported: bool,
    *,
    return_weights: bool,
    normalize_over: str,
    softmax_fn: object,
    keep: object,
) -> bool:
    """Whether a call takes the fast path, which never forms the weights.

    Args:
        supported: whether the arrays are of the package's own type, as the fast path needs (always, in PyTorch).

    Raises:
        ValueError: another word; "fused" with an argument that needs the weights or with other arrays; a `softmax_fn`
            not callable.
    """
    if implementation not in IMPLEMENTATIONS:
        expected = f"implementation to be one of {', '.join(IMPLEMENTATIONS)}"
        raise field_error("attend", expected, repr(implementation), "set implementation=")
    if softmax_fn is not None and not callable(softmax_fn):
        expected = "softmax_fn to be a function of the scores and the mask, or None"
        raise field_error("attend", expected, repr(softmax_fn), "set softmax_fn=")
    needs_weights = return_weights or softmax_fn is not None or keep is not None or normalize_over == "queries"
    if implementation == "fused":
        names = " and ".join(uses_of_weights(return_weights, normalize_over, softmax_fn, keep))
        expected = "implementation='fused' without arguments that need the weights"
        require(not needs_weights, "attend", expected, names, "leave it out, or set implementation='auto'")
        expected = "implementation='fused' with plain arrays of the framework"
        require(supported, "attend", expected, "others", "set implementation='auto'")
    return (
        supported
        and not needs_weights
        and (
            implementation == "fused" or (implementation == "auto" and (tape is None or not wants_intermediates(tape)))
        )
    )


def uses_of_weights(return_weights: bool, normalize_over: str, softmax_fn: object, keep: object) -> list[str]:
    """The arguments that need the weights, by name."""
    uses = {"return_weights": return_weights, "softmax_fn": softmax_fn is not None, "keep": keep is not None}
    uses["normalize_over='queries'"] = normalize_over == "queries"
    return [name for name, used in uses.items() if used]


def why_textbook(
    implementation: str,
    tape: Any,
    supported: bool,
    return_weights: bool,
    normalize_over: str,
    softmax_fn: object,
    keep: object,
    **_: Any,
) -> list[str]:
    """Each condition for which `takes_fast_path`, called with the same, is False."""
    reasons = uses_of_weights(return_weights, normalize_over, softmax_fn, keep)
    reasons += [] if supported else ["arrays that are not the framework's own"]
    reasons += ["implementation='textbook'"] if implementation == "textbook" else []
    return reasons + (["a tape"] if implementation == "auto" and wants_intermediates(tape) else [])


def check_softmax_fn(has_softmax_fn: bool, sinks: bool, normalize_over: str) -> None:
    """Refuse `softmax_fn` together with options of the softmax.

    Raises:
        ValueError: `softmax_fn` with sinks, or with weights that add up over the queries.
    """
    if has_softmax_fn:
        expected = "softmax_fn without sinks and with normalize_over='keys', which belong to the softmax"
        got = f"{'sinks' if sinks else 'no sinks'}, {normalize_over!r}"
        require(not sinks and normalize_over == "keys", "attend", expected, got, "leave them out")


def swapped_axes_hint(specs: Mapping[str, Spec | None]) -> str:
    """A hint for the end of an error where a call may have the axes of PyTorch's function, `b h t k`; else nothing.

    Then axis 1 counts heads: k and v have as many, q as many or a multiple, and the lengths on axis 2 differ, or a mask
    has the two lengths.
    """
    arrays, others = (specs["q"], specs["k"], specs["v"]), (specs["mask"], specs["bias"], specs["keep"])
    shapes = [spec[0] for spec in arrays if spec and len(spec[0]) == 4]
    if len(shapes) < 3:
        return ""
    (q, k, v), heads, kv_heads = shapes, shapes[0][1], shapes[1][1]
    pairs = [spec[0][-2:] for spec in others if spec and len(spec[0]) >= 2]
    if v[1] != kv_heads or kv_heads == 0 or heads % kv_heads or (q[2] == k[2] and (q[2], k[2]) not in pairs):
        return ""
    counts = (
        f"{heads} in all three: if that counts"
        if heads == kv_heads
        else f"{heads} in q and {kv_heads} in k and v: if these count"
    )
    return f". Axis 1 is {counts} heads, swap axes 1 and 2, or call drop_in.scaled_dot_product_attention"


def check(
    specs: Mapping[str, Spec | None],
    options: Options,
    rate: float,
    has_softmax_fn: bool,
    check_specs: Callable[[Config, str | None, Mapping[str, Spec | None]], dict[str, int]],
) -> dict[str, int]:
    """The size of every axis letter of a call; a call that cannot be right is refused.

    The bias and the sinks may have another float dtype than the rest: a 16-bit layer upcasts its queries before it
    calls `attend`.

    Args:
        specs: shape and dtype name of q, k, v, mask, bias, sinks and keep; None for one that was left out.
        options: checked when they were made.
        rate: the dropout rate.
        check_specs: the package's function that checks specs against axes and caches the result.

    Raises:
        ValueError: a shape, a rate, sinks or a softmax_fn that does not fit.
        TypeError: a dtype that does not fit.
    """
    q, sinks, normalize_over = specs["q"], specs["sinks"], options.normalize_over
    rank = 4 if q is None else len(q[0])
    if rank not in (3, 4):
        expected = "q of shape (b, t, h, k), or (b, t, k) for one head"
        raise field_error("attend", expected, q and q[0], "put its axes in this order")
    declared = WITH_HEADS if rank == 4 else WITHOUT_HEADS
    with_dtype_of_q = {
        name: (x[0], q[1]) if name in ("bias", "sinks") and q and x and x[1] in FLOATS else x
        for name, x in specs.items()
    }
    try:
        sizes = check_specs(declared, None, with_dtype_of_q)
    except ValueError as error:
        raise ValueError(f"{error}{swapped_axes_hint(specs) if declared.head_axis else ''}") from None
    if sinks is not None:
        possible = declared.head_axis and normalize_over == "keys" and sinks[0] == (sizes["h"],)
        expected = "one sink for each head of q, and normalize_over='keys'"
        require(possible, "attend", expected, f"sinks of shape {sinks[0]}, {normalize_over!r}", "leave sinks out")
    if declared.head_axis and (sizes["g"] == 0 or sizes["h"] % sizes["g"] != 0):
        expected = "the heads of q to be a multiple of those of k, which has at least 1"
        fix = f"share each key/value head among equally many query heads{swapped_axes_hint(specs)}"
        raise field_error("attend", expected, f"{sizes['h']} and {sizes['g']}", fix)
    require(sizes["k"] > 0, "attend", "q and k of width at least 1", "width 0", "give them at least one dimension")
    if not is_number(rate) or not 0 <= rate < 1:
        raise field_error("attend", "rate in [0, 1)", repr(rate), "it is the share of weights set to 0")
    check_softmax_fn(has_softmax_fn, sinks is not None, normalize_over)
    return sizes
