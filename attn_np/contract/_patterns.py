"""Patterns: who may attend to whom, as a condition on positions, instead of an array of `t s`.

    causal_in_chunks = patterns.Chunks(128) & patterns.Causal()
    y, _ = attend(q, k, v, pattern=causal_in_chunks | patterns.GlobalKeys(marks))

A pattern is one method, `allows(query, key)`: sums, differences and distances (`abs`) of positions, which may be
multiplied, floor-divided (`//`) or taken modulo (`%`) an integer, comparisons of these, and `& | ~` between them.
Kernels call it twice:

- with the positions in a block of queries and in a block of keys, as arrays that broadcast: what comes back is the mask
  of the block, the same in every framework;
- before that, with an `Interval` for each block instead of its positions: by interval arithmetic the same expression
  says whether any query of the block may see any key of the other, and whether all see all. So blocks that it
  proves hidden cost nothing, for every pattern that can be written down, and those that it proves visible need no mask
  (JAX builds one anyway).

A pattern of your own is a frozen dataclass whose fields are numbers, None, other patterns, or arrays:

    @dataclass(frozen=True)
    class Strided(Pattern):
        stride: int

        def allows(self, query, key):
            near = query - key < self.stride
            return (near | ((query - key) % self.stride == 0)) & (key <= query)

What depends on more than positions takes arrays: `axes` names the fields that hold one, and says what its axes are.
"""

import dataclasses
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from attn_np.contract._band import FAR, window_limits
from attn_np.contract._base import INTEGERS, Spec, field_error, is_integer, require

# Every class of patterns by its full name: `from_text` makes patterns of them.
PATTERN_CLASSES: dict[str, type["Pattern"]] = {}


@dataclass(frozen=True)
class Pattern:
    """Who may attend to whom. Combine patterns by `&`, `|` and `~`.

    Attributes:
        axes: the axes of each field that is an array: `b t` of the queries, `b s` of the keys, `b` of the batch.
            Integers or booleans; where it must be one of these, `kinds` says which.
        sees_itself: whether every position is sure to see itself where queries and keys have the same positions.
    """

    axes: ClassVar[Mapping[str, str]] = {}
    kinds: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        PATTERN_CLASSES[full_name(cls)] = cls

    def allows(self, query: Any, key: Any) -> Any:
        """Whether a query at each position sees a key at each position: the last query is at the last key."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method allows(query, key), got none; write it")

    @property
    def sees_itself(self) -> bool:
        return False

    def __and__(self, other: "Pattern") -> "Pattern":
        return Both(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: "Pattern") -> "Pattern":
        return Either(self, other) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> "Pattern":
        return Not(self)

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Names and values of its fields."""
        return ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))

    def map(self, change: Callable[[str, Any], Any]) -> Any:
        """The same pattern with every array replaced by `change(axes, array)`."""
        values = {
            name: x.map(change) if isinstance(x, Pattern) else change(self.axes[name], x) if name in self.axes else x
            for name, x in self.fields()
        }
        return type(self)(**values)

    def arrays(self) -> list[tuple[str, Any]]:
        """The axes and the array of every field that holds one, in the order in which `map` changes them."""
        arrays: list[tuple[str, Any]] = []
        self.map(lambda axes, x: arrays.append((axes, x)))
        return arrays

    def as_text(self) -> str:
        """The pattern without its arrays, as text that `from_text` reads: names of classes, values of fields.

        Raises:
            TypeError: a class of that name was made since, as by a second run of a notebook's cell.
        """
        name = full_name(type(self))
        if PATTERN_CLASSES[name] is not type(self):
            raise TypeError(f"{name}: expected one class of this name, got a second; make a pattern of the new class")
        inner = [
            x.as_text() if isinstance(x, Pattern) else array_kind(x) if name in self.axes else repr(x)
            for name, x in self.fields()
        ]
        return " ".join([name, *inner])


def full_name(cls: type[Pattern]) -> str:
    """The name of a class with its module: two modules may have classes of one name."""
    return f"{cls.__module__}.{cls.__qualname__}".replace(" ", "")


def array_kind(x: Any) -> str:
    """The word for an array in the text of a pattern: "booleans" or "integers"."""
    return "booleans" if "bool" in str(x.dtype) else "integers"


def from_text(text: str, array: Callable[[str], Any]) -> Pattern:
    """The pattern of a text; `array(axes)` gives the next array with these axes; it may give booleans as 0 and 1."""
    remaining = iter(text.split())

    def read(axes: str) -> Any:
        word = next(remaining)
        if word in ("booleans", "integers"):
            return array(axes) != 0 if word == "booleans" else array(axes)
        if word not in PATTERN_CLASSES:
            return literal_eval(word)
        cls: Any = PATTERN_CLASSES[word]
        return cls(**{field.name: read(cls.axes.get(field.name, "")) for field in dataclasses.fields(cls)})

    return read("")


ARRAY_AXES = ("b t", "b s", "b")


def check_class(pattern: Pattern) -> None:
    """Refuse a pattern that cannot be taken apart and put together again.

    Raises:
        TypeError: its class is not a frozen dataclass, or a field is neither a number, None, a pattern nor an array.
        ValueError: a field with axes that no array of a pattern has.
    """
    name = type(pattern).__name__
    for cls in type(pattern).__mro__[: type(pattern).__mro__.index(Pattern)]:
        own = vars(cls)
        parameters = own.get("__dataclass_params__")
        if ("__init__" in own or own.get("__annotations__")) and not (parameters and parameters.frozen):
            raise TypeError(f"{name}: expected a frozen dataclass, got {cls.__name__}; write @dataclass(frozen=True)")
    for field, x in pattern.fields():
        if isinstance(x, Pattern):
            check_class(x)
        elif field in pattern.axes:
            axes = pattern.axes[field]
            require(
                axes in ARRAY_AXES,
                name,
                f"axes of {field} to be one of {', '.join(ARRAY_AXES)}",
                repr(axes),
                "choose one",
            )
            wanted = pattern.kinds.get(field)
            if wanted and hasattr(x, "dtype") and array_kind(x) != wanted:
                got = str(x.dtype).rpartition(".")[2]
                raise TypeError(f"{name}: expected {field} as {pattern.kinds[field]}, got {got}; convert it")
        elif not (x is None or isinstance(x, int) or (isinstance(x, float) and isfinite(x))):
            expected = f"{name}: expected {field} to be a number, None or a pattern"
            raise TypeError(f"{expected}, got {x!r}; say by axes= which fields are arrays")


def check_whole_number(pattern: Pattern, name: str, least: int, optional: bool = False) -> None:
    """Refuse a field that is not a whole number from `least`.

    Raises:
        ValueError: naming the field.
    """
    value = getattr(pattern, name)
    fits = is_integer(value) and value >= least
    expected = f"{name} to be a whole number from {least}" + (", or None for no limit" if optional else "")
    require(fits or (optional and value is None), type(pattern).__name__, expected, repr(value), f"set {name}")


def check_pattern(
    who: str, pattern: Any, sizes: Mapping[str, int], spec_of: Callable[[str, str, Any], Spec | None]
) -> None:
    """Refuse what is not a pattern, and arrays in one that do not fit the call.

    Raises:
        ValueError: an array of another shape.
        TypeError: no pattern, or an array of another kind than integers or booleans.
    """
    if pattern is None:
        return
    if not isinstance(pattern, Pattern):
        expected = f"{who}: expected pattern to be one of `patterns`, such as patterns.Chunks(128), or None"
        raise TypeError(f"{expected}, got {type(pattern).__name__}; pass an array of who sees whom as mask=")
    check_class(pattern)
    for axes, x in pattern.arrays():
        spec = spec_of(who, "an array of the pattern", x)
        shape, dtype = spec if spec is not None else ((), "None")
        expected_shape = tuple(sizes[letter] for letter in axes.split())
        if shape != expected_shape:
            raise field_error(who, f"an array of the pattern of shape {axes} = {expected_shape}", shape, "reshape it")
        if dtype not in (*INTEGERS, "bool"):
            raise TypeError(
                f"{who}: expected integers or booleans in a pattern's array {axes}, got {dtype}; convert it"
            )


@dataclass(frozen=True)
class Both(Pattern):
    """What two patterns allow: `first & second`."""

    first: Pattern
    second: Pattern

    def allows(self, query: Any, key: Any) -> Any:
        return self.first.allows(query, key) & self.second.allows(query, key)

    @property
    def sees_itself(self) -> bool:
        return self.first.sees_itself and self.second.sees_itself


@dataclass(frozen=True)
class Either(Pattern):
    """What either of two patterns allows: `first | second`."""

    first: Pattern
    second: Pattern

    def allows(self, query: Any, key: Any) -> Any:
        return self.first.allows(query, key) | self.second.allows(query, key)

    @property
    def sees_itself(self) -> bool:
        return self.first.sees_itself or self.second.sees_itself


@dataclass(frozen=True)
class Not(Pattern):
    """What a pattern does not allow: `~pattern`, or `Not(pattern)` where torch.compile must trace it."""

    pattern: Pattern

    def allows(self, query: Any, key: Any) -> Any:
        return ~self.pattern.allows(query, key)


@dataclass(frozen=True)
class Window(Pattern):
    """The keys from `left` before to `right` after the query's own position; None for no limit on that side."""

    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        check_whole_number(self, "left", 0, optional=True)
        check_whole_number(self, "right", 0, optional=True)

    def allows(self, query: Any, key: Any) -> Any:
        left, right = window_limits((self.left, self.right))
        relative_position = key - query
        return (relative_position >= -(FAR if left is None else left)) & (
            relative_position <= (FAR if right is None else right)
        )

    @property
    def sees_itself(self) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Pattern):
    """The query's own position and earlier keys."""

    def allows(self, query: Any, key: Any) -> Any:
        return key <= query

    @property
    def sees_itself(self) -> bool:
        return True


@dataclass(frozen=True)
class Chunks(Pattern):
    """The keys of the query's own chunk, of `left` chunks before it and `right` after it, counted from position 0.

    Without neighbours it is Llama 4's attention_chunk_size, with them the window of BigBird's blocks.
    """

    size: int
    left: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        check_whole_number(self, "size", 1)
        check_whole_number(self, "left", 0)
        check_whole_number(self, "right", 0)

    def allows(self, query: Any, key: Any) -> Any:
        size, left, right = (min(n, FAR) for n in (self.size, self.left, self.right))
        ahead = key // size - query // size
        return (ahead >= -left) & (ahead <= right)

    @property
    def sees_itself(self) -> bool:
        return True


@dataclass(frozen=True)
class ChosenChunk(Pattern):
    """The keys of a chunk chosen for each query, by its number, `b t`, such as a random block's; -1 for none."""

    size: int
    chunk_index: Any
    axes = {"chunk_index": "b t"}
    kinds = {"chunk_index": "integers"}

    def __post_init__(self) -> None:
        check_whole_number(self, "size", 1)

    def allows(self, query: Any, key: Any) -> Any:
        return key // min(self.size, FAR) == self.chunk_index


@dataclass(frozen=True)
class Dilated(Pattern):
    """The keys whole multiples of `dilation` positions away, on either side: Child et al. 2019, arXiv:1904.10509."""

    dilation: int

    def __post_init__(self) -> None:
        check_whole_number(self, "dilation", 1)

    def allows(self, query: Any, key: Any) -> Any:
        dilation = min(self.dilation, FAR)
        return key % dilation == query % dilation

    @property
    def sees_itself(self) -> bool:
        return True


@dataclass(frozen=True)
class Documents(Pattern):
    """The keys of the query's own document, by number: `b t` of the queries and `b s` of the keys."""

    query_documents: Any
    key_documents: Any
    axes = {"query_documents": "b t", "key_documents": "b s"}
    kinds = {"query_documents": "integers", "key_documents": "integers"}

    def allows(self, query: Any, key: Any) -> Any:
        return self.query_documents == self.key_documents

    @property
    def sees_itself(self) -> bool:
        return self.query_documents is self.key_documents


@dataclass(frozen=True)
class Prefix(Pattern):
    """The first keys of each sequence; `length`, with axis `b`, says how many."""

    length: Any
    axes = {"length": "b"}
    kinds = {"length": "integers"}

    def allows(self, query: Any, key: Any) -> Any:
        return key < self.length


@dataclass(frozen=True)
class GlobalKeys(Pattern):
    """The marked keys, `b s`, which every query sees."""

    marks: Any
    axes = {"marks": "b s"}
    kinds = {"marks": "booleans"}

    def allows(self, query: Any, key: Any) -> Any:
        return self.marks


@dataclass(frozen=True)
class GlobalQueries(Pattern):
    """The marked queries, `b t`, see every key; the others see none."""

    marks: Any
    axes = {"marks": "b t"}
    kinds = {"marks": "booleans"}

    def allows(self, query: Any, key: Any) -> Any:
        return self.marks


@dataclass(frozen=True)
class At(Pattern):
    """What a pattern shows to queries and keys that stand at positions of their own: `b t` and `b s`.

    So a call may hold some queries and keys of a longer sequence, in any order. Causality, a window and an offset of
    the call itself still count its own queries and keys.
    """

    pattern: Pattern
    query_positions: Any
    key_positions: Any
    axes = {"query_positions": "b t", "key_positions": "b s"}
    kinds = {"query_positions": "integers", "key_positions": "integers"}

    def allows(self, query: Any, key: Any) -> Any:
        return self.pattern.allows(self.query_positions, self.key_positions)

    @property
    def sees_itself(self) -> bool:
        return self.pattern.sees_itself and self.query_positions is self.key_positions
