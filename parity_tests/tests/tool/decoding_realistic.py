"""Which caches by hand are judged, what is wrong with them, and what counts as the right cause of it.

`python -m parity_tests.tests.tool.decoding_realistic` prints what the judge says of each mistake. None of them is an
edit of the library's source, and the causes were written down before the judge was asked.
"""

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch

from parity_tests.ports.decoding import assert_decoding_parity
from parity_tests.ports.parity import ParityError
from parity_tests.tests.tool.decoding_ports import (
    GRU_WEIGHTS,
    SMALL,
    D,
    H,
    Recurrent,
    Static,
    alibi,
    gated_delta,
    grouped,
    in_jax,
    latent,
    padded,
    retention,
    ring,
    rotary,
    static,
    t5,
    tuples,
)


@dataclass(frozen=True)
class Kind:
    """A port: its function, the variant and fields that it should be, and what else the judge is told."""

    function: Any
    variant: str
    fields: dict[str, Any]
    options: dict[str, Any]


KINDS = {
    "tuples": Kind(tuples, "mha", SMALL, {"framework": "torch"}),
    "rotary": Kind(rotary, "rotary", SMALL, {"framework": "torch"}),
    "window": Kind(rotary, "rotary", SMALL | {"window": (3, 0)}, {"framework": "torch"}),
    "padded": Kind(padded, "rotary", SMALL, {"framework": "torch"}),
    "grouped": Kind(
        grouped, "gqa", {"d_model": D, "num_heads": 6, "num_kv_heads": 2, "causal": True}, {"framework": "torch"}
    ),
    "static": Kind(static, "rotary", SMALL, {"framework": "torch", "init": lambda f, b, room: Static(b, room)}),
    "ring": Kind(ring, "rotary", SMALL | {"window": (3, 0)}, {"framework": "torch"}),
    "t5": Kind(t5, "t5_bias", SMALL | {"num_buckets": 8, "max_distance": 16}, {"dtype": "float64"}),
    "alibi": Kind(alibi, "alibi", SMALL | {"num_heads": 4, "head_dim": 3}, {"framework": "torch"}),
    "retention": Kind(retention, "retention", {"d_model": D, "num_heads": H}, {"framework": "torch"}),
    "gated_delta": Kind(
        gated_delta, "gated_delta", {"d_model": D, "num_heads": H, "conv_size": 3}, {"framework": "torch"}
    ),
    "gru": Kind(Recurrent, "gru", {"input_dim": 5, "hidden_dim": 7}, {"weights": GRU_WEIGHTS}),
    "mla": Kind(
        latent, "mla",
        {"d_model": D, "num_heads": H, "kv_rank": 7, "nope_dim": 5, "rope_dim": 4, "value_head_dim": 3, "causal": True},
        {"framework": "torch"},
    ),
    "jax": Kind(in_jax, "mha", SMALL, {"framework": "jax"}),
}  # fmt: skip


def judged(kind: str, wrong: str = "", **options: Any) -> Any:
    """The verdict on a port, with a mistake or without.

    Raises:
        ParityError: it differs.
    """
    own = KINDS[kind]
    options = own.options | options
    if own.function is Recurrent:
        torch.manual_seed(0)
        module: Any = Recurrent(wrong)

        def start(m: Any, b: int, room: int) -> None:
            m.reset()

        return assert_decoding_parity(
            module, own.variant, own.fields, step=lambda m, x, cache: (m.decode(x), None), init=start, **options
        )
    more = {"window": own.fields["window"][0]} if "window" in own.fields else {}
    function = own.function

    def candidate(p: Any, x: Any, cache: Any, *valid: Any) -> Any:
        return function(p, x, cache, *valid, wrong=wrong, **more)

    step: Any = (
        (lambda f, x, cache, valid: f(x, cache, valid))
        if "valid" in signature(function).parameters
        else (lambda f, x, cache: f(x, cache))
    )
    return assert_decoding_parity(candidate, own.variant, own.fields, step=step, **options)


# What is wrong, and what counts as its cause.
MISTAKES: tuple[tuple[str, str, str], ...] = (
    ("tuples", "is_causal", r"from the first key|at the first key"),
    ("jax", "is_causal", r"from the first key|at the first key"),
    ("tuples", "prompt sees all", r"causal (mask|ignored).*prompt|prompt.*causal"),
    ("tuples", "no mask at all", r"causal ignored|no causal mask|future"),
    ("tuples", "new first", r"before the cache|before the cached|order of .*keys"),
    ("tuples", "bfloat16", r"bfloat16|16 bits"),
    ("tuples", "flipped", r"rows of the batch|batch rows|batch row"),
    ("tuples", "kept", r"not updated|of the prompt alone|cache .* not kept"),
    ("tuples", "scale in steps", r"scale|sqrt"),
    ("rotary", "one position", r"one position for all new"),
    ("rotary", "keys bare", r"keys? .*not rotated|unrotated"),
    ("rotary", "query ahead", r"quer.*(one|1).*(more|ahead|large)|quer.*ahead"),
    ("rotary", "query behind", r"quer.*(one|1).*(less|behind|small)|quer.*behind"),
    ("rotary", "again", r"rotated again|rotated twice|rotated .* again"),
    ("rotary", "again, not kept", r"rotated again|rotated twice|rotated .* again"),
    ("window", "window in prompt only", r"window.*(steps|prompt)"),
    ("window", "window in steps only", r"window.*(steps|prompt)"),
    ("window", "wider", r"window one key too wide.*steps"),
    ("ring", "short", r"ring.*(short|small)|slot.*(short|few)"),
    ("ring", "unmasked ring", r"never written"),
    ("padded", "shared", r"one position for all sequences"),
    ("padded", "unmasked", r"padding is seen"),
    ("grouped", "tiled in steps", r"head.*steps|tile.*steps|h % g"),
    ("static", "old mask", r"mask of the prompt|from the first key|at the first key"),
    ("static", "all slots", r"never written"),
    ("static", "first row", r"first (batch )?row|first sequence"),
    ("t5", "first rows", r"rows|bias.*position|position.*bias|positions? of .*quer"),
    ("t5", "last row", r"rows|one row|one position"),
    ("alibi", "from zero", r"bias|distance|position"),
    ("retention", "decay once", r"decay.*once"),
    ("retention", "forgotten", r"state.*(not|start|lost|zero|each)|cache is not seen"),
    ("retention", "half", r"float16|16 bits"),
    ("retention", "last alone", r"last .*(new )?position|last token|only the last"),
    ("gated_delta", "window lost", r"conv|window"),
    ("gated_delta", "window of the step", r"conv|window"),
    ("gated_delta", "decay of the first", r"decay.*once"),
    ("gated_delta", "read before", r"read.*before|before .*writ"),
    ("gated_delta", "bfloat16", r"bfloat16|16 bits"),
    ("gru", "never reset", r"reset|sequence before|kept between"),
    ("gru", "zeros", r"state.*(not|start|lost|zero|each)|cache is not seen"),
    ("gru", "rows", r"batch row|rows of the batch"),
    ("mla", "again", r"rotated again|rotated twice|rotated .* again"),
    ("mla", "key bare", r"keys? .*not rotated|unrotated"),
    ("mla", "bfloat16", r"bfloat16|16 bits"),
)  # fmt: skip


# Written down when the mistakes above were all named, and judged before anything was done for them.
LATER: tuple[tuple[str, str, str], ...] = (
    ("tuples", "exchanged", r"keys and values|exchanged|swapped"),
    ("tuples", "last step alone", r"last step|earlier|grow|cache is not"),
    ("tuples", "keys flipped", r"batch rows"),
    ("tuples", "float16 keys", r"float16"),
    ("tuples", "prompt's last twice", r"twice"),
    ("tuples", "scaled twice", r"scale"),
    ("tuples", "no output bias", r"bias.*steps"),
    ("rotary", "by all positions", r"position.*large"),
    ("rotary", "other base", r"base.*steps"),
    ("window", "narrower", r"window one key too narrow in steps"),
    ("static", "strictly earlier", r"newest key"),
    ("padded", "from one", r"position.*(large|padding|sequences)"),
    ("alibi", "other sign", r"sign|bias.*steps|slope.*steps"),
    ("retention", "fades at once", r"fades at its own position"),
    ("retention", "norm left out", r"norm"),
    ("gated_delta", "no silu", r"silu"),
    ("mla", "normed again", r"norm"),
    ("mla", "scale of the content", r"scale"),
)


def verdict_on(kind: str, wrong: str, cause: str) -> tuple[str, list[str], float]:
    """What the judge says of a mistake: "named", "unnamed", "wrong cause" or "missed"; the causes and the seconds."""
    began = time.perf_counter()
    try:
        judged(kind, wrong)
    except ParityError as error:
        causes = [c.name for c in error.finding.causes]
        seconds = time.perf_counter() - began
        if not causes:
            return "unnamed" if error.finding.next_step else "unnamed, no next", causes, seconds
        return "named" if re.search(cause, causes[0]) else "wrong cause", causes, seconds
    return "missed", [], time.perf_counter() - began


def report(only: str = "") -> Iterator[str]:
    for kind, wrong, cause in (*MISTAKES, *LATER):
        if only in f"{kind} {wrong}":
            said, causes, seconds = verdict_on(kind, wrong, cause)
            yield f"{kind:12} {wrong:22} {said:16} {seconds:5.1f} s  {'; '.join(causes)}"


if __name__ == "__main__":
    for line in report(*sys.argv[1:]):
        print(line, flush=True)
