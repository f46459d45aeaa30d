"""What a type checker sees in calls of ours. `make types` reads this; a suppression that hides nothing is an error."""

from typing import TYPE_CHECKING, assert_type

if TYPE_CHECKING:
    from flax import nnx

    import attn_jax
    import attn_np
    import attn_torch

    assert_type(attn_torch.build("mha", d_model=8, num_heads=2), attn_torch.MultiHeadAttention)
    assert_type(attn_np.build("mqa", d_model=8, num_heads=2), attn_np.GroupedQueryAttention)
    assert_type(attn_jax.build("lightning", d_model=8, num_heads=2, norm="layer"), attn_jax.Retention)
    attn_torch.MultiHeadAttention(d_model=8, num_heads=2, dtype="float64", window=(3, None))
    attn_jax.MultiHeadAttention(attn_jax.MultiHeadAttention.Config(d_model=8, num_heads=2), rngs=nnx.Rngs(0))

    # A field that the variant does not have, one that is missing, a number and a word that it cannot be.
    attn_torch.build("mha", d_model=8, num_heads=2, heads=2)  # pyright: ignore[reportCallIssue]
    attn_np.build("gqa", d_model=8, num_heads=2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    attn_np.build("mha", d_model="8", num_heads=2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    attn_np.build("qk_norm", d_model=8, num_heads=2, norm="rmss")  # pyright: ignore[reportCallIssue, reportArgumentType]
    attn_jax.MultiHeadAttention(d_model=8, num_heads=2, heads=2, rngs=nnx.Rngs(0))  # pyright: ignore[reportCallIssue]
    attn_jax.MultiHeadAttention(d_model=8, num_heads=2)  # pyright: ignore[reportCallIssue]
