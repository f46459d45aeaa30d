"""Mistakes around a memory, learned keys and values that multi-head attention may have."""

from parity_tests.mistakes.plant import NUMPY, at

memory = at("frame/memory.py", "mha", "memory")
MUTANTS = (
    memory(
        "memory hidden wherever something is hidden",
        "let every query see the memory, whatever mask, causality and window say",
        "entries == 0 if",
        "entries != 0 if",
    ),
    memory(
        "memory compared with a query that sees no key",
        "a query that sees no key may be padding and hold anything: let it weigh the memory equally",
        "hide_neg_inf(mask, bias), q)",
        "None, q)",
    ),
    memory(
        "window counted over the memory too",
        "positions are those of the keys of the call: leave the memory out of causality and window",
        "append_memory(v, memory_v, factor), options",
        "append_memory(v, memory_v, factor), options | masking",
    ),
    memory(
        "values of the memory left out",
        "each key of the memory has a value of its own",
        "append_memory(v, memory_v, factor)",
        "append_memory(v, memory_v, 0.0)",
    ),
    memory(
        "bias added to the scores of the memory",
        "leave the memory's scores as they are: the bias is about the keys of the call",
        "else entries], -1)",
        "else entries + 1.0], -1)",
    ),
    at("frame/memory.py", "mha", "memory", fields=(("dropout", 0.25),))(
        "memory scaled with the weights that are not dropped",
        "divide by 1 - rate the weights that may be dropped",
        "factor = 1.0 if keep is None else 1.0 - rate",
        "factor = 1.0",
    ),
    memory(
        "mean over the batch in the gradient of the memory",
        "all sequences share the memory: add their gradients",
        "np.sum(dk[:, s:], axis=0)",
        "np.mean(dk[:, s:], axis=0)",
        trees=NUMPY,
    ),
)
