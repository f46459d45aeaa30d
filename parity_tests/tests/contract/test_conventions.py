"""The conventions that are no question of precision, by name, over every variant in the three trees.

What should change nothing changes no bit. Only where an array's layout in memory differs, sums may run in another
order; there the derived bound judges.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Config
from parity_tests.bounds.precision import UNIT, precision_of
from parity_tests.judge.candidates import attends, extras
from parity_tests.judge.cases import Case, Drawn, draw, tokens_below
from parity_tests.judge.judging import compare, reference
from parity_tests.tests import laws
from parity_tests.tests.inputs import (
    EXAMPLES,
    TREES,
    Arrays,
    Tree,
    at,
    axis,
    config_of,
    first_difference,
    inputs_for,
    random_inputs,
    same,
    without,
)
from parity_tests.tests.laws import attends_to_itself, keyed, masked, overwritten

VARIANTS = contract.variants()


def over(*conditions: Callable[[Config], Any], skip: str = "") -> list[Any]:
    """The examples whose configs meet all conditions, in every tree: (tree, variant, example).

    What has to be compiled takes its time: of JAX, tests look at the last example of every variant only.
    """
    found = []
    for variant in VARIANTS:
        names = [e for e in contract.examples(variant) if all(meets(config_of(variant, e)) for meets in conditions)]
        for tree in TREES.values():
            some = names[-1:] if tree.name == "jax" else names
            found += [
                pytest.param(tree, variant, e, id=f"{tree.name}-{variant}-{e}") for e in some if tree.name != skip
            ]
    return found


def dropping(config: Config) -> bool:
    return getattr(config, "dropout", 0) > 0 and "keep" in config.arguments()


def causal(config: Config) -> bool:
    recurs = config.family == "recurrent" and not getattr(config, "bidirectional", False)
    return getattr(config, "causal", False) or recurs


def cotangent(tree: Tree, layer: Any, inputs: Arrays) -> np.ndarray:
    return np.random.default_rng(11).normal(size=tree(layer, inputs)[0].shape)


@cache
def bounded(variant: str, example: str) -> list[Any]:
    """Every output of the "full" call with the bound that a float64 candidate must keep."""
    tree, case = TREES["numpy"], Case(variant, example, "full", "float64")
    drawn = Drawn(draw(case).inputs, tree.layer(variant, example).params(), case.seed)
    return list(reference(case, drawn, {}, precision_of("float64"))[0].values())


# Sizes and layout -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["plain", "full"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_empty_batches_and_sequences(tree: Tree, variant: str, call: str) -> None:
    """In every form of a recurrence, which a layer has that sees no later key; not in JAX, which would compile each."""
    example = next(iter(contract.examples(variant)))
    config = config_of(variant, example)
    laws.an_empty_axis_is_an_axis(laws.of_tree(tree, variant, example), call)
    for form in getattr(contract.get(variant), "FORMS", ()) if tree.name != "jax" else ():
        other = without(config, causal=True, form=form)
        laws.an_empty_axis_is_an_axis(laws.of_layer(tree, other, tree.build(other)), call)


@pytest.mark.parametrize(("tree", "variant", "example"), over())
def test_strides_do_not_matter(tree: Tree, variant: str, example: str) -> None:
    """Transposed, backward and spread-out arrays are the arrays that their indices say."""
    inputs, asked = inputs_for(variant, example, "full"), laws.of_tree(tree, variant, example)
    for name, layout in laws.LAYOUTS.items():
        if tree.name == "torch" and name == "backward":  # which no tensor is
            continue
        got = asked.outputs({key: layout(x) for key, x in inputs.items()}, **asked.options)
        for x, want in zip(got.values(), bounded(variant, example), strict=True):
            assert compare(x, want, "float64")["ratio"] <= 1, name


# What a call leaves alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tree", "variant", "example"), over())
def test_a_call_writes_nothing(tree: Tree, variant: str, example: str) -> None:
    """From one jaxpr (see the test after the next) XLA makes another program where a tape is returned, too."""

    def difference_in_jax(*calls: Arrays) -> str | None:
        for found in calls:
            for (name, x), want in zip(found.items(), bounded(variant, example), strict=False):  # no weights are asked
                if compare(x, want, "float64")["ratio"] > 1:
                    return f"{name}:\n{x}\n{want}"
        return None

    asked, inputs = laws.of_tree(tree, variant, example), inputs_for(variant, example, "full")
    laws.a_call_writes_nothing(asked, inputs, difference_in_jax if tree.name == "jax" else first_difference)


@pytest.mark.parametrize(("tree", "variant", "example"), over())
def test_the_same_call_twice_gives_the_same_bits(tree: Tree, variant: str, example: str) -> None:
    inputs, layer = inputs_for(variant, example, "full"), tree.layer(variant, example)
    first, second = tree(layer, inputs), tree(layer, inputs)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    dy = cotangent(tree, layer, inputs)
    assert first_difference(tree.gradients(layer, inputs, dy), tree.gradients(layer, inputs, dy)) is None


def first_and_last(variant: str) -> set[str]:
    """The names of a variant's first example, and of its last."""
    names = [*contract.examples(variant)]
    return {names[0], names[-1]}


# A decoder of seq2seq stacks the weights of its steps for a tape alone.
@pytest.mark.parametrize(
    ("variant", "example"), [(v, e) for v, e in EXAMPLES if v != "seq2seq" and e in first_and_last(v)]
)
def test_a_tape_adds_nothing_to_the_jaxpr(variant: str, example: str) -> None:
    tree = TREES["jax"]
    layer, inputs = tree.layer(variant, example), tree.arrays(inputs_for(variant, example, "full"))
    way = {"implementation": "textbook"} if attends(variant, config_of(variant, example).class_name) else {}
    plain = str(jax.make_jaxpr(lambda given: layer(**given, **way))(inputs))
    assert str(jax.make_jaxpr(lambda given: tree.package.trace(layer, **given)[0])(inputs)) == plain


# Who sees whom --------------------------------------------------------------------------------------------------------


def seen_by_nobody(config: Config, inputs: Arrays, row: int, place: int) -> Arrays:
    """The inputs with a mask that hides one key of one batch row from every query."""
    mask = inputs["mask"].copy()
    mask[row, ..., place] = False
    return inputs | {"mask": mask}


@pytest.mark.parametrize("value", [1e3, np.inf, np.nan])
@pytest.mark.parametrize(("tree", "variant", "example"), over(keyed))
def test_hidden_keys_influence_nothing(tree: Tree, variant: str, example: str, value: float) -> None:
    laws.hidden_keys_influence_nothing(
        laws.of_tree(tree, variant, example), inputs_for(variant, example, "full"), value
    )


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize(("tree", "variant", "example"), over(keyed, lambda c: getattr(c, "window", None)))
def test_keys_outside_every_window_influence_nothing(tree: Tree, variant: str, example: str, value: float) -> None:
    laws.keys_beyond_the_window_influence_nothing(laws.of_tree(tree, variant, example), value)


@pytest.mark.parametrize(("tree", "variant", "example"), over(masked, lambda c: not keyed(c)))
def test_a_hidden_position_of_self_attention(tree: Tree, variant: str, example: str) -> None:
    """A token that nobody attends to changes its own row only, and no gradient of the others."""
    config, layer = config_of(variant, example), tree.layer(variant, example)
    clean = seen_by_nobody(config, inputs_for(variant, example, "full"), 1, 2)
    dirty = overwritten(config, clean, 2, 1e3, ("query",))
    want, got = tree(layer, clean)[0], tree(layer, dirty)[0]
    dy = cotangent(tree, layer, clean)
    others = np.arange(want.shape[1]) != 2
    assert same(got[0], want[0])
    assert same(got[1, others], want[1, others])
    dy[1, 2] = 0
    difference = first_difference(tree.gradients(layer, dirty, dy), tree.gradients(layer, clean, dy))
    assert difference is None, difference


@pytest.mark.parametrize("value", [1e3, np.inf, np.nan])
@pytest.mark.parametrize(("tree", "variant", "example"), over(attends_to_itself))
def test_padding_that_sees_nothing_and_nobody_sees(tree: Tree, variant: str, example: str, value: float) -> None:
    config = config_of(variant, example)
    laws.padding_influences_nothing(laws.of_tree(tree, variant, example), random_inputs(config, "plain"), value)


@pytest.mark.parametrize("value", [1e3, np.inf, np.nan])
def test_keys_hidden_from_one_head_influence_nothing(tree: Tree, value: float) -> None:
    """`attend` hides by head: what one head may not see stays out, though other heads see their own key there."""
    rng = np.random.default_rng(7)
    shapes = {"q": (2, 5, 3, 7), "k": (2, 11, 3, 7), "v": (2, 11, 3, 2)}
    clean: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    clean["mask"] = rng.random((2, 3, 5, 11)) < 0.75
    clean["mask"][1, 2, :, 4] = False
    clean["mask"][1, 1, :, 4] = True
    dirty = dict(clean)
    for name in "kv":
        dirty[name] = clean[name].copy()
        dirty[name][1, 4, 2] = value
    for got, want in zip(tree.attend(dirty), tree.attend(clean), strict=True):
        assert np.isfinite(got).all()
        assert same(got, want)


def test_outputs_are_as_wide_as_the_config_says() -> None:
    """Every variant with an output projection has an example with a width of its own."""
    tree = TREES["numpy"]
    for variant in VARIANTS:
        if "output_dim" not in contract.get(variant).Config.fields():
            continue
        wide = {e: w for e in contract.examples(variant) if (w := getattr(config_of(variant, e), "output_dim", None))}
        assert wide, variant
        for example, width in wide.items():
            y = tree(tree.layer(variant, example), inputs_for(variant, example, "plain"))[0]
            assert y.shape[-1] == width, f"{variant}, {example}"


def without_memory(config: Config) -> bool:
    """Has no keys of its own, which a query sees that sees no other."""
    return getattr(config, "memory_keys", None) is None


@pytest.mark.parametrize(("tree", "variant", "example"), over(masked))
def test_a_query_without_keys(tree: Tree, variant: str, example: str) -> None:
    layer = laws.of_tree(tree, variant, example)
    laws.a_query_without_keys_gives_nothing(layer, inputs_for(variant, example, "full"))


@pytest.mark.parametrize(
    ("tree", "variant", "example"), over(masked, without_memory, lambda c: c.family != "recurrent")
)
def test_no_query_has_keys(tree: Tree, variant: str, example: str) -> None:
    """Nothing is learned from a call in which all is hidden, but the biases behind the contexts, which are 0 there."""
    inputs, layer = inputs_for(variant, example, "full"), tree.layer(variant, example)
    inputs |= {"mask": np.zeros_like(inputs["mask"])}
    y, *weights = tree(layer, inputs, **extras(variant, config_of(variant, example).class_name))
    assert not any(x.any() for x in weights)
    dy = cotangent(tree, layer, inputs)
    for name, x in tree.gradients(layer, inputs, dy).items():
        assert np.isfinite(x).all(), name
        assert x.any() == (name in ("db_o", "db_context_norm", "db_context_norm_heads")), name
    assert all(same(row, y[0, 0]) for row in y.reshape(-1, y.shape[-1]))


@pytest.mark.parametrize(("tree", "variant", "example"), over())
def test_batch_rows_do_not_meet(tree: Tree, variant: str, example: str) -> None:
    config, layer = config_of(variant, example), tree.layer(variant, example)
    inputs, rng = inputs_for(variant, example, "full"), np.random.default_rng(13)
    other = {name: x.copy() for name, x in inputs.items()}
    for name, x in other.items():
        where = at(x, {axis(config, name, "b"): 1})
        row = np.asarray(x[where])
        if x.dtype.kind == "i":  # other tokens: in reverse, or where there is one, the next
            x[where] = row[::-1] if row.ndim else (row + 1) % tokens_below(config, name)
        else:
            x[where] = ~row if x.dtype == bool else rng.normal(size=row.shape)
    assert same(tree(layer, other)[0][0], tree(layer, inputs)[0][0])
    assert not same(tree(layer, other)[0][1], tree(layer, inputs)[0][1])
    dy = cotangent(tree, layer, inputs)
    want, got = tree.gradients(layer, inputs, dy), tree.gradients(layer, other, dy)
    for name, x in inputs.items():
        if config.arguments()[name].kind == "array":
            first = at(x, {axis(config, name, "b"): 0})
            assert same(got[f"d{name}"][first], want[f"d{name}"][first]), name


@pytest.mark.parametrize(("tree", "variant", "example"), over(causal))
def test_the_future_does_not_reach_back(tree: Tree, variant: str, example: str) -> None:
    config, layer = config_of(variant, example), tree.layer(variant, example)
    plain = inputs_for(variant, example, "plain")
    inputs = {n: x for n, x in random_inputs(config, "full", t=7, s=7).items() if n in plain or n in ("key", "value")}
    moving = [name for name in inputs if axis(config, name, "t") is not None]
    if config.family != "recurrent":
        moving += [name for name in inputs if axis(config, name, "s") is not None]
    assert moving
    want = tree(layer, inputs)[0]
    for place in (1, 4, 6):
        later = dict(inputs)
        for name in moving:
            x = later[name] = inputs[name].copy()
            where = axis(config, name, "s")
            index = at(x, {axis(config, name, "t") if where is None else where: slice(place, None)})
            x[index] = -3 * x[index] if x.dtype.kind == "f" else (x[index] + 1) % tokens_below(config, name)
        got = tree(layer, later)[0]
        assert same(got[:, :place], want[:, :place]), place
        assert not same(got[:, place], want[:, place]), place


@pytest.mark.parametrize(("tree", "variant", "example"), over(keyed, skip="jax"))
def test_what_stands_in_for_another_gets_its_gradient(tree: Tree, variant: str, example: str) -> None:
    """A call with key or value left out is that with the array that stands in for it, whose gradient is the sum."""
    config, layer = config_of(variant, example), tree.layer(variant, example)
    full, arguments = random_inputs(config, "full", t=5, s=5), config.arguments()
    left_out = [("key",), ("value",), ("key", "value")]
    for names in [some for some in left_out if all(name in full for name in some)]:
        source = {name: str(arguments[name].falls_back_to) for name in names}
        shapes = {name: full[name].shape for name in full}
        if any(shapes[name] != shapes[its] for name, its in source.items()):
            continue
        stands_in = {name: source.get(its, its) for name, its in source.items()}
        whole = full | {name: full[its] for name, its in stands_in.items()}
        part = {name: x for name, x in full.items() if name not in names}
        dy = cotangent(tree, layer, whole)
        want, got = tree.gradients(layer, whole, dy), tree.gradients(layer, part, dy)
        terms = {name: [name] for name in part}
        for name, its in stands_in.items():
            terms[its].append(name)
        assert all(same(a, b) for a, b in zip(tree(layer, part), tree(layer, whole), strict=True)), names
        for name in want:
            sums = [want[f"d{term}"] for term in terms.get(name[1:], [])] or [want[name]]
            if name in got:
                size = sum(np.abs(x) for x in sums)
                error = np.abs(got[name] - sum(sums[1:], start=sums[0]))
                assert np.all(error <= 4 * len(sums) * UNIT["float64"] * size), (names, name)


# Training and evaluation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tree", "variant", "example"), over())
def test_layers_are_built_for_evaluation(tree: Tree, variant: str, example: str) -> None:
    layer = tree.build(config_of(variant, example))
    assert not tree.is_training(layer)
    assert tree.is_training(tree.training(layer))
    layer.eval()
    assert not tree.is_training(layer)


@pytest.mark.parametrize(("tree", "variant", "example"), over(dropping))
def test_training_drops_at_random(tree: Tree, variant: str, example: str) -> None:
    inputs = inputs_for(variant, example)
    layer = tree.training(tree.build(config_of(variant, example)))
    calm = tree(tree.layer(variant, example), inputs)[0]
    first, second = tree(layer, inputs)[0], tree(layer, inputs)[0]
    assert not same(first, second)
    assert not same(first, calm)


@pytest.mark.parametrize(("tree", "variant", "example"), over(dropping))
def test_a_keep_mask_overrides_the_mode(tree: Tree, variant: str, example: str) -> None:
    inputs = inputs_for(variant, example, "full")
    calm, layer = tree.layer(variant, example), tree.training(tree.build(config_of(variant, example)))
    want = tree(calm, inputs)
    assert all(same(a, b) for a, b in zip(tree(layer, inputs), want, strict=True))
    assert not same(tree(calm, inputs | {"keep": ~inputs["keep"]})[0], want[0])


@pytest.mark.parametrize(
    ("variant", "example"),
    [(v, e) for v, e in EXAMPLES if dropping(config_of(v, e)) and not config_of(v, e).children()],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_the_backward_pass_drops_what_the_forward_dropped(recompute: bool, variant: str, example: str) -> None:
    """NumPy's `pull` has the same dropout, also where it computes the forward again, and moves no generator."""
    tree = TREES["numpy"]
    inputs, layer = inputs_for(variant, example), tree.build(config_of(variant, example))
    before = layer.train().rng.bit_generator.state
    y, pull = tree.package.value_and_vjp(layer, **inputs, recompute=recompute)
    after = layer.rng.bit_generator.state
    y = y[0] if isinstance(y, tuple) else y
    dy = np.random.default_rng(17).normal(size=y.shape)
    first, second = pull(dy), pull(dy)
    assert layer.rng.bit_generator.state == after != before
    layer.rng.bit_generator.state = before
    _, tape = tree.package.trace(layer, **inputs)
    assert [name for name, arg in config_of(variant, example).arguments().items() if arg.kind == "keep"] == ["keep"]
    kept = inputs | {"keep": tape["keep"]}
    want = tree.gradients(tree.layer(variant, example), kept, dy)
    for grads in (first, second):
        got = {f"d{name}": x for name, x in (grads.inputs | grads.params).items()}
        difference = first_difference(got, want)
        assert difference is None, difference


# Names that mean the same axes on every tape, for readers of traces: batch, queries, keys; heads where there are any.
AXES = {"q": "b t", "k": "b s", "v": "b s", "probs": "b h t s", "kept": "b h t s", "context": "b t", "y": "b t"}


def by_pairs(variant: str, example: str) -> bool:
    """Whether a mask is by pairs of a query and a key."""
    arguments = config_of(variant, example).arguments()
    return "query" in arguments and "mask" in arguments and len(arguments["mask"].axes.split()) > 2


def other_axes(config: Config, inputs: Arrays, tape: Arrays) -> list[str]:
    """The arrays of a tape whose axes are not those of their names."""
    b, t = inputs["query"].shape[:2]
    s = inputs.get("key", inputs["query"]).shape[1] + (getattr(config, "memory_keys", None) or 0)
    sizes, wrong = {"b": b, "t": t, "s": s, "h": config.sizes().get("h", 0)}, []
    for name, x in tape.items():
        letters = [letter for letter in AXES.get(name, "").split() if sizes[letter]]
        if letters and x.shape[: len(letters)] != tuple(sizes[letter] for letter in letters):
            wrong.append(f"{name}: {' '.join(letters)} with {sizes}, got {x.shape}")
    return wrong


@pytest.mark.parametrize(("variant", "example"), [x for x in EXAMPLES if by_pairs(*x)])
def test_a_name_on_a_tape_has_its_axes(variant: str, example: str) -> None:
    config, inputs, tape = config_of(variant, example), inputs_for(variant, example, "full"), {}
    TREES["numpy"].build(config)(**inputs, tape=tape)
    assert other_axes(config, inputs, tape) == []
    exchanged = {name: x.swapaxes(0, 1) for name, x in tape.items() if name in ("context", "y")}
    assert len(other_axes(config, inputs, tape | exchanged)) == len(exchanged) > 0
