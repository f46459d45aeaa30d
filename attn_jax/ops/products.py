"""Products of two arrays, summed over some axes, in the forms for which XLA on a CPU copies nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

Array = jax.Array


def product(subscripts: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters not in the output. Within `reverse_mode_products` it has no forward mode."""
    return (_product_reverse_mode if _reverse_mode_only.get() else _product)(subscripts, a, b)


def _product(subscripts: str, a: Array, b: Array) -> Array:
    asked = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    precision = None if asked else jax.lax.Precision.HIGHEST
    # JAX sums over axes in alphabetical order; if the first factor has another, XLA transposes both factors before.
    letters = dict.fromkeys(letter for letter in subscripts if letter.isalpha())
    factors, out = subscripts.translate({ord(x): chr(ord("a") + i) for i, x in enumerate(letters)}).split("->")
    of_a, of_b = factors.split(",")
    # For a sum over an axis of one, such as a batch of one sequence, XLA copies both factors.
    for letter in [x for x in of_a if x in of_b and x not in out]:
        if a.shape[of_a.index(letter)] == b.shape[of_b.index(letter)] == 1:
            a, b = a.squeeze(of_a.index(letter)), b.squeeze(of_b.index(letter))
            of_a, of_b = of_a.replace(letter, ""), of_b.replace(letter, "")
    factors = f"{of_a},{of_b}"
    shared = "".join(x for x in out if x in of_a and x in of_b)
    # For another order JAX swaps the factors, and XLA writes the transpose of a block of scores before the product.
    in_order = shared + "".join(x for of_factor in (of_a, of_b) for x in of_factor if x in out and x not in shared)
    sharding = _out_sharding(f"{factors}->{in_order}", a, b)
    product = jnp.einsum(f"{factors}->{in_order}", a, b, precision=precision, out_sharding=sharding)
    return product if in_order == out else product.transpose([in_order.index(x) for x in out])


def _out_sharding(subscripts: str, a: Array, b: Array) -> P | None:
    """The sharding of a product on a mesh with explicit axes, each axis as in its factor; None elsewhere.

    JAX leaves it to the caller how sums over a sharded axis are sharded.
    """
    shardings = jax.typeof(a).sharding, jax.typeof(b).sharding
    if not any(AxisType.Explicit in sharding.mesh.axis_types for sharding in shardings):
        return None
    factors, out = subscripts.split("->")
    axes: dict[str, Any] = {}
    for letters, sharding in zip(factors.split(","), shardings, strict=True):
        axes |= {letter: axis for letter, axis in zip(letters, sharding.spec, strict=True) if axis is not None}
    return P(*(axes.get(letter) for letter in out))


_reverse_mode_only: ContextVar[bool] = ContextVar("reverse_mode_only", default=False)


@contextmanager
def reverse_mode_products() -> Iterator[None]:
    """Within, `product`, and so `einsum` of `ops`, has derivatives in reverse mode alone, which never transpose a
    block of scores.

    As JAX writes the gradient of a block's keys, XLA on a CPU transposes the gradient of the scores for it: four times
    as long as the product itself.
    """
    token = _reverse_mode_only.set(True)
    try:
        yield
    finally:
        _reverse_mode_only.reset(token)


def _product_reverse_mode(subscripts: str, a: Array, b: Array) -> Array:
    # In `shard_map` adding a device-varying zero makes a replicated array device-varying: so JAX sums its gradient.
    zero = jnp.zeros_like(jnp.sum(a) + jnp.sum(b))
    return _product_custom_vjp(subscripts, a + zero, b + zero)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product_custom_vjp(subscripts: str, a: Array, b: Array) -> Array:
    return _product(subscripts, a, b)


def _product_custom_vjp_bwd(subscripts: str, factors: tuple[Array, Array], dout: Array) -> tuple[Array, Array]:
    """The gradient of b sums over rows. The larger array, a block of scores, is the second factor: so XLA does not
    transpose it.
    """
    (a, b), (of_a, of_b, out) = factors, subscripts.replace("->", ",").split(",")
    da = _product(f"{out},{of_b}->{of_a}", dout, b)
    small, large = ((out, dout), (of_a, a)) if a.size > dout.size else ((of_a, a), (out, dout))
    return da, _product(f"{small[0]},{large[0]}->{of_b}", small[1], large[1])


_product_custom_vjp.defvjp(lambda subscripts, a, b: (_product(subscripts, a, b), (a, b)), _product_custom_vjp_bwd)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def projection(subscripts: str, x: Array, weight: Array) -> Array:
    """The product, with derivatives for which XLA on a CPU need not copy a weight transposed."""
    return product(subscripts, x, weight)


@partial(projection.defjvp, symbolic_zeros=True)
def _projection_jvp(subscripts: str, primals: Any, tangents: Any) -> Any:
    """x is transposed where the gradient of the weight needs it; without the barrier XLA would undo that."""
    (x, weight), (dx, dweight) = primals, tangents
    y = product(subscripts, x, weight)  # not `projection`, which policies of `jax.checkpoint` do not see as a product
    dy = jnp.zeros_like(y)
    if not isinstance(dx, SymbolicZero):
        dy = dy + product(subscripts, dx, weight)
    if not isinstance(dweight, SymbolicZero):
        factors, out = subscripts.split("->")
        of_x, of_weight = factors.split(",")
        letters = "".join(sorted(of_x, key=lambda letter: letter in out))  # those of the sum first
        across = jnp.transpose(x, [of_x.index(letter) for letter in letters])
        dy = dy + product(f"{letters},{of_weight}->{out}", jax.lax.optimization_barrier(across), dweight)
    return y, dy
