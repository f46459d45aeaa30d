"""The functions of PyTorch and JAX for attention, in NumPy: their arguments, axes and meaning, and a backward pass."""

from attn_np.attention.drop_in import dot_product_attention as dot_product_attention
from attn_np.attention.drop_in import scaled_dot_product_attention as scaled_dot_product_attention

__all__ = ["dot_product_attention", "scaled_dot_product_attention"]
