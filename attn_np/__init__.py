"""Attention in NumPy: every variant with its forward and its backward pass, equal to its twins in Flax and PyTorch.

Names load on first use: `attn_np.build("mha", ...)`, `attn_np.MultiHeadAttention`, `attn_np.attend`.
"""

from attn_np.contract._package import lazy_namespace

__getattr__, __dir__ = lazy_namespace(
    __name__, api=("build", "explain", "load", "load_pretrained", "save", "trace", "value_and_vjp")
)
