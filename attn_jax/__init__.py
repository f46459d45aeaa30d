"""Attention in Flax NNX: every variant, equal to its twins in NumPy and PyTorch.

Names load on first use: `attn_jax.build("mha", ...)`, `attn_jax.MultiHeadAttention`, `attn_jax.attend`.
"""

from attn_np.contract._package import lazy_namespace, require_installed

require_installed(__name__, modules=("jax", "flax"), extra="jax")
__getattr__, __dir__ = lazy_namespace(__name__, api=("build", "explain", "load", "load_pretrained", "save", "trace"))
