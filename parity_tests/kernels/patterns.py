"""Patterns of `attend`, and who sees whom by their definitions."""

import numpy as np

from attn_np.contract import _patterns as patterns

PATTERN_KINDS = 12  # of `drawn_pattern`


def drawn_pattern(
    rng: np.random.Generator, b: int, t: int, s: int, kind: int | None = None
) -> tuple[patterns.Pattern, np.ndarray]:
    """A pattern, one of `PATTERN_KINDS` kinds, and who sees whom by its definition, `b 1 t s`: no code of the trees."""
    n = int(rng.integers(1, 6))
    i, j = np.arange(t)[:, None] + (s - t), np.arange(s)
    documents = rng.integers(0, 3, (b, s + t))
    documents = np.sort(documents, axis=1) if rng.random() < 0.5 else documents  # packed, or in any order
    documents = documents << (33 if n % 2 else 0)  # numbers of more than 32 bits, or of fewer
    of_queries, of_keys = documents[:, s:], documents[:, :s]
    marked_queries, marked_keys = rng.random((b, t)) < 0.3, rng.random((b, s)) < 0.3
    prefix = rng.integers(0, s + 1, b)
    near, other_document = abs(i - j) <= n, of_queries[:, :, None] != of_keys[:, None]
    window, causal, chosen = patterns.Window(n, n), patterns.Causal(), patterns.ChosenChunk(n, of_queries)
    in_chosen = of_queries[:, :, None] == j // n
    found = [
        (patterns.Chunks(n), i // n == j // n),
        (patterns.Chunks(n, 2, 1), (j // n - i // n >= -2) & (j // n - i // n <= 1)),
        (chosen | window, near | in_chosen),
        (patterns.Dilated(n) & patterns.Window(2 * n, None), ((i - j) % n == 0) & (j >= i - 2 * n)),
        (patterns.Documents(of_queries, of_keys), ~other_document),
        (~patterns.Documents(of_queries, of_keys) | window, other_document | near),
        (patterns.Prefix(prefix) | causal, (j < prefix[:, None, None]) | (j <= i)),
        (patterns.GlobalQueries(marked_queries), marked_queries[:, :, None]),
        (
            (window | patterns.GlobalKeys(marked_keys)) & ~patterns.GlobalQueries(marked_queries),
            (near | marked_keys[:, None]) & ~marked_queries[:, :, None],
        ),
        (patterns.Documents(of_queries, of_keys) & patterns.Chunks(n), ~other_document & (i // n == j // n)),
        (
            patterns.Chunks(n, 1, 1)
            | chosen
            | patterns.GlobalKeys(marked_keys)
            | patterns.GlobalQueries(marked_queries),
            (abs(j // n - i // n) <= 1) | in_chosen | marked_keys[:, None] | marked_queries[:, :, None],
        ),
        ((patterns.Chunks(n) | chosen) & causal, ((i // n == j // n) | in_chosen) & (j <= i)),
    ]
    pattern, pairs = found[rng.integers(PATTERN_KINDS) if kind is None else kind]
    return pattern, np.broadcast_to(pairs, (b, t, s))[:, None]
