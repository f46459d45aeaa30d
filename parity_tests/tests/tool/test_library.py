"""Bring your own: modules and functions with and without mistakes, and what the judge says of them."""

import subprocess
import sys
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import attn_np
import attn_torch
from attn_np import contract
from parity_tests import ParityError, assert_parity
from parity_tests.explain.findings import Finding
from parity_tests.judge.candidates import accelerators
from parity_tests.plugin import Judge
from parity_tests.ports.adapters import NO_GRADIENTS
from parity_tests.ports.port import MissingDeviceError
from parity_tests.ports.weights import in_our_letters

ROOT = Path(__file__).resolve().parents[3]

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


class Aside(Own):
    """A right module whose taps show arrays that its output is not made of."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__(d, heads)
        self.shown, self.probs = torch.nn.Identity(), torch.nn.Identity()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.shown(2 * self.split(self.q(x)).transpose(1, 2))
        y = super().forward(x, mask)
        self.probs(torch.softmax(self.split(self.q(x)) @ self.split(self.k(x)).mT, -1))
        return y


@pytest.mark.parametrize("taps", [{"shown": "q"}, {"shown": "q", "probs": "probs"}])
def test_a_tap_that_the_output_is_not_made_of_is_said_to_be_one(taps: dict[str, str]) -> None:
    """One difference, and no mistake for it: the output is right."""
    with pytest.raises(ParityError) as caught:
        judge(Aside(12, 3), taps=taps, calls=("plain",))
    finding = caught.value.finding
    assert finding.first.name == "q" and finding.after is None and not finding.causes
    shown = " and ".join(f"{theirs} as {ours}" for theirs, ours in taps.items())
    assert finding.next_step.startswith(f"the results agree where taps= does not show {shown}: "), finding.next_step


def test_a_lost_gradient_is_seen() -> None:
    with pytest.raises(ParityError) as caught:
        judge(own("detach"), calls=("plain",))
    assert caught.value.finding.first.stage == "gradient"
    assert caught.value.finding.causes[0].name == "cut from the graph"


def test_rows_without_a_key_are_told_apart() -> None:
    """Plain torch gives NaN where a mask hides every key: a difference of its own, with its own name."""
    judge(own())
    with pytest.raises(ParityError, match="row without a key is NaN") as caught:
        judge(own(), empty_rows=True)
    assert "empty_rows=False leaves out masks that hide every key" in str(caught.value)


class Biased(torch.nn.Module):
    """With a bias that the reference does not have, 0 at first as Flax makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Own(12, 3)
        self.extra, self.unused = (torch.nn.Parameter(torch.zeros(12)) for _ in range(2))

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner(x, attn_mask) + self.extra


INNER = {n: f"inner.{x}" if isinstance(x, str) else (f"inner.{x[0]}", x[1]) for n, x in LINEAR.items()}


def test_a_parameter_that_is_not_mapped_is_refused_where_it_is_used() -> None:
    with pytest.raises(ValueError, match="every parameter that the outputs depend on in weights=, got none for extra;"):
        judge(Biased(), weights=INNER, calls=("plain",))

    class Flax(nnx.Module):
        def __init__(self) -> None:
            self.inner = nnx.MultiHeadAttention(3, 12, decode=False, rngs=nnx.Rngs(0))
            self.extra, self.unused = (nnx.Param(jnp.zeros(12)) for _ in range(2))

        def __call__(self, query: Any) -> Any:
            return self.inner(query) + self.extra[...]

    kernels = {ours: f"inner.{theirs}" for ours, theirs in KERNELS.items()}
    with pytest.raises(ValueError, match="in weights=, got none for extra;"):
        judge(Flax(), weights=kernels, calls=("plain",))


def test_arguments_that_no_call_gives_are_told() -> None:
    module = Biased()
    module.extra.requires_grad_(False)
    with pytest.raises(ValueError, match="got none for extra"):  # frozen ones too
        judge(module, weights=INNER, calls=("plain",))
    del module.extra
    object.__setattr__(module, "extra", 0.0)
    verdict = judge(module, weights=INNER)
    assert verdict.not_given == ("attn_mask",)
    assert verdict.notes == ["no output depends on unused, which weights= does not map"]
    assert verdict.notes[0] in str(verdict)
    assert "never given: attn_mask (arguments= maps ours to them; {" in str(verdict)
    assert not judge(module, weights=INNER, arguments={"query": "x", "mask": "attn_mask"}).not_given


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


@pytest.mark.left_out
def test_a_flax_module_with_the_mask_inverted() -> None:
    module = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    with pytest.raises(ParityError) as caught:
        judge(module, weights=KERNELS, call=flax_call(False), calls=("full",))
    assert caught.value.finding.causes[0].name == "mask inverted"


@pytest.mark.left_out
def test_what_a_flax_module_sows() -> None:
    class Sowing(nnx.Module):
        def __call__(self, query: Any, key: Any, value: Any) -> Any:
            probs = nnx.softmax(query @ jnp.swapaxes(key, 1, 2) / sqrt(query.shape[-1]))
            self.sow(nnx.Intermediate, "weights", probs)
            return probs @ value

    verdict = assert_parity(Sowing(), "dot_product", taps={"weights": "probs"}, calls=("full",))
    assert ("tape", "probs") in {(row.stage, row.name) for row in verdict.rows}
    assert assert_parity(Sowing(), "dot_product", calls=("full",)).worst.ratio <= 1
    with pytest.raises(ValueError, match="sow"):
        assert_parity(Sowing(), "dot_product", taps={"scores": "scores"}, calls=("full",))

    class Twice(Sowing):
        def __call__(self, query: Any, key: Any, value: Any) -> Any:
            return super().__call__(query, key, value) + 0 * super().__call__(query, key, value)

    with pytest.raises(ValueError, match="'weights', which taps= names, to run once in a call, got a second run"):
        assert_parity(Twice(), "dot_product", taps={"weights": "probs"}, calls=("full",))
    assert assert_parity(Twice(), "dot_product", calls=("full",)).worst.ratio <= 1


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


class Counting(nnx.Module):
    """Attention that counts its calls, has weights of no account, and drops of its result at random in training."""

    def __init__(self) -> None:
        self.calls, self.drop = nnx.Variable(jnp.zeros(())), nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))

    def __call__(self, query: Any, key: Any, value: Any) -> Any:
        self.calls[...] += 1
        self.norm(query[..., :3])
        return self.drop(array_attention(jnp)(query, key, value)["y"])


@pytest.mark.left_out
def test_a_flax_module_may_keep_what_it_likes() -> None:
    module = Counting()
    module.eval()
    assert assert_parity(module, "dot_product").worst.ratio <= 1
    assert float(module.calls[...]) == 0


@pytest.mark.left_out
def test_dropout_in_a_flax_module_is_named() -> None:
    module = Counting()
    module.train()
    with pytest.raises(ParityError, match="again, gives other numbers\n  fix: call eval"):
        assert_parity(module, "dot_product")


# Nothing passes unjudged ----------------------------------------------------------------------------------------------


def attended(query: Any, key: Any, value: Any) -> Any:
    return array_attention(np)(query, key, value)["y"]


def tensors_attended(query: Any, key: Any, value: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def weights_and_all(query: Any, key: Any, value: Any) -> Any:
    return array_attention(np)(query, key, value)


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda query, key, value: None, {}, "expected the candidate to return y, got NoneType"),
        (lambda query, key, value: {"out": attended(query, key, value)}, {}, "got a dictionary of out, so no y"),
        (attended, {"outputs": ("y", "out1")}, "expected the candidate to return y, out1, got ndarray, so no out1"),
        (attended, {"calls": ("ful",)}, "expected calls= of plain, full, shared, self, got 'ful'"),
        (attended, {"calls": ()}, "expected calls= of plain, full, shared, self, got none"),
        (attended, {"dtype": "float8"}, "expected dtype= to be one of"),
        (attended, {"dtype": np.float32}, "expected dtype= to be one of"),
        (attended, {"arguments": {"query": None}}, "cannot do without, got none for query"),
        (weights_and_all, {"taps": {"scores": "score"}}, "got 'score', which none of the calls has; did you mean"),
        (weights_and_all, {"taps": {"probs": "probs"}}, "expected an array from 'probs' in taps=, got none in any"),
        (
            lambda query, key, value: weights_and_all(query, key, value) | {"prob": 0 * query},
            {},
            "got 'prob', which none of the calls has; did you mean 'probs'",
        ),
        (
            lambda query, key, value: weights_and_all(query, key, value) | {"other": 0 * query},
            {"taps": {"scores|other": "scores"}},
            "expected one place for 'scores' in taps=, got 'scores' and 'other'",
        ),
    ],
)
def test_what_would_not_be_judged_is_refused(function: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assert_parity(function, "dot_product", **options)


def test_an_output_that_the_variant_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected results of dot_product in outputs=, got 'z'; "):
        assert_parity(lambda query, key, value: (attended(query, key, value), query), "dot_product", outputs=("y", "z"))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_what_is_returned_behind_the_outputs_is_told(framework: str) -> None:
    function = tensors_attended if framework == "torch" else array_attention(jnp if framework == "jax" else np)

    def two(query: Any, key: Any, value: Any) -> Any:
        y = function(query, key, value)
        return y["y"] if isinstance(y, dict) else y, query, None

    options: dict[str, Any] = {"framework": framework, "dtype": "float32", "calls": ("plain",)}
    words = "of 3 returned only 1 in outputs= (None there leaves one out)"
    more = [NO_GRADIENTS] if framework == "numpy" else []
    assert assert_parity(two, "dot_product", **options).notes == [*more, words]
    assert assert_parity(two, "dot_product", outputs=("y", None, None), **options).notes == more


def test_a_config_is_of_the_variant() -> None:
    with pytest.raises(ValueError, match="expected a Config of mha, got one of dot_product"):
        assert_parity(attended, "mha", contract.config("dot_product"))
    with pytest.raises(ValueError, match="expected a Config or fields, got both, scale"):
        assert_parity(attended, "dot_product", contract.config("dot_product"), scale=1.0)


def test_a_submodule_that_does_not_run_is_refused() -> None:
    class Direct(Own):
        def forward(self, x: Any, mask: Any = None) -> Any:
            q, k, v = (self.split(getattr(self, name)(x)) for name in "qkv")
            return self.o(tensors_attended(q, k, v).transpose(1, 2).reshape(x.shape))

    torch.manual_seed(0)
    with pytest.raises(ValueError, match="expected an array from 'softmax' in taps=, got none in any call"):
        judge(Direct(12, 3), taps={"softmax": "probs"}, calls=("plain",))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_an_output_cut_from_the_graph_is_seen(framework: str) -> None:
    def cut(query: Any, key: Any, value: Any) -> Any:
        if framework == "torch":
            return tensors_attended(query, key, value).detach()
        return jax.lax.stop_gradient(array_attention(jnp)(query, key, value)["y"])

    with pytest.raises(ParityError) as caught:
        assert_parity(cut, "dot_product", framework=framework, calls=("full",))
    finding = caught.value.finding
    assert (finding.first.stage, finding.causes[0].name) == ("gradient", "cut from the graph")
    assert "evidence: the gradient is 0 everywhere" in str(caught.value)


def test_gradients_are_judged_where_torch_keeps_none() -> None:
    with torch.no_grad():
        verdict = assert_parity(tensors_attended, "dot_product", framework="torch")
    assert "gradient" in {row.stage for row in verdict.rows}


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("wrong", ["shape", "int"])
def test_other_shapes_and_types_are_findings(framework: str, wrong: str) -> None:
    def odd(query: Any, key: Any, value: Any) -> Any:
        y = (tensors_attended if framework == "torch" else attended)(query, key, value)
        return (
            y.swapaxes(1, 2) if wrong == "shape" else y.to(torch.int32) if framework == "torch" else y.astype("int32")
        )

    def in_jax(query: Any, key: Any, value: Any) -> Any:
        y = array_attention(jnp)(query, key, value)["y"]
        return y.swapaxes(1, 2) if wrong == "shape" else y.astype("int32")

    with pytest.raises(ParityError, match=r"shape \(2, 13, 5\)|dtype int32"):
        assert_parity(in_jax if framework == "jax" else odd, "dot_product", framework=framework, calls=("full",))


# Right implementations that are written otherwise ---------------------------------------------------------------------


@pytest.mark.parametrize("which", ["all", "one"])
def test_frozen_weights_have_gradients_too(which: str) -> None:
    module = own()
    (module if which == "all" else module.q).requires_grad_(False)
    verdict = judge(module)
    assert {f"d{name}" for name in LINEAR} <= {row.name for row in verdict.rows if row.stage == "gradient"}
    assert not module.q.weight.requires_grad


class InPlace(Own):
    """It scales what its own projection returned, in place."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q = self.q(x)
        q *= 0.5
        q, k, v = self.split(q), self.split(self.k(x)), self.split(self.v(x))
        return self.o((self.softmax(q @ k.mT) @ v).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("kind", [Own, InPlace])
def test_taps_have_axes_of_their_own(kind: type[Own]) -> None:
    """The gradient of a tap is that of what was tapped, not of a rearranged copy; later writes are not seen."""
    torch.manual_seed(0)
    verdict = judge(kind(12, 3), taps={"q": ("q", "b t (h k) -> b t h k")}, calls=("plain",))
    assert {("tape", "q"), ("cotangent", "dq")} <= {(row.stage, row.name) for row in verdict.rows}


def test_a_function_may_write_into_its_inputs() -> None:
    def writing(query: Any, key: Any, value: Any) -> Any:
        query *= query.shape[-1] ** -0.5
        return torch.softmax(query @ key.mT, -1) @ value

    assert assert_parity(writing, "dot_product", framework="torch").worst.ratio <= 1


def test_a_dictionary_may_have_other_axes() -> None:
    verdict = assert_parity(
        lambda query, key, value: {"y": attended(query, key, value).swapaxes(0, 1)},
        "dot_product",
        outputs=(("y", "t b d -> b t d"),),
    )
    assert verdict.worst.ratio <= 1


@pytest.mark.parametrize("shape", [(3,), (2, 3, 5)])
def test_a_short_recurrent_tape_is_a_finding(shape: tuple[int, ...]) -> None:
    with pytest.raises(ParityError, match=r"expected \(2, 7, 5\)"):
        assert_parity(
            lambda params, x: {"y": np.zeros((2, 7, 5)), "layers.0.h": np.zeros(shape)},
            "gru",
            input_dim=3,
            hidden_dim=5,
            calls=("plain",),
        )


def test_dropout_in_training_is_named() -> None:
    class Dropping(Own):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(torch.nn.functional.dropout(x, 0.3, self.training), mask)

    torch.manual_seed(0)
    module = Dropping(12, 3)
    with pytest.raises(ParityError, match="again, gives other numbers\n  fix: call eval"):
        judge(module)
    assert judge(module.eval()).worst.ratio <= 1


# Refusals -------------------------------------------------------------------------------------------------------------


def test_float64_in_jax_needs_x64() -> None:
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="expected JAX to compute in float64"):
            assert_parity(lambda query, key: query, "dot_product", framework="jax", dtype="float64")
    finally:
        jax.config.update("jax_enable_x64", True)


def test_an_exception_of_the_candidate_says_what_it_was_given() -> None:
    def strict(query: Any) -> Any:
        return query @ query

    with pytest.raises(ValueError, match="mismatch") as caught:
        assert_parity(strict, "dot_product")
    assert "called with query numpy (2, 5, 7); arguments= and call= say" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Own, "expected a module, got the class Own"),
        (linen.Dense(3), "expected a Linen module with its variables, got Dense alone"),
        (torch.nn.functional.scaled_dot_product_attention, "expected a candidate with a signature"),
        (lambda query: 3.0, "expected tensors from the candidate, got y float"),
    ],
)
def test_what_is_no_candidate_is_refused(candidate: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        assert_parity(candidate, "dot_product", framework="torch")


def test_weights_in_buffers_are_told() -> None:
    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("q", torch.zeros(12, 12))

        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(ValueError, match="it has no parameters; buffers are not read"):
        judge(Held())


def test_axes_may_have_letters_of_their_own() -> None:
    """Letters that the parameter does not have are named by their place; ours in another order are refused."""
    assert in_our_letters("d (h v) -> h v d", ["h", "v", "o"]) == "o (h v) -> h v o"
    assert in_our_letters("(heads width) d -> d heads width", ["d", "h", "k"]) == "(h k) d -> d h k"
    assert in_our_letters("(h k) d -> d k h", ["d", "h", "k"]) == "(h k) d -> d k h"
    assert in_our_letters("(h n c) d -> h d n c", ["d", "h", "k"]) == "(a h k) d -> a d h k"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"weights": {"w_p": "q.weight"}}, ValueError, "did you mean"),
        ({"weights": {"w_q": LINEAR["w_q"]}}, ValueError, "expected every parameter of mha in weights=, got none"),
        ({"weights": {**LINEAR, "w_q": "nothing"}}, ValueError, "expected a parameter 'nothing'"),
        ({"weights": {**LINEAR, "w_q": ("q.weight", "(h k) d -> d k h")}}, ValueError, "that ends in 'd h k'"),
        ({"weights": "bert"}, ValueError, "expected a parameter"),
        ({"weights": "no layout"}, ValueError, "expected the name of a layout"),
        ({"arguments": {"question": "x"}}, ValueError, "expected arguments of mha"),
        ({"taps": {"nothing": "probs"}}, ValueError, "expected a submodule"),
        ({"taps": {"layers[0": "probs"}}, ValueError, r"expected regular expressions in taps=, got 'layers\[0'"),
        ({"outputs": ("y", "foo")}, ValueError, "expected results of mha in outputs=, got 'foo'"),
        ({"framework": "tensorflow"}, ValueError, "expected framework="),
        ({"device": "quantum"}, ValueError, "expected a device of torch"),
        ({"d_model": 13}, ValueError, "divisible"),
    ],
)
def test_names_that_do_not_fit_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        judge(own(), **options) if "d_model" not in options else assert_parity(own(), "mha", num_heads=3, **options)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a module of torch, Flax or Equinox or a function, got int"):
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


def test_far(attn_parity):
    def attention(query, key, value):
        scores = query @ np.swapaxes(key, 1, 2) / np.sqrt(query.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ value

    attn_parity(attention, "dot_product", window=(4095, None))


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
    """And what is not told apart stands at the end, also where the tests run in other processes."""
    found = run_pytest(tmp_path, "-n", "1")
    assert "1 failed, 2 passed" in found.stdout, found.stdout
    assert "test_far: dot_product: window=(4095, None) from None, (2047, None), (8190, None)" in found.stdout
    assert "differs first at output y" in found.stdout


def test_strict_is_asked_for_by_option() -> None:
    node: Any = SimpleNamespace(user_properties=[])

    def attention(query: Any, key: Any, value: Any) -> Any:
        return attn_np.attend(query[:, :, None], key[:, :, None], value[:, :, None])[0][:, :, 0]

    far = {"window": (4095, None)}
    with pytest.raises(ParityError, match=r"window=\(4095, None\) from None"):
        Judge("cpu", True, node)(attention, "dot_product", far)
    assert Judge("cpu", True, node)(attention, "dot_product", far, strict=False).untested
    assert [name for name, _ in node.user_properties] == ["attn_parity_untested"]


def test_an_absent_device_is_a_visible_skip(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, "--parity-device", "cuda", "-rs")
    assert "3 skipped" in found.stdout and "expected cpu" in found.stdout, found.stdout


def test_importing_the_plugin_loads_nothing_but_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import parity_tests.plugin; "
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "['parity_tests']", found.stdout + found.stderr


def test_a_device_that_others_have_is_absent_and_not_a_mistake() -> None:
    absent = next(name for name in ("xpu", "mps", "cuda") if name not in accelerators("torch"))
    with pytest.raises(MissingDeviceError, match="expected one of cpu"):
        judge(own(), device=absent)


# What a newcomer met --------------------------------------------------------------------------------------------------


def test_a_mask_is_judged_without_a_key_of_its_own() -> None:
    """The commonest call is self-attention with a mask: a mistake that is made only there is seen."""

    class Both(Own):
        def forward(self, query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if key is None and mask is not None and mask.ndim == 4:
                mask = mask.mT
            key = query if key is None else key
            value = key if value is None else value
            q, k, v = (self.split(p(x)) for p, x in zip((self.q, self.k, self.v), (query, key, value), strict=True))
            scores = q @ k.mT / sqrt(q.shape[-1])
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    torch.manual_seed(0)
    judge(Both(12, 3), calls=("plain", "full", "shared"))
    with pytest.raises(ParityError, match=r"transposed|exchanged|rows of the queries"):
        judge(Both(12, 3))


@pytest.mark.parametrize("change", ["factor", "offset", "eps"])
def test_a_small_error_is_not_called_a_rounding(change: str) -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ np.swapaxes(key, 1, 2) / sqrt(query.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        y = e / (e.sum(-1, keepdims=True) + (0.01 if change == "eps" else 0.0)) @ value
        return {"factor": 1.001 * y, "offset": y + 0.001, "eps": y}[change]

    with pytest.raises(ParityError) as caught:
        assert_parity(attention, "dot_product")
    assert not caught.value.finding.causes, caught.value.finding.causes
    assert not any("as if rounded" in line for line in caught.value.finding.patterns)


class Turning(torch.nn.Module):
    """Causal attention whose queries and keys turn by their positions, halves as pairs, in plain PyTorch."""

    def __init__(self, base: float = 10000.0, factor: float = 1.0, layout: str = "half") -> None:
        super().__init__()
        self.base, self.factor, self.layout = base, factor, layout
        self.q, self.k, self.v, self.o = (torch.nn.Linear(16, 16) for _ in range(4))

    def turned(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        n, width = x.shape[1], x.shape[-1]
        angles = torch.arange(start, start + n, dtype=x.dtype)[:, None, None]
        angles = angles * self.base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        c, s = angles.cos() * self.factor, angles.sin() * self.factor
        if self.layout == "half":
            a, b = x.chunk(2, -1)
            return torch.cat((a * c - b * s, a * s + b * c), -1)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    def turn(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.turned(q), self.turned(k)

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(query).unflatten(-1, (2, 8)) for p in (self.q, self.k, self.v))
        q, k, v = (x.transpose(1, 2) for x in (*self.turn(q, k), v))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(found.transpose(1, 2).flatten(-2))


TURNING: dict[str, Any] = {
    f"w_{n}": (f"{n}.weight", f"(h {w}) d -> d h {w}") for n, w in zip("qkv", "kkv", strict=True)
}
TURNING |= {f"b_{n}": (f"{n}.bias", f"(h {w}) -> h {w}") for n, w in zip("qkv", "kkv", strict=True)}
TURNING |= {"w_o": ("o.weight", "d (h v) -> h v d"), "b_o": "o.bias"}


def turning(module: torch.nn.Module, **fields: Any) -> Finding:
    """What is found of a module that should turn queries and keys as the reference does."""
    with pytest.raises(ParityError) as caught:
        assert_parity(
            module.double(), "rotary", d_model=16, num_heads=2, causal=True, weights=TURNING, calls=("plain",), **fields
        )
    return caught.value.finding


@pytest.mark.parametrize(
    ("made", "fields", "cause"),
    [
        ({}, {"rope_base": 1000000.0}, "rotary base of 10000 whatever the config says"),
        ({"factor": 1.01}, {}, "factor on the rotated dimensions 1.01 in place of 1"),
        ({}, {"rope_layout": "interleaved"}, "rotary layouts exchanged"),
    ],
    ids=["base", "factor", "layout"],
)
def test_a_mistake_that_leaves_a_position_right_is_no_rounding(
    made: dict[str, Any], fields: dict[str, Any], cause: str | None
) -> None:
    """The first query sees its own key only, so that its output is right: rounded products would change it too."""
    torch.manual_seed(1)
    finding = turning(Turning(**made), **fields)
    assert [found.name for found in finding.causes][:1] == ([] if cause is None else [cause])
    assert not any("at random" in found.evidence for found in finding.causes), finding.causes
    assert not any("as if rounded" in line for line in finding.patterns)
    assert cause or "only query positions 1 to 4 of 5" in finding.patterns


def test_a_rounding_is_called_one() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ np.swapaxes(key, 1, 2) / sqrt(query.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) @ value).astype(np.float16).astype(np.float64)

    with pytest.raises(ParityError, match="this is a statistical finding"):
        assert_parity(attention, "dot_product")


def test_the_verdict_says_how_it_was_called() -> None:
    assert "called with query (t=5); with query, mask (t=5, s=5)" in str(judge(own()))


RMS = {"d_model": 8, "num_heads": 2, "norm": "rms", "qkv_bias": False, "output_bias": False}


def normed(eps: float) -> torch.nn.Module:
    return attn_torch.build("decoder", **RMS, norm_eps=eps).eval()


@pytest.mark.parametrize("eps", [1e-5, 1e-9])
@pytest.mark.left_out
def test_a_wrong_eps_is_seen_by_default(eps: float) -> None:
    """In float32 it is below the bounds, in float64 far above; the module itself stays in float32."""
    module = normed(eps)
    with pytest.raises(ParityError, match="judged in float64") as caught:
        assert_parity(module, "decoder", RMS, norm_eps=1e-6, calls=("plain",))
    assert caught.value.finding.case.endswith("float64")
    assert {x.dtype for x in module.parameters()} == {torch.float32}


def test_a_run_in_one_type_says_what_it_did_not_test() -> None:
    verdict = assert_parity(normed(1e-6), "decoder", RMS, norm_eps=1e-6, calls=("plain",), dtype="float32")
    field = next(field for field in verdict.untested if field.name == "norm_eps")
    assert (field.value, field.dtype) == (1e-6, "float32")
    assert {5e-7, 2e-6} <= {*field.alike} and 1.000001 not in field.alike
    assert "norm_eps=1e-06 from 5e-07, 2e-06" in str(verdict).partition("not told apart by this run: ")[2]
    whole = assert_parity(normed(1e-6), "decoder", RMS, norm_eps=1e-6, calls=("plain",))
    assert {row.case.dtype for row in whole.rows} == {"float64", "float32"}
    assert (whole.untested, whole.why) == ([], "")


class Narrow(torch.nn.Module):
    """A right module that takes its softmax in float32, whatever its weights are in, as many do."""

    def __init__(self, right: torch.nn.Module) -> None:
        super().__init__()
        self.right = right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: Any = self.right.softmax
        inner.forward = lambda scores: torch.softmax(scores.float(), -1).to(scores.dtype)
        return self.right(x)


def test_a_fixed_type_inside_is_no_difference() -> None:
    """It cannot be had in float64: the verdict says why, and what was not tested."""
    names = {n: (f"right.{x[0]}", *x[1:]) if isinstance(x, tuple) else f"right.{x}" for n, x in LINEAR.items()}
    module = Narrow(own())
    verdict = assert_parity(module, "mha", d_model=12, num_heads=3, weights=names, calls=("plain",))
    assert {row.case.dtype for row in verdict.rows} == {"float32"}
    assert "computes in a narrower type" in verdict.why
    assert "not judged in float64" in str(verdict)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_of_a_module_in_16_bits_it_is_said_how_to_judge_its_meaning(dtype: str | None) -> None:
    with pytest.raises(ParityError) as caught:
        judge(own().bfloat16(), dtype=dtype, calls=("plain",), taps={"softmax": "probs"})
    assert 'judge what it means in float64, with dtype="float64"' in caught.value.finding.next_step
    assert ("in float64 it agrees" in str(caught.value)) == (dtype is None)
    assert "float32" in caught.value.finding.next_step and "TF32" not in str(caught.value)
    judge(own().bfloat16(), dtype="float64", calls=("plain",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", ["plain", "full"])
def test_a_module_in_16_bits_is_not_said_to_use_smaller_products(dtype: torch.dtype, call: str) -> None:
    """On a CPU: what rounds every operation to its own type needs no other reason, and nothing to mend."""
    with pytest.raises(ParityError) as caught:
        judge(own().to(dtype), dtype=str(dtype).removeprefix("torch."), calls=(call,))
    words = str(caught.value)
    assert "matrix products in" not in words and "autocast" not in words and "round once, at the end" not in words
    assert 'dtype="float64"' in caught.value.finding.next_step


def test_flax_modules_are_judged_in_both_types() -> None:
    module = Counting()
    module.eval()
    verdict = assert_parity(module, "dot_product", calls=("plain",))
    assert {row.case.dtype for row in verdict.rows} == {"float64", "float32"}
    scale: Any = module.norm.scale
    assert scale[...].dtype == jnp.float32


def test_a_jax_module_of_a_fixed_type_is_no_difference() -> None:
    """Flax takes this softmax in float32 always."""
    module = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    verdict = assert_parity(
        module, "mha", d_model=12, num_heads=3, weights=KERNELS, arguments={"query": "inputs_q"}, calls=("plain",)
    )
    assert {row.case.dtype for row in verdict.rows} == {"float32"}
    assert "float32" in verdict.why


def test_both_names_of_an_array_are_told() -> None:
    with pytest.raises(ParityError, match=r"tape probs \(yours: softmax\)") as caught:
        judge(own("axis"), taps={"softmax": "probs"}, calls=("full",))
    finding = caught.value.finding
    assert (finding.made_of, finding.goes_into) == (["scores"], ["kept"])


class Turned(torch.nn.Module):
    """One submodule for queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.same = torch.nn.Identity()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return tensors_attended(self.same(query), self.same(key), value)


def test_a_tapped_submodule_that_runs_twice_is_refused() -> None:
    with pytest.raises(
        (ParityError, ValueError), match="'same', which taps= names, to run once in a call, got a second"
    ):
        assert_parity(Turned(), "dot_product", taps={"same": "q"}, calls=("full",))
