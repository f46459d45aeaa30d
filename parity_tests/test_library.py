"""Bring your own: modules and functions with and without mistakes, and what the judge says of them."""

import subprocess
import sys
from math import sqrt
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import attn_torch
from parity_tests import ParityError, assert_parity
from parity_tests.adapters import MissingDeviceError

ROOT = Path(__file__).resolve().parent.parent

LINEAR = {
    **{f"w_{x}": (f"{x}.weight", f"(h {w}) {i} -> {i} h {w}") for x, i, w in (("q", "d", "k"), ("k", "i", "k"))},
    "w_v": ("v.weight", "(h v) j -> j h v"),
    "w_o": ("o.weight", "d (h v) -> h v d"),
    **{f"b_{x}": (f"{x}.bias", "(h k) -> h k") for x in "qk"},
    "b_v": ("v.bias", "(h v) -> h v"),
    "b_o": "o.bias",
}
KERNELS = {
    f"{kind}_{short}": f"{name}.{suffix}"
    for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))
    for kind, suffix in (("w", "kernel"), ("b", "bias"))
}


class Own(torch.nn.Module):
    """Multi-head self-attention as many people write it; `wrong` names a mistake to make."""

    def __init__(self, d: int, heads: int, wrong: str = "", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.heads, self.wrong = heads, wrong
        self.q, self.k, self.v, self.o = (torch.nn.Linear(d, d, dtype=dtype) for _ in range(4))
        self.softmax = torch.nn.Softmax(dim=-2 if wrong == "axis" else -1)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        if self.wrong == "split":
            return x.view(b, t, -1, self.heads).permute(0, 3, 1, 2)
        return x.view(b, t, self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(getattr(self, name)(x)) for name in "qkv")
        scores = q @ k.mT
        if self.wrong != "scale":
            scores = scores / sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask if self.wrong == "mask" else ~mask, -torch.inf)
        found = self.softmax(scores) @ v
        if self.wrong == "detach":
            found = found.detach() + 0 * scores.sum()
        if self.wrong != "merge":
            found = found.transpose(1, 2)
        return self.o(found.reshape(x.shape))


def judge(module: Any, **options: Any) -> Any:
    return assert_parity(module, "mha", d_model=12, num_heads=3, **{"weights": LINEAR, "empty_rows": False} | options)


def own(wrong: str = "", **options: Any) -> Own:
    torch.manual_seed(0)
    return Own(12, 3, wrong, **options)


# PyTorch --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_module_passes(dtype: torch.dtype) -> None:
    module = own(dtype=dtype)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    verdict = judge(module, taps={"softmax": "probs"})
    judged = {(row.stage, row.name) for row in verdict.rows}
    assert {("output", "y"), ("tape", "probs"), ("cotangent", "dprobs")} <= judged
    assert {("gradient", f"d{name}") for name in ("query", *LINEAR)} <= judged
    assert verdict.worst.ratio <= 1
    assert "agrees" in str(verdict)
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("axis", "softmax over the queries"),
        ("scale", "scale missing"),
        ("mask", "mask inverted"),
        ("split", "heads split the other way"),
        ("merge", "heads merged without moving their axis back"),
    ],
)
@pytest.mark.parametrize("taps", [{}, {"softmax": "probs"}], ids=["black box", "tapped"])
def test_the_cause_is_named(wrong: str, cause: str, taps: dict[str, str]) -> None:
    with pytest.raises(ParityError) as caught:
        judge(own(wrong), taps=taps, calls=("full",))
    causes = [c.name for c in caught.value.finding.causes]
    assert cause in causes[:2], causes
    assert "fix:" in str(caught.value)


def test_the_first_difference_is_where_it_begins() -> None:
    with pytest.raises(ParityError) as caught:
        judge(own("axis"), taps={"softmax": "probs"}, calls=("full",))
    assert (caught.value.finding.first.stage, caught.value.finding.first.name) == ("tape", "probs")
    assert caught.value.finding.axes == "b h t s"


def test_a_lost_gradient_is_seen() -> None:
    with pytest.raises(ParityError) as caught:
        judge(own("detach"), calls=("plain",))
    assert caught.value.finding.first.stage == "gradient"
    assert caught.value.finding.causes[0].name == "cut from the graph"


def test_rows_without_a_key_are_told_apart() -> None:
    """Plain torch gives NaN where a mask hides every key: a difference of its own, with its own name."""
    judge(own())
    with pytest.raises(ParityError, match="row without a key is NaN"):
        judge(own(), empty_rows=True)


def test_another_dtype_judges_a_copy() -> None:
    module = own()
    verdict = judge(module, dtype="float64")
    assert {row.case.dtype for row in verdict.rows} == {"float64"}
    assert next(module.parameters()).dtype == torch.float32


def test_our_own_layers_need_no_names() -> None:
    layer = attn_torch.build("mha", d_model=6, num_heads=2)
    assert assert_parity(layer, "mha", layer.config).worst.ratio <= 1


def test_a_layout_gives_the_names() -> None:
    class Four(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(12, 12) for _ in range(4))

        def forward(self, query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Any:
            key = query if key is None else key
            value = key if value is None else value
            parts = zip((self.q_proj, self.k_proj, self.v_proj), (query, key, value), strict=True)
            q, k, v = (p(x).unflatten(-1, (3, 4)).transpose(1, 2) for p, x in parts)
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out_proj(found.transpose(1, 2).flatten(-2))

    torch.manual_seed(0)
    verdict = judge(Four(), weights="torch_linear", calls=("full", "shared", "plain"))
    assert set(verdict.traces) == {"plain", "full", "shared"}


def test_a_joint_projection() -> None:
    class Joint(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            return self.o(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(-2))

    torch.manual_seed(0)
    names = {
        ("w_q", "w_k", "w_v"): ("qkv.weight", "(p h k) d -> p d h k"),
        ("b_q", "b_k", "b_v"): ("qkv.bias", "(p h k) -> p h k"),
        "w_o": ("o.weight", "d (h v) -> h v d"),
        "b_o": "o.bias",
    }
    assert judge(Joint(), weights=names).worst.ratio <= 1


def test_time_first_and_weights_returned() -> None:
    """torch's own layer: time first, the mask the other way round, weights per head."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(12, 3).eval()
    names = {
        ("w_q", "w_k", "w_v"): ("in_proj_weight", "(p h k) d -> p d h k"),
        ("b_q", "b_k", "b_v"): ("in_proj_bias", "(p h k) -> p h k"),
        "w_o": ("out_proj.weight", "d (h v) -> h v d"),
        "b_o": "out_proj.bias",
    }

    def call(module: Any, query: Any, key: Any = None, value: Any = None) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        return module(q, k, v, average_attn_weights=False)

    verdict = judge(module, weights=names, call=call, outputs=(("y", "t b d -> b t d"), "out1"))
    assert {row.name for row in verdict.rows if row.stage == "output"} == {"y", "out1"}
    with pytest.raises(ParityError):
        judge(
            module,
            weights=names,
            call=lambda m, query: m(*[query.transpose(0, 1)] * 3),
            outputs=(("y", "t b d -> b t d"), "out1"),
        )


# Flax, JAX and NumPy --------------------------------------------------------------------------------------------------


def flax_call(sign: bool) -> Any:
    def call(module: Any, query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Any:
        mask = None if mask is None else jnp.broadcast_to(mask, (query.shape[0], 3, *mask.shape[-2:]))
        return module(query, key, value, mask=mask if sign or mask is None else ~mask)

    return call


def test_a_flax_module() -> None:
    module = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    verdict = judge(module, weights=KERNELS, call=flax_call(True))
    assert {f"d{name}" for name in KERNELS} <= {row.name for row in verdict.rows if row.stage == "gradient"}


def test_a_flax_module_with_the_mask_inverted() -> None:
    module = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    with pytest.raises(ParityError) as caught:
        judge(module, weights=KERNELS, call=flax_call(False), calls=("full",))
    assert caught.value.finding.causes[0].name == "mask inverted"


def test_what_a_flax_module_sows() -> None:
    class Sowing(nnx.Module):
        def __call__(self, query: Any, key: Any, value: Any) -> Any:
            probs = nnx.softmax(query @ jnp.swapaxes(key, 1, 2) / sqrt(query.shape[-1]))
            self.sow(nnx.Intermediate, "weights", probs)
            return probs @ value

    verdict = assert_parity(Sowing(), "dot_product", taps={"weights": "probs"}, calls=("full",))
    assert ("tape", "probs") in {(row.stage, row.name) for row in verdict.rows}
    with pytest.raises(ValueError, match="sow"):
        assert_parity(Sowing(), "dot_product", taps={"scores": "scores"}, calls=("full",))


def array_attention(xp: Any) -> Any:
    def attention(query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        scores = query @ xp.swapaxes(key, 1, 2) / sqrt(query.shape[-1])
        if mask is not None:
            scores = xp.where(mask, scores, -xp.inf)
        e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return {"y": e / xp.sum(e, axis=-1, keepdims=True) @ value, "scores": scores}

    return attention


def test_a_function_of_arrays_has_no_gradients() -> None:
    function = array_attention(np)
    verdict = assert_parity(lambda query, key, value: function(query, key, value), "dot_product")
    assert {row.stage for row in verdict.rows} == {"tape", "output"}


def test_a_jax_function_has_gradients() -> None:
    function = array_attention(jnp)
    verdict = assert_parity(lambda query, key: function(query, key)["y"], "dot_product", framework="jax")
    assert {row.name for row in verdict.rows if row.stage == "gradient"} == {"dquery", "dkey"}


def test_a_function_gets_drawn_weights() -> None:
    def attention(params: Any, query: Any, key: Any, value: Any) -> Any:
        features = np.tanh((query @ params["w_q"])[:, :, None] + (key @ params["w_k"])[:, None])
        scores = features @ params["w_score"]
        e = np.exp(scores)
        return e / e.sum(-1, keepdims=True) @ value

    options = {"query_dim": 5, "key_dim": 3, "hidden_dim": 7, "calls": ("full",)}
    assert assert_parity(attention, "additive", **options).worst.ratio <= 1
    with pytest.raises(ParityError, match="tanh"):
        assert_parity(without_tanh, "additive", **options)


def without_tanh(params: Any, query: Any, key: Any, value: Any) -> Any:
    scores = ((query @ params["w_q"])[:, :, None] + (key @ params["w_k"])[:, None]) @ params["w_score"]
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value


def test_no_known_mistake_is_said_so() -> None:
    def odd(query: Any, key: Any, value: Any) -> Any:
        return np.cbrt(array_attention(np)(query, key, value)["y"])

    with pytest.raises(ParityError) as caught:
        assert_parity(odd, "dot_product", calls=("full",))
    assert "none of the known mistakes" in str(caught.value)
    assert not any(word in str(caught.value).lower() for word in ("toleran", "looser", "ignore"))


def test_a_dead_head_is_described() -> None:
    class Dead(Own):
        def split(self, x: torch.Tensor) -> torch.Tensor:
            x = super().split(x)
            return torch.cat([x[:, :1], 0 * x[:, 1:2], x[:, 2:]], 1)

    torch.manual_seed(0)
    with pytest.raises(ParityError, match="only head 1"):
        judge(Dead(12, 3), taps={"softmax": "probs"}, calls=("plain",))


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"weights": {"w_p": "q.weight"}}, ValueError, "did you mean"),
        ({"weights": {**LINEAR, "w_q": "nothing"}}, ValueError, "expected a parameter 'nothing'"),
        ({"weights": {**LINEAR, "w_q": ("q.weight", "(h k) d -> d k h")}}, ValueError, "that ends in 'd h k'"),
        ({"weights": "bert"}, ValueError, "expected a parameter"),
        ({"weights": "no layout"}, ValueError, "expected the name of a layout"),
        ({"arguments": {"question": "x"}}, ValueError, "expected arguments of mha"),
        ({"taps": {"nothing": "probs"}}, ValueError, "expected a submodule"),
        ({"framework": "tensorflow"}, ValueError, "expected framework="),
        ({"device": "quantum"}, MissingDeviceError, "expected one of cpu"),
        ({"d_model": 13}, ValueError, "divisible"),
    ],
)
def test_names_that_do_not_fit_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        judge(own(), **options) if "d_model" not in options else assert_parity(own(), "mha", num_heads=3, **options)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a torch module, a Flax module or a function, got int"):
        judge(3)


# The plugin -----------------------------------------------------------------------------------------------------------

TEST = """
import numpy as np


def test_right(attn_parity):
    def attention(query, key, value):
        scores = query @ np.swapaxes(key, 1, 2) / np.sqrt(query.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ value

    assert attn_parity(attention, "dot_product").worst.ratio <= 1


def test_wrong(attn_parity):
    attn_parity(lambda query, key, value: query @ np.swapaxes(key, 1, 2) @ value, "dot_product")
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "parity_tests.plugin", "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run([*command, str(folder)], capture_output=True, text=True, cwd=folder, env=environment())


def environment() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(ROOT)}


def test_the_fixture_judges(tmp_path: Path) -> None:
    found = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in found.stdout, found.stdout
    assert "differs first at output y" in found.stdout


def test_an_absent_device_is_a_visible_skip(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, "--parity-device", "cuda", "-rs")
    assert "2 skipped" in found.stdout and "expected cpu" in found.stdout, found.stdout


def test_importing_the_plugin_loads_nothing_but_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import parity_tests.plugin; "
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "['parity_tests']", found.stdout + found.stderr
