"""The fast paths: the same numbers as the definition, in blocks, without all scores in memory."""
