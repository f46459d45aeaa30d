"""Softmax attention: its definition, the choice of its path, masks, caches, and calls as others write them."""
