"""Our PyTorch, and PyTorch's own: the function, the layer, and a loop that decodes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

import attn_torch
from benchmarks import inputs, variants
from benchmarks.plan import WINDOW, Work
from benchmarks.turns import Runner


def tensor(array: Any) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def wide(result: Any) -> Any:
    return result.detach().double().numpy()


def size(result: Any) -> int:
    return result.element_size() * result.numel()


def passes(work: Work, call: Callable[[], torch.Tensor], inputs_: Sequence[torch.Tensor], dy: torch.Tensor) -> Runner:
    """A forward pass in inference mode, or one with gradients of everything that has any."""
    if work.passes == "forward":

        def forward(_: Any) -> Any:
            with torch.inference_mode():
                return call()

        return Runner(forward, output=wide, kept=size)
    for x in inputs_:
        x.requires_grad_(True)

    def both(_: Any) -> Any:
        y = call()
        return y, *(x for x in torch.autograd.grad(y, inputs_, dy, allow_unused=True) if x is not None)

    return Runner(both, output=lambda result: wide(result[0]), kept=lambda result: sum(size(x) for x in result))


def options(work: Work) -> dict[str, Any]:
    return {n: tensor(x) if isinstance(x, np.ndarray) else x for n, x in inputs.options(work).items()}


def attend(work: Work, implementation: str) -> Runner:
    q, k, v = (tensor(x) for x in inputs.heads(work))
    given: dict[str, Any] = options(work) | {"implementation": implementation}
    wanted = [q, k, v, *([given["sinks"]] if "sinks" in given else [])]
    return passes(work, lambda: attn_torch.attend(q, k, v, **given)[0], wanted, tensor(inputs.cotangent(work)))


def sdpa(work: Work) -> Runner:
    """The same arrays, seen as `b h t k`. A window or a bias is a mask of all pairs, made beforehand."""
    q, k, v = (tensor(x) for x in inputs.heads(work))
    given = options(work)
    if set(given) & {"softcap", "sinks"}:
        raise ValueError(f"SDPA has no {work.mask}")
    shared: dict[str, Any] = {"is_causal": given.get("causal", False), "attn_mask": given.get("mask")}
    below = torch.ones(work.length, work.length, dtype=torch.bool).tril()
    if work.mask == "window":
        shared = {"attn_mask": below.triu(-WINDOW)}
    if work.mask == "alibi":
        shared = {"attn_mask": given["bias"].masked_fill(~below, -torch.inf)}
    shared["enable_gqa"] = work.heads != work.kv_heads

    def turned() -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **shared
        ).transpose(1, 2)

    return passes(work, turned, (q, k, v), tensor(inputs.cotangent(work)))


def parameters(work: Work) -> dict[str, torch.Tensor]:
    return {name: tensor(x) for name, x in inputs.parameters(work).items()}


def rows(w: torch.Tensor) -> torch.Tensor:
    """A projection `d h k` as the matrix of a linear layer, `h*k d`."""
    return w.flatten(1).T.contiguous()


def whole(work: Work) -> Runner:
    variant, fields = inputs.config(work)
    layer = attn_torch.build(variant, seed=inputs.SEED, dtype=work.dtype, **fields)
    layer.load_state_dict(parameters(work))
    x, dy = (tensor(a) for a in inputs.tokens(work))
    if work.what == "decode":
        return decode(layer, x)
    return passes(work, lambda: layer(x), (x, *layer.parameters()), dy)


def decode(layer: Any, x: torch.Tensor) -> Runner:
    """Steps of one token each, the last ones that the cache has room for."""
    filled = x.shape[1] - inputs.STEPS
    new = [x[:, at : at + 1].contiguous() for at in range(filled, x.shape[1])]
    with torch.inference_mode():
        cache = layer.init_cache(x.shape[0], x.shape[1])
        for start in range(0, filled, 512):
            _, cache = layer.step(x[:, start : min(start + 512, filled)], cache)

    def fresh() -> Any:
        with torch.inference_mode():
            return cache.copy()

    def run(cache: Any) -> Any:
        y = None
        with torch.inference_mode():
            for token in new:
                y, cache = layer.step(token, cache)
        return y

    return Runner(run, fresh=fresh, units=len(new), output=wide)


def loop(work: Work) -> Runner:
    """What one writes for speed: one matrix for q, k and v, keys and values written in place, SDPA over the filled."""
    p = parameters(work)
    x = tensor(inputs.tokens(work)[0])
    w_in = torch.cat([rows(p[name]) for name in ("w_q", "w_k", "w_v")])
    w_out = p["w_o"].flatten(0, 1).T.contiguous()
    b, t, d, h = *x.shape, work.heads
    filled = t - inputs.STEPS
    keys, values = (torch.zeros(b, h, t, d // h, dtype=x.dtype) for _ in range(2))

    def step(token: torch.Tensor, at: int) -> torch.Tensor:
        n = token.shape[1]
        q, k, v = functional.linear(token, w_in).view(b, n, 3, h, d // h).permute(2, 0, 3, 1, 4)
        keys[:, :, at : at + n] = k
        values[:, :, at : at + n] = v
        found = functional.scaled_dot_product_attention(q, keys[:, :, : at + n], values[:, :, : at + n])
        return functional.linear(found.transpose(1, 2).reshape(b, n, d), w_out)

    new = [x[:, at : at + 1].contiguous() for at in range(filled, t)]
    with torch.inference_mode():
        step(x[:, :filled], 0)

    def run(_: Any) -> Any:
        y = None
        with torch.inference_mode():
            for number, token in enumerate(new):
                y = step(token, filled + number)
        return y

    return Runner(run, units=len(new), output=wide)


def module(work: Work) -> Runner:
    """nn.MultiheadAttention; forward it takes its fused inference path wherever it allows itself to."""
    p = parameters(work)
    if work.what == "rotary":
        raise ValueError("nn.MultiheadAttention has no rotary positions")
    x, dy = (tensor(a) for a in inputs.tokens(work))
    layer = torch.nn.MultiheadAttention(x.shape[2], work.heads, batch_first=True, dtype=x.dtype).eval()
    state = {
        "in_proj_weight": torch.cat([rows(p[name]) for name in ("w_q", "w_k", "w_v")]),
        "in_proj_bias": torch.cat([p[name].flatten() for name in ("b_q", "b_k", "b_v")]),
        "out_proj.weight": p["w_o"].flatten(0, 1).T.contiguous(),
        "out_proj.bias": p["b_o"],
    }
    layer.load_state_dict(state)
    causal = work.mask == "causal"
    hidden = torch.ones(work.length, work.length, dtype=torch.bool).triu(1) if causal else None
    call = partial(layer, x, x, x, need_weights=False, attn_mask=hidden, is_causal=causal)
    return passes(work, lambda: call()[0], (x, *layer.parameters()), dy)


def variant(work: Work) -> Runner:
    layer = variants.made(attn_torch, work)
    parameters = layer.parameters() if isinstance(layer, torch.nn.Module) else ()
    given = {name: tensor(x) for name, x in variants.arguments(work).items()}
    floats = [x for x in given.values() if x.is_floating_point()]
    dy = tensor(variants.cotangent(work))
    return passes(work, lambda: variants.first(layer(**given)), (*floats, *parameters), dy)


def ours(work: Work) -> Runner:
    if work.what == "variant":
        return variant(work)
    return attend(work, "auto") if work.what == "attend" else whole(work)


MAKERS = {
    "attn_torch": ours,
    "attn_torch textbook": partial(attend, implementation="textbook"),
    "torch SDPA": sdpa,
    "nn.MultiheadAttention": module,
    "torch loop": loop,
}
