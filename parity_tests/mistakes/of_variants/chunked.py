"""Mistakes that stand in chunked's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

both, causal = at("chunked.py", "chunked", "both"), at("chunked.py", "chunked", "causal")
NEAR = "same_chunk = (query_positions // c.chunk_size)[:, :, None] == (key_positions // c.chunk_size)[:, None, :]"
BORDERS = "count chunks from the first position of the sequence: floor(p / chunk_size) for queries and keys alike"
MUTANTS = (
    both(
        "a window as wide as a chunk instead of chunks",
        "compare the numbers of the chunks, not the distance of query and key",
        NEAR,
        "same_chunk = abs(query_positions[:, :, None] - key_positions[:, None, :]) < c.chunk_size",
    ),
    causal(
        "chunks before the own one seen, too",
        "a query sees the keys of its own chunk only, none of those before",
        "[:, :, None] == (key_positions",
        "[:, :, None] >= (key_positions",
    ),
    both("chunks of the keys begin one position early", BORDERS, "(key_positions // c", "((key_positions + 1) // c"),
    both(
        "positions of one remainder taken for a chunk",
        "divide positions by the chunk's size, rounded down: the remainder is the place within a chunk",
        NEAR,
        NEAR.replace("//", "%"),
    ),
    causal(
        "pattern of the chunks forgotten where a mask is given",
        "apply the given mask and the chunks together",
        "same_chunk[:, None] & mask",
        "mask",
    ),
    causal(
        "scale of the chunks' scores left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)",
        "attend_vjp(tape, dcontext, scale=1.0, rate=c.dropout)",
        trees=NUMPY,
    ),
)
