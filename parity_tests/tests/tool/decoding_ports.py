"""Decoding by hand, with caches of many kinds; right, and with the mistakes that people make."""

from math import log
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention, silu, softplus

D, H, K = 12, 3, 4
SMALL: dict[str, Any] = {"d_model": D, "num_heads": H, "causal": True}


def heads(p: Any, x: torch.Tensor, name: str) -> torch.Tensor:
    """The projection of this name, `b h t k`."""
    y = torch.einsum("btd,dhk->bhtk", x, p[f"w_{name}"])
    return y + p[f"b_{name}"][:, None] if f"b_{name}" in p else y


def merged(p: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.einsum("bhtv,hvo->bto", x, p["w_o"])
    return y + p["b_o"] if "b_o" in p else y


def turned(x: torch.Tensor, at: torch.Tensor, base: float = 10000.0, neighbours: bool = False) -> torch.Tensor:
    """Rotary embedding of `... t k` at the positions t, or `b t` of `b h t k`."""
    half = x.shape[-1] // 2
    angles = at[..., None] * base ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = angles[:, None] if at.ndim == 2 and x.ndim == 4 else angles
    cos, sin = angles.cos(), angles.sin()
    if neighbours:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def weighed(q: Any, k: Any, v: Any, mask: Any, bias: Any = 0.0) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def causal(t: int, s: int, window: int | None = None) -> torch.Tensor:
    at = torch.arange(s - t, s)[:, None] - torch.arange(s)
    return (at >= 0) if window is None else (at >= 0) & (at <= window)


# Caches that grow -----------------------------------------------------------------------------------------------------


def tuples(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """Keys and values in a tuple, to which each step concatenates."""
    q, k, v = (heads(p, x, n) for n in "qkv")
    old = cache
    if cache is not None:
        pair = ((k, cache[0]), (v, cache[1])) if wrong == "new first" else ((cache[0], k), (cache[1], v))
        k, v = (torch.cat(parts, 2) for parts in pair)
    t, s = q.shape[2], k.shape[2]
    cache = (k, v)
    if wrong == "bfloat16":
        cache = tuple(z.to(torch.bfloat16).to(z.dtype) for z in cache)
    if wrong == "flipped" and old is not None:
        cache = tuple(z.flip(0) for z in cache)
    if wrong == "kept" and old is not None:
        cache = old
    if wrong == "exchanged" and old is not None:
        k, v = torch.cat([old[1], k[:, :, -t:]], 2), torch.cat([old[0], v[:, :, -t:]], 2)
        cache = (k, v)
    if wrong == "last step alone":
        cache = tuple(z[:, :, -t:] for z in cache)
    if wrong == "keys flipped" and old is not None:
        cache = (cache[0].flip(0), cache[1])
    if wrong == "float16 keys":
        cache = (cache[0].to(torch.float16).to(k.dtype), cache[1])
    if wrong == "prompt's last twice" and old is None:
        cache = tuple(torch.cat([z, z[:, :, -1:]], 2) for z in cache)
    if wrong == "scaled twice" and old is not None:
        q = q / q.shape[-1] ** 0.5
    if wrong == "no output bias" and old is not None:
        y = scaled_dot_product_attention(q, k, v, attn_mask=causal(t, s))
        return torch.einsum("bhtv,hvo->bto", y, p["w_o"]), cache
    if wrong == "is_causal":
        return merged(p, scaled_dot_product_attention(q, k, v, is_causal=True)), cache
    if wrong == "prompt sees all" and old is None:
        return merged(p, scaled_dot_product_attention(q, k, v)), cache
    if wrong == "no mask at all":
        return merged(p, scaled_dot_product_attention(q, k, v)), cache
    if wrong == "scale in steps" and old is not None:
        return merged(p, scaled_dot_product_attention(q, k, v, attn_mask=causal(t, s), scale=1.0)), cache
    return merged(p, scaled_dot_product_attention(q, k, v, attn_mask=causal(t, s))), cache


def rotary(p: Any, x: torch.Tensor, cache: Any, wrong: str = "", window: int | None = None) -> Any:
    """Rotated keys in a list that is appended to; a window by the mask."""
    cache = cache or {"k": [], "v": []}
    past = sum(z.shape[2] for z in cache["k"])
    q, k, v = (heads(p, x, n) for n in "qkv")
    at = torch.arange(past, past + x.shape[1])
    wrong_here = wrong if past else ""
    if wrong == "one position":
        at = torch.full_like(at, past)
    if wrong_here == "by all positions":
        at = at + x.shape[1]
    base = 500.0 if wrong_here == "other base" else 10000.0
    k = k if wrong_here == "keys bare" else turned(k, at, base)
    q = turned(q, at + {"query ahead": 1, "query behind": -1}.get(wrong_here, 0), base)
    if wrong_here == "again":
        cache = {"k": [turned(torch.cat(cache["k"], 2), torch.arange(past))], "v": cache["v"]}
    cache = {"k": [*cache["k"], k], "v": [*cache["v"], v]}
    keys, values = torch.cat(cache["k"], 2), torch.cat(cache["v"], 2)
    if wrong_here == "again, not kept":
        keys = torch.cat([turned(keys[:, :, :past], torch.arange(past)), keys[:, :, past:]], 2)
    width = window
    if wrong == "window in prompt only":
        width = None if past else window
    if wrong == "window in steps only":
        width = window if past else None
    if wrong_here == "wider" and window is not None:
        width = window + 1
    if wrong_here == "narrower" and window is not None:
        width = window - 1
    return merged(p, weighed(q, keys, values, causal(x.shape[1], past + x.shape[1], width))), cache


def padded(p: Any, x: torch.Tensor, cache: Any, valid: torch.Tensor, wrong: str = "") -> Any:
    """Sequences of unlike lengths: the prompt counts each by itself."""
    q, k, v = (heads(p, x, n) for n in "qkv")
    real = valid if cache is None else torch.cat([cache[2], valid], 1)
    s, t = real.shape[1], x.shape[1]
    at = (real.cumsum(1) - 1).clamp(min=0)[:, -t:]
    if wrong == "shared" and cache is not None:
        at = torch.arange(s - t, s).expand(x.shape[0], t)
    if wrong == "from one" and cache is not None:
        at = real.cumsum(1)[:, -t:]
    if wrong == "slots":
        at = torch.arange(s - t, s).expand(x.shape[0], t)
    q, k = turned(q, at.to(x.dtype)), turned(k, at.to(x.dtype))
    if cache is not None:
        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
    mask = causal(t, s) & real[:, None, None]
    if wrong == "unmasked" and cache is not None:
        mask = causal(t, s)
    mask = mask | ~mask.any(-1, keepdim=True)
    return merged(p, scaled_dot_product_attention(q, k, v, attn_mask=mask)), (k, v, real)


def grouped(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """Six query heads share two key/value heads."""
    q, k, v = (heads(p, x, n) for n in "qkv")
    first = cache is None
    if cache is not None:
        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
    n = q.shape[1] // k.shape[1]
    if wrong == "tiled in steps" and not first:
        keys, values = k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1)
    else:
        keys, values = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    return merged(p, weighed(q, keys, values, causal(q.shape[2], k.shape[2]))), (k, v)


# Caches of fixed length -----------------------------------------------------------------------------------------------


class Static:
    """Arrays with room for the whole sequence, and a count of what they hold."""

    def __init__(self, b: int, room: int) -> None:
        self.k, self.v = (torch.zeros(b, H, room, K, dtype=torch.float64) for _ in range(2))
        self.count = 0


def static(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """As a static cache of a library: written in place, all slots attended to under a mask by position."""
    t, room = x.shape[1], cache.k.shape[2]
    cache.k, cache.v = cache.k.to(x.dtype), cache.v.to(x.dtype)
    at = torch.arange(cache.count, cache.count + t)
    q, k, v = (heads(p, x, n) for n in "qkv")
    q, k = turned(q, at), turned(k, at)
    cache.k = cache.k.index_copy(2, at, k)
    cache.v = cache.v.index_copy(2, at, v)
    mask = torch.arange(room) <= at[:, None]
    if wrong == "strictly earlier" and cache.count:
        mask = torch.arange(room) < at[:, None]
    if wrong == "old mask" and cache.count:
        mask = torch.arange(room) <= torch.arange(t)[:, None]
    if wrong == "all slots" and cache.count:
        mask = torch.ones_like(mask)
    if wrong == "first row" and cache.count:
        cache.k, cache.v = (z[:1].expand(2, -1, -1, -1).clone() for z in (cache.k, cache.v))
    cache.count += t
    return merged(p, scaled_dot_product_attention(q, cache.k, cache.v, attn_mask=mask)), cache


def ring(p: Any, x: torch.Tensor, cache: Any, wrong: str = "", window: int = 3) -> Any:
    """A ring of slots: a position is written at its remainder, with the position beside."""
    slots = window + (0 if wrong == "short" else 1)
    b, t = x.shape[:2]
    k_ring, v_ring, held, count = cache or (
        torch.zeros(b, H, slots, K, dtype=x.dtype), torch.zeros(b, H, slots, K, dtype=x.dtype), [-1] * slots, 0
    )  # fmt: skip
    outputs = []
    for i in range(t):  # one position after the other
        q, k, v = (heads(p, x[:, i : i + 1], n) for n in "qkv")
        at = torch.tensor([count])
        q, k = turned(q, at), turned(k, at)
        slot = count % slots
        if wrong == "one slot on" and count >= slots:
            slot = (count + 1) % slots
        k_ring, v_ring = (
            torch.cat([z[:, :, :slot], new, z[:, :, slot + 1 :]], 2) for z, new in ((k_ring, k), (v_ring, v))
        )
        held = [*held[:slot], count, *held[slot + 1 :]]
        places = torch.tensor(held)
        mask = (places >= 0) & (places <= count) & (places >= count - window)
        if wrong == "unmasked ring":
            mask = places >= -1
        outputs.append(scaled_dot_product_attention(q, k_ring, v_ring, attn_mask=mask[None]))
        count += 1
    return merged(p, torch.cat(outputs, 2)), (k_ring, v_ring, held, count)


# NumPy, tables of biases ----------------------------------------------------------------------------------------------


def t5(p: Any, x: np.ndarray, cache: Any, wrong: str = "") -> Any:
    """A decoder of T5 in NumPy: the bias of a step is the last rows of that of all positions."""
    q, k, v = (np.einsum("btd,dhk->bthk", x, p[f"w_{n}"]) for n in "qkv")
    q, k, v = (z + p[f"b_{n}"] if f"b_{n}" in p else z for z, n in ((q, "q"), (k, "k"), (v, "v")))
    if cache is not None:
        k, v = (np.concatenate([old, new], 1) for old, new in zip(cache, (k, v), strict=True))
    t, s = q.shape[1], k.shape[1]
    distance = np.maximum(np.arange(s)[:, None] - np.arange(s), 0)
    large = 4 + np.log(np.maximum(distance, 1) / 4) / log(16 / 4) * 4
    bucket = np.where(distance < 4, distance, np.minimum(large.astype(int), 7))
    bias = p["w_bias"][bucket].transpose(2, 0, 1)
    bias = (
        bias[:, :t]
        if wrong == "first rows"
        else bias[:, s - 1 :].repeat(t, 1)
        if wrong == "last row"
        else bias[:, s - t :]
    )
    scores = np.einsum("bthk,bshk->bhts", q, k) + bias
    scores = np.where(np.arange(s) <= np.arange(s - t, s)[:, None], scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("bhts,bshk->bthk", e / e.sum(-1, keepdims=True), v)
    return np.einsum("bthk,hkd->btd", y, p["w_o"]) + p.get("b_o", 0.0), (k, v)


def alibi(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    q, k, v = (heads(p, x, n) for n in "qkv")
    past = 0 if cache is None else cache[0].shape[2]
    if cache is not None:
        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
    t, s = q.shape[2], k.shape[2]
    here = torch.arange(t) if wrong == "from zero" else torch.arange(past, s)
    distance = (here[:, None] - torch.arange(s)).abs().to(x.dtype)
    distance = -distance if wrong == "other sign" and past else distance
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=x.dtype)[:, None, None]
    return merged(p, weighed(q, k, v, causal(t, s), -slopes * distance)), (k, v)


# States ---------------------------------------------------------------------------------------------------------------


def retention(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """The state of each head, position by position."""
    q, k, v = (heads(p, x, n) for n in "qkv")
    b, h, t, _ = q.shape
    gamma = (1 - 2.0 ** (-5 - torch.arange(h, dtype=x.dtype)))[:, None, None]
    state = torch.zeros(b, h, K, K, dtype=x.dtype) if cache is None else cache
    if wrong == "forgotten":
        state = torch.zeros_like(state)
    if wrong == "half":
        state = state.to(torch.float16).to(x.dtype)
    rows = []
    for i in range(t):
        added = k[:, :, i, :, None] * v[:, :, i, None]
        fades = gamma if wrong != "decay once" or i == 0 or cache is None else 1.0
        fresh = wrong == "fades at once" and cache is not None
        state = (state + added) * gamma if fresh else state * fades + added
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, :, i] / K**0.5, state))
    if wrong == "last alone" and t > 1:
        last = k[:, :, -1, :, None] * v[:, :, -1, None]
        state = (torch.zeros_like(state) if cache is None else cache) * gamma + last
    y = torch.stack(rows, 2)
    if wrong == "norm left out" and cache is not None:
        return merged(p, silu(heads(p, x, "gate")) * y), state
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return merged(p, silu(heads(p, x, "gate")) * y), state


def gated_delta(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """Recurrent, with a short convolution whose last inputs are cached beside the state."""
    conv, state = cache or (None, None)
    width, b, t = 3, x.shape[0], x.shape[1]
    raw = {n: torch.einsum("btd,dhk->bthk", x, p[f"w_{n}"]) for n in "qkv"}
    if conv is None or wrong == "window lost":
        conv = {n: z.new_zeros(b, width - 1, *z.shape[2:]) for n, z in raw.items()}
    seen = {n: torch.cat([conv[n], z], 1) for n, z in raw.items()}
    kept = {n: z[:, -(width - 1) :] for n, z in seen.items()}
    if wrong == "window of the step" and t < width - 1 and cache is not None:
        kept = conv
    windows = {n: torch.stack([z[:, i : i + t] for i in range(width)], 2) for n, z in seen.items()}
    mixed = {n: torch.einsum("btxhk,xhk->bthk", z, p[f"w_{n}_conv"]) for n, z in windows.items()}
    q, k, v = (silu(mixed[n]) if wrong != "no silu" or cache is None else mixed[n] for n in "qkv")
    q, k = (z / (z.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    beta = torch.einsum("btd,dh->bth", x, p["w_beta"]).sigmoid()
    a = torch.einsum("btd,dh->bth", x, p["w_a"]) + p["dt_bias"]
    decay = (-(p["a_log"].exp() * softplus(a))).exp()
    if wrong == "decay of the first":
        decay = torch.cat([decay[:, :1], torch.ones_like(decay[:, 1:])], 1) if cache is not None else decay
    state = x.new_zeros(b, k.shape[2], k.shape[3], v.shape[3]) if state is None else state
    rows = []
    for i in range(t):
        if wrong == "read before" and cache is not None:
            rows.append(torch.einsum("bhk,bhkv->bhv", q[:, i] / q.shape[-1] ** 0.5, state))
        state = state * decay[:, i, :, None, None]
        new = (v[:, i] - torch.einsum("bhk,bhkv->bhv", k[:, i], state)) * beta[:, i, :, None]
        state = state + k[:, i, :, :, None] * new[:, :, None]
        if not (wrong == "read before" and cache is not None):
            rows.append(torch.einsum("bhk,bhkv->bhv", q[:, i] / q.shape[-1] ** 0.5, state))
    y = torch.stack(rows, 1)
    y = y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p["w_norm"]
    y = y * silu(torch.einsum("btd,dhv->bthv", x, p["w_gate"]))
    kept_state = state.to(torch.bfloat16).to(x.dtype) if wrong == "bfloat16" else state
    return torch.einsum("bthv,hvo->bto", y, p["w_o"]), (kept, kept_state)


class Recurrent(torch.nn.Module):
    """torch.nn.GRU, whose state the module keeps itself."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.gru = torch.nn.GRU(5, 7, batch_first=True)
        self.wrong, self.state = wrong, None

    def reset(self) -> None:
        if self.wrong != "never reset":
            self.state = None

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        state = self.state
        if state is not None and self.wrong == "zeros":
            state = torch.zeros_like(state)
        if state is not None and self.wrong == "rows":
            state = state.flip(1)
        y, self.state = self.gru(x, state)
        if self.wrong == "never reset":
            self.state = self.state.detach()
        return y


GRU_WEIGHTS = {
    f"layers.0.{ours}": (f"gru.{theirs}_l0", pattern)
    for ours, theirs, pattern in (
        ("w_x", "weight_ih", "(f e) d -> f d e"), ("w_h", "weight_hh", "(f a) e -> f e a"),
        ("b_x", "bias_ih", "(f e) -> f e"), ("b_h", "bias_hh", "(f e) -> f e"),
    )
}  # fmt: skip


def latent(p: Any, x: torch.Tensor, cache: Any, wrong: str = "") -> Any:
    """MLA by its latents: keys and values are made of the cached latents in each step."""
    past = 0 if cache is None else cache[0].shape[1]
    at = torch.arange(past, past + x.shape[1])
    q = heads(p, x, "q")
    q_nope, q_rot = q[..., :5], turned(q[..., 5:], at, neighbours=True)
    z = x @ p["w_dkv"] + p.get("b_dkv", 0.0)
    z = z / (z.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p["w_kv_norm"]
    k_rot = x @ p["w_k_rot"] + p.get("b_k_rot", 0.0)
    if wrong != "key bare" or not past:
        k_rot = turned(k_rot, at, neighbours=True)
    if cache is not None:
        old = cache[1]
        if wrong == "again":
            old = turned(old, torch.arange(past), neighbours=True)
        z, k_rot = torch.cat([cache[0], z], 1), torch.cat([old, k_rot], 1)
    k_nope, v = torch.einsum("bsz,zhq->bhsq", z, p["w_uk"]), torch.einsum("bsz,zhv->bhsv", z, p["w_uv"])
    k = torch.cat([k_nope, k_rot[:, None].expand(-1, k_nope.shape[1], -1, -1)], -1)
    kept = z.to(torch.bfloat16).to(x.dtype) if wrong == "bfloat16" else z
    mask = causal(x.shape[1], z.shape[1])
    if wrong == "normed again":
        kept = z / (z.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p["w_kv_norm"] if past else z
    if wrong == "scale of the content" and past:
        q_nope, q_rot = (part * (9 / 5) ** 0.5 for part in (q_nope, q_rot))
    return merged(p, weighed(torch.cat([q_nope, q_rot], -1), k, v, mask)), (kept, k_rot)


def in_jax(p: Any, x: Any, cache: Any, wrong: str = "") -> Any:
    """JAX's own attention, over arrays of fixed length written by dynamic_update_slice."""
    import jax
    import jax.numpy as jnp

    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[f"w_{n}"]) + p[f"b_{n}"] for n in "qkv")
    if cache is None:
        cache = {"k": k[:, :0], "v": v[:, :0]}
    cache = {"k": jnp.concatenate([cache["k"], k], 1), "v": jnp.concatenate([cache["v"], v], 1)}
    t, s = q.shape[1], cache["k"].shape[1]
    mask = jnp.arange(s)[None] <= jnp.arange(s - t, s)[:, None]
    options: Any = {"is_causal": True} if wrong == "is_causal" else {"mask": mask[None, None]}
    y = jax.nn.dot_product_attention(q, cache["k"], cache["v"], **options)
    return jnp.einsum("bthk,hkd->btd", y, p["w_o"]) + p["b_o"], cache
