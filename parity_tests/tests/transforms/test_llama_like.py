"""A small model like Llama around `decoder`: two layers of RMSNorm, attention and a gated MLP, in the three frameworks.

It compiles as one graph, trains compiled as it does eagerly, and is exported for every length. The NumPy model runs on
arrays that carry bounds and derivatives: it says what a step's loss is, and how it changes with the weights.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch._dynamo import lookup_backend
from torch.export import Dim

import attn_jax
import attn_torch
from attn_np import contract
from attn_np.ops import amax_detached, einsum, exp, log, rms_norm, silu
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT, precision, precision_of
from parity_tests.bounds.tangents import Dual
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.witness import layer_of

VOCAB, WIDTH, HIDDEN, LAYERS = 11, 12, 20, 2
CONFIG: Any = contract.config(
    "decoder", d_model=WIDTH, num_heads=3, num_kv_heads=1, head_dim=6, causal=True, rope_base=10000.0
)
EPS, RATE, STEPS = 1e-6, 0.5, 50
# What is left to be said of a token where one of two may be next: the trained model knows more.
COIN = math.log(2)


def shapes(tied: bool) -> dict[str, tuple[int, ...]]:
    """Of every parameter, by the name that it has in all three models."""
    found: dict[str, tuple[int, ...]] = {"embed": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        found |= {f"layers.{i}.attn.{name}": shape for name, shape in CONFIG.shapes().items()}
        found |= {f"layers.{i}.norm": (WIDTH,), f"layers.{i}.mlp_norm": (WIDTH,)}
        found |= {f"layers.{i}.{name}": (WIDTH, HIDDEN) for name in ("gate", "up")}
        found |= {f"layers.{i}.down": (HIDDEN, WIDTH)}
    return found | {"norm": (WIDTH,)} | ({} if tied else {"head": (VOCAB, WIDTH)})


def weights(tied: bool) -> Arrays:
    rng = np.random.default_rng(7)
    return {
        name: np.ones(shape) if len(shape) == 1 else rng.normal(size=shape) * shape[0] ** -0.5
        for name, shape in shapes(tied).items()
    }


def text(t: int) -> np.ndarray:
    """Four sequences in which every token has one that follows it, from random beginnings."""
    rng = np.random.default_rng(5)
    follows = rng.permutation(VOCAB)
    rows = [rng.integers(0, VOCAB, size=4)]
    for _ in range(t):
        rows.append(follows[rows[-1]])
    return np.stack(rows, 1)


TOKENS = text(9)


# The three models -----------------------------------------------------------------------------------------------------


def by_numpy(params: Arrays, tokens: np.ndarray, direction: Arrays) -> tuple[ErrArray, ErrArray]:
    """The loss, and how it changes along a direction, with the bounds of a float64 computation."""
    with precision(precision_of("float64")):
        p: dict[str, Any] = {name: Dual(ErrArray(x, 0.0), ErrArray(direction[name], 0.0)) for name, x in params.items()}
        x: Any = p["embed"][tokens[:, :-1]]
        for at in [f"layers.{i}." for i in range(LAYERS)]:
            attention: Any = layer_of(TREES["numpy"], CONFIG, {name: p[f"{at}attn.{name}"] for name in CONFIG.shapes()})
            x = x + attention(rms_norm(x, p[f"{at}norm"], EPS))
            normed = rms_norm(x, p[f"{at}mlp_norm"], EPS)
            gate = silu(einsum("btd,df->btf", normed, p[f"{at}gate"]))
            inner = gate * einsum("btd,df->btf", normed, p[f"{at}up"])
            x = x + einsum("btf,fd->btd", inner, p[f"{at}down"])
        scores = einsum("btd,nd->btn", rms_norm(x, p["norm"], EPS), p.get("head", p["embed"]))
        scores = scores - amax_detached(scores, -1)[..., None]
        lost: Any = log(exp(scores).sum(-1)) - (scores * np.eye(VOCAB)[tokens[:, 1:]]).sum(-1)
        loss = lost.reshape(lost.size).sum(0) / lost.size
    return loss.v, loss.d


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = (torch.nn.RMSNorm(WIDTH, eps=EPS) for _ in range(2))
        self.attn = attn_torch.DecoderAttention(CONFIG)
        self.gate, self.up = (torch.nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))
        normed = self.mlp_norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed))


class TorchModel(torch.nn.Module):
    """Of PyTorch's own modules, and ours."""

    def __init__(self, params: Arrays) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, WIDTH)
        self.layers = torch.nn.ModuleList(TorchBlock() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=EPS)
        self.head = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        if "head" not in params:
            self.head.weight = self.embed.weight
        self.double()
        self.load_state_dict({n: in_torch(n, params.get(ours(n), params["embed"])) for n in self.state_dict()})

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def loss(self, tokens: Any) -> Any:
        return torch.nn.functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def ours(name: str) -> str:
    """The NumPy model's name of a parameter."""
    return name.removesuffix(".weight").removesuffix(".scale")


def in_torch(name: str, x: np.ndarray) -> torch.Tensor:
    """`torch.nn.Linear` keeps its weight the other way round."""
    turned = ours(name).rpartition(".")[2] in ("gate", "up", "down")
    return torch.from_numpy(np.ascontiguousarray(x.T) if turned else x.copy())


def from_torch(named: Any) -> Arrays:
    return {ours(name): in_torch(name, x.detach().numpy()).numpy() for name, x in named}


class FlaxRMSNorm(nnx.Module):
    """Flax's own computes in float32."""

    def __init__(self, scale: Any) -> None:
        self.scale = nnx.Param(scale)

    def __call__(self, x: Any) -> Any:
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS) * self.scale[...]


class FlaxBlock(nnx.Module):
    def __init__(self, params: dict[str, Any]) -> None:
        self.norm, self.mlp_norm = FlaxRMSNorm(params["norm"]), FlaxRMSNorm(params["mlp_norm"])
        own = {name: params[f"attn.{name}"] for name in CONFIG.shapes()}
        self.attn = attn_jax.DecoderAttention(CONFIG, rngs=nnx.Rngs(0), param_dtype="float64")
        self.attn.set_params(own)
        self.gate, self.up, self.down = (nnx.Param(params[name]) for name in ("gate", "up", "down"))

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))
        normed = self.mlp_norm(x)
        return x + (jax.nn.silu(normed @ self.gate[...]) * (normed @ self.up[...])) @ self.down[...]


class FlaxModel(nnx.Module):
    def __init__(self, params: Arrays) -> None:
        arrays = {name: jnp.asarray(x) for name, x in params.items()}
        self.embed, self.norm = nnx.Param(arrays["embed"]), FlaxRMSNorm(arrays["norm"])
        places = [f"layers.{i}." for i in range(LAYERS)]
        blocks = [{n.removeprefix(at): x for n, x in arrays.items() if n.startswith(at)} for at in places]
        self.layers = nnx.List([FlaxBlock(block) for block in blocks])
        self.head = nnx.Param(arrays["head"]) if "head" in arrays else self.embed

    def __call__(self, tokens: Any) -> Any:
        x = self.embed[...][tokens]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.head[...].T

    def loss(self, tokens: Any) -> Any:
        scores = jax.nn.log_softmax(self(tokens[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))


# What is asked --------------------------------------------------------------------------------------------------------

# A step: the loss, and the weights and their gradients as the NumPy model names them.
Step = tuple[float, Arrays, Arrays]


def judge_step(loss: float, params: Arrays, grads: Arrays) -> None:
    """The loss and its gradient, from the weights that the step began with."""
    rng = np.random.default_rng(3)
    direction = {name: rng.normal(size=x.shape) for name, x in params.items()}
    want, slope = by_numpy(params, TOKENS, direction)
    assert abs(loss - want.v) <= want.b
    assert set(grads) == set(params) == set(direction)
    terms = np.concatenate([(grads[name] * direction[name]).ravel() for name in params])
    # Products of the test's own are rounded; their sum is not.
    assert abs(math.fsum(terms) - slope.v) <= slope.b + UNIT["float64"] * np.abs(terms).sum()


def judge_run(losses: list[float], steps: list[Step]) -> None:
    for step in steps[:3]:
        judge_step(*step)
    assert losses[0] > 2 * COIN and losses[-1] < COIN


def torch_run(tied: bool, loss_of: Callable[[TorchModel], Callable[..., Any]]) -> tuple[list[float], list[Step]]:
    model = TorchModel(weights(tied))
    optimizer, loss_of_tokens = torch.optim.SGD(model.parameters(), lr=RATE), loss_of(model)
    losses, steps, tokens = [], [], torch.from_numpy(TOKENS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of_tokens(tokens)
        loss.backward()
        losses.append(loss.item())
        grads = [(name, x.grad) for name, x in model.named_parameters()]
        if len(steps) < 3:
            steps.append((losses[-1], from_torch(model.named_parameters()), from_torch(grads)))
        optimizer.step()
    return losses, steps


@pytest.mark.compile
def test_trains_compiled() -> None:
    """One graph for 50 steps, whose losses are the bits of the eager run's."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    losses, steps = torch_run(True, lambda model: torch.compile(model.loss, backend=counted, fullgraph=True))
    judge_run(losses, steps)
    assert losses == torch_run(True, lambda model: model.loss)[0]
    assert len(graphs) == 1


@pytest.mark.compile
def test_exports_for_every_length() -> None:
    torch.compiler.reset()
    model = TorchModel(weights(tied=False))
    lengths = ({1: Dim.DYNAMIC},)
    program = torch.export.export(model, (torch.from_numpy(text(8)),), dynamic_shapes=lengths, strict=True).module()
    for t in (8, 2, 21):
        tokens = torch.from_numpy(text(t))
        assert torch.equal(program(tokens), model(tokens))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "separate"])
def test_trains_in_flax(tied: bool) -> None:
    model = FlaxModel(weights(tied))
    optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)

    @nnx.jit
    def train(model: FlaxModel, optimizer: Any, tokens: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: model.loss(tokens))(model)
        optimizer.update(model, grads)
        return loss, grads

    def flat(state: Any) -> Arrays:
        found = {ours(".".join(map(str, path))): np.array(x[...]) for path, x in nnx.to_flat_state(state)}
        return {name: found[name] for name in shapes(tied)}

    losses, steps, tokens = [], [], jnp.asarray(TOKENS)
    for _ in range(STEPS):
        before = flat(nnx.state(model, nnx.Param)) if len(steps) < 3 else {}
        loss, grads = train(model, optimizer, tokens)
        losses.append(float(loss))
        steps += [(losses[-1], before, flat(grads))] if before else []
    judge_run(losses, steps)
