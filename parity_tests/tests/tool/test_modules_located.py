"""Where two modules part: pairs of arrays, gradients, causes; each small enough to be looked at."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parity_tests import compare_modules, compare_recordings, load_modules, record_modules
from parity_tests.ports.modules.aligned import changes, regrouped


def hidden(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


# Pairs of arrays ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def attend(self, x: Any, mask: Any, positions: Any) -> Any:
        turn = (positions[..., None] / torch.arange(1, 9).to(x.dtype)).cos()
        scores = (self.q(x) * turn) @ (self.k(x) * turn).mT * self.scale
        return self.o(scores.masked_fill(mask[:, None] == 0, -torch.inf).softmax(-1) @ self.v(x))


class PositionsFirst(Attention):
    def forward(self, x: Any, positions: Any, mask: Any) -> Any:
        return self.attend(x, mask, positions)


class MaskFirst(Attention):
    def forward(self, x: Any, mask: Any, positions: Any) -> Any:
        return self.attend(x, mask, positions)


class OtherNames(Attention):
    def forward(self, states: Any, places: Any, keep: Any) -> Any:
        return self.attend(states, keep, places)


class Model(nn.Module):
    def __init__(self, kind: Any, scale: float, shift: int = 0) -> None:
        super().__init__()
        self.norm, self.attn, self.out, self.shift = nn.LayerNorm(8), kind(scale), nn.Linear(8, 8), shift

    def forward(self, x: Any, mask: Any) -> Any:
        positions = mask.cumsum(-1) - 1 + self.shift
        given = (positions, mask) if isinstance(self.attn, PositionsFirst | OtherNames) else (mask, positions)
        return self.out(x + self.attn(self.norm(x), *given))


@pytest.mark.parametrize("kind", [MaskFirst, PositionsFirst, OtherNames])
def test_inputs_are_paired_by_name_or_with_the_nearest(kind: Any) -> None:
    mask = np.ones((2, 5), int)
    result = compare_modules(Model(kind, 8**-0.5), Model(MaskFirst, 1.0), (hidden(2, 5, 8), mask))
    assert result.first is not None and result.first.a == "attn", str(result)


def test_inputs_that_differ_are_not_taken_for_equal() -> None:
    result = compare_modules(
        Model(PositionsFirst, 1.0), Model(OtherNames, 1.0, shift=3), (hidden(2, 5, 8), np.ones((2, 5), int))
    )
    assert result.first is not None and result.first.a == "", str(result)


class Exchanged(nn.Module):
    """Two inputs of one shape, given in one order or the other."""

    class Inner(nn.Module):
        def forward(self, query: Any, key: Any) -> Any:
            return query - 2 * key

    def __init__(self, exchanged: bool) -> None:
        super().__init__()
        self.one, self.two, self.inner, self.exchanged = nn.Linear(4, 4), nn.Linear(4, 4), self.Inner(), exchanged

    def forward(self, x: Any) -> Any:
        q, k = self.one(x), self.two(x)
        return self.inner(k, q) if self.exchanged else self.inner(q, k)


def test_exchanged_inputs_are_the_callers_mistake() -> None:
    result = compare_modules(Exchanged(False), Exchanged(True), (hidden(2, 3, 4),))
    assert result.first is not None and result.first.a == ""
    assert "inner gets one in a, two in b" in result.cause or "inner gets two in a, one in b" in result.cause


class Places(nn.Module):
    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.wte, self.wpe, self.flat = nn.Embedding(9, 4), nn.Embedding(9, 4), flat

    def forward(self, i: Any) -> Any:
        p = torch.arange(i.shape[1])
        return self.wte(i) + self.wpe(p + 1 if self.flat else p[None])


def test_outputs_of_another_shape_are_compared() -> None:
    result = compare_modules(Places(False), Places(True), (np.ones((2, 3), int),))
    assert [x.a for x in result.rows] == ["wte", "wpe", ""]
    assert result.first is not None and result.first.a == "" and not result.rows[1].output.ok
    assert result.cause.startswith("wpe gets inputs in b that are those of a + 1")


class Shaped(nn.Module):
    """An inner module whose output has a shape of its own, of which the outer makes the same."""

    class Inner(nn.Module):
        def __init__(self, form: str, wrong: bool) -> None:
            super().__init__()
            self.proj, self.form, self.wrong = nn.Linear(6, 6), form, wrong

        def forward(self, x: Any) -> Any:
            y = self.proj(x) * (2 if self.wrong else 1)
            y = y.unflatten(-1, (3, 2))
            return {"bthd": y, "bhtd": y.transpose(1, 2), "bt(hd)": y.flatten(2), "fewer": y[:, :, :2]}[self.form]

    def __init__(self, form: str, wrong: bool = False) -> None:
        super().__init__()
        self.inner, self.last = self.Inner(form, wrong), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        y = y.transpose(1, 2) if self.inner.form == "bhtd" else y
        y = torch.cat([y, y[:, :, :1]], 2) if self.inner.form == "fewer" else y
        return self.last(y.reshape(*x.shape[:2], 6))


FORMS = list(permutations(("bthd", "bhtd", "bt(hd)"), 2))


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_arrays_of_other_shapes_agree_where_they_hold_the_same_numbers(one: str, other: str) -> None:
    x = (hidden(2, 5, 6),)
    right = compare_modules(Shaped(one), Shaped(other), x)
    assert right.agree and [row.verdict for row in right.rows if row.a == "inner"] == ["agrees"], str(right)
    wrong = compare_modules(Shaped(one), Shaped(other, wrong=True), x)
    assert wrong.first is not None and wrong.first.a == "inner" and wrong.first.output.shapes is None


def test_an_output_that_cannot_be_the_other_is_told() -> None:
    result = compare_modules(Shaped("bthd"), Shaped("fewer"), (hidden(2, 5, 6),))
    assert result.first is not None and result.first.a == "inner"
    assert "outputs: shapes (2, 5, 3, 2) in a, (2, 5, 2, 2) in b, which cannot hold the same numbers" in str(result)


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 5), (2, 3, 2, 5), (4, 4, 3)])
def test_every_way_to_bring_two_arrays_together_keeps_their_numbers(shape: tuple[int, ...]) -> None:
    """Whichever order and grouping of axes the other side has, one of the ways undoes it."""
    x = np.arange(float(np.prod(shape))).reshape(shape)
    for axes in permutations(range(len(shape))):
        y = x.transpose(axes)
        for other in {y.shape, (*y.shape[:-2], y.shape[-2] * y.shape[-1]), (y.shape[0] * y.shape[1], *y.shape[2:])}:
            ways = list(changes(shape, other))
            met = [(one(x), two(y.reshape(other))) for one, two in ways]
            assert all(a.shape == b.shape for a, b in met)
            if shape != other and len(axes) <= 3:
                assert any(np.array_equal(a, b) for a, b in met) or regrouped(shape, other), (axes, other)


def test_shapes_that_hold_other_numbers_have_no_way() -> None:
    assert not list(changes((2, 3), (2, 4))) and not list(changes((2, 6), (3, 5)))
    assert [a(np.ones((1, 3, 4))).shape for a, _ in changes((1, 3, 4), (2, 3, 4))] == [(2, 3, 4)]


class Passed(nn.Module):
    """A module whose caller may leave an input out."""

    class Inner(nn.Module):
        def forward(self, x: Any, bias: Any = None) -> Any:
            return x if bias is None else x + bias

    def __init__(self, given: bool) -> None:
        super().__init__()
        self.proj, self.inner, self.given = nn.Linear(4, 4), self.Inner(), given

    def forward(self, x: Any) -> Any:
        y = self.proj(x)
        return self.inner(y, bias=x if self.given else None)


@pytest.mark.parametrize("given", [True, False])
def test_an_input_that_is_left_out_is_the_callers_mistake(given: bool) -> None:
    result = compare_modules(Passed(given), Passed(not given), (hidden(2, 3, 4),))
    assert [row.a for row in result.differences] == [""], str(result)


def test_what_is_matched_by_order_alone_is_never_the_first_difference() -> None:
    """The activations hold no weights, have names of their own and give other numbers."""

    class Net(nn.Module):
        def __init__(self, name: str, activation: nn.Module) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 5), nn.Linear(5, 6)
            self.name = name
            self.add_module(name, activation)

        def forward(self, x: Any) -> Any:
            return self.down(self.get_submodule(self.name)(self.up(x)))

    result = compare_modules(Net("act", nn.SiLU()), Net("nonlinear", nn.GELU()), (hidden(2, 3, 6),))
    assert [(row.a, row.verdict) for row in result.rows if row.how == "order"] == [("act", "unsure")]
    assert [row.a for row in result.differences] == [""]
    assert "matched by order alone, and other numbers: act (a), nonlinear (b)" in str(result)
    assert "act (in a alone) in a" not in result.cause and "silu" in result.cause and "gelu" in result.cause
    same = compare_modules(Net("act", nn.SiLU()), Net("nonlinear", nn.SiLU()), (hidden(2, 3, 6),))
    assert [row.how for row in same.rows if row.a == "act"] == ["numbers"]


# Gradients ------------------------------------------------------------------------------------------------------------


class Bl(nn.Module):
    """A block that may stop a gradient: before its last module, or in its residual."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.up, self.down, self.cut = nn.Linear(6, 9), nn.Linear(9, 6), cut

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.up(x))
        return (x.detach() if self.cut == "residual" else x) + self.down(h.detach() if self.cut == "inside" else h)


class Blocks(nn.Module):
    def __init__(self, at: int | None, cut: str = "inside") -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Bl(cut if i == at else "") for i in range(4)])

    def forward(self, x: Any) -> Any:
        for b in self.blocks:
            x = b(x)
        return x


@pytest.mark.parametrize("at", range(4))
def test_a_gradient_is_traced_to_the_module_that_changes_it(at: int) -> None:
    result = compare_modules(Blocks(None), Blocks(at), (np.ones((2, 5, 6), np.float32),))
    assert [row.a for row in result.differences] == [f"blocks.{at}"], str(result)
    assert result.first is not None and "the input x" in result.first.gradients
    assert result.advice.endswith("look at its own code between up and down")
    assert compare_modules(Blocks(at), Blocks(at), (np.ones((2, 5, 6), np.float32),)).agree


def test_a_residual_is_told_from_the_module_beside_it() -> None:
    """The gradient of what a module gets is what comes through this call alone."""
    result = compare_modules(Blocks(None), Blocks(2, "residual"), (np.ones((2, 5, 6), np.float32),))
    assert [row.a for row in result.differences] == ["blocks.2"], str(result)
    assert result.first is not None and result.first.gradients == ["the input x"]


def test_gradients_go_through_files(tmp_path: Any) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    record_modules(Blocks(None), (hidden(2, 5, 6),), files[0])
    record_modules(Blocks(1), (hidden(2, 5, 6),), files[1], like=files[0])
    result = compare_recordings(load_modules(files[0]), load_modules(files[1]))
    assert [row.a for row in result.differences] == ["blocks.1"], str(result)


class Tied(nn.Module):
    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.embed, self.head, self.stop = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), stop
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = torch.tanh(self.embed(ids))
        return nn.functional.linear(x, self.head.weight.detach()) if self.stop else self.head(x)


def test_a_tied_weight_belongs_to_all_that_use_it() -> None:
    result = compare_modules(Tied(False), Tied(True), (np.array([[1, 2, 3]]),))
    assert [row.a for row in result.differences] == [""] and result.first is not None
    assert result.first.gradients == ["the weight embed.weight"]


def test_a_stopped_key_is_found_although_the_gradient_of_its_bias_is_rounding() -> None:
    class Keys(Attention):
        def __init__(self, stop: bool) -> None:
            super().__init__(1.0)
            self.stop = stop

        def forward(self, x: Any) -> Any:
            k = self.k(x)
            return self.o((self.q(x) @ (k.detach() if self.stop else k).mT).softmax(-1) @ self.v(x))

    class Whole(nn.Module):
        def __init__(self, stop: bool) -> None:
            super().__init__()
            self.attn = Keys(stop)

        def forward(self, x: Any) -> Any:
            return x + self.attn(x)

    result = compare_modules(Whole(False), Whole(True), (hidden(2, 5, 8),))
    assert [row.a for row in result.differences] == ["attn"], str(result)


class Joint(nn.Module):
    """Two projections, as one array or as two; the array is of PyTorch's form or the other way round."""

    def __init__(self, form: str, stop: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        w, v, bias = torch.randn(3, 6), torch.randn(4, 6), torch.randn(7)
        self.form, self.stop = form, stop
        if form == "two":
            self.w, self.v = nn.Parameter(w), nn.Parameter(v)
            self.w_bias, self.v_bias = nn.Parameter(bias[:3].clone()), nn.Parameter(bias[3:].clone())
        else:
            self.wv = nn.Parameter(torch.cat([w, v]) if form == "rows" else torch.cat([w, v]).T.contiguous())
            self.bias = nn.Parameter(bias)

    def forward(self, x: Any) -> Any:
        if self.form == "two":
            weight, bias = torch.cat([self.w, self.v]), torch.cat([self.w_bias, self.v_bias])
        else:
            weight, bias = self.wv if self.form == "rows" else self.wv.T, self.bias
        y = nn.functional.linear(x, weight, bias)
        return torch.cat([y[..., :3].detach(), y[..., 3:]], -1) if self.stop else y


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_fused_weights_are_compared(form: str, turned: bool) -> None:
    x = (hidden(2, 5, 6),)
    forms = ("two", form) if turned else (form, "two")
    right = compare_modules(Joint(forms[0]), Joint(forms[1]), x, weights=None)
    assert right.agree and right.unmatched_weights == [] and len(right.gradients) == 3, str(right)
    wrong = compare_modules(Joint(forms[0]), Joint(forms[1], stop=True), x, weights=None)
    assert wrong.first is not None and len(wrong.first.gradients) == 3, str(wrong)
