"""The calls of `attend` that cuDNN's kernel on a GPU takes, which JAX offers as a function of its own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from attn_jax.ops import Array, dtype_name


def cudnn_supports(q: Array, k: Array, v: Array, left: int | None, right: int | None) -> bool:
    """Whether there is a GPU here whose cuDNN takes these arrays and this window, and computes the same function;
    `attend` checks the other arguments.

    Its causal mask puts query 0 at key 0, it leaves its output undefined where a query sees no key, and it has neither
    softcap nor sinks. It takes 16-bit types alone, and rounds the weights to them.
    """
    (t, heads, width), (s, groups) = q.shape[1:], k.shape[1:3]
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    return (
        capability[:1].isdigit()
        and float(capability) >= 8
        and {dtype_name(x) for x in (q, k, v)} in ({"float16"}, {"bfloat16"})
        and 0 not in (q.size, k.size)
        and heads % groups == 0
        and v.shape[-1] == width <= 128
        and width % 8 == 0
        and ((left, right) == (None, None) or (right == 0 and t == s))
    )


def attend_with_cudnn(
    q: Array, k: Array, v: Array, left: int | None, right: int | None, scale: float, implementation: Any = "cudnn"
) -> Array:
    """The context by `jax.nn.dot_product_attention` on cuDNN; call it only if `cudnn_supports`."""
    window = None if left is None else (left, 0)
    causal = right == 0
    return jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=causal, local_window_size=window, implementation=implementation
    )


def by_platform(
    in_blocks: Callable[..., Array], q: Array, k: Array, v: Array, left: int | None, right: int | None, scale: float
) -> Array:
    """The context by cuDNN in a program that is lowered for CUDA, and in one for another platform by `in_blocks`.

    One for several platforms JAX refuses: it lowers each branch for all of them.
    """
    with_cudnn = partial(attend_with_cudnn, left=left, right=right, scale=scale)
    return jax.lax.platform_dependent(q, k, v, cuda=with_cudnn, default=in_blocks)
