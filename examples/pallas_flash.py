"""Flash attention in sixty lines of Pallas, and the referee that finds what is wrong with three edits of it.

python examples/pallas_flash.py    # on a CPU, in Pallas' interpret mode; a few minutes
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from parity_tests import KernelError, assert_kernel

BLOCK = 16
EDITS = ("", "corner", "rescale", "log2(e)")


def flash_kernel(q_ref, k_ref, v_ref, y_ref, *, scale, causal, shift, edit):
    """One block of queries of one head: the blocks of keys one after the other, with a running softmax."""
    first = pl.program_id(1) * BLOCK
    q = q_ref[...].astype(jnp.float32) * scale * (1.0 if edit == "log2(e)" else 1.4426950408889634)
    positions = first + jnp.arange(BLOCK) + (0 if edit == "corner" else shift)

    def step(i, carry):
        top, total, acc = carry
        keys = pl.ds(i * BLOCK, BLOCK)
        x = q @ k_ref[keys, :].astype(jnp.float32).T
        if causal:
            x = jnp.where(i * BLOCK + jnp.arange(BLOCK) <= positions[:, None], x, -jnp.inf)
        larger = jnp.maximum(top, jnp.max(x, axis=1))
        base = jnp.where(jnp.isinf(larger), 0.0, larger)
        shrink, p = jnp.exp2(top - base), jnp.exp2(x - base[:, None])
        total = total * shrink + jnp.sum(p, axis=1)
        acc = acc if edit == "rescale" else acc * shrink[:, None]
        return larger, total, acc + p @ v_ref[keys, :].astype(jnp.float32)

    top = jnp.full(BLOCK, -jnp.inf)
    carry = (top, jnp.zeros(BLOCK), jnp.zeros((BLOCK, v_ref.shape[1])))
    _, total, acc = jax.lax.fori_loop(0, k_ref.shape[0] // BLOCK, step, carry)
    y_ref[...] = (acc / jnp.where(total > 0, total, 1.0)[:, None]).astype(y_ref.dtype)


def flash(q, k, v, *, causal=False, edit=""):
    """Attention of arrays `b t h d`, with causality that ends at the last key."""
    (b, t, h, d), s = q.shape, k.shape[1]
    q, k, v = (x.swapaxes(1, 2).reshape(b * h, -1, d) for x in (q, k, v))
    body = partial(flash_kernel, scale=d**-0.5, causal=causal, shift=s - t, edit=edit)
    rows = pl.BlockSpec((None, BLOCK, d), lambda n, i: (n, i, 0))
    keys = pl.BlockSpec((None, s, d), lambda n, i: (n, 0, 0))
    shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    grid = (b * h, t // BLOCK)
    call = pl.pallas_call(body, shape, grid=grid, in_specs=[rows, keys, keys], out_specs=rows, interpret=True)
    return call(q, k, v).reshape(b, h, t, d).swapaxes(1, 2)


LIMITS = {
    "queries": (BLOCK, 10**6, BLOCK), "keys": (BLOCK, 10**6, BLOCK), "head_dims": (16, 64, 16), "value_dims": None,
    "groups": 1, "forward_only": True, "options": ("causal", "unequal lengths"), "lse": False, "block": BLOCK,
}  # fmt: skip


def kernel(q, k, v, *, edit="", causal=False):
    """What the referee calls: `flash_attn_func` returns the output alone."""
    return flash(q, k, v, causal=causal, edit=edit)


def main(cases=20):
    for edit in EDITS:
        print(f"--- {edit or 'as written'}")
        try:
            limits = LIMITS | {"dtypes": ("float32",)}
            print(assert_kernel(partial(kernel, edit=edit), "flash_attn_func", limits, framework="jax", cases=cases))
        except KernelError as error:
            print(error)


if __name__ == "__main__":
    main()
