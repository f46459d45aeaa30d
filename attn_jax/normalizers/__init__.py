"""Weights from scores: softmax, sparsemax, entmax, and the one key of hard attention; and norms of what heads hold."""
