"""Documents that are packed into one sequence with a state: each is as if by itself, in every form and in steps."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Config
from parity_tests.tests.forms import DOCUMENTS, REAL, B, T, apart, document_steps_apart, documents_apart, drawn, results
from parity_tests.tests.inputs import Tree
from parity_tests.tests.witness import bounded, layer_of, weights_of


def packs(config: Config) -> bool:
    return "documents" in config.arguments()


def examples() -> Iterator[Any]:
    """Every example that packs; by default the chunked one of each variant, in which all that can go wrong may."""
    for variant in contract.variants():
        for example, config in contract.examples(variant).items():
            if packs(config):
                marks = () if example == "chunked" else pytest.mark.left_out
                yield pytest.param(variant, config, id=f"{variant}/{example}", marks=marks)


EXAMPLES = list(examples())


def asked(tree: Tree, config: Any) -> None:
    """JAX compiles every form: it is asked for the variant with the most parts."""
    if tree.name == "jax" and config.variant != "gated_delta":
        pytest.skip("JAX is asked for one variant")


def test_every_layer_with_a_linear_state_takes_documents() -> None:
    with_state = {
        variant
        for variant in contract.variants()
        for config in contract.examples(variant).values()
        if config.family == "linear" and "state" in config.cache_axes()
    }
    assert with_state == {param.values[1].variant for param in EXAMPLES}
    assert len(with_state) == 7


@pytest.mark.parametrize(("variant", "config"), EXAMPLES)
def test_each_document_is_as_if_by_itself(variant: str, config: Any, tree: Tree) -> None:
    asked(tree, config)
    assert not documents_apart(tree, config)


@pytest.mark.parametrize(("variant", "config"), EXAMPLES)
def test_steps_begin_documents_and_go_on_with_them(variant: str, config: Any, tree: Tree) -> None:
    asked(tree, config)
    assert not document_steps_apart(tree, config)


@pytest.mark.parametrize(("variant", "config"), EXAMPLES)
def test_a_step_without_numbers_goes_on_with_the_document(variant: str, config: Any, tree: Tree) -> None:
    """Also where it is the one that stands in an empty cache, 0; integers of any type say the same."""
    if tree.name == "jax":
        pytest.skip("the other trees are asked")
    weights, x = weights_of(config), drawn(config)["query"][:, :3]
    layer = layer_of(tree, config, weights)

    def wrong(documents: tuple[int, ...], *numbers: Any) -> str:
        cache, found = layer.init_cache(B, 3), []
        for i, given in enumerate(numbers):
            named = {} if given is None else {"documents": tree.array(np.full((B, 1), *given))}
            y, cache = layer.step(tree.array(x[:, i : i + 1]), cache, **named)
            found.append(tree.numpy(y))
        want = bounded(config, {"query": x, "documents": np.tile(np.array(documents), (B, 1))}, weights)["y"]
        return apart({"y": np.concatenate(found, 1)}, {"y": want})

    assert not wrong((1, 1, 1), (7,), (7,), (7,))
    assert not wrong((1, 1, 1), (3,), None, (3, np.uint8))
    assert not wrong((1, 1, 1), (0, np.int8), None, (0,))
    assert not wrong((1, 2, 2), (0,), (5,), (5,))
    assert not wrong((1, 2, 2), (1,), (2,), None)
    assert wrong((1, 1, 1), (7,), (7,), (8,))
    assert not wrong((1, 1, 1), None, None, (0,))


@pytest.mark.parametrize(("variant", "config"), EXAMPLES)
def test_one_document_is_the_call_without_numbers(variant: str, config: Any, tree: Tree) -> None:
    """Within rounding, as it is computed by factors of which one may be 0."""
    if tree.name == "jax":
        pytest.skip("the other trees are asked")
    weights, x = weights_of(config), drawn(config)
    for inputs in (x, x | {"mask": REAL}):
        want = bounded(config, inputs, weights)
        found = results(tree, config, inputs | {"documents": np.full((B, T), 5)}, weights)
        assert not apart(found, want)


@pytest.mark.usefixtures("unchecked")
def test_documents_that_cannot_be_right(tree: Tree) -> None:
    linear: Any = tree.package.build("linear", d_model=6, num_heads=2, dtype="float64")
    gla: Any = tree.package.build("gla", d_model=6, num_heads=2, dtype="float64")
    x, numbers = tree.array(np.zeros((B, T, 6))), tree.array(DOCUMENTS)
    with pytest.raises(
        ValueError, match=r"^linear: expected no documents with causal=False, got some; set causal=True"
    ):
        linear(x, documents=numbers)
    with pytest.raises(ValueError, match=r"^gla: expected documents of shape \(b=2, t=7\), got \(2, 6\)"):
        gla(x, documents=numbers[:, 1:])
    with pytest.raises(TypeError, match=r"^gla: expected documents of an integer dtype, got float64; pass integers"):
        gla(x, documents=tree.array(np.zeros((B, T))))
