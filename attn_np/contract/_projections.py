"""Projections as modules of the framework: what each one promises, and what is said of a module that breaks it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

from attn_np.contract._base import Config, field_error, require, shape_of

Projections = Literal["arrays", "modules"]
# What to do with a module that a file of ours cannot hold.
MERGE = "merge what was added to it, or save the state of the framework's module"
REPLACED = "load the layer before it was changed, or save the state of the framework's module"


@dataclass(frozen=True)
class Projection:
    """One projection of a layer, `y = x w + b`, as a matrix: the axes of x in one, and those of y.

    Attributes:
        variant, name: the layer's variant, and the name of w, which is that of the module.
        bias: the name of b; None without one.
        input_letters, output_letters: the letters of the axes of x, and of y.
        inputs, outputs: their sizes.
    """

    variant: str
    name: str
    bias: str | None
    input_letters: tuple[str, ...]
    output_letters: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def in_features(self) -> int:
        return prod(self.inputs)

    @property
    def out_features(self) -> int:
        return prod(self.outputs)

    def names(self) -> tuple[str, ...]:
        """The parameters that the module holds."""
        return (self.name,) if self.bias is None else (self.name, self.bias)

    def check_module(self, module: Any, module_class: type, dtypes: tuple[str, str]) -> None:
        """Refuse what cannot be this projection, as far as its attributes say.

        Args:
            dtypes: that of the module's weight, and the layer's; "" for one that is not known.

        Raises:
            TypeError: no module of the framework.
            ValueError: a module that says that it has other features, a bias where the layer has none or none where
                it has one, or a weight of another float dtype.
        """
        if not isinstance(module, module_class):
            fix = 'give it one, or build the layer with projections="arrays"'
            got = type(module).__name__
            raise TypeError(f"{self.variant}: expected a module for {self.name}, got {got}; {fix}")
        features = getattr(module, "in_features", self.in_features), getattr(module, "out_features", self.out_features)
        fix = "replace it by one of this width"
        require(features == (self.in_features, self.out_features), self.variant, self._width(), features, fix)
        of_another = getattr(module, "projection", None)
        if isinstance(of_another, Projection):
            places = [(x.inputs, x.outputs) for x in (of_another, self)]
            fix = "give each layer a module of its own"
            expected = f"{self.name} from {self.inputs} to {self.outputs}"
            got = f"a module from {of_another.inputs} to {of_another.outputs}, {of_another.name} of another layer"
            require(places[0] == places[1], self.variant, expected, got, fix)
        if hasattr(module, "bias"):
            words = ("without a bias", "with a bias")
            got, want = module.bias is not None, self.bias is not None
            fix = "replace it by one like it, or build the layer with biases as that has them"
            require(got == want, self.variant, f"{self.name} {words[want]}", f"one {words[got]}", fix)
        got_dtype, dtype = dtypes
        if got_dtype and dtype:
            fix = "give the module the layer's dtype"
            require(got_dtype == dtype, self.variant, f"{self.name} in {dtype}", got_dtype, fix)

    def check_output(
        self, y: Any, array_class: type, first: Sequence[int], dtypes: tuple[str, str], fix: str = ""
    ) -> None:
        """Refuse what the module returned unless it has the sizes `first` and the features, and one dtype.

        Args:
            dtypes: that of the output, and the one that is expected.
            fix: what to do about a wrong shape, if the package knows.

        Raises:
            TypeError: no array.
            ValueError: another shape or dtype.
        """
        if not isinstance(y, array_class):
            got = type(y).__name__
            raise TypeError(f"{self.variant}: expected an array from {self.name}, got {got}; return the array alone")
        shape = (*first, self.out_features)
        fix = fix or f"give it a module from {self.in_features} features to {self.out_features}"
        require(tuple(y.shape) == shape, self.variant, f"{self.name} to return {shape}", tuple(y.shape), fix)
        got, want = dtypes
        require(got == want, self.variant, f"{self.name} to return {want}", got, "give the module the layer's dtype")

    def check_plain(self, found: Sequence[str], weight: str, shape: Sequence[int], rows: bool = False) -> None:
        """Refuse a module that holds more than the weight and the bias of a file, or something else.

        Args:
            found: the names of what it holds.
            weight: the framework's name of the weight.
            shape: that of the weight; none without one. Axes may stand before its two, of layers that are stacked.
            rows: a row is an output, as in PyTorch.

        Raises:
            ValueError: naming what there is.
        """
        names = (weight,) if self.bias is None else (weight, "bias")
        # What a quantiser leaves has no weight of this name, and there is nothing to merge.
        fix = MERGE if set(found) - set(names) else REPLACED
        expected = f"{self.name} to hold {' and '.join(names)} alone for its parameters"
        require(sorted(found) == sorted(names), self.variant, expected, ", ".join(found) or "none", fix)
        sizes = (self.out_features, self.in_features) if rows else (self.in_features, self.out_features)
        fix = "replace the module by one of this width"
        require((*shape[-2:],) == sizes, self.variant, f"{weight} of {self.name} of shape {sizes}", (*shape,), fix)

    def not_plain(self, expected: str, got: object) -> ValueError:
        """The error of a module whose parameters are not all that it computes with, or no plain numbers."""
        return field_error(self.variant, f"{self.name} to {expected} for its parameters", type(got).__name__, REPLACED)

    def _width(self) -> str:
        return f"{self.name} from {self.in_features} to {self.out_features} features"


def projections(config: Config) -> tuple[Projection, ...]:
    """The layer's own projections, without those of its children: the weights that the formula gives to `linear`.

    These are the weights whose first axes are summed over, `w` and `w_...`, and the bias of `w_q` is `b_q`. Where a
    formula does something else with a weight, or its bias has another name, the contract's `projects` says so.
    """
    own, sizes, found = config.own_params(), config.sizes(), list[Projection]()
    for name, param in own.items():
        letters, summed, said = param.axes.split(), param.fan_axes.split(), config.projects.get(name, True)
        n = len(summed)
        if not name.startswith("w") or not 0 < n < len(letters) or letters[:n] != summed or said is False:
            continue
        bias = f"b{name[1:]}" if said is True else str(said)
        shape = shape_of(param.axes, sizes)
        found.append(
            Projection(
                config.variant,
                name,
                bias if bias in own else None,
                (*letters[:n],),
                (*letters[n:],),
                shape[:n],
                shape[n:],
            )
        )
    return tuple(found)


def all_projections(config: Config, prefix: str = "") -> Iterator[tuple[str, Projection]]:
    """The projections of the layer and of those inside it, each with the prefix of its names."""
    yield from ((prefix, projection) for projection in projections(config))
    for name, child in config.children().items():
        parts = {f"{name}.{i}": x for i, x in enumerate(child)} if isinstance(child, list) else {name: child}
        for within, part in parts.items():
            yield from all_projections(part, f"{prefix}{within}.")


def has_projections(config: Config) -> bool:
    """Whether the layer or one inside it has a projection."""
    return any(True for _ in all_projections(config))


def refuse_module(
    config: Config, name: str, module: Any, fix: str = 'build the layer with projections="modules"'
) -> None:
    """Refuse a module in the place of a parameter that is an array.

    Raises:
        TypeError: saying how to get a layer that takes one, if it is a projection.
    """
    fix = fix if any(projection.name == name for projection in projections(config)) else "assign an array"
    raise TypeError(f"{config.variant}: expected an array for {name}, got {type(module).__name__}; {fix}")


def check_projections(config: Config, given: Any) -> tuple[Projection, ...]:
    """The layer's own projections that become modules: none where arrays are asked for.

    Raises:
        ValueError: another word, or modules of a layer that has no projection.
    """
    words, variant = get_args(Projections), config.variant
    require(given in words, variant, f"projections= to be {' or '.join(map(repr, words))}", repr(given), "choose one")
    if given == "arrays":
        return ()
    expected = "projections='arrays' for a layer whose weights are in its formula"
    require(has_projections(config), variant, expected, repr(given), "leave it out")
    return projections(config)


def refuse_modules(config: Config, given: Any) -> None:
    """Refuse modules in NumPy, which has none.

    Raises:
        ValueError: saying so.
    """
    check_projections(config, given)
    fix = "leave it out: files of modules load into arrays"
    require(given == "arrays", config.variant, "projections='arrays' in NumPy, which has no modules", repr(given), fix)


def projections_of_child(config: Config, given: str) -> str:
    """What a layer passes on to one inside it, which may have no projection."""
    return given if has_projections(config) else "arrays"


def require_no_projections(config: Config, given: str) -> None:
    """Refuse the argument beside a layer that there is.

    Raises:
        ValueError: it is given.
    """
    expected = "no projections= with into="
    require(given == "arrays", config.variant, expected, repr(given), "build the layer with it")
