"""Attention as one writes it on a board: plain NumPy, forward and backward, nothing of the library.

Each module has two functions. `forward` returns the outputs and a tuple of what it computed on the way. `backward`
takes the gradient of the outputs and that tuple, and returns the gradients of `forward`'s arguments under their names.
There is no mask, cache, dtype or option: the layers of `attn_np` have those, and tests hold each module to its layer.
They are for reading: no layer calls them.

Axes: `b` batch, `t` query, `s` key, `d` width of the input, `h` head, `g` key/value head, `r` query heads for each of
these, `k` width of a query and key, `v` width of a value, `e` hidden width, `f` gate, `z` latent.
"""
