"""Two modules of any framework: the first submodule that differs is the one with the mistake."""

import io
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.extend.core import Primitive
from rich.console import Console
from typer.testing import CliRunner

import attn_jax
import attn_torch
from attn_np.ops import DTYPES
from parity_tests import compare_modules, compare_recordings, load_modules, record_modules
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import UNIT
from parity_tests.commands.app import app
from parity_tests.ports.modules.bounds import LESS_PRECISE, Measure, distance, gap
from parity_tests.ports.modules.match import by_order
from parity_tests.ports.modules.names import Pair, translated
from parity_tests.ports.modules.recordings import Call
from parity_tests.ports.modules.sides import ROUNDINGS, moved, rounded
from parity_tests.report.modules import show_modules
from parity_tests.tests.tool.llama_ports import (
    BLOCKS,
    LINEN_BLOCKS,
    MISTAKES,
    MLP,
    PORTS,
    WIDTH,
    Layer,
    Model,
    NnxBlock,
    RMSNorm,
    TorchBlock,
    hidden,
    how,
    original,
)  # fmt: skip

PLACES = {"mlp": "mlp", "norm": "post_attention_layernorm", "attention": "self_attn"}
# A block alone has no number.
ONE_BLOCK = {a.removeprefix("layers.{i}."): b.removeprefix("blocks.{i}.") for a, b in BLOCKS.items() if "}." in a}


# The right submodule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "mistake"), [*(("torch", mistake) for mistake in MISTAKES), ("nnx", "attention"), ("linen", "norm")]
)
def test_the_mistake_in_the_second_of_two_layers_is_found_there(framework: str, mistake: str) -> None:
    port = PORTS[framework]
    result = compare_modules(
        original(Model, "float32", 0), port.model(mistake, "float32"), (hidden(),), names=port.names
    )
    place = f"layers.1.{PLACES[mistake]}"
    assert result.first is not None and not result.agree
    assert (result.first.a, result.first.b) == (place, translated(place, port.names)[0])
    assert [row.a for row in result.differences] == [place]
    assert result.first.inputs is not None and result.first.inputs.ok
    assert str(result).startswith(f"differ first at {place} (a), {result.first.b} (b)")


@pytest.mark.parametrize(("framework", "mistake"), list(zip(PORTS, MISTAKES, strict=True)))
def test_the_mistake_in_a_block_is_found_in_float64(framework: str, mistake: str) -> None:
    port = PORTS[framework].block(mistake, "float64")
    result = compare_modules(original(Layer, "float64", 1), port, (hidden(1),), names=ONE_BLOCK)
    assert [row.a for row in result.differences] == [PLACES[mistake]]


@pytest.mark.left_out
def test_a_small_difference_that_grows_behind_its_place_is_found_once() -> None:
    """The feed-forward network multiplies what an eps makes of its inputs, which agree within their bound."""
    port = PORTS["nnx"].block("norm", "float32")
    result = compare_modules(original(Layer, "float32", 3), port, (hidden(3),), names=ONE_BLOCK)
    assert [row.a for row in result.differences] == [PLACES["norm"]], str(result)


@pytest.mark.parametrize(
    ("framework", "dtype", "seed"),
    [("torch", "float32", 0), ("torch", "bfloat16", 1), ("nnx", "float32", 2), ("linen", "bfloat16", 3)],
)
def test_a_right_port_raises_no_alarm(framework: str, dtype: str, seed: int) -> None:
    port = PORTS[framework]
    result = compare_modules(original(Model, dtype, seed), port.model(None, dtype), (hidden(seed),), names=port.names)
    assert result.agree and result.first is None, str(result)
    assert len(result.rows) == 26 and len(result.gradients) == 20
    assert not result.only_a and not result.only_b
    assert str(result).startswith("agree: torch Model and ")


def test_two_mistakes_are_both_named() -> None:
    port = TorchBlock("attention")
    port.ffn = MLP(("gate", "up", "down"), how(torch, "mlp"))
    result = compare_modules(original(Layer, "float32", 0), port, (hidden(),), names=ONE_BLOCK)
    assert [row.a for row in result.differences][:1] == ["self_attn"]
    port = TorchBlock("norm")
    port.norm = RMSNorm(WIDTH, 1e-5)  # too small for the constants' bound in all that follows
    result = compare_modules(original(Layer, "float32", 0), port, (hidden(),), names=ONE_BLOCK)
    assert [row.a for row in result.differences] == ["input_layernorm"]


def test_modules_stay_as_they_are() -> None:
    a, b = original(Layer, "float32", 0), NnxBlock()
    before = [x.clone() for x in a.parameters()], jax.tree.map(jnp.copy, nnx.state(b))
    assert compare_modules(a, b, (hidden(),), names=ONE_BLOCK).agree
    assert all(torch.equal(x, y) and x.grad is None for x, y in zip(a.parameters(), before[0], strict=True))
    assert all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (nnx.state(b), before[1])), strict=True))
    assert not a._forward_hooks and "listened" not in NnxBlock.__call__.__name__
    assert Primitive.bind.__name__ == "bind" and torch.get_default_dtype() == torch.float32


# How it is matched ----------------------------------------------------------------------------------------------------


def test_names_go_by_the_longest_pattern() -> None:
    assert translated("layers.3.self_attn.q_proj.weight", BLOCKS) == ("blocks.3.attn.q.weight", None)
    assert translated("layers.3.self_attn", LINEN_BLOCKS) == ("blocks_3.attn", None)
    assert translated("layersX3", BLOCKS) == ("layersX3", None)
    assert translated("h.0", {"h.{i}": ("w", "a b -> b a")}) == ("w", "a b -> b a")
    assert translated("a.1.b.2", {"a.{i}.b.{i}": "c{i}"}) == ("a.1.b.2", None)


def test_weights_move_as_the_frameworks_store_them() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(Pair("weight", "kernel", (3, 2), None, True).move(x), x.T)
    heads = Pair("weight", "kernel", (3, 1, 2), None, True).move(x)  # nnx.MultiHeadAttention: d h k
    assert np.array_equal(heads, x.T.reshape(3, 1, 2))
    assert np.array_equal(Pair("kernel", "weight", (2, 3), None, True).move(heads), x)
    assert np.array_equal(Pair("bias", "bias", (3, 2), None, False).move(np.arange(6.0)), np.arange(6.0).reshape(3, 2))
    assert np.array_equal(Pair("weight", "w_q", (3, 2, 1), "(h k) d -> d h k", False).move(x), x.T[:, :, None])
    kernel = np.arange(24.0).reshape(2, 3, 4)
    assert np.array_equal(Pair("weight", "kernel", (4, 3, 2), None, True).move(kernel), kernel.transpose(2, 1, 0))


def test_what_has_no_name_is_matched_by_weights() -> None:
    """The names of what is inside the blocks are left out: their weights agree already."""
    a = original(Layer, "float32", 0)
    for mistake in (None, "mlp"):
        b = TorchBlock(mistake)
        b.load_state_dict({translated(name, ONE_BLOCK)[0]: x for name, x in a.state_dict().items()})
        result = compare_modules(a, b, (hidden(),), weights=None)
        assert result.agree == (mistake is None), str(result)
        assert {row.how for row in result.rows} == {"name", "weights"}
        if mistake:
            assert result.first is not None and (result.first.a, result.first.b) == ("mlp", "ffn")
            assert "matched by weights; names= makes it sure" in str(result)


def test_order_counts_between_what_is_known() -> None:
    def calls(*sizes: int) -> list[Call]:
        return [Call(str(i), "", {"0": np.zeros(n)}, {"": np.zeros(n)}) for i, n in enumerate(sizes)]

    assert by_order(calls(1, 2, 3), calls(2, 3, 4), []) == [(1, 0), (2, 1)]


def test_a_function_is_compared_with_a_module() -> None:
    a = original(lambda: MLP(("gate", "up", "down"), how(torch, None)), "float64", 0)
    names = {"gate.weight": "w", "up.weight": "v", "down.weight": "u"}

    def right(p: Any, x: Any) -> Any:
        gate = x @ p["w"].T
        return (gate / (1 + np.exp(-gate)) * (x @ p["v"].T)) @ p["u"].T

    def wrong(p: Any, x: Any) -> Any:
        return (np.tanh(x @ p["w"].T) * (x @ p["v"].T)) @ p["u"].T

    assert compare_modules(a, right, (hidden(),), names=names).agree
    result = compare_modules(a, wrong, (hidden(),), names=names)
    assert result.first is not None and result.first.a == "" and "gate, up agree" not in result.advice
    stopped = lambda p, x: (jax.nn.silu(x @ p["w"].T) * (x @ p["v"].T)) @ jax.lax.stop_gradient(p["u"]).T  # noqa: E731
    in_jax = compare_modules(a, stopped, (hidden(),), names=names, framework="jax")
    assert [row.gradients for row in in_jax.differences] == [["the weight down.weight"]]
    silu = torch.nn.functional.silu
    in_torch = compare_modules(
        a, lambda p, x: silu(x @ p["w"].T) * (x @ p["v"].T) @ p["u"].T, (hidden(),), names=names, framework="torch"
    )
    assert in_torch.agree and len(in_torch.gradients) == 4


def test_another_number_inside_without_consequence_is_no_alarm() -> None:
    class Kept(torch.nn.Module):
        """Returns the residual as well, and its caller knows."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(WIDTH, WIDTH)
            self.add = False

        def forward(self, x: Any) -> Any:
            return self.inner(x) + x if self.add else self.inner(x)

    class Whole(torch.nn.Module):
        def __init__(self, add: bool) -> None:
            super().__init__()
            self.part, self.last = Kept(), torch.nn.Linear(WIDTH, WIDTH)
            self.part.add = add

        def forward(self, x: Any) -> Any:
            y = self.part(x)
            return self.last(y if self.part.add else y + x)

    result = compare_modules(Whole(False), Whole(True), (hidden(),))
    assert result.agree and [row.verdict for row in result.rows if row.a == "part"] == ["elsewhere"]
    assert "although the outputs agree: part" in str(result)


# How it is judged -----------------------------------------------------------------------------------------------------


class Cut(torch.nn.Module):
    """A linear layer that may stop the gradient, or round on the way."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner, self.last = torch.nn.Linear(WIDTH, 5), torch.nn.Linear(5, WIDTH)
        self.change = change

    def forward(self, x: Any) -> Any:
        return self.last(self.change(self.inner(x)))


def test_a_gradient_that_is_stopped_is_named() -> None:
    result = compare_modules(Cut(lambda x: x), Cut(lambda x: x.detach()), (hidden(),))
    assert [row.a for row in result.differences] == [""]
    assert str(result).startswith("gradients differ first, walking back, at the module itself: Cut and Cut")
    assert result.advice.endswith("look at its own code between inner and last")


def test_a_side_that_computes_in_a_smaller_type_is_less_precise() -> None:
    """The two mean the same: in float64, with casts left out, they are equal."""
    result = compare_modules(Cut(lambda x: x), Cut(lambda x: x.bfloat16().float()), (hidden(),))
    first = result.first
    assert first is not None and (first.a, first.verdict, first.output.less_precise) == ("", "less precise", "b")
    assert first.output.ok and str(result).startswith("mean the same, but b (torch Cut) is less precise first at")
    wide = Cut(lambda x: x.bfloat16().float()).double()
    assert not compare_modules(Cut(lambda x: x).double(), wide, (hidden(),)).differences[0].output.ratio


def test_the_bound_lies_between_the_types() -> None:
    x = np.ones(3)
    a = Measure(x, x + 2 * UNIT["float32"], None, "float32")
    u = math.sqrt(UNIT["float64"] / UNIT["float32"])
    assert a.error == 2 * UNIT["float32"] and a.bound == u * a.error
    assert Measure(x, x, None, "float32").error == UNIT["float32"]  # at least one rounding
    beyond = Measure(x + 2.5 * a.bound, x, None, "float32")
    assert not distance(a, beyond).ok and distance(a, Measure(x + a.bound, x, None, "float32")).ok
    shifted = Measure(x, x, x + np.array([1, 0, 0]) * 2.0**-20, "float32")
    assert shifted.bound > 2.0**-20 > a.bound  # no tolerance: the bound covers the shift
    coarse = Measure(x, x + 2 * LESS_PRECISE * UNIT["float32"], None, "float32")
    assert distance(coarse, Measure(x, x, None, "float32")).less_precise == "a"
    assert distance(Measure(x, x, None, "float32"), coarse).less_precise == "b"


def test_hidden_scores_are_hidden_whatever_number_hides_them() -> None:
    low = [torch.finfo(t).min for t in (torch.float32, torch.bfloat16)]
    assert gap(np.array([0.0, low[0], low[1]]), np.array([0.0, -np.inf, -np.inf])) == 0
    assert gap(np.array([np.nan]), np.array([np.nan])) == 0
    assert gap(np.array([np.nan]), np.array([0.0])) == np.inf
    assert gap(np.zeros(2), np.zeros(3)) == np.inf
    assert gap(np.array([-np.inf]), np.array([0.0])) == np.inf


def test_a_rounded_constant_is_told_from_an_exact_one() -> None:
    x = np.array([1.0, 0.5, 1 / 3], np.float32)
    assert rounded(x).tolist() == [False, False, True] == rounded(x.astype(np.float64)).tolist()
    assert not rounded(np.array([1 / 3])).any()
    change = np.abs(moved(x) - x.astype(np.float64))
    assert change[:2].tolist() == [0, 0] and change[2] == ROUNDINGS * UNIT["float32"] * np.float64(x[2])
    short = x.astype(DTYPES["bfloat16"])
    change = np.abs(moved(short) - widened(short))
    assert change.tolist() == (UNIT["bfloat16"] * widened(short)).tolist()


def test_dropout_and_chance_are_not_taken_for_a_mistake() -> None:
    a, b = Cut(torch.nn.Dropout(0.5)), Cut(torch.nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"two runs of a give other numbers; call eval\(\)"):
        compare_modules(a, b, (hidden(),))
    assert compare_modules(a.eval(), b.eval(), (hidden(),)).agree


# Attention ------------------------------------------------------------------------------------------------------------


@pytest.mark.left_out
def test_attention_of_ours_is_judged_by_the_reference() -> None:
    """The cause finder takes over, with what the two recorded."""

    class Ours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = attn_torch.build("mha", seed=0, d_model=12, num_heads=3, causal=True)

        def forward(self, x: Any) -> Any:
            return x + self.attn(x)

    class Theirs(nnx.Module):
        def __init__(self, causal: bool) -> None:
            self.attn = attn_jax.build("mha", seed=1, d_model=12, num_heads=3, causal=causal)

        def __call__(self, x: Any) -> Any:
            return x + self.attn(x)

    assert compare_modules(Ours(), Theirs(True), (hidden(),)).agree
    result = compare_modules(Ours(), Theirs(False), (hidden(),))
    assert result.first is not None and result.first.a == "attn"
    assert result.finding is not None and result.finding.causes[0].name == "causal ignored"
    assert "assert_parity(b.attn, 'mha'" in result.advice


def test_the_mask_that_was_recorded_is_the_references() -> None:
    class Padded(torch.nn.Module):
        def __init__(self, use: bool) -> None:
            super().__init__()
            self.attn, self.use = attn_torch.build("mha", seed=0, d_model=12, num_heads=3), use

        def forward(self, x: Any, mask: Any) -> Any:
            return x + self.attn(x, mask=mask if self.use else None)

    mask = np.ones((2, 1, 1, 7), bool)
    mask[1, ..., 5:] = False
    result = compare_modules(Padded(True), Padded(False), (hidden(), mask))
    assert result.first is not None and result.first.a == "attn"
    assert result.finding is not None and "mask" in result.finding.causes[0].name


# Two environments -----------------------------------------------------------------------------------------------------


def test_recordings_go_through_files(tmp_path: Path) -> None:
    """What the command says of two files is what `compare_modules` says of the modules."""
    a, files = original(Layer, "float32", 0), [str(tmp_path / f"{name}.safetensors") for name in "abc"]
    whole = record_modules(a, (hidden(),), files[0])
    for file, mistake in zip(files[1:], (None, "mlp"), strict=True):
        record_modules(TorchBlock(mistake), (hidden(),), file, like=files[0], names=ONE_BLOCK)
    again = load_modules(files[0])
    assert (again.who, again.dtype, again.in_first) == (whole.who, whole.dtype, whole.in_first)
    for one, other in ((whole.exact, again.exact), (whole.own, again.own)):
        assert [(x.name, x.kind) for x in one.calls] == [(x.name, x.kind) for x in other.calls]
        for x, y in zip(one.calls, other.calls, strict=True):
            assert {n: v.tobytes() for n, v in x.inputs.items()} == {n: v.tobytes() for n, v in y.inputs.items()}
            assert list(x.outputs) == list(y.outputs)
        assert {n: v.tobytes() for n, v in one.weight_grads.items()} == {
            n: v.tobytes() for n, v in other.weight_grads.items()
        }
    names = tmp_path / "names.json"
    names.write_text(json.dumps(ONE_BLOCK))
    run, options = CliRunner(), ["--names", str(names)]
    right = run.invoke(app, ["modules", files[0], files[1], *options])
    assert right.exit_code == 0 and "agree: torch Layer and torch TorchBlock" in right.output
    wrong = run.invoke(app, ["modules", files[0], files[2], *options])
    assert wrong.exit_code == 1 and "differ first at mlp (a), ffn (b): MLP and MLP" in wrong.output
    assert compare_recordings(again, load_modules(files[2]), ONE_BLOCK).first is not None
    names.write_text("[]")
    assert run.invoke(app, ["modules", files[0], files[1], *options]).exit_code == 2
    refused = run.invoke(app, ["modules", files[0], str(names)])
    assert refused.exit_code == 2 and "refused" in refused.output


def test_a_recording_replaces_no_file_unless_told_to(tmp_path: Path) -> None:
    path, module = tmp_path / "a.safetensors", torch.nn.Linear(WIDTH, 3)
    record_modules(module, (hidden(),), path)
    with pytest.raises(ValueError, match="which exists; name another or pass overwrite=True"):
        record_modules(module, (hidden(),), path)
    record_modules(module, (hidden(),), path, overwrite=True)
    with pytest.raises(ValueError, match="which is read; name another"):
        record_modules(module, (hidden(),), path, like=path, overwrite=True)


class Half(torch.nn.Module):
    """A linear layer, another that nothing calls, and a sum that is taken in another type."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner, self.other, self.dtype = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH), dtype

    def forward(self, x: Any) -> Any:
        return x + self.inner(x).to(self.dtype).float()


def test_what_is_never_called_is_told() -> None:
    result = compare_modules(Half(), Half(), (hidden(),))
    assert result.agree and result.a.never_called == ["other"]
    assert "never called in a, so seen only in what contains them: other" in str(result)


class Scaled(torch.nn.Linear):
    """With a weight of its own, which changes nothing while it is 1."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.gain = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, input: Any) -> Any:
        return super().forward(input) * self.gain


@pytest.mark.parametrize("side", ["a", "b"])
def test_weights_of_one_side_alone_are_told(side: str) -> None:
    plain, scaled = torch.nn.Linear(WIDTH, WIDTH), Scaled()
    scaled.load_state_dict(plain.state_dict(), strict=False)
    modules = (scaled, plain) if side == "a" else (plain, scaled)
    result = compare_modules(*modules, (hidden(),), weights="copy" if side == "a" else None)
    assert result.agree and result.unmatched_weights == [f"gain of {side}"] and "gain of" in str(result)


def test_the_types_of_both_sides_are_told() -> None:
    class Short(nnx.Module):
        def __init__(self) -> None:
            self.inner = nnx.Linear(WIDTH, WIDTH, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return x + self.inner(x)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    told = str(compare_modules(Plain(), Short(), (hidden(),)))
    assert "a ran in float64 and in float32\n" in told
    assert "b ran in float64 and in float32, computes in bfloat16 in inner" in told
    assert "ran in" not in str(compare_modules(Plain(), Plain(), (hidden(),)))
    assert "b ran in float64 and in bfloat16" in str(compare_modules(Plain(), Plain().bfloat16(), (hidden(),)))

    def fixed(p: Any, x: Any) -> Any:
        return (x + x @ p["inner.weight"].T + p["inner.bias"]).astype(np.float32)

    told = str(compare_modules(Plain(), fixed, (hidden(),)))
    assert "float64 was not to be had in b: the module itself gives numbers of float32" in told


def test_gradients_stand_in_a_table_of_their_own() -> None:
    text = io.StringIO()
    show_modules(
        Console(file=text, width=160),
        compare_modules(Cut(lambda x: x), Cut(lambda x: x.detach()), (hidden(),)),
        ("a", "b"),
    )
    modules, _, rest = text.getvalue().partition("gradients that do not agree")
    assert "inner.weight" not in modules and "inner.weight" in rest


def test_what_does_not_fit_is_refused() -> None:
    a, b, x = original(Layer, "float32", 0), TorchBlock(), (hidden(),)
    with pytest.raises(ValueError, match=r"got none for norm.weight, .*a still has input_layernorm.weight"):
        compare_modules(a, b, x)
    with pytest.raises(ValueError, match=r"names= leads 'weight' to 'wieght', which b has not"):
        compare_modules(torch.nn.Linear(12, 5), torch.nn.Linear(12, 5), x, names={"weight": "wieght"})
    with pytest.raises(ValueError, match=r"expected names of a in names=, got 'self_atn'; .*self_attn"):
        compare_modules(a, b, x, names=ONE_BLOCK | {"self_atn": "attn"})
    with pytest.raises(ValueError, match=r"expected names of b in names=, got 'atn' for 'self_attn'"):
        compare_modules(a, b, x, names={"self_attn": "atn"}, weights=None)
    with pytest.raises(ValueError, match=r"expected names of b in names=, got 'ffn.down_proj' for 'mlp.down_proj'"):
        compare_modules(a, b, x, names={"mlp": "ffn", "mlp.{x}": "ffn.{x}"}, weights=None)
    with pytest.raises(TypeError, match=r"expected a torch module, a Flax module or a function, got int"):
        compare_modules(a, 3, x)
    with pytest.raises(ValueError, match=r"expected weights= 'copy' or None, got 'b'"):
        compare_modules(a, b, x, weights="b")
    with pytest.raises(ValueError, match=r"arrays of one shape, got \(2, 7, 12\) and \(2, 7, 1\)"):
        compare_modules(a, lambda x: x[..., :1], x, weights=None)
    with pytest.raises(ValueError, match=r"expected 'weight' of the size of 'weight', \(5, 12\), got \(5, 11\)"):
        compare_modules(torch.nn.Linear(12, 5, bias=False), torch.nn.Linear(11, 5, bias=False), x)
    one, other = record_modules(a, x), record_modules(a, (hidden(1),))
    with pytest.raises(ValueError, match=r"equal inputs on both sides, got two of '0'"):
        compare_recordings(one, other)
