"""Small models around our layers, trained over devices and processes: parameters, tokens, what each step must be.

Two layers of RMSNorm, attention and a gated MLP between an embedding and logits. The model in NumPy runs on arrays that
carry bounds, forward and backward by hand: from the parameters before a step it says what the gradient is.
"""

from typing import Any

import numpy as np

from attn_np import contract
from attn_np.ops import einsum, rms_norm, silu, softmax
from attn_np.ops.vjp import einsum_vjp, rms_norm_vjp, silu_vjp, sum_grads
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case

Arrays = dict[str, np.ndarray]
VOCAB, WIDTH, HIDDEN, EPS, RATE, STEPS = 7, 8, 12, 1e-6, 0.5, 20
B, T = 4, 16
GROUPED: Any = contract.config("decoder", d_model=WIDTH, num_heads=4, num_kv_heads=2, head_dim=4)
DELTA: Any = contract.config("gated_delta", d_model=WIDTH, num_heads=2, head_dim=3, value_head_dim=4, conv_size=3)
# The layers of each model, and the layout in which its sequence is cut.
MODELS: dict[str, tuple[tuple[Any, Any], str]] = {
    "like Llama": ((GROUPED, GROUPED), "zigzag"),
    "hybrid": ((DELTA, GROUPED), "contiguous"),
}


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Of every parameter."""
    found: dict[str, tuple[int, ...]] = {"embed": (VOCAB, WIDTH)}
    for i, config in enumerate(MODELS[model][0]):
        found |= {f"{i}.attn.{name}": shape for name, shape in config.shapes().items()}
        found |= {f"{i}.norm": (WIDTH,), f"{i}.mlp_norm": (WIDTH,), f"{i}.down": (HIDDEN, WIDTH)}
        found |= {f"{i}.gate": (WIDTH, HIDDEN), f"{i}.up": (WIDTH, HIDDEN)}
    return found | {"norm": (WIDTH,), "head": (WIDTH, VOCAB)}


def first_params(model: str) -> Arrays:
    """Random weights; those whose names say that they are norms are near 1."""
    rng = np.random.default_rng(7)
    return {
        name: 1 + 0.1 * rng.normal(size=shape) if "norm" in name else rng.normal(size=shape) * shape[0] ** -0.5
        for name, shape in shapes(model).items()
    }


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Tokens of which each has one that follows it, and those that follow."""
    starts = np.random.default_rng(3).integers(0, VOCAB, size=(B, 1))
    text = (starts * 3 ** np.arange(T + 1)) % VOCAB
    return text[:, :-1], text[:, 1:]


def gradient(model: str, params: Arrays) -> tuple[Any, dict[str, Any]]:
    """The probabilities of all tokens, and the gradients of all parameters of the mean loss, with bounds."""
    given, following = (np.eye(VOCAB)[x] for x in tokens())
    w: Any = {name: ErrArray(x, 0.0) for name, x in params.items()}
    words: Any
    words, grads, back = ErrArray(given, 0.0), dict[str, Any](), []
    with precision(precision_of("float64")):
        x = einsum("btu,ud->btd", words, w["embed"])
        for i, config in enumerate(MODELS[model][0]):
            case = Case(config.variant, "", "", "float64", given=config)
            layer = numpy_layer(case, {n: w[f"{i}.attn.{n}"] for n in config.shapes()})
            tape: dict[str, Any] = {}
            middle = x + layer(rms_norm(x, w[f"{i}.norm"], EPS), tape=tape)
            normed = rms_norm(middle, w[f"{i}.mlp_norm"], EPS)
            gate, up = (einsum("btd,de->bte", normed, w[f"{i}.{name}"]) for name in ("gate", "up"))
            hidden = silu(gate) * up
            back.append((layer, tape, x, middle, normed, gate, up, hidden))
            x = middle + einsum("bte,ed->btd", hidden, w[f"{i}.down"])
        normed_x = rms_norm(x, w["norm"], EPS)
        probs = softmax(einsum("btd,du->btu", normed_x, w["head"]), None)
        dlogits = (probs - following) * (1 / (B * T))
        dnormed, grads["head"] = einsum_vjp("btd,du->btu", normed_x, w["head"], dlogits)
        dx, grads["norm"] = rms_norm_vjp(x, w["norm"], EPS, dnormed)
        for i, (layer, tape, x, middle, normed, gate, up, hidden) in reversed([*enumerate(back)]):
            dhidden, grads[f"{i}.down"] = einsum_vjp("bte,ed->btd", hidden, w[f"{i}.down"], dx)
            dgate, dup = silu_vjp(gate, dhidden * up), dhidden * silu(gate)
            dnormed_gate, grads[f"{i}.gate"] = einsum_vjp("btd,de->bte", normed, w[f"{i}.gate"], dgate)
            dnormed_up, grads[f"{i}.up"] = einsum_vjp("btd,de->bte", normed, w[f"{i}.up"], dup)
            dmiddle, grads[f"{i}.mlp_norm"] = rms_norm_vjp(
                middle, w[f"{i}.mlp_norm"], EPS, sum_grads(dnormed_gate, dnormed_up)
            )
            dmiddle = sum_grads(dx, dmiddle)
            found = layer.vjp(tape, dmiddle)
            grads |= {f"{i}.attn.{n}": g for n, g in found.params.items()}
            dlayer, grads[f"{i}.norm"] = rms_norm_vjp(x, w[f"{i}.norm"], EPS, found.inputs["query"])
            dx = sum_grads(dmiddle, dlayer)
        grads["embed"] = einsum_vjp("btu,ud->btd", words, w["embed"], dx)[1]
    return probs, grads


def apart(model: str, before: Arrays, after: Arrays) -> dict[str, float]:
    """How far a step of gradient descent is from what it must be, by parameter and as a share of its bound."""
    found = {}
    for name, grad in gradient(model, before)[1].items():
        want = before[name] - RATE * grad.v
        # The step itself rounds the gradient's multiple and the difference.
        rounding = np.finfo(np.float64).eps * (np.abs(RATE * grad.v) + np.abs(want))
        found[name] = float(np.max(np.abs(after[name] - want) / (RATE * grad.b + rounding)))
    return found
