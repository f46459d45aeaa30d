"""Which parts of a candidate are computed in a narrower type than float64, decided by the numbers that they give."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract
from parity_tests import ParityError, Verdict, assert_parity
from parity_tests.explain.causes import explain
from parity_tests.judge.candidates import output_shapes, pulled
from parity_tests.judge.cases import Case, draw
from parity_tests.ports import differences
from parity_tests.ports.adapters import port
from parity_tests.ports.names import Names
from parity_tests.ports.watch import Watch, fill_of, number, written

SMALLEST = float(np.finfo(np.float32).min)
FILLS = (-inf, -1e9, -1e4, -65504.0, SMALLEST, -0.5, -(2.0**-30))
Made = Callable[[Any, float], Any]

TORCH_MASKS: dict[str, Made] = {
    "full and triu": lambda allowed, fill: torch.full(allowed.shape, fill).triu(1),
    "where": lambda allowed, fill: torch.where(allowed, 0.0, fill).float(),
    "masked_fill in place": lambda allowed, fill: torch.zeros(allowed.shape).masked_fill_(~allowed, fill),
    "indices": lambda allowed, fill: torch.zeros(allowed.shape).index_put((~allowed).nonzero().unbind(1), _32(fill)),
    "NumPy": lambda allowed, fill: torch.from_numpy(np.where(allowed, np.float32(0), np.float32(fill))),
    "written over what was empty": lambda allowed, fill: torch.empty(allowed.shape).fill_(fill).triu_(1),
    "tensor": lambda allowed, fill: torch.where(allowed, torch.tensor(0.0), torch.tensor(fill)),
    "added into": lambda allowed, fill: torch.zeros(allowed.shape).add_(torch.full(allowed.shape, fill).triu(1)),
    "broadcast": lambda allowed, fill: torch.full((1, 1), fill).expand(allowed.shape).masked_fill(allowed, 0.0),
    "half": lambda allowed, fill: torch.full(allowed.shape, -65504.0 if fill < -65504 else -0.5).triu(1).half(),
}
JAX_MASKS: dict[str, Made] = {
    "full and triu": lambda allowed, fill: jnp.triu(jnp.full(allowed.shape, fill, jnp.float32), 1),
    "where": lambda allowed, fill: jnp.where(allowed, jnp.float32(0), jnp.float32(fill)),
    "NumPy": lambda allowed, fill: np.where(allowed, np.float32(0), np.float32(fill)),
    "cast": lambda allowed, fill: jnp.where(allowed, 0.0, fill).astype(jnp.float32),
}


def _32(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float32)


def unsearched(run: Any, causes: bool = True, **options: Any) -> Any:
    """The first difference without a search of its causes, which takes seconds."""
    return explain(run, causes=False, **options)


def watched(function: Any, framework: str) -> Watch:
    """What the runs of a function in float64 computed with."""
    config = contract.config("dot_product")
    with jax.enable_x64(framework == "jax"):
        found = port(function, config, Names(), framework, "float64")
        case = Case("dot_product", "", "plain", "float64", 0, config)
        drawn = draw(case, found.arguments)
        drawn = replace(drawn, pulled=pulled(case, drawn, output_shapes(case, drawn)))
        found.candidate.run(case, drawn, True)
        found.watch.settle()
    return found.watch


def with_mask(made: Made, fill: float, framework: str) -> Any:
    xp: Any = torch if framework == "torch" else jnp

    def attention(query: Any) -> Any:
        t = query.shape[1]
        allowed = xp.tril(xp.ones((t, t), dtype=bool))
        scores = query @ query.swapaxes(1, 2) / sqrt(query.shape[-1])
        mask = made(allowed if framework == "torch" else np.asarray(np.tril(np.ones((t, t), bool))), fill)
        return xp.softmax(scores + mask, -1) @ query if framework == "torch" else jax.nn.softmax(scores + mask) @ query

    return attention


@pytest.mark.parametrize("name", TORCH_MASKS)
def test_a_mask_of_exact_numbers_keeps_float64_in_torch(name: str) -> None:
    for fill in FILLS:
        seen = watched(with_mask(TORCH_MASKS[name], fill, "torch"), "torch")
        assert seen.suspected and not seen.forward and not seen.backward, (fill, seen)


@pytest.mark.parametrize("name", JAX_MASKS)
def test_a_mask_of_exact_numbers_keeps_float64_in_jax(name: str) -> None:
    for fill in (-inf, SMALLEST):
        seen = watched(with_mask(JAX_MASKS[name], fill, "jax"), "jax")
        assert seen.suspected and not seen.forward and not seen.backward, (fill, seen)


TABLE = torch.arange(9) ** -0.3  # a constant that was rounded


def into(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.float32).copy_(source).double()


NARROW_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "_to_copy": lambda x: x.float().double(),
    "_softmax": lambda x: torch.softmax((x * 0).float() + torch.arange(x.shape[-1]), -1).double(),
    "copy_": lambda x: into(x, x),
    "constant": lambda x: x * TABLE[: x.shape[1], None],
    "full": lambda x: x + torch.full(x.shape, 0.1),
    "mul": lambda x: x * (torch.ones(x.shape) * 0.1),
    "arange": lambda x: x * torch.arange(0.0, 0.1 * x.shape[-1], 0.1)[: x.shape[-1]],
    "rand": lambda x: x + 0 * torch.rand(x.shape),
    "view": lambda x: x * torch.ones(x.shape).view(torch.int32).bitwise_or(1).view(torch.float32),
    "add_": lambda x: x * torch.ones(x.shape).add_(2.0**-40),
    "a constant": lambda x: x * torch.tensor(0.1),
}


@pytest.mark.parametrize("name", NARROW_TORCH)
def test_what_is_rounded_is_named_with_its_line(name: str) -> None:
    """By the operation that rounds, or the constant that was rounded before it came."""
    function = NARROW_TORCH[name]
    seen = watched(lambda query: function(query), "torch")
    assert seen.forward, name
    line = function.__code__.co_firstlineno if name != "copy_" else into.__code__.co_firstlineno + 1
    assert any(name in words and f"(test_narrower_types.py, line {line}" in words for words in seen.forward), seen


def test_a_cast_that_loses_numbers_on_the_way_back_alone_is_named() -> None:
    """What is exact in float32 passes; its gradient, which is not, is no fault of the candidate."""
    seen = watched(lambda query: (query * 0 + 1).float().double() * query, "torch")
    assert not seen.forward
    assert any("_to_copy in float32 (test_narrower_types.py, line" in words for words in seen.backward), seen.backward


def test_a_random_number_of_the_candidate_is_not_drawn_twice() -> None:
    """To do it again would change what comes next."""
    drawn = []

    def attention(query: torch.Tensor) -> torch.Tensor:
        drawn.extend([torch.rand(3), torch.rand(3)])
        return query + 0 * drawn[1].sum()

    torch.manual_seed(0)
    watched(attention, "torch")
    torch.manual_seed(0)
    assert torch.equal(torch.cat(drawn), torch.rand(6))


def test_what_is_written_into_float64_is_written_once() -> None:
    results = []

    def attention(query: torch.Tensor) -> torch.Tensor:
        results.append(torch.zeros(3, dtype=torch.float64).add_(torch.ones(3)))
        return query + 0 * results[0].sum()

    assert not watched(attention, "torch").forward
    assert results[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("x", [0.0, -inf, -1e9, SMALLEST, 0.25, 2.0**-70, 1e9, -65504.0, 0.125, 3.0, 100.25])
def test_what_people_write_is_exact(x: float) -> None:
    assert written(np.array([x], np.float32)) and written(np.array([0.0, x], np.float64))


@pytest.mark.parametrize("x", [0.1, 1e-6, sqrt(12), 1 / 3, 10000**-0.25, 1e30])
def test_what_was_rounded_is_not(x: float) -> None:
    assert not written(np.array([0.0, x], np.float32))


# What a verdict says of it ------------------------------------------------------------------------------------------


class Normed(torch.nn.Module):
    """Causal attention whose queries and keys are normed; the mask is added."""

    def __init__(self, eps: float, made: Made) -> None:
        super().__init__()
        self.eps, self.made = eps, made
        self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12, bias=False) for _ in range(4))
        self.qn, self.kn = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, 3, 4).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (y * torch.rsqrt(y.pow(2).mean(-1, True) + self.eps) * w for y, w in ((q, self.qn), (k, self.kn)))
        scores = q @ k.mT / 2 + self.made(torch.ones(t, t, dtype=torch.bool).tril(), -inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


NORMED: dict[str, Any] = {f"w_{n}": (f"{n}.weight", "(h k) d -> d h k") for n in "qkv"}
NORMED |= {"w_o": ("o.weight", "o (h v) -> h v o"), "w_q_norm": "qn", "w_k_norm": "kn"}
FIELDS: dict[str, Any] = {"d_model": 12, "num_heads": 3, "rope_base": None, "norm": "rms", "norm_eps": 1e-6}


def test_an_eps_shows_in_float64_beside_a_mask_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made = TORCH_MASKS["full and triu"]
    verdict = assert_parity(Normed(1e-6, made), "decoder", FIELDS, weights=NORMED)
    assert ({row.case.dtype for row in verdict.rows}, verdict.notes) == ({"float64", "float32"}, [])
    monkeypatch.setattr(differences, "explain", unsearched)
    with pytest.raises(ParityError) as caught:
        assert_parity(Normed(1e-5, made), "decoder", FIELDS, weights=NORMED)
    assert caught.value.finding.case.endswith("float64")


class Rounding(Normed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float().to(x.dtype))


def test_what_is_not_judged_in_float64_stands_in_the_notes() -> None:
    torch.manual_seed(0)
    verdict = assert_parity(Rounding(1e-6, TORCH_MASKS["where"]), "decoder", FIELDS, weights=NORMED)
    line = f"(test_narrower_types.py, line {Rounding.forward.__code__.co_firstlineno + 1}, in Rounding)"
    assert {row.case.dtype for row in verdict.rows} == {"float32"}
    assert [note.startswith("not judged in float64: ") and line in note for note in verdict.notes] == [True]
    assert verdict.notes[0] in str(verdict)


class Buffered(torch.nn.Module):
    """A mask in a buffer, and another scale than is meant where it is asked for."""

    def __init__(self, fill: float, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("hidden", torch.full((64, 64), fill).triu(1), persistent=False)

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        t = query.shape[1]
        hidden: Any = self.hidden
        return torch.softmax(query @ query.mT * self.scale + hidden[:t, :t], -1) @ query


@pytest.mark.parametrize("fill", [-inf, -1e9, SMALLEST])
def test_a_mask_in_a_buffer_keeps_float64(fill: float) -> None:
    with pytest.raises(ParityError, match="judged in float64, which shows what is meant") as caught:
        assert_parity(Buffered(fill, 0.3), "dot_product", causal=True, scale=0.25, framework="torch")
    assert caught.value.finding.causes[0].name == "scale of the scores 0.3 in place of 0.25"


def test_a_rounded_buffer_is_named() -> None:
    module = Buffered(-inf, 0.25)
    module.register_buffer("table", torch.rand(9))
    config = contract.config("dot_product")
    seen = port(module, config, Names(), None, "float64").watch
    assert list(seen.forward) == ["buffer table of float32"]


class Biased(nnx.Module):
    """T5's attention whose table of the bias is an `nnx.Embed`, which has a type of its own."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, rngs = scale, nnx.Rngs(0)
        self.q, self.k, self.v, self.o = (nnx.Linear(12, 12, use_bias=False, rngs=rngs) for _ in range(4))
        self.table = nnx.Embed(4, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (p(x).reshape(b, t, 3, 4) for p in (self.q, self.k, self.v))
        away = jnp.arange(t)[None] - jnp.arange(t)[:, None]
        bias = self.table(2 * (away > 0) + (away != 0)).transpose(2, 0, 1)
        probs = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) * self.scale + bias)
        return self.o(jnp.einsum("bhts,bshk->bthk", probs, v).reshape(b, t, d))


BIASED: dict[str, Any] = {f"w_{n}": (f"{n}.kernel", "d (h k) -> d h k") for n in "qkv"}
BIASED |= {"w_o": ("o.kernel", "(h v) o -> h v o"), "w_bias": "table.embedding"}
T5: dict[str, Any] = {"d_model": 12, "num_heads": 3, "num_buckets": 4, "max_distance": 2, "weights": BIASED}


@pytest.mark.left_out
def test_an_embedding_of_a_type_of_its_own_leaves_the_outputs_to_float64() -> None:
    """Its weights are those of float32, so what it looks up is exact; its gradients are rounded, and named."""
    verdict = assert_parity(Biased(), "t5_bias", **T5)
    assert {(row.case.dtype, row.stage) for row in verdict.rows} == {
        ("float64", "output"),
        ("float32", "output"),
        ("float32", "gradient"),
    }
    (note,) = verdict.notes
    assert "gradients not judged in float64" in note
    assert "in Embed, whose dtype is float32: with its dtype set to None it follows its weights" in note
    cured: Any = Biased()
    cured.table.dtype = None
    verdict = assert_parity(cured, "t5_bias", **T5)
    assert (verdict.notes, {row.case.dtype for row in verdict.rows}) == ([], {"float64", "float32"})


def test_a_scale_shows_in_float64_beside_such_an_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "explain", unsearched)
    with pytest.raises(ParityError) as caught:
        assert_parity(Biased(1.0000001), "t5_bias", **T5)
    assert caught.value.finding.case.endswith("float64")


# On a longer sequence ------------------------------------------------------------------------------------------------


class Windowed(torch.nn.Module):
    """Causal attention in a window behind a mask of float32; from 20 positions on something may be rounded, or only its
    gradient.
    """

    def __init__(self, window: int, rounded: str = "") -> None:
        super().__init__()
        self.window, self.rounded = window, rounded

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        t = query.shape[1]
        allowed = torch.ones(t, t, dtype=torch.bool).tril().triu(-self.window)
        if t > 20 and self.rounded:
            query = query.float().to(query.dtype) if self.rounded == "forward" else Coarse.apply(query)
        scores = query @ query.mT / sqrt(query.shape[-1])
        return (scores + torch.full((t, t), -inf).masked_fill(allowed, 0.0)).softmax(-1) @ query


class Coarse(torch.autograd.Function):
    """A number as it is, its gradient by way of float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].float().to(grads[0].dtype)


LEFT_OUT: dict[str, Any] = {"mask": None, "bias": None}
WINDOWED: dict[str, Any] = {"causal": True, "window": (31, None), "calls": ("full",), "arguments": LEFT_OUT}


def windowed(window: int, rounded: str = "") -> Verdict:
    return assert_parity(Windowed(window, rounded), "dot_product", **WINDOWED)


def judged_longer(verdict: Verdict) -> set[tuple[str, str]]:
    return {(row.case.dtype, row.stage) for row in verdict.rows if row.case.example == "33 positions"}


def test_a_longer_sequence_is_judged_in_float64_beside_a_mask_of_float32() -> None:
    verdict = windowed(31)
    assert judged_longer(verdict) == {("float64", "output"), ("float64", "gradient")}
    assert (verdict.notes, verdict.untested) == ([], [])
    with pytest.raises(ParityError, match="in a sequence of 33 positions") as caught:
        windowed(32)
    assert caught.value.finding.case.endswith("float64")


def test_a_longer_sequence_that_is_rounded_is_judged_in_the_candidates_own_type() -> None:
    verdict = windowed(31, "forward")
    assert judged_longer(verdict) == {("float32", "output"), ("float32", "gradient")}
    assert verdict.untested == []
    (note,) = verdict.notes
    assert note.startswith("a sequence of 33 positions not judged in float64: it computes in a narrower type: _to_copy")
    with pytest.raises(ParityError, match="in float64 it agrees on shorter sequences; this is in float32") as caught:
        windowed(32, "forward")
    assert caught.value.finding.case.endswith("float32")


def test_a_longer_sequence_whose_gradients_are_rounded_has_its_outputs_judged() -> None:
    verdict = windowed(31, "backward")
    assert judged_longer(verdict) == {("float64", "output"), ("float32", "output"), ("float32", "gradient")}
    (note,) = verdict.notes
    assert note.startswith("gradients of a sequence of 33 positions not judged in float64: they pass through _to_copy")


# What hides keys ----------------------------------------------------------------------------------------------------


def test_the_fill_is_the_number_that_stands_at_hidden_places_alone() -> None:
    hidden = np.zeros((2, 1, 3, 5), bool)
    hidden[0, 0, 1], hidden[1, 0, :, 2] = True, True
    scores = np.random.default_rng(0).normal(size=(2, 4, 3, 5))
    assert fill_of(scores, hidden) is None
    assert fill_of(np.where(hidden, -1e9, scores), hidden) == -1e9
    assert fill_of(np.where(hidden, -np.inf, scores), hidden) is None
    assert fill_of(np.where(hidden, -1e9, scores).reshape(8, 3, 5), hidden) == -1e9
    assert fill_of(np.where(hidden, -7.0, 0.0)[:, 0], hidden) == -7
    assert fill_of(np.where(~hidden, -1e9, scores), hidden) is None
    assert fill_of(np.where(hidden, -1e9, scores)[..., :4], hidden) is None


@pytest.mark.parametrize(
    ("x", "words"), [(-1e9, "-1e9"), (-1e4, "-10000"), (SMALLEST, "the smallest float32"), (-65504.0, "-65504")]
)
def test_a_fill_is_said_as_it_is_written(x: float, words: str) -> None:
    assert number(x) == words
