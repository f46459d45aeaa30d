"""A module of today's kind, grouped, causal and rotary, given to the judge with the options that people try."""

from typing import Any

import numpy as np
import pytest
import torch

from parity_tests import ParityError, assert_parity
from parity_tests.explain.findings import Finding
from parity_tests.judge.cases import Case, seeing
from parity_tests.ports.parity import Verdict

D, H, G, K = 12, 6, 2, 4
FIELDS = {"d_model": D, "num_heads": H, "num_kv_heads": G, "head_dim": K}
WEIGHTS = {
    "w_q": ("q.weight", "(h k) d -> d h k"),
    "w_k": ("k.weight", "(g k) d -> d g k"),
    "w_v": ("v.weight", "(g v) d -> d g v"),
    "w_o": ("o.weight", "d (h v) -> h v d"),
}
OF_KEYS = {"mask": ("attention_mask", "b h t s -> b s")}


class Grouped(torch.nn.Module):
    """Two heads of keys and values for six of queries; `wrong` names a mistake to make."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        torch.manual_seed(5)
        self.wrong = wrong
        self.q, self.k, self.v = (torch.nn.Linear(D, heads * K, bias=False) for heads in (H, G, G))
        self.o, self.tap = torch.nn.Linear(H * K, D, bias=False), torch.nn.Identity()

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(2, dtype=x.dtype) / 2)
        (a, b), cos, sin = x.split(K // 2, -1), angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def projected(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [project(x) for project in (self.q, self.k, self.v)]

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, K).transpose(1, 2) for y in self.projected(x))
        q, k, v = self.turned(q), self.turned(k), self.turned(v) if self.wrong == "values" else v
        q = self.tap(q * (1.1 if self.wrong == "queries" else 1.0))
        k, v = (y.repeat_interleave(H // G, 1) for y in (k, v))
        visible = torch.ones(t, t, dtype=torch.bool)
        visible = visible if self.wrong == "all seen" else visible.tril()
        if attention_mask is not None:
            assert attention_mask.shape == (b, t)
            visible = visible & attention_mask[:, None, None, :]
        scores = q @ k.mT / K**0.5
        scores = scores * visible if self.wrong == "product" else scores.masked_fill(~visible, -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


class Fused(Grouped):
    """Queries, keys and values by one projection."""

    def __init__(self) -> None:
        super().__init__()
        del self.q, self.k, self.v
        self.qkv = torch.nn.Linear(D, (H + 2 * G) * K, bias=False)

    def projected(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(self.qkv(x).split([H * K, G * K, G * K], -1))


class Tables(Grouped):
    """Its cosines and sines are float32 whatever its weights are."""

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        return super().turned(x.float()).to(x.dtype)


def judge(module: Any, **options: Any) -> Verdict:
    return assert_parity(module, "decoder", FIELDS, **{"weights": WEIGHTS, "empty_rows": False} | options)


def found(module: Any, **options: Any) -> tuple[Finding, str]:
    with pytest.raises(ParityError) as caught:
        judge(module, **options)
    return caught.value.finding, str(caught.value)


def test_a_mask_of_the_keys_alone_is_asked_for_as_the_verdict_says() -> None:
    verdict = judge(Grouped())
    assert '{"mask": ("attention_mask", "b h t s -> b s")} gives one of the keys alone' in str(verdict)
    verdict = judge(Grouped(), arguments=OF_KEYS)
    (mask,) = [trace.drawn.inputs["mask"] for trace in verdict.traces.values() if "mask" in trace.drawn.inputs]
    assert mask.shape[1:3] == (1, 1) and mask.any(-1).all() and not mask.all()
    assert verdict.not_given == ()
    with pytest.raises(ParityError, match="row without a key is NaN"):  # the first keys are hidden then
        judge(Grouped(), arguments=OF_KEYS, empty_rows=True, seed=1)


def test_a_mask_of_the_keys_alone_reaches_a_call_of_ones_own() -> None:
    def call(module: Any, query: Any, mask: Any = None) -> Any:
        return module(query, mask)

    verdict = judge(Grouped(), arguments=OF_KEYS, call=call)
    assert any("mask" in trace.drawn.inputs for trace in verdict.traces.values())


def test_every_query_sees_a_key_through_a_window_and_a_mask_of_the_keys() -> None:
    case = Case("decoder", "plain", "self", "float64")
    for left in (1, 2):
        hidden = np.zeros((1, 1, 1, 7), bool)
        kept = seeing(case, "mask", hidden)[0, 0, 0]
        assert not kept[1] and all(kept[max(i - left, 0) : i + 1].any() for i in range(7))


def test_an_argument_that_is_not_named_keeps_its_place() -> None:
    """The first goes by position where another is mapped; the mask that then comes has all its axes."""
    with pytest.raises(AssertionError) as caught:
        judge(Grouped(), arguments={"mask": "attention_mask"})
    assert "query torch (2, 5, 12), mask torch (2, 6, 5, 5)" in caught.value.__notes__[0]
    assert '{"mask": ("attention_mask", "b h t s -> b s")} gives one of the keys alone' in caught.value.__notes__[0]
    assert judge(Grouped(), arguments={"mask": None}).not_given == ("attention_mask",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": {"mask": ("attention_mask", "b h t s -> b 2 2 s")}}, "in arguments=, got 'b h t s -> b 2 2 s'"),
        ({"arguments": {"mask": ("attention_mask", "b s")}}, "pattern from our axes to theirs.* in arguments="),
        ({"arguments": {"mask": ("attention_mask", "b s t -> b s")}}, "that begins with 'b h t s'"),
        ({"arguments": {"query": ("x", "b t d -> b d")}}, "expected every axis of query on the right"),
        ({"outputs": (("y", "b t 2 -> b t"),)}, "in outputs=, got 'b t 2 -> b t'"),
        ({"taps": {"tap": ("q", "b h t k, b t h k")}}, "in taps=, got 'b h t k, b t h k'"),
        ({"weights": {**WEIGHTS, "w_q": ("q.weight", "(h 4) d -> d h k")}}, "in weights=, got .* that of w_q"),
    ],
)
def test_a_pattern_that_is_none_is_refused_by_its_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(Grouped(), **options)


def test_one_projection_of_unlike_widths() -> None:
    three, out = ("w_q", "w_k", "w_v"), {"w_o": WEIGHTS["w_o"]}
    judge(Fused(), weights={three: ("qkv.weight", "(h k | g k | g v) d -> d h k, d g k, d g v"), **out})
    for pattern in ("(h k | g k | g v) d -> ...", "(p h k) d -> p d h k", "(h k | g k) d -> d h k, d g k"):
        with pytest.raises(ValueError, match=r"nds? (it )?in 'd h k, d g k, d g v'"):
            judge(Fused(), weights={three: ("qkv.weight", pattern), **out})
    with pytest.raises(ValueError, match=r"like .* in weights=, got .* correct that of w_q, w_k, w_v"):
        judge(Fused(), weights={three: ("qkv.weight", "(h k | g k g v) d -> d h k, d g k, d g v"), **out})


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("all seen", "causal ignored"),
        ("product", "mask multiplied into the scores"),
        ("values", "values rotated, too"),
    ],
)
def test_without_a_mask_the_plain_name_is_told(wrong: str, cause: str) -> None:
    finding, _ = found(Grouped(wrong))
    assert [each.name for each in finding.causes] == [cause]


@pytest.mark.left_out
def test_a_tap_with_a_mistake_and_its_axes_in_another_order() -> None:
    finding, text = found(Grouped("queries"), taps={"tap": "q"})
    assert finding.patterns == ["the axes in the order b h t k, and other numbers"]
    assert finding.causes[0].evidence == "its shape fits no other order; in this one its numbers still differ"
    assert finding.after is not None and finding.after.first.name == "q"
    assert "differs next at tape q\n  seen: only query positions 1 to 4 of 5\n" in text  # the first sees one key


def test_of_a_fixed_type_it_is_said_how_to_have_it_judged() -> None:
    assert "give one built in float64, whose casts and tables follow the type" in judge(Tables()).why


@pytest.mark.parametrize("pattern", ["(k h) d -> d h k", "(h k) d -> d h k"])
def test_where_no_cause_fits_the_patterns_of_the_weights_are_suspected(pattern: str) -> None:
    """The queries' heads are read the other way round, or the module is wrong in a way that has no name."""
    module = Grouped("queries" if pattern.startswith("(h k)") else "")
    finding, text = found(module, weights={**WEIGHTS, "w_q": ("q.weight", pattern)}, calls=("plain",))
    assert ("check the patterns in weights=: (k h) for (h k)" in text) == (not finding.causes)
    assert pattern.startswith("(h k)") or not finding.causes
