"""Mistakes that stand in chunked's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, allowing, at

both, causal = at("chunked.py", "chunked", "both"), at("chunked.py", "chunked", "causal")
NEAR = "Chunks(self.config.chunk_size)"
BORDERS = "count chunks from the first position of the sequence: floor(p / chunk_size) for queries and keys alike"
MUTANTS = (
    both(
        "a window as wide as a chunk instead of chunks",
        "compare the numbers of the chunks, not the distance of query and key",
        NEAR,
        allowing("Chunks", "abs(query - key) < self.size") + "(self.config.chunk_size)",
    ),
    causal(
        "chunks before the own one seen, too",
        "a query sees the keys of its own chunk only, none of those before",
        NEAR,
        allowing("Chunks", "query // self.size >= key // self.size") + "(self.config.chunk_size)",
    ),
    both(
        "chunks of the keys begin one position early",
        BORDERS,
        NEAR,
        allowing("Chunks", "query // self.size == (key + 1) // self.size") + "(self.config.chunk_size)",
    ),
    both(
        "positions of one remainder taken for a chunk",
        "divide positions by the chunk's size, rounded down: the remainder is the place within a chunk",
        NEAR,
        allowing("Chunks", "query % self.size == key % self.size") + "(self.config.chunk_size)",
    ),
    causal(
        "pattern of the chunks forgotten where a mask is given",
        "apply the given mask and the chunks together",
        NEAR,
        f"{NEAR} if call.mask is None else None",
    ),
    causal(
        "scale of the chunks' scores left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "back.attend(dcontext)",
        "back.attend(dcontext, scale=1.0)",
        trees=NUMPY,
    ),
)
