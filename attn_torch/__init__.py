"""Attention in PyTorch: every variant, equal to its twins in NumPy and Flax.

Names load on first use: `attn_torch.build("mha", ...)`, `attn_torch.MultiHeadAttention`, `attn_torch.attend`.
"""

from attn_np.contract._package import lazy_namespace, require_installed

require_installed(__name__, modules=("torch",), extra="torch")
__getattr__, __dir__ = lazy_namespace(__name__, api=("build", "explain", "load", "load_pretrained", "save", "trace"))
