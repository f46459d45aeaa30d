"""Relations of who sees whom: what is hidden has no influence, and a window is a mask."""

from collections.abc import Iterator

import numpy as np

from parity_tests.judge.calls import (
    Call,
    Subject,
    allowed,
    along,
    attends,
    complete,
    keyed,
    may_have,
    moved,
    ordered,
    score_shape,
    weighs,
)
from parity_tests.judge.relations.relation import Pair, Relation, both, relation
from parity_tests.judge.relations.weights import unordered

RELATIONS: dict[str, Relation] = {}


def hidden_pieces(call: Call) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys to hide, and those that stay: the first two; where that moves no other key, also the last two."""
    n = score_shape(call)[-1]
    if n > 2:
        yield np.arange(2), np.arange(2, n)
        if not ordered(call.config) and not (
            keyed(call.config) and "keys_have_no_order" in call.config.broken_relations()
        ):
            yield np.arange(n - 2, n), np.arange(n - 2)


@relation(RELATIONS)
def hidden_keys_may_as_well_not_be_there(s: Subject, call: Call) -> Iterator[Pair]:
    """Hiding keys from everybody and leaving them out is the same, where the config does not fix their number."""
    config, call = call.config, complete(call)
    letter = "t" if attends(config) and not keyed(config) else "s"
    if not weighs(config) or letter in config.sizes():
        return
    for hidden, rest in hidden_pieces(call):
        mask = np.broadcast_to(call.inputs.get("mask", True), score_shape(call)).copy()
        mask[..., hidden] = False
        masked = call.given(mask=mask)
        yield from both(along(config, s.bounded(masked), letter, rest), s.bounded(moved(masked, letter, rest)))


@relation(RELATIONS)
def what_is_hidden_has_no_influence(s: Subject, call: Call) -> Iterator[Pair]:
    """NaN in keys that nobody sees and in queries that see nothing: outputs and gradients stay, to the bit."""
    config, call = call.config, complete(call)
    if not weighs(config):
        return
    for hidden, _ in hidden_pieces(call):
        mask = np.broadcast_to(call.inputs.get("mask", True), score_shape(call)).copy()
        mask[..., hidden] = False
        spoilt = ("query", "key", "value")
        if attends(config):
            mask[..., hidden[hidden < mask.shape[-2]], :] = False
        else:
            spoilt = ("source",)
        clean = call.given(mask=mask)
        dirty = clean.given(**{name: spoil(call.inputs[name], hidden) for name in spoilt if name in call.inputs})
        yield from both(s.run(dirty), s.run(clean))
        want = s.gradients(clean)
        yield from both(s.gradients(dirty), want)


def spoil(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """NaN at some positions; other tokens where there are tokens."""
    x, places = x.copy(), places[places < x.shape[1]]
    x[:, places] = 0 if x.dtype.kind in "iu" else np.nan
    return x


@relation(RELATIONS)
def the_last_axis_alone_serves_all(s: Subject, call: Call) -> Iterator[Pair]:
    """A mask or a keep-mask of its last axis alone is one that is the same along all others."""
    for name, arg in call.config.arguments().items():
        x = call.inputs.get(name)
        if x is None or x.size == 0 or arg.kind not in ("mask", "keep"):
            continue
        few = x[(0,) * (x.ndim - 1)]
        whole = np.broadcast_to(few, x.shape).copy()
        yield from both(s.bounded(call.given(**{name: few})), s.bounded(call.given(**{name: whole})))


@relation(RELATIONS)
def a_window_is_a_mask(s: Subject, call: Call) -> Iterator[Pair]:
    """Causality and window written out as a mask."""
    config = call.config
    if ordered(config) and weighs(config):
        masked = call.given(mask=allowed(call)).with_fields(**unordered(config))
        yield from both(s.bounded(call), s.bounded(masked))


@relation(RELATIONS)
def a_wide_window_hides_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    config = call.config
    if may_have(config, window=(0, 0), causal=False):
        n = max(score_shape(call))
        free = call.with_fields(window=None)
        yield from both(s.bounded(call.with_fields(window=(n, n))), s.bounded(free))
        causal = call.with_fields(window=None, causal=True)
        yield from both(s.bounded(call.with_fields(window=(None, 0), causal=False)), s.bounded(causal))
