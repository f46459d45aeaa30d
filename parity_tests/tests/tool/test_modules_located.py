"""Where two modules part: pairs of arrays, gradients, causes, padding; each small enough to be looked at."""

import io
import math
import warnings
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parity_tests import compare_modules, compare_recordings, load_modules, record_modules
from parity_tests.ports.modules.aligned import changes, regrouped
from parity_tests.ports.modules.comparison import inside_of
from parity_tests.ports.modules.match import by_weights
from parity_tests.ports.modules.names import common, translated
from parity_tests.ports.modules.recordings import Call, real
from parity_tests.ports.modules.sides import cotangent


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
    def forward(self, states: Any, keep: Any, places: Any) -> Any:
        return self.attend(states, keep, places)


class Model(nn.Module):
    def __init__(self, kind: Any, scale: float, shift: int = 0) -> None:
        super().__init__()
        self.norm, self.attn, self.out, self.shift = nn.LayerNorm(8), kind(scale), nn.Linear(8, 8), shift

    def forward(self, x: Any, mask: Any) -> Any:
        positions = mask.cumsum(-1) - 1 + self.shift
        given = (positions, mask) if isinstance(self.attn, PositionsFirst) else (mask, positions)
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
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.up, self.down, self.cut = nn.Linear(6, 9), nn.Linear(9, 6), cut

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.up(x))
        return x + self.down(h.detach() if self.cut else h)


class Blocks(nn.Module):
    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Bl(i == at) for i in range(4)])

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


def test_gradients_go_through_files(tmp_path: Any) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    record_modules(Blocks(None), (hidden(2, 5, 6),), files[0])
    record_modules(Blocks(1), (hidden(2, 5, 6),), files[1], like=files[0])
    result = compare_recordings(*map(load_modules, files))
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


# Modules as they are --------------------------------------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.register_buffer("embed_scale", torch.tensor(12.0**0.5), persistent=False)
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, ids: Any, shift: Any) -> Any:
        return self.embed(ids) * self.embed_scale * self.gain + shift


def test_numbers_without_axes_are_moved_and_copied() -> None:
    result = compare_modules(Scale(), Scale(), (np.ones((2, 3), int), np.float32(0.3)))
    assert result.agree and {row.a for row in result.gradients} == {"1", "embed.weight", "gain"}, str(result)
    assert result.a.moved is not None


def test_a_forward_that_was_put_on_an_instance_finds_the_copy() -> None:
    """In a closure, among its file's globals, in another function of it; the original must not run."""
    x = (hidden(2, 4),)

    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    m = made()
    old, inner = m.forward, (lambda y: m[0](y))
    m.forward = lambda y: old(y) * 2 + inner(y)  # type: ignore[method-assign]
    result = compare_modules(m, made(), x)
    assert not result.agree and result.first is not None and result.first.a == ""
    assert compare_modules(m, m, x).agree
    among: dict[str, Any] = {"m": made()}
    exec("def f(y): return m[1](m[0](y))", among)
    among["m"].forward = among["f"]
    assert compare_modules(among["m"], made(), x).agree
    assert not any(hook for sub in among["m"].modules() for hook in (sub._forward_hooks, sub._forward_pre_hooks))


# Padding --------------------------------------------------------------------------------------------------------------


class Filled(nn.Module):
    """Queries that see no key get the mean of all values, or 0: no position with a token does."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.v, self.last, self.mean = nn.Linear(4, 4), nn.Linear(4, 3), mean

    def forward(self, x: Any, attention_mask: Any) -> Any:
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & (attention_mask[:, None] == 1)
        low = torch.finfo(x.dtype).min if self.mean else -torch.inf
        probs = (x @ x.mT).masked_fill(~keep, low).softmax(-1)
        return self.last((probs if self.mean else probs.nan_to_num()) @ self.v(x))


MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def test_padding_is_compared_where_it_is_asked_for() -> None:
    x = hidden(2, 5, 4)
    whole = compare_modules(Filled(True), Filled(False), (x, MASK))
    assert not whole.agree
    for given, tokens in (((x, MASK), MASK), ({"x": x, "attention_mask": MASK}, None)):
        result = compare_modules(Filled(True), Filled(False), given, tokens=tokens)
        assert result.agree and len(result.gradients) == 5, str(result)
        assert "compared on 8 tokens of 10 positions" in str(result)
    assert not compare_modules(Filled(True), Filled(False), {"x": x, "attention_mask": MASK}, tokens=False).agree
    with pytest.raises(ValueError, match=r"expected tokens= 1 for each position .* got the shape \(2, 1, 1, 5\)"):
        compare_modules(Filled(True), Filled(False), (x, MASK), tokens=MASK[:, None, None])


def test_tokens_go_through_files(tmp_path: Any) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    x = hidden(2, 5, 4)
    record_modules(Filled(True), (x, MASK), files[0], tokens=MASK)
    record_modules(Filled(False), (x, MASK), files[1], like=files[0], tokens=MASK)
    assert compare_recordings(*map(load_modules, files)).agree
    other = record_modules(Filled(True), (x, MASK))
    with pytest.raises(ValueError, match="expected equal tokens on both sides"):
        compare_recordings(load_modules(files[0]), other)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 3, 5, 4), (2, 3, 5, 5), (10, 3)])
def test_what_stands_at_padding_is_0(shape: tuple[int, ...]) -> None:
    x = real(np.ones(shape), MASK == 1)
    left = x.reshape(10, -1).sum(-1) if shape[0] == 10 else x.swapaxes(1, 2) if shape[1] == 3 and len(shape) > 3 else x
    left = left.reshape(10, -1).sum(-1) if shape[0] != 10 else left
    assert np.array_equal(left > 0, MASK.ravel() == 1)
    assert np.array_equal(real(np.ones((3, 5)), MASK == 1), np.ones((3, 5)))
    assert np.array_equal(cotangent(shape, MASK == 1) != 0, (cotangent(shape, None) * x) != 0)


def test_no_warning_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        str(compare_modules(Filled(True), Filled(True), (hidden(2, 5, 4), MASK)))

        class Low(nn.Module):
            def forward(self, x: Any) -> Any:
                return torch.full_like(x, torch.finfo(x.dtype).min), x

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.low, self.last = Low(), nn.Linear(4, 4)

            def forward(self, x: Any) -> Any:
                low, x = self.low(x)
                return self.last(x).masked_fill(x > 0, 0) + low.clamp(-1)

        str(compare_modules(Outer(), Outer(), (hidden(2, 5, 4),)))
        str(compare_modules(Outer(), Outer().double(), (hidden(2, 5, 4),)))


# Names ----------------------------------------------------------------------------------------------------------------


def test_numbers_in_names_are_whole() -> None:
    """Layer 1 is no part of layer 10, and a word in braces is one word."""
    assert inside_of("layers.1.mlp", "layers.1") and not inside_of("layers.10.mlp", "layers.1")
    assert not inside_of("layers.1", "layers.10") and inside_of("layers.10", "")
    assert common(["layers.1.q", "layers.10.q"]) == "layers" and common(["layers.1.q", "layers.1.k"]) == "layers.1"
    assert translated("layers.1.extra.mlp", {"layers.{i}.mlp": "b.{i}.ffn"}) == ("layers.1.extra.mlp", None)
    assert translated("layers.10.mlp", {"layers.{i}.mlp": "b.{i}.ffn", "layers.1": "c"}) == ("b.10.ffn", None)
    assert translated("layers.10.mlp", {"layers.1": "c"}) == ("layers.10.mlp", None)
    assert translated("x.h.1.mlp", {"h.{i}.mlp": "b.{i}"}) == ("x.h.1.mlp", None)
    calls = [[Call(f"{name}.{n}", "") for n in (1, 10)] for name in ("h", "g")]
    weights = {f"h.{n}.w": f"g.{n}.w" for n in (1, 10)}
    assert by_weights(*calls, weights, []) == [(0, 0), (1, 1)]


class Many(nn.Module):
    """Eleven layers, so that one number is the start of another."""

    def __init__(self, at: int | None, cut: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bl(n == cut) for n in range(11))
        self.at = at

    def forward(self, x: Any) -> Any:
        for n, layer in enumerate(self.layers):
            x = layer(x) if n != self.at else x + layer.down(torch.sin(layer.up(x)))
        return x


@pytest.mark.parametrize("at", [1, 10])
def test_layer_1_is_not_layer_10(at: int) -> None:
    class Odd(Bl):
        def forward(self, x: Any) -> Any:
            return x + self.down(torch.sin(self.up(x)))

    b = Many(None)
    b.layers[at] = Odd(False)
    result = compare_modules(Many(None), b, (hidden(1, 3, 6),))
    assert [row.a for row in result.differences] == [f"layers.{at}"], str(result)
    back = compare_modules(Many(None), Many(None, cut=at), (hidden(1, 3, 6),))
    assert [row.a for row in back.differences] == [f"layers.{at}"], str(back)
    skipped = Many(None)
    skipped.layers[at].forward = lambda x: x  # type: ignore[method-assign]
    missing = compare_modules(Many(None), skipped, (hidden(1, 3, 6),))
    assert missing.b.never_called == [f"layers.{at}.up", f"layers.{at}.down"]
    assert f"in a alone: layers.{at}.up, layers.{at}.down" in str(missing)


def test_what_is_not_alike_is_told_by_its_first_place_and_not_by_all() -> None:
    """A factor at the start of a deep model: the advice names where it is seen first, and the cause the factor."""

    class Deep(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(9, 24), nn.ModuleList(nn.Linear(24, 24) for _ in range(40))
            self.scale = scale

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids) * self.scale
            for block in self.blocks:
                x = x + torch.tanh(block(x))
            return x

    result = compare_modules(Deep(1.0), Deep(math.sqrt(24)), (np.array([[1, 2, 3, 4]]),))
    assert result.cause.startswith(
        "blocks.0 gets inputs in b that are those of a times the constant factor 4.899 = sqrt(24)"
    )
    assert result.advice.endswith("embed agree; blocks.0 is the first that gets other inputs")
    assert "blocks.2" not in str(result)


def test_large_models_say_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal alone, and in one line that is cleared."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for kind, large, told in ((Terminal, 30, True), (Terminal, 10**7, False), (io.StringIO, 30, False)):
        out = kind()
        monkeypatch.setattr("parity_tests.ports.modules.progress.LARGE", large)
        monkeypatch.setattr("sys.stderr", out)
        compare_modules(Bl(False), Bl(False), (hidden(2, 6),))
        assert ("a (torch Bl, 0 million weights) runs in float64" in out.getvalue()) == told
        assert "\n" not in out.getvalue() and (not told or out.getvalue().endswith("\r\033[K"))
