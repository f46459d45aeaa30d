"""The function attend, its fast paths, and the operations of the three dialects."""
