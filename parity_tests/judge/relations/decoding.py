"""Relations of decoding: what a decoder begins with, and what it feeds back."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.calls import Call, Subject, field
from parity_tests.judge.relations.relation import Pair, Relation, both, relation

RELATIONS: dict[str, Relation] = {}


def decodes(config: Config) -> bool:
    return config.variant == "seq2seq"


@relation(RELATIONS)
def the_decoder_begins_where_the_encoder_ended(s: Subject, call: Call) -> Iterator[Pair]:
    """The encoder's last state given by hand changes nothing."""
    if not decodes(call.config) or field(call.config, "vocab_size") is not None:
        return
    call = call.given(state=None, mask=None)
    own = {name.removeprefix("encoder."): p for name, p in call.params.items() if name.startswith("encoder.")}
    keep = {"keep": call.inputs["encoder_keep"]} if call.has("encoder_keep") else {}
    child: Any = call.config.children()["encoder"]
    last = s.run(Call(child, {"x": call.inputs["source"]} | keep, own))["out1"]
    yield from both(s.run(call.given(state=last)), s.bounded(call))


@relation(RELATIONS)
def generation_feeds_its_outputs_back(s: Subject, call: Call) -> Iterator[Pair]:
    """Given its own outputs as targets, one later, the decoder repeats them."""
    config, sizes = call.config, call.config.sizes()
    if not decodes(config) or field(config, "vocab_size") is not None or sizes["o"] != sizes["d"]:
        return
    start = {name: x for name, x in call.inputs.items() if name in ("source", "state")}
    first = call.inputs["target"][:, :1]
    y, last = s.layer(call).generate(**{n: s.array(x) for n, x in (start | {"target": first}).items()}, steps=4)
    fed = np.concatenate([first, s.numpy(y)[:, :-1]], axis=1)
    want = s.bounded(Call(config, start | {"target": fed}, call.params))
    yield "y", s.numpy(y), want["y"]
    yield "state", s.numpy(last), want["out1"]


@relation(RELATIONS)
def decoding_takes_the_likeliest_until_the_stop(s: Subject, call: Call) -> Iterator[Pair]:
    """Teacher forcing repeats the tokens up to the stop, the rest is the stop, the length counts what comes before."""
    if not decodes(call.config) or field(call.config, "vocab_size") is None:
        return
    start = {name: x for name, x in call.inputs.items() if name in ("source", "state")}
    first, layer = call.inputs["target"][:, :1], s.layer(call)
    given = {n: s.array(x) for n, x in (start | {"target": first}).items()}
    words = s.numpy(layer.greedy(**given, steps=3, stop=0)[0])
    for stop in np.unique(words).tolist():  # tokens that occur, so that it does stop
        tokens, lengths = (s.numpy(x) for x in layer.greedy(**given, steps=5, stop=stop))
        fed = np.concatenate([first, tokens[:, :-1]], axis=1)
        likeliest = s.run(Call(call.config, start | {"target": fed}, call.params))["y"].argmax(axis=-1)
        over = np.cumsum(tokens == stop, axis=1) > 0
        yield f"length with {stop}", lengths, np.sum(~over, axis=1)
        before = np.concatenate([np.zeros_like(over[:, :1]), over[:, :-1]], axis=1)
        yield f"tokens with {stop}", tokens, np.where(before, stop, likeliest)
