"""Weight files: one dictionary of named arrays, read and written for all three trees."""

from attn_np.weights._draw import draw

__all__ = ["draw"]
