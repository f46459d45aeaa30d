"""What `compare_modules` is given: modules as they are, padded batches, names; and what it says of large models."""

import io
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import attn_jax
import attn_torch
from parity_tests import compare_modules, compare_recordings, load_modules, record_modules
from parity_tests.ports.modules.comparison import inside_of
from parity_tests.ports.modules.match import by_weights
from parity_tests.ports.modules.names import common, translated
from parity_tests.ports.modules.recordings import Call, real
from parity_tests.ports.modules.sides import cotangent
from parity_tests.tests.tool.test_modules_located import Bl, hidden

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
    setattr(m, "forward", lambda y: old(y) * 2 + inner(y))  # noqa: B010
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
    assert compare_recordings(load_modules(files[0]), load_modules(files[1])).agree
    other = record_modules(Filled(True), (x, MASK))
    with pytest.raises(ValueError, match="expected equal tokens on both sides"):
        compare_recordings(load_modules(files[0]), other)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 3, 5, 4), (2, 3, 5, 5), (10, 3)])
def test_what_stands_at_padding_is_0(shape: tuple[int, ...]) -> None:
    x = real(np.ones(shape), MASK == 1)
    by_position = np.moveaxis(x, 2, 1) if x.shape[1] != 5 and x.ndim > 2 else x
    assert np.array_equal(by_position.reshape(10, -1).any(-1), MASK.ravel() == 1)
    assert np.array_equal(by_position.reshape(10, -1).all(-1), MASK.ravel() == 1)
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
    with pytest.raises(ValueError, match=r"words of 'layers\.\{i\}' in names=, got \{j\} in 'b\.\{j\}'"):
        translated("layers.1", {"layers.{i}": "b.{j}"})
    calls = [[Call(name, "") for name in names] for names in (("h.1", "h.10"), ("g.1", "k.10"))]
    weights = {"h.1.w": "g.1.w", "h.10.w": "k.10.w"}
    assert by_weights(calls[0], calls[1], weights, []) == [(0, 0), (1, 1)]


class Many(nn.Module):
    """Eleven layers, so that one number is the start of another."""

    def __init__(self, at: int | None, cut: int | None = None) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(Bl("inside" if n == cut else "") for n in range(11))
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
    b.layers[at] = Odd()
    result = compare_modules(Many(None), b, (hidden(1, 3, 6),))
    assert [row.a for row in result.differences] == [f"layers.{at}"], str(result)
    back = compare_modules(Many(None), Many(None, cut=at), (hidden(1, 3, 6),))
    assert [row.a for row in back.differences] == [f"layers.{at}"], str(back)
    skipped = Many(None)
    skipped.layers[at].forward = lambda x: x
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
        monkeypatch.setattr("parity_tests.ports.modules.terminal.LARGE", large)
        monkeypatch.setattr("sys.stderr", out)
        compare_modules(Bl(), Bl(), (hidden(2, 6),))
        assert ("a (torch Bl, 0 million weights) runs in float64" in out.getvalue()) == told
        assert "\n" not in out.getvalue() and (not told or out.getvalue().endswith("\r\033[K"))


class Weighing(torch.nn.Module):
    """Returns its weights too: for each head, or their mean."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.stack([x @ x.mT, 2 * x @ x.mT], 1).softmax(-1)
        return weights.mean(1) @ x, weights.mean(1) if self.mean else weights


def test_results_of_other_shapes_are_told() -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    result = compare_modules(Weighing(False), Weighing(True), (x,))
    words = "not compared, in other shapes: the module itself returns 1 (3, 2, 5, 5) in a, 1 (3, 5, 5) in b"
    assert result.agree and words in str(result)
    assert result.as_dict()["submodules"][0]["not_compared"] == "1 (3, 2, 5, 5) in a, 1 (3, 5, 5) in b"
    assert "not compared" not in str(compare_modules(Weighing(True), Weighing(True), (x,)))


# What says nothing ----------------------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self, package: Any) -> None:
        super().__init__()
        self.inner = package.build("decoder", d_model=12, num_heads=2)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class FlaxHolder(nnx.Module):
    def __init__(self) -> None:
        self.inner = attn_jax.build("decoder", d_model=12, num_heads=2)

    def __call__(self, x: Any) -> Any:
        return self.inner(x)


def test_outputs_that_are_nan_on_both_sides_are_no_agreement() -> None:
    x = hidden(2, 5, 12)
    x[0] = np.nan
    result = compare_modules(Holder(attn_torch), Holder(attn_torch), (x,))
    assert "50% of the outputs are NaN on both sides, which says nothing" in str(result)
    with pytest.raises(ValueError, match="expected numbers to compare, got outputs that are NaN everywhere on both"):
        compare_modules(Holder(attn_torch), nn.Linear(12, 12), (x[:1],), weights=None)


@pytest.mark.left_out
def test_gradients_that_are_0_but_for_roundings_are_not_less_precise() -> None:
    """One query with one key: the scores have no gradient, which one side computes as 0 and another nearly."""
    result = compare_modules(Holder(attn_torch), FlaxHolder(), (hidden(1, 1, 12),))
    assert result.agree, str(result)


def test_what_is_no_module_with_weights_is_refused() -> None:
    x = hidden(2, 4)
    with pytest.raises(TypeError, match=r"compare_modules: expected a module, got the class Linear; build one of it"):
        compare_modules(nn.Linear, nn.Linear, (x,))
    with pytest.raises(ValueError, match="expected weights, got a module on the device meta; load them first"):
        compare_modules(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4), (x,))


class Spread(nn.Module):
    """The variance of each row, from deviations or as a difference of two means, which loses what they share."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.w, self.stable = nn.Parameter(torch.ones(1)), stable

    def forward(self, x: Any) -> Any:
        if self.stable:
            return self.w * x.var(-1, unbiased=False, keepdim=True)
        return self.w * ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2)


@pytest.mark.parametrize("mean", [1e2, 1e3, 3e3, 1e4, 1e5, 1e6])
def test_a_side_that_loses_all_digits_is_less_precise(mean: float) -> None:
    """However large its errors are: the other side has the digits."""
    x = hidden(2, 5, 6) + mean
    for sides, worse in (((True, False), "b"), ((False, True), "a")):
        result = compare_modules(Spread(sides[0]), Spread(sides[1]), (x,))
        assert f"but {worse} (torch Spread) is less precise" in str(result), str(result)


class Rooted(nn.Module):
    """A root that is hidden where its argument is negative: its outputs are numbers, its gradients are NaN."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.table, self.gain = nn.Embedding(7, 6), gain

    def forward(self, ids: Any) -> Any:
        y = self.table(ids)
        y = y.detach() + self.gain * (y - y.detach())
        y = y - y.mean(1, keepdim=True)
        return torch.where(y > 0, y.sqrt(), 0.0)


def test_gradients_that_are_nan_on_both_sides_are_named_and_not_counted() -> None:
    result = compare_modules(Rooted(1.0), Rooted(3.0), (torch.arange(6)[None],))
    assert "gradients that are NaN on both sides, which says nothing: 86% of" in str(result), str(result)
    whole = compare_modules(Rooted(1.0), Rooted(3.0), (torch.arange(7)[None],))
    assert "0 gradients, in" in str(whole) and "100% of" in str(whole), str(whole)
