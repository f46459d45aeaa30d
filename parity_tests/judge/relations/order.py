"""Relations of order: keys, queries, batch rows and heads stand alone."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity_tests.judge.calls import (
    Call,
    Subject,
    along,
    attends,
    complete,
    field,
    keyed,
    moved,
    ordered,
    over_keys,
    score_shape,
    weighs,
)
from parity_tests.judge.relations.relation import Pair, Relation, both, relation

RELATIONS: dict[str, Relation] = {}


@relation(RELATIONS)
def keys_have_no_order(s: Subject, call: Call) -> Iterator[Pair]:
    """Keys moved with their values, mask, bias and keep-mask. In self-attention the positions themselves."""
    config, call = call.config, complete(call)
    if attends(config) and not ordered(config):
        letter, n = ("s" if keyed(config) else "t"), score_shape(call)[-1]
        order = np.random.default_rng(n).permutation(n)
        yield from both(s.bounded(moved(call, letter, order)), along(config, s.bounded(call), letter, order))


@relation(RELATIONS)
def queries_have_no_order(s: Subject, call: Call) -> Iterator[Pair]:
    config, call = call.config, complete(call)
    if keyed(config) and not ordered(config):
        order = np.random.default_rng(0).permutation(score_shape(call)[-2])
        yield from both(s.bounded(moved(call, "t", order)), along(config, s.bounded(call), "t", order))


@relation(RELATIONS)
def batch_rows_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """A row by itself gives what it gives among others."""
    first = next(name for name in ("x", "query", "source") if name in call.inputs)
    whole = s.bounded(call)
    for i in (0, len(call.inputs[first]) - 1):
        yield from both(s.bounded(moved(call, "b", [i])), along(call.config, whole, "b", [i]))


@relation(RELATIONS)
def the_last_queries_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """They stand at the last keys, whoever asks before them: what decoding with a cache relies on."""
    config, call = call.config, complete(call)
    if keyed(config) and over_keys(config):
        t = score_shape(call)[-2]
        whole = s.bounded(call)
        for n in {1, t // 2 + 1}:
            last = np.arange(t - n, t)
            yield from both(s.bounded(moved(call, "t", last)), along(config, whole, "t", last))


@relation(RELATIONS)
def heads_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """Each head by itself: the output is the sum of theirs, or has them side by side."""
    config, sizes = call.config, call.config.sizes()
    if field(config, "num_heads", 1) == 1:
        return
    if sizes["h"] != field(config, "num_heads"):  # heads of the softmax that are no heads of the projections
        return
    fields = dict.fromkeys(("num_heads", "num_kv_heads", "num_key_heads"), 1)
    fields |= {"head_dim": field(config, "head_dim") or sizes.get("k"), "value_head_dim": sizes.get("v")}
    fields |= {"norm_groups": 1}
    fields = {name: x for name, x in fields.items() if x and name in config.fields()}
    groups = [name for name in ("norm_over", "context_norm_over") if type(field(config, name, None)) is int]
    fields |= dict.fromkeys(groups, "head")  # so many heads together: one has no neighbours
    by_head = [name for name in ("decay",) if field(config, name, None) is not None]  # one number for each head
    if field(config, "context_norm_bias") and field(config, "gate"):
        call = call.given(
            mask=None
        )  # a query is 0 where none of its heads sees a key, and the norm's bias meets its gate
    shared = sizes["h"] // sizes.get("g", sizes["h"])
    axes, whole, found = {n: p.axes.split() for n, p in config.params().items()}, s.bounded(call), []
    for h in range(sizes["h"]):
        own = {n: x.take([h], axes[n].index("h")) if "h" in axes[n] else x for n, x in call.params.items()}
        own |= {n: x.take([h // shared], axes[n].index("g")) for n, x in own.items() if "g" in axes[n]}
        single = replace(config, **fields, **{name: (getattr(config, name)[h],) for name in by_head})
        found.append(s.bounded(Call(single, along(config, call.inputs, "h", [h]), own)))
        if weighs(config):
            yield f"weights of head {h}", found[-1]["out1"], whole["out1"][:, h : h + 1]
    if "w_o" not in call.params:
        yield "y", np.concatenate([part["y"] for part in found], axis=-1), whole["y"]
        return
    y, b_o = found[0]["y"], call.params.get("b_o", 0.0)
    for part in found[1:]:
        y = y + (part["y"] - b_o)
    yield "y", y, whole["y"]
