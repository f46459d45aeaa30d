"""What is wrong with steps has a name: hand-written caches of many kinds, right and wrong, and our own in pieces."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np import contract
from parity_tests import ParityError, assert_decoding_parity, assert_parity
from parity_tests.bounds.error_array import ErrArray
from parity_tests.judge.cases import Case, draw
from parity_tests.ports.decoding_causes import beyond, wanted
from parity_tests.ports.step_mistakes import CACHE_MISTAKES
from parity_tests.ports.steps import Decoding, decodes, in_order
from parity_tests.ports.trace import Trace
from parity_tests.tests.tool.decoding_ports import SMALL, turned
from parity_tests.tests.tool.decoding_realistic import KINDS, LATER, MISTAKES, judged
from parity_tests.tests.tool.test_decoding_parity import LINEAR

QUICK = [kind for kind in KINDS if kind != "jax"]  # JAX compiles each operation for each length
DECODING = [
    (variant, name)
    for variant in contract.variants()
    for name, config in contract.examples(variant).items()
    if decodes(config)
]


@pytest.mark.parametrize("kind", QUICK)
def test_a_right_cache_of_each_kind_agrees(kind: str) -> None:
    verdict = judged(kind)
    assert {row.stage for row in verdict.rows} >= {"output"} and verdict.worst.ratio <= 1


@pytest.mark.parametrize(("kind", "wrong", "cause"), [row for row in (*MISTAKES, *LATER) if row[0] != "jax"])
def test_a_mistake_in_a_cache_by_hand_is_named(kind: str, wrong: str, cause: str) -> None:
    with pytest.raises(ParityError) as caught:
        judged(kind, wrong)
    assert re.search(cause, caught.value.finding.causes[0].name), caught.value


@pytest.mark.parametrize(("row", "cause"), [(wrong, cause) for kind, wrong, cause in MISTAKES if kind == "jax"])
def test_a_mistake_in_a_cache_of_jax_arrays_is_named(row: str, cause: str) -> None:
    judged("jax", length=5)
    with pytest.raises(ParityError) as caught:
        judged("jax", row, length=5)
    assert re.search(cause, caught.value.finding.causes[0].name), caught.value


def decoding_of(variant: str, example: str, ragged: bool) -> tuple[Decoding, ErrArray]:
    """Our decoding of a call, and what its outputs must be."""
    case = Case(variant, example, "plain", "float64", 0, contract.examples(variant)[example])
    drawn = draw(case, lengths={"t": 11})
    return Decoding(case, drawn, ragged), wanted(Trace(case, drawn, None, "ours"))  # type: ignore[arg-type]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("variant", "example"), DECODING)
def test_our_pieces_give_the_full_pass(variant: str, example: str, ragged: bool) -> None:
    """By steps, and by views of queries and keys at their positions: what a mistake is made of is right without it."""
    decoding, want = decoding_of(variant, example, ragged)
    runs = [] if ragged and not decoding.config.cache_axes() else [decoding.layered()]
    # Blocks of keys are chosen by their slots, padding included.
    if decoding.has_entries and not (ragged and variant == "block_sparse"):
        runs.append(decoding.attended(decoding.view(i)) for i in range(len(decoding.plan)))
    for pieces in runs:
        assert not beyond(in_order(np.concatenate(list(pieces), 1), 11, ragged), want).any()


@pytest.mark.parametrize("variant", ["rotary", "gated_delta", "gru"])
def test_no_mistake_with_a_cache_is_like_none(variant: str) -> None:
    """A run with a mistake either differs by far more than its bound, or not at all: there is none in between."""
    example = next(name for v, name in DECODING if v == variant)
    decoding, want = decoding_of(variant, example, ragged=False)
    seen = 0
    for mistake in CACHE_MISTAKES:
        for pieces in mistake.runs(decoding):
            y = np.concatenate(list(pieces), 1)
            with np.errstate(invalid="ignore"):
                share = np.nanmax(np.abs(y - want.v) / want.b)
            assert share <= 1 or share > 2, mistake.name
            seen += share > 2
    assert seen > 5


class Torch(torch.nn.Module):
    """Four projections in float32."""

    def __init__(self, mask: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask = mask
        self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12) for _ in range(4))

    def split(self, x: torch.Tensor) -> Any:
        return (p(x).view(*x.shape[:2], 3, 4).transpose(1, 2) for p in (self.q, self.k, self.v))

    def join(self, y: torch.Tensor) -> torch.Tensor:
        return self.o(y.transpose(1, 2).flatten(2))

    def step(self, x: torch.Tensor, cache: Any) -> Any:
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        t, s = q.shape[2], k.shape[2]
        if self.mask == "is_causal":
            y = scaled_dot_product_attention(q, k, v, is_causal=True)  # counts from the first key
        else:
            mask = None if cache is None else torch.ones(t, s).tril(s - t).bool()
            y = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.join(y), (k, v)

    def shared(self, x: torch.Tensor, cache: Any, valid: torch.Tensor) -> Any:
        """The prompt counts each sequence; later steps take one position for the batch: the number of slots."""
        q, k, v = self.split(x)
        real = valid if cache is None else torch.cat([cache[2], valid], 1)
        t, s = x.shape[1], real.shape[1]
        at = (real.cumsum(1) - 1).clamp(min=0) if cache is None else torch.arange(s - t, s).expand(x.shape[0], t)
        q, k = (turned(z, at.to(x.dtype)) for z in (q, k))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mask = torch.ones(t, s).tril(s - t).bool() & real[:, None, None]
        return self.join(scaled_dot_product_attention(q, k, v, attn_mask=mask)), (k, v, real)


@pytest.mark.parametrize(
    ("mask", "name", "place", "whole"),
    [
        ("is_causal", "causal mask of a step aligned at the first key", "position 5, in step 1", "agrees"),
        ("none in the prompt", "no causal mask in the prompt", "position 0, in the prompt", "differs, too"),
    ],
)
def test_causality_of_steps_and_of_the_prompt(mask: str, name: str, place: str, whole: str) -> None:
    with pytest.raises(ParityError, match=f"first wrong at {place}") as caught:
        assert_decoding_parity(Torch(mask), "mha", **SMALL, weights=LINEAR, step=Torch.step)
    assert [cause.name for cause in caught.value.finding.causes] == [name]
    assert f"given the whole sequence at once it {whole}" in str(caught.value)


def test_one_position_for_a_padded_batch() -> None:
    with pytest.raises(ParityError, match="in sequence 0 of a batch with padding") as caught:
        assert_decoding_parity(Torch(), "rotary", **SMALL, weights=LINEAR, step=Torch.shared)
    assert [cause.name for cause in caught.value.finding.causes] == ["one position for all sequences"]


def test_no_cause_speaks_of_a_mask_that_no_call_has() -> None:
    """Where every query sees the first key alone, the mask of causality cut to its first row would give the numbers."""

    def first_key(p: Any, query: torch.Tensor) -> torch.Tensor:
        v = torch.einsum("bsd,dhk->bshk", query, p["w_v"]) + p["b_v"]
        return torch.einsum("bthk,hko->bto", v[:, :1].expand_as(v), p["w_o"]) + p["b_o"]

    with pytest.raises(ParityError) as caught:
        assert_parity(first_key, "mha", **SMALL, framework="torch")
    finding = caught.value.finding
    assert not [cause for cause in finding.causes if "batch row" in cause.name or "head" in cause.name], finding.causes
    assert finding.causes or "next:" in str(caught.value)


def test_what_has_no_name_says_what_to_look_at() -> None:
    def noisy(p: Any, x: torch.Tensor, cache: Any) -> Any:
        """Values of steps are scaled by something that no table of mistakes has."""
        step = KINDS["tuples"].function
        y, cache = step(p, x, cache)
        return y * (1.0 if x.shape[1] > 3 else 1.37), cache

    with pytest.raises(ParityError, match=r"next: print the cache \(k, v\), positions and mask of step 1") as caught:
        assert_decoding_parity(noisy, "mha", **SMALL, framework="torch", step=lambda f, x, cache: f(x, cache))
    assert not caught.value.finding.causes


@pytest.mark.parametrize("row", ["is_causal"])
def test_steps_of_nnx_with_is_causal_see_the_first_key(row: str) -> None:
    """Flax's own cache takes one position at a time, and `is_causal` counts it from the first key."""
    from flax import nnx

    def step(module: Any, x: Any, cache: Any, **options: Any) -> Any:
        import jax.numpy as jnp

        return jnp.concatenate([module(x[:, i : i + 1], **options) for i in range(x.shape[1])], 1), None

    def start(module: Any, b: int, room: int) -> None:
        module.init_cache((b, room, 12), dtype=module.query.kernel[...].dtype)

    def judged_with(**options: Any) -> Any:
        module = nnx.MultiHeadAttention(3, 12, 12, decode=True, rngs=nnx.Rngs(0))
        steps = lambda m, x, cache: step(m, x, cache, **options)  # noqa: E731
        return assert_decoding_parity(module, "mha", **SMALL, weights="flax_mha", step=steps, init=start, length=5)

    assert judged_with().worst.ratio <= 1
    with pytest.raises(ParityError) as caught:
        judged_with(**{row: True})
    assert [cause.name for cause in caught.value.finding.causes] == [
        "causal mask of single positions aligned at the first key: each query sees that key alone"
    ]
