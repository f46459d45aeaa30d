"""The base of every contract: parameters and arguments by axis letters, and the checks that follow from them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from inspect import get_annotations
from math import prod
from reprlib import repr as short
from sys import float_info
from typing import Any, ClassVar, Literal

from attn_np.contract._words import Spec as Spec
from attn_np.contract._words import check_present as check_present
from attn_np.contract._words import compose_doc
from attn_np.contract._words import field_error as field_error
from attn_np.contract._words import is_integer as is_integer
from attn_np.contract._words import is_number as is_number
from attn_np.contract._words import require as require
from attn_np.contract._words import rounded as rounded

FLOATS = ("float64", "float32", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
# The meaning of True in a boolean argument, by its kind.
MEANINGS = {"mask": "True = may attend", "keep": "True = not dropped", "marks": "True = marked"}
# Fields whose None stands for a size that another field gives: `Config.sizes` holds what they come to.
SIZE_FIELDS = (
    "num_kv_heads", "num_key_heads", "softmax_heads", "head_dim", "value_head_dim", "output_dim", "key_dim",
    "value_dim", "hidden_dim", "position_dim",
)  # fmt: skip
# How many sub-layers of one kind a config may ask for.
MAX_CHILDREN = 1024


@dataclass(frozen=True)
class Param:
    """One learned array: its axes, and those whose sizes multiply to its fan.

    The fan gives the range (-1/sqrt(fan), 1/sqrt(fan)) of the initial values, as in `torch.nn.Linear`. `fan_axes` are
    mostly the axes that a product with the weight sums over; for a bias, those of its weight. A parameter whose initial
    values are not random, such as the weight of a norm, has `init`: a number for all entries, or a function that
    returns this number, or one for each entry of the only axis. A function is called late, when the sizes in an
    untrusted file have been checked. With `normal` the initial values are standard normal.
    """

    axes: str
    fan_axes: str
    init: float | Callable[[], float | tuple[float, ...]] | None = None
    normal: bool = False

    def initial_value(self) -> float | tuple[float, ...] | None:
        """The initial value; None if it is drawn."""
        return self.init() if callable(self.init) else self.init


@dataclass(frozen=True)
class Arg:
    """One argument of a call: its axes, its kind, and the argument that replaces it when it is left out.

    Kinds: "array" (the layer's float dtype, exact shape), "bias" (float, broadcastable), "mask", "keep" and "marks"
    (boolean, broadcastable; marks single out some positions), "integers" (from 0, exact shape). `falls_back_to`
    names the argument used when this one is None. Integers are below `below`, the limit that the config sets;
    `judge_below` limits the random integers of test calls where `below` is None. `packed`: with this argument a layer
    computes in another way, so the judge gives it in a call of its own. `cached`: a step of decoding does not take it,
    as its cache holds it.
    """

    axes: str
    kind: Literal["array", "bias", "mask", "keep", "marks", "integers"] = "array"
    optional: bool = False
    falls_back_to: str | None = None
    below: int | None = None
    judge_below: int | None = None
    packed: bool = False
    cached: bool = False

    def without(self, *letters: str) -> "Arg":
        """The same argument without some axes."""
        return replace(self, axes=" ".join(x for x in self.axes.split() if x not in letters))


# The numbers of documents that are packed into one sequence, in layers with a state, which is empty in each anew.
DOCUMENTS = Arg("b t", "integers", optional=True, judge_below=3, packed=True)


@dataclass(frozen=True)
class Preset:
    """A well-known name for a variant with some fields set.

    Attributes:
        title, idea, paper: as those of a variant.
        fields: values of fields; a caller's value overrides them.
    """

    title: str
    idea: str
    paper: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all configs. A contract subclasses it, adds fields, and describes itself in class variables.

    A field of one of these names is what is said here, unless the contract says something else.

    Attributes:
        d_model: width of the input.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        output_dim: width of the outputs; d_model by default.
        softcap: scores become softcap * tanh(scores / softcap).
        dropout: share of the weights set to 0 in training.
        chunk_size: how many positions a chunk has; the last one may have fewer.
        memory_keys: how many learned keys, each with a value, every query sees beside those of the call, whatever mask,
            causality and window say; None for none. They get no bias and are never dropped. The returned weights add up
            to less than 1, and the memory has the rest. A query that sees no other key weighs the memory equally.
    """

    variant: ClassVar[str] = ""
    class_name: ClassVar[str]
    family: ClassVar[str]
    title: ClassVar[str]
    idea: ClassVar[str]
    formula: ClassVar[str]
    notation: ClassVar[Mapping[str, str]] = {}
    cost: ClassVar[str]
    paper: ClassVar[str]
    equals: ClassVar[tuple[str, ...]] = ()
    traps: ClassVar[tuple[str, ...]] = ()
    # Fields that change no result: how it is computed, and which calls are refused.
    not_in_results: ClassVar[tuple[str, ...]] = ()
    projects: ClassVar[Mapping[str, str | bool]] = {}  # what `projections` cannot know from `own_params`

    def __init_subclass__(cls) -> None:
        cls.variant = cls.__module__.rpartition(".")[2]
        compose_doc(cls)

    # Defined by a contract --------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Size of every axis letter that the config fixes."""
        raise NotImplementedError

    def own_params(self) -> dict[str, Param]:
        """The layer's own parameters, without those of its children."""
        raise NotImplementedError

    def unshown_sizes(self) -> tuple[int, ...]:
        """Sizes that no parameter's shape shows, such as rotated dimensions: layouts compare configs by all sizes."""
        return ()

    def children(self) -> dict[str, "Config | list[Config]"]:
        """Sub-layers by attribute name; a list becomes `name.0`, `name.1`, ..."""
        return {}

    def arguments(self) -> dict[str, Arg]:
        """The call's arguments, in order."""
        raise NotImplementedError

    def second_output(self) -> str | None:
        """Axes of an output behind y that has a gradient, too: a last state, or the output of another stream."""
        return None

    def cache_axes(self) -> dict[str, str]:
        """Axes of the arrays in a cache, by name: with `s` one entry for each position, without it a state."""
        return {}

    def cache_slots(self) -> int | None:
        """For how many positions a cache holds entries; None for all. Variants whose cache is a state say 1."""
        left = (getattr(self, "window", None) or (None,))[0]
        return None if left is None else left + 1

    def why_no_cache(self) -> str:
        """What stands after "got" in the error of a layer that cannot decode."""
        if getattr(self, "normalize_over", "keys") == "queries":
            return "normalize_over='queries'"
        return "causal=False" if getattr(self, "causal", None) is False else "one without a cache"

    def broken_relations(self) -> dict[str, str]:
        """Relations in `parity_tests/judge/relations` that this variant breaks, by their functions' names, and why."""
        return {}

    def meaning(self) -> dict[str, Any]:
        """What the results of a call in evaluation depend on, by name: configs with the same meaning are one function.

        Defaults are written out, and fields that play no part beside the others are left out. A contract whose fields
        have such defaults or parts of its own adds to it.
        """
        left_out = (*self.not_in_results, *SIZE_FIELDS)
        values = {name: getattr(self, name) for name in self.fields() if name not in left_out}
        values |= {"sizes": tuple(self.sizes().items()), "shapes": tuple(self.shapes().items())}
        if "scale" in values and "k" in self.sizes():
            values["scale"] = rounded(self.scale_or_default(self.sizes()["k"]))
        if values.get("window") is not None:
            left, right = values["window"]
            right = 0 if values.get("causal") else right
            values["window"] = None if left is None and (right is None or values.get("causal")) else (left, right)
        return values

    def scale_or_default(self, width: int) -> float:
        """What scores of queries and keys of a width are multiplied by: the field `scale`, or its default."""
        scale: float | None = getattr(self, "scale", None)
        return width**-0.5 if scale is None else scale

    # Derived from it --------------------------------------------------------------------------------------------------

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def required(cls) -> tuple[str, ...]:
        """The names of the fields without a default."""
        return tuple(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        values = {name: getattr(self, name) for name in self.fields()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def params(self) -> dict[str, Param]:
        """Every parameter by its dotted name, children included: the keys of a weight file."""
        return {name: param for name, (param, _) in self._walk().items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter by its dotted name."""
        return {name: shape_of(param.axes, sizes) for name, (param, sizes) in self._walk().items()}

    def fans(self) -> dict[str, int]:
        """Fan of every parameter by its dotted name: the size of its `fan_axes`."""
        return {name: prod(shape_of(param.fan_axes, sizes)) for name, (param, sizes) in self._walk().items()}

    def initial_values(self) -> dict[str, float | tuple[float, ...] | None]:
        """Initial value of every parameter by its dotted name; None if it is drawn."""
        return {name: param.initial_value() for name, (param, _) in self._walk().items()}

    def _walk(self) -> dict[str, tuple[Param, dict[str, int]]]:
        params = {name: (param, self.sizes()) for name, param in self.own_params().items()}
        for name, child in self.children().items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            for prefix, part in parts.items():
                params |= {f"{prefix}.{key}": value for key, value in part._walk().items()}
        return params

    # Checks of fields -------------------------------------------------------------------------------------------------

    def require(self, condition: bool, expected: str, got: object, fix: str) -> None:
        """Raise an error in the variant's name unless `condition` holds.

        Raises:
            ValueError: it does not hold.
        """
        require(condition, self.variant, expected, got, fix)

    def check_positive(self, *names: str) -> None:
        """Each named field is an integer of at least 1 (None passes where it is the default)."""
        for name in names:
            value = getattr(self, name)
            if value is None and getattr(type(self), name, MISSING) is None:
                continue
            if not is_integer(value) or value < 1:
                raise field_error(self.variant, f"{name} to be an integer of at least 1", repr(value), f"set {name}=")

    def check_num_children(self, *names: str) -> None:
        """Each named field counts sub-layers: a weight file that asks for a billion must not get them."""
        self.check_positive(*names)
        for name in names:
            value = getattr(self, name)
            if value > MAX_CHILDREN:
                raise field_error(self.variant, f"{name} to be at most {MAX_CHILDREN}", repr(value), f"set {name}=")

    def check_rate(self, name: str) -> None:
        """The named field is a dropout rate in [0, 1)."""
        value = getattr(self, name)
        if not is_number(value) or not 0 <= value < 1:
            raise field_error(self.variant, f"{name} in [0, 1)", repr(value), "it is the share that dropout sets to 0")

    def check_number(self, name: str, *, above: float | None = None) -> None:
        """The named field is a number that float64 can hold (above a limit); None passes if its type says so."""
        field = self.__dataclass_fields__.get(name)
        if getattr(self, name) is None and (field is None or isinstance(None, field.type)):
            return
        value = getattr(self, name)
        fits = is_number(value) and abs(value) <= float_info.max
        if not fits or (above is not None and value <= above):
            limit = "" if above is None else f" above {above}"
            raise field_error(self.variant, f"{name} to be a finite int or float{limit}", short(value), f"set {name}=")

    def check_one_of(self, name: str, choices: tuple[str | None, ...], also: str = "") -> None:
        """The named field is one of some words, or None where that is among them; `also` says what else it may be."""
        value = getattr(self, name)
        if value not in choices:
            words = ", ".join(map(repr if None in choices else str, choices))
            raise field_error(self.variant, f"{name} to be one of {words}{also}", repr(value), f"set {name}=")

    def check_divisible(self, name: str, by: str, *, unless: str) -> None:
        """The first field is a multiple of the second, or a third one is set."""
        size, divisor = getattr(self, name), getattr(self, by)
        if getattr(self, unless) is None:
            got, fix = f"{name}={size}, {by}={divisor}", f"change one of them or set {unless}="
            self.require(size % divisor == 0, f"{name} divisible by {by}", got, fix)

    def check_flag(self, *names: str) -> None:
        """Each named field is True or False: a word such as "no" would count as True."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise field_error(self.variant, f"{name} to be True or False", repr(value), f"set {name}=")

    def check_window(self, name: str) -> None:
        """The named field is (left, right), each an integer from 0 or None, or it is None."""
        value = getattr(self, name)
        fits = value is None or (
            isinstance(value, tuple) and len(value) == 2 and all(x is None or (is_integer(x) and x >= 0) for x in value)
        )
        if not fits:
            fix = "say how many keys before and after its own position a query sees, None for no limit"
            raise field_error(self.variant, f"{name} to be a tuple (left, right) of ints from 0", repr(value), fix)

    # The check of a call ----------------------------------------------------------------------------------------------

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        """The size of every axis letter of a call; arguments that cannot be right are refused.

        Only shapes and dtype names are looked at, so the check costs nothing under jit.

        Args:
            dtype: name of the layer's dtype; None for a layer without parameters, which takes any one float type.
            specs: (shape, dtype name) of each argument; None for one that was left out.

        Raises:
            ValueError: a shape that does not fit.
            TypeError: a dtype that does not fit.
        """
        sizes, arguments, dtype_source = dict(self.sizes()), self.arguments(), None
        for name, arg in arguments.items():
            spec = specs.get(name)
            if spec is None and arg.falls_back_to is not None:
                spec = specs.get(arg.falls_back_to)
                self._check_fallback(name, arg, arguments[arg.falls_back_to], spec, sizes)
                specs[name] = spec
            if spec is None:
                is_cached = arg.cached and name not in specs
                if not (arg.optional or is_cached) and arg.falls_back_to is None:
                    shape = shape_text(arg.axes, sizes)
                    raise TypeError(f"{self.variant}: expected {name} {shape}, got None; pass {name}=")
                continue
            self._check_dtype(name, arg, spec[1], dtype, dtype_source)
            if dtype is None and arg.kind == "array":
                dtype, dtype_source = spec[1], name
            if arg.kind in ("array", "integers"):
                self._check_shape(name, arg, spec[0], sizes)
            else:
                self._check_broadcast(name, arg, spec[0], sizes)
        return sizes

    def _check_fallback(self, name: str, arg: Arg, source: Arg, spec: Spec | None, sizes: dict[str, int]) -> None:
        letter, source_letter = arg.axes.split()[-1], source.axes.split()[-1]
        both_known = letter in sizes and source_letter in sizes
        if spec is not None and both_known and sizes[letter] != sizes[source_letter]:
            raise ValueError(
                f"{self.variant}: expected {name} {shape_text(arg.axes, sizes)}, got none, and {arg.falls_back_to} has"
                f" {source_letter}={sizes[source_letter]}; pass {name}="
            )

    def _check_dtype(self, name: str, arg: Arg, got: str, dtype: str | None, dtype_source: str | None) -> None:
        if arg.kind in MEANINGS:
            if got != "bool":
                fix = f"pass {name} == 1" + (", or an additive float bias as bias=" if arg.kind == "mask" else "")
                raise TypeError(f"{self.variant}: expected a boolean {name} ({MEANINGS[arg.kind]}), got {got}; {fix}")
        elif arg.kind == "integers":
            if got not in INTEGERS:
                raise TypeError(f"{self.variant}: expected {name} of an integer dtype, got {got}; pass integers")
        elif got not in FLOATS:
            fix = f"convert it to {dtype or FLOATS[1]}"
            raise TypeError(f"{self.variant}: expected {name} of a float dtype, got {got}; {fix}")
        elif dtype not in (None, got):
            others, fix = "the layer and its other inputs", "convert it, or build the layer with another dtype"
            if dtype_source is not None:  # a function, or a layer without parameters
                others, fix = dtype_source, "convert one of them"
            raise TypeError(f"{self.variant}: expected {name} of dtype {dtype}, as {others}, got {got}; {fix}")

    def _check_shape(self, name: str, arg: Arg, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        letters = arg.axes.split()
        wrong = len(shape) != len(letters)
        for letter, size in zip(letters, shape, strict=False):
            wrong = wrong or sizes.get(letter, size) != size
        if wrong:
            others = "the config and the other inputs" if self.sizes() else "the other arrays"
            raise ValueError(
                f"{self.variant}: expected {name} of shape {shape_text(arg.axes, sizes)}, got {shape}; "
                f"check its axes against {others}"
            )
        sizes.update(zip(letters, shape, strict=True))

    def _check_broadcast(self, name: str, arg: Arg, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        letters = arg.axes.split()
        full = tuple(sizes.get(letter, -1) for letter in letters)
        # Not `in (want, 1)`: under torch.compile sizes may be symbols, which no `in` finds. Two of them may be known to
        # be equal, and not whether they are 1.
        fits = len(shape) <= len(full) and all(
            got == want or got == 1 for got, want in zip(reversed(shape), reversed(full), strict=False)
        )
        if not fits:
            fix = "remove axes" if len(shape) > len(full) else "add axes of size 1 where it does not vary"
            raise ValueError(
                f"{self.variant}: expected {name} broadcastable to {shape_text(arg.axes, sizes)}, got {shape}; {fix}"
            )


@lru_cache(maxsize=1024)
def _memoized(config: Config, dtype: str | None, specs: tuple[tuple[str, Spec | None], ...]) -> dict[str, int]:
    return config.check(dtype, **dict(specs))


def memoized_check(config: Config, dtype: str | None, specs: Mapping[str, Spec | None]) -> dict[str, int]:
    """`config.check` of a call's specs, cached: it depends on nothing else."""
    try:
        return dict(_memoized(config, dtype, tuple(specs.items())))
    except TypeError:  # a symbolic size has no hash; an error of the check itself is raised again below
        pass
    return config.check(dtype, **specs)


def shape_of(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[letter] for letter in axes.split())


def shape_text(axes: str, sizes: Mapping[str, int]) -> str:
    """(b, t=5, d=7): the letters of a shape, with the sizes that are known."""
    parts = [f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in axes.split()]
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"


def float_dtype_name(who: str, dtype: Any) -> str:
    """The name of a float dtype, from a name or from a framework's own object.

    Raises:
        ValueError: not one of the four float types.
    """
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    require(name in FLOATS, who, f"dtype to be one of {', '.join(FLOATS)}", repr(dtype), "set dtype=")
    return name


def device_error(package: str, known: Iterable[str], device: Any) -> ValueError:
    """The error of a device that a framework does not have here, in the same words in every package."""
    return ValueError(
        f"{package}: expected device= to be one that is here, {', '.join(known)}, got {device!r}; "
        f"choose one, or leave it out"
    )


def under_prefix(values: dict[str, Any] | None, prefix: str) -> dict[str, Any] | None:
    """The part of a flat dictionary under a prefix, without it."""
    if values is None:
        return None
    names = [name for name in values if name.startswith(f"{prefix}.")]
    return {name[len(prefix) + 1 :]: values[name] for name in names}


def check_config(layer_type: Any, config: Any) -> None:
    """Refuse a config of another class than the layer's.

    Raises:
        TypeError: naming the expected class.
    """
    expected: type[Config] = layer_type.Config
    # A contract that inherits the fields of another is not a config of that other variant.
    if not isinstance(config, expected) or config.variant != expected.variant:
        got = f"{type(config).__module__}.{type(config).__qualname__}"
        raise TypeError(
            f"{expected.variant}: expected config to be a {layer_type.__name__}.Config, got {got}; "
            f"pass {layer_type.__name__}.Config(...), or its fields by name"
        )


def annotated_names(layer_type: type) -> list[str]:
    """Names that a layer class and its bases annotate: parameters and sub-layers."""
    names: list[str] = []
    for base in layer_type.__mro__:
        if base.__name__ == "Layer":
            break
        names += [name for name in get_annotations(base) if name not in names]
    return names


def check_index(value_range: tuple[int, int] | None, size: int) -> None:
    """Refuse an index, as of tokens, outside a table, if the least and the largest are known.

    Raises:
        ValueError: naming the range.
    """
    low, high = value_range or (0, -1)
    if low < 0 or high >= size:
        got = f"{low} to {high}" if low != high else str(low)
        fix = "check the indices against the number of rows"
        raise ValueError(f"index into a table: expected indices from 0 to {size - 1}, got {got}; {fix}")
