"""What a kernel takes and promises, where it differs from the signature that it is written for.

Every field is honoured: what a kernel does not take it is never asked, and the verdict says what that was.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

OPTIONS = (
    "causal", "window", "mask", "bias", "slopes", "softcap", "sinks", "dropout", "scale", "grouped", "lengths", "state",
    "beta", "gate", "channel gate", "value width", "unequal lengths", "pattern",
)  # fmt: skip
CORNERS = ("top-left", "bottom-right")
EMPTY_ROWS = ("zero", "nan", "mean", "undefined")


@dataclass(frozen=True)
class Sizes:
    """Sizes of an axis: from the least to the most, multiples of a number; or some alone, such as powers of 2."""

    least: int = 1
    most: int = 10**6
    multiple: int = 1
    only: tuple[int, ...] = ()

    def __contains__(self, n: int) -> bool:
        return n in self.only if self.only else self.least <= n <= self.most and n % self.multiple == 0

    @property
    def largest(self) -> int:
        return max(self.only) if self.only else self.most // self.multiple * self.multiple

    def among(self, wanted: Any) -> tuple[int, ...]:
        """The sizes nearest to what is wanted, each once, in its order."""
        found: dict[int, None] = {}
        for n in wanted:
            if self.only:
                near = min((x for x in self.only if x >= n), default=self.largest)
            else:
                least = -(-self.least // self.multiple) * self.multiple
                near = max(least, min(-(-n // self.multiple) * self.multiple, self.largest))
            found[near] = None
        return tuple(found)


@dataclass(frozen=True)
class Limits:
    """What a kernel takes and promises; those of a signature are what its documents say.

    Attributes:
        dtypes: of queries, keys and values.
        head_dims, value_dims: widths; `value_dims=None`: that of the keys.
        heads: numbers of query heads.
        groups: how many query heads may share a key head.
        head_map: "consecutive": query head i reads key head i // r; "interleaved": i % g.
        batch: sizes of it.
        queries, keys: lengths.
        block: how many queries and keys the kernel takes at once; cases with lengths around it are among the first, and
            one in four.
        options: what may be asked for, of `OPTIONS`; None for all that the signature has.
        apart: sets of options that no call may combine; "gradients" may be one of them.
        forward_only: whether there is no backward pass.
        gradients: of which inputs ("q", "k", "v", "bias", "sinks", "beta", "log_decay", "state"); None for all.
        device: where the arrays lie.
        corner: of causality: "top-left" or "bottom-right".
        window: "inclusive": so many keys besides its own; "count": so many with its own.
        order: in which scale, cap and bias are applied to the products.
        default_scale: None for 1/sqrt(width), or a number.
        scales: those that may be asked for.
        empty_rows: what a query without keys gets: "zero", "nan", "mean" of the values, or "undefined": never asked.
        lse: whether the log-sum-exp is asked for, where the signature returns it.
        lse_base: "e" or "2".
        lse_layout: letters of its axes, b h t.
        lse_gradient, last_gradient: whether it has a gradient, and whether the last state has.
        strides: whether inputs may be views with strides.
        unread: what may hold NaN, since it is never read: "padding" behind lengths, unused "pages", "hidden" keys that
            no query sees and queries that see none.
        broadcast: whether masks and biases may have axes of length 1.
        bias_holds: what a bias may hold: "-inf", which hides, and "large": numbers beyond what an exp takes.
        empty_sequences: whether packed sequences may be empty.
        packed_alike: whether packed queries and keys have the same sequences.
        gate: "log" or "linear": what the gate's numbers are.
        state_layout: "kv" or "vk": axes of the state.
        page_sizes: numbers of keys in a page.
        same_bits: whether a second call returns the same bits.
    """

    dtypes: tuple[str, ...] = ("float32",)
    head_dims: Sizes = Sizes()
    value_dims: Sizes | None = Sizes()
    heads: Sizes = Sizes()
    groups: Sizes = Sizes()
    head_map: str = "consecutive"
    batch: Sizes = Sizes()
    queries: Sizes = Sizes()
    keys: Sizes = Sizes()
    block: int = 16
    options: tuple[str, ...] | None = None
    apart: tuple[tuple[str, ...], ...] = ()
    forward_only: bool = False
    gradients: tuple[str, ...] | None = None
    device: str = "cpu"
    corner: str = "bottom-right"
    window: str = "inclusive"
    order: tuple[str, ...] = ("scale", "cap", "bias")
    default_scale: float | None = None
    scales: tuple[float, ...] = (0.375, 1.0)
    empty_rows: str = "zero"
    lse: bool = True
    lse_base: str = "e"
    lse_layout: str = "bht"
    lse_gradient: bool = False
    last_gradient: bool = True
    strides: bool = True
    unread: tuple[str, ...] = ()
    broadcast: bool = False
    bias_holds: tuple[str, ...] = ()
    empty_sequences: bool = True
    packed_alike: bool = False
    gate: str = "log"
    state_layout: str = "kv"
    page_sizes: tuple[int, ...] = (4, 16)
    same_bits: bool = True

    def __post_init__(self) -> None:
        words = {
            "corner": CORNERS, "empty_rows": EMPTY_ROWS, "lse_base": ("e", "2"), "gate": ("log", "linear"),
            "window": ("inclusive", "count"), "head_map": ("consecutive", "interleaved"), "state_layout": ("kv", "vk"),
        }  # fmt: skip
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Limits: expected {name} of {', '.join(known)}, got {getattr(self, name)!r}; use one of them"
                )
        unknown = sorted({*(self.options or ()), *(x for pair in self.apart for x in pair)} - {*OPTIONS, "gradients"})
        if unknown:
            raise ValueError(f"Limits: expected options of {', '.join(OPTIONS)}, got {unknown}; use one of them")
        if sorted(self.order) != ["bias", "cap", "scale"]:
            raise ValueError(f"Limits: expected an order of scale, cap and bias, got {self.order}; name each once")

    def but(self, **given: Any) -> "Limits":
        """These limits with some fields as given; a number, a pair or triple, or a mapping stands for `Sizes`.

        Raises:
            ValueError: a field that there is none of.
        """
        known = {field.name for field in fields(self)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"limits: expected fields of {', '.join(sorted(known))}, got {unknown}; use one of them")
        sized = ("head_dims", "value_dims", "heads", "groups", "batch", "queries", "keys")
        for name in sized:
            if isinstance(given.get(name), int):
                given[name] = Sizes(given[name], given[name])
            elif isinstance(given.get(name), (tuple, list)):
                given[name] = Sizes(*given[name])
            elif isinstance(given.get(name), dict):
                unknown = sorted(set(given[name]) - {field.name for field in fields(Sizes)})
                if unknown:
                    rule = "least, most, multiple or only"
                    raise ValueError(f"limits: expected {name} with {rule}, got {', '.join(unknown)}; use those")
                of: dict[str, Any] = {key: tuple(x) if key == "only" else x for key, x in given[name].items()}
                given[name] = Sizes(**of)
        return replace(self, **{name: as_tuples(x) for name, x in given.items()})


def as_tuples(x: Any) -> Any:
    """Lists, as JSON has them, and lists within them as tuples."""
    return tuple(map(as_tuples, x)) if isinstance(x, (list, tuple)) else x
