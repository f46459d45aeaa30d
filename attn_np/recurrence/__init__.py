"""Recurrences: states that decay, are erased along a key and written, position by position or in chunks."""
