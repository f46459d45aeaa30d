"""Mistakes in documents that are packed into one sequence with a state."""

from parity_tests.mistakes.plant import NUMPY, SHARED, Mutant, at

EMPTY = "empty the state before the first position of each document: its decay there is 0"


def shares(variant: str, old: str, new: str, file: str = "", example: str = "chunked") -> Mutant:
    name = f"documents of a pack share a state, in {variant}"
    return at(file or f"{variant}.py", variant, example, call="packed")(name, EMPTY, old, new)


shared = at(SHARED, "gated_delta", "chunked", call="packed")
MUTANTS = (
    shares("linear", 'return zero_unseen("bt->bthk", continues, 1.0 + ', "return (1.0 + ", SHARED),
    shares("delta", 'return zero_unseen("bt->bthk", continues, 1.0 + ', "return (1.0 + ", SHARED),
    shares("retention", 'zero_unseen("bt->bthk", continues, decay[..., None])', "decay[..., None]"),
    shares("gla", 'zero_unseen("bt->bthk", call.continues, exp(log_decay))', "exp(log_decay)"),
    shares("kda", 'zero_unseen("bt->bthk", call.continues, exp(log_decay))', "exp(log_decay)"),
    shares("mamba2", 'zero_unseen("bt->bth", call.continues, decay)', "decay"),
    shares(
        "gated_delta", 'zero_unseen("bt->bthk", call.continues, exp(log_decay)[..., None])', "exp(log_decay)[..., None]"
    ),
    shared(
        "convolution reaches over the end of a document",
        "empty the window of the convolution where a document begins",
        "documents = documents_of(entries, real, continues)\n    y: Any = 0.0",
        "documents = None\n    y: Any = 0.0",
    ),
    shared(
        "gradient of the convolution reaches into the document before",
        "where a document begins, no gradient goes back through the window",
        "dshifted = of_own_document(upcast(weight)[place] * dy, place, documents)",
        "dshifted = upcast(weight)[place] * dy",
        trees=NUMPY,
    ),
    shared(
        "state emptied one position late",
        "the first position of a document itself finds an empty state",
        "return continues\n",
        "return concatenate([continues[:, :1], continues[:, :-1]], 1)\n",
    ),
    shared(
        "number of padding begins a document",
        "padding begins no document: compare the numbers of real positions",
        "numbers if real is None else numbers_held(numbers, last, real)",
        "numbers",
    ),
)
