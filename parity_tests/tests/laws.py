"""Laws of attention, each said once: pytest asks them of the trees, and the mutation check of copies with a mistake."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.candidates import attends, extras, leaves, numpy_layer
from parity_tests.judge.cases import Case, draw, given, tokens_below
from parity_tests.tests.inputs import (
    SHARING,
    Arrays,
    Tree,
    at,
    axis,
    config_of,
    first_difference,
    random_inputs,
    same,
)


@dataclass(frozen=True)
class Asked:
    """A layer that a law is asked of.

    Attributes:
        config: of the layer.
        outputs: of a call, by name.
        gradients: of a call's inputs and of the parameters, from a gradient of the first output.
        trace: the outputs, and the tape.
        params: the parameters, where they may be written without a copy.
    """

    config: Config
    outputs: Callable[..., Arrays]
    gradients: Callable[[Arrays, np.ndarray], Arrays]
    trace: Callable[..., tuple[Arrays, Arrays]]
    params: Callable[[], Arrays]

    @property
    def options(self) -> dict[str, Any]:
        """Those by which a call goes the textbook path: its weights are returned, where it has them."""
        return extras(self.config.variant, self.config.class_name)


def of_layer(tree: Tree, config: Config, layer: Any) -> Asked:
    """A layer of a tree. Where the tree's arrays may be NumPy's own, they are."""
    tree = SHARING.get(tree.name, tree)

    def outputs(inputs: Arrays, **options: Any) -> Arrays:
        return leaves(tree(layer, inputs, **options))

    def trace(inputs: Arrays, **options: Any) -> tuple[Arrays, Arrays]:
        found, tape = tree.trace(layer, inputs, **options)
        return leaves(found), tape

    return Asked(
        config,
        outputs,
        lambda inputs, dy: tree.gradients(layer, inputs, dy),
        trace,
        lambda: {name: tree.numpy(x) for name, x in layer.params().items()},
    )


def of_tree(tree: Tree, variant: str, example: str) -> Asked:
    """An example's layer in a tree."""
    return of_layer(tree, config_of(variant, example), tree.layer(variant, example))


def refuses(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    """The call raises this class with these words in its text."""
    try:
        call()
    except error as e:
        assert words in str(e), f"{type(e).__name__}: {e}"
    else:
        raise AssertionError(f"took what it must refuse: {words}")


def masked(config: Config) -> bool:
    """Queries meet keys under a mask."""
    arg = config.arguments().get("mask")
    return arg is not None and arg.axes.split()[-2] == "t"


def keyed(config: Config) -> bool:
    """Keys are an input of their own."""
    return masked(config) and config.arguments()["mask"].axes.endswith("t s")


def attends_to_itself(config: Config) -> bool:
    """Takes a mask and attends from one sequence to itself when nothing else is given."""
    return masked(config) and "query" in config.arguments() and "key" not in given(config, "plain")


def shown(config: Config, t: int, s: int) -> np.ndarray:
    """Which keys the config itself shows to which queries: causality and window, counted from the last key."""
    ahead = np.arange(s)[None, :] - (np.arange(t)[:, None] + s - t)
    left, right = getattr(config, "window", None) or (None, None)
    right = 0 if getattr(config, "causal", False) else right
    return (ahead >= -(s + t if left is None else left)) & (ahead <= (s + t if right is None else right))


def alone(config: Config, t: int) -> np.ndarray:
    """A mask for two rows in which position 2 of the second sees nothing and is seen by nobody.

    It hides only what the config itself does not hide, so that only both together leave the position alone.
    """
    near = np.zeros((t, t), bool)
    near[2, :] = near[:, 2] = True
    mask = np.stack([np.ones((t, t), bool), ~(near & shown(config, t, t))])
    return mask if axis(config, "mask", "h") is None else mask[:, None]


def overwritten(config: Config, inputs: Arrays, place: int, value: float, names: tuple[str, ...]) -> Arrays:
    """The inputs with one position of the second batch row overwritten, in the arrays named."""
    out = dict(inputs)
    for name in names:
        x = out[name] = inputs[name].copy()
        where = axis(config, name, "s")
        where = axis(config, name, "t") if where is None else where
        index = at(x, {axis(config, name, "b"): 1, where: place})
        x[index] = value if x.dtype.kind == "f" else (x[index] + 1) % tokens_below(config, name)
    return out


def of_keys(config: Config, inputs: Arrays) -> tuple[str, ...]:
    """The arrays with an entry for each key, but for masks."""
    return tuple(n for n, x in inputs.items() if axis(config, n, "s") is not None and x.dtype != bool)


def cotangent(layer: Asked, inputs: Arrays) -> np.ndarray:
    """A random gradient of the first output."""
    return np.random.default_rng(11).normal(size=layer.outputs(inputs)["y"].shape)


def no_bit_changes(layer: Asked, clean: Arrays, dirty: Arrays) -> None:
    """Outputs and gradients of two calls are the same; the gradients are numbers."""
    difference = first_difference(layer.outputs(dirty), layer.outputs(clean))
    assert difference is None, difference
    dy = cotangent(layer, clean)
    found = layer.gradients(dirty, dy)
    assert all(np.isfinite(x).all() for x in found.values()), "a gradient is not finite"
    difference = first_difference(found, layer.gradients(clean, dy))
    assert difference is None, difference


def hidden_keys_influence_nothing(layer: Asked, full: Arrays, value: float) -> None:
    """Whatever stands at a key, value or bias that no query sees; the mask hides what the config still shows."""
    config, mask = layer.config, full["mask"].copy()
    place = mask.shape[-1] - 2
    mask[1, ..., place] = ~shown(config, *mask.shape[-2:])[:, place]
    clean, names = full | {"mask": mask}, of_keys(config, full)
    assert names
    no_bit_changes(layer, clean, overwritten(config, clean, place, value, names))


def padding_influences_nothing(layer: Asked, plain: Arrays, value: float) -> None:
    """Whatever stands at a position that sees nothing and that nobody sees."""
    clean = plain | {"mask": alone(layer.config, plain["query"].shape[1])}
    no_bit_changes(layer, clean, overwritten(layer.config, clean, 2, value, ("query",)))


def keys_beyond_the_window_influence_nothing(layer: Asked, value: float) -> None:
    """Three queries stand at the last three keys; what lies further back than the window reaches is hidden."""
    config: Any = layer.config
    clean = random_inputs(config, {*given(config, "plain"), "key", "value"} & {*config.arguments()}, t=3, s=11)
    first, names = 11 - 3 - config.window[0], of_keys(config, clean)
    no_bit_changes(layer, clean, overwritten(config, clean, first - 1, value, names))
    seen = layer.outputs(overwritten(config, clean, first, 1e3, names))["y"]
    assert not same(seen, layer.outputs(clean)["y"]), "the key beside it is seen"


def a_query_without_keys_gives_nothing(layer: Asked, full: Arrays) -> None:
    """Its weights and its average are 0, its output is what the last projection adds; gradients stay finite."""
    config, mask = layer.config, full["mask"].copy()
    mask[0, ..., 2, :] = False
    inputs = full | {"mask": mask}
    outputs, tape = layer.trace(inputs, **layer.options)
    if "return_weights" in layer.options:
        assert not [*outputs.values()][-1][0, ..., 2, :].any(), "it has weights"
    grads = layer.gradients(inputs, cotangent(layer, inputs))
    assert all(np.isfinite(x).all() for x in grads.values()), "a gradient is not finite"
    sees_more = "a_query_without_keys_gives_nothing" in config.broken_relations()  # as a memory
    if config.class_name in contract.variant_by_class_name() and config.family != "recurrent" and not sees_more:
        y, params = outputs["y"], layer.params()
        assert not tape["context" if "context" in tape else "y"][0, 2].any(), "it has a context"
        assert same(y[0, 2], params.get("b_o", np.zeros(y.shape[2:], y.dtype))), "its output is no bias"
    if keyed(config) and "dquery" in grads and not sees_more:
        assert not grads["dquery"][0, 2].any(), "a gradient of a query without keys"
        chosen = getattr(config, "estimator", None) == "argmax"  # a choice has no gradient, and no query gets any
        assert np.delete(grads["dquery"], 2, 1).any() != chosen, "no gradient of any other"


def a_hiding_bias_is_a_mask(layer: Asked, full: Arrays) -> None:
    """A bias of -inf hides as the mask does: a single key, a key from every query, and all keys from one query."""
    bias, mask = full["bias"].copy(), full["mask"].copy()
    for place in (np.s_[0, ..., 1, 1], np.s_[1, ..., 3], np.s_[1, ..., 2, :]):
        bias[place], mask[place] = -np.inf, False
    by_mask, by_bias = full | {"mask": mask}, full | {"bias": bias}
    no_bit_changes(layer, by_mask, by_bias)
    alone = {name: x for name, x in by_bias.items() if name != "mask"}
    *_, weights = layer.outputs(alone, **layer.options).values()
    assert not weights[1, ..., 2, :].any() and not weights[1, ..., 3].any(), "weights under a bias alone"


@cache
def shapes_of(config: Config, call: str, letter: str, size: int) -> tuple[tuple[int, ...], ...]:
    """Shapes that the whole reference returns with one axis of another size."""
    case = Case(config.variant, "", call, "float64", given=config)
    whole = numpy_layer(case, dict(draw(case).params))
    found = leaves(whole(**random_inputs(config, given(config, call), **{letter: size})))
    return tuple(x.shape for x in found.values())


def an_empty_axis_is_an_axis(layer: Asked, call: str) -> None:
    """An axis of length 0 is one like any other: its length shows where one of 31 would, and every number is finite."""
    config, params = layer.config, layer.params()
    letters = {x for name in given(config, call) for x in config.arguments()[name].axes.split()}
    for letter in sorted(letters & set("bts") - set(config.sizes())):
        inputs = random_inputs(config, given(config, call), **{letter: 0})
        want = [tuple(0 if n == 31 else n for n in shape) for shape in shapes_of(config, call, letter, 31)]
        got = layer.outputs(inputs)
        assert [x.shape for x in got.values()] == want, f"shapes with {letter}=0"
        for name, x in (got | layer.gradients(inputs, np.ones(got["y"].shape))).items():
            source = name[1:] if name not in got else ""
            assert np.isfinite(x).all(), f"{name} with {letter}=0 is not finite"
            assert not source or x.shape == {**inputs, **params}[source].shape, f"shape of {name} with {letter}=0"


# Ways in which an array may lie in memory.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "spread": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backward": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
}


def a_call_writes_nothing(
    layer: Asked, full: Arrays, difference_of: Callable[[Arrays, Arrays], str | None] = first_difference
) -> None:
    """Inputs and parameters stay as they are, and no result is one of them; a tape changes no bit and holds y.

    Args:
        layer: the layer.
        full: its inputs.
        difference_of: how outputs with a tape differ from those without, in words, or None: in no bit, by default.
    """
    own = full | layer.params()
    before = {name: x.tobytes() for name, x in own.items()}
    way = {"implementation": "textbook"} if attends(layer.config.variant, layer.config.class_name) else {}
    outputs, (traced, tape) = layer.outputs(full, **way), layer.trace(full)
    layer.gradients(full, cotangent(layer, full))
    assert {name: x.tobytes() for name, x in own.items()} == before, "an input or a parameter was written"
    assert not any(np.shares_memory(y, x) for y in outputs.values() for x in own.values()), "a result is an input"
    difference = difference_of(traced, outputs)
    assert difference is None, f"with a tape, {difference}"
    assert any(same(x, traced["y"]) for x in tape.values()), "the tape lacks the output"
