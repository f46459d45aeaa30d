"""States that are lost, read too early, or fade too little from step to step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from attn_np.attention.decode import Cache
from parity_tests.judge.candidates import numpy_layer
from parity_tests.ports.step_mistakes.base import ALL, STEPS, Pieces, StepMistake
from parity_tests.ports.step_mistakes.held import batch_axes, changed
from parity_tests.ports.steps import Arrays, Decoding


def of_state(*makers: Callable[[Decoding], Iterator[Pieces]]) -> Callable[[Decoding], Iterator[Pieces]]:
    return lambda decoding: chain() if decoding.has_entries else chain(*(make(decoding) for make in makers))


def lost(decoding: Decoding, names: tuple[str, ...]) -> Iterator[Pieces]:
    """A run in which some of the cached arrays start from 0 in every step."""
    yield decoding.layered(touch=lambda _, __, x: changed(x, names, np.zeros_like))


def lost_alone(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which the short windows, or the state beside them, start from 0 in every step."""
    names = [name for name in decoding.config.cache_axes() if name != "state"]
    for some in (tuple(names), *((name,) for name in names)):
        if some:
            yield from lost(decoding, some)
            yield from frozen(decoding, some)


def frozen(decoding: Decoding, names: tuple[str, ...]) -> Iterator[Pieces]:
    """Runs in which some of the cached arrays stay as they are after the prompt, or in steps of one position."""
    yield decoding.layered(touch=lambda i, old, x: changed_to(x, old, names) if i else x)
    ones = [piece.shape[1] == 1 for piece in decoding.plan]
    yield decoding.layered(touch=lambda i, old, x: changed_to(x, old, names) if ones[i] else x)


def changed_to(arrays: Arrays, others: Arrays, names: tuple[str, ...]) -> Arrays:
    return {n: others[n] if n in names else x for n, x in arrays.items()}


def partly(decoding: Decoding, which: int, where: str) -> Iterator[Pieces]:
    """A run in which one position of a piece alone, its first or its last, gets into the state."""
    cache, outputs = decoding.empty(), []
    for i, x, at in decoding.pieces():
        y, after = decoding.advance(decoding.layer, x, at, cache)
        if x.shape[1] > 1 and (i or where == ALL):
            column = slice(0, 1) if which == 0 else slice(-1, None)
            after = replace(
                after, arrays=decoding.advance(decoding.layer, x[:, column], at[:, column], cache)[1].arrays
            )
        cache = after
        outputs.append(y)
    yield iter(outputs)


class Tapped(dict[str, Any]):
    """A tape that changes some of the arrays on it."""

    def __init__(self, **changes: Callable[[Any], Any]) -> None:
        super().__init__()
        self.changes = changes

    def tap(self, name: str, value: Any) -> Any:
        self[name] = self.changes[name](value) if name in self.changes else value
        return self[name]


def unfading(decoding: Decoding) -> Any:
    """A layer of fixed decays whose state does not fade; the layer itself where decays are on its tape."""
    config = decoding.config
    if not hasattr(config, "decay_rule"):
        return decoding.layer
    given = replace(config, decay=(float(np.nextafter(1.0, 0.0)),) * config.sizes()["h"])
    return numpy_layer(replace(decoding.case, given=given), decoding.drawn.params)


def one_by_one(decoding: Decoding, where: str, advance: Callable[[int, Any, Any, Cache], Any]) -> Iterator[Pieces]:
    """A run whose pieces, those after the prompt or all, are computed position by position by another rule."""
    cache, outputs = decoding.empty(), []
    for i, x, at in decoding.pieces():
        if where == STEPS and i == 0:
            y, cache = decoding.advance(decoding.layer, x, at, cache)
        else:
            parts = []
            for j in range(x.shape[1]):
                y, cache = advance(j, x[:, j : j + 1], at[:, j : j + 1], cache)
                parts.append(y)
            y = np.concatenate(parts, 1)
        outputs.append(y)
    yield iter(outputs)


def fading(decoding: Decoding, most: int, where: str = STEPS) -> Iterator[Pieces]:
    """A run in which only the first positions of a piece, so many at most, fade the state."""
    still = unfading(decoding)

    def advance(j: int, x: Any, at: Any, cache: Cache) -> Any:
        if j < most:
            return decoding.advance(decoding.layer, x, at, cache)
        return decoding.advance(still, x, at, cache, Tapped(log_decay=np.zeros_like))

    return one_by_one(decoding, where, advance)


def read_before(decoding: Decoding, where: str, faded: bool) -> Iterator[Pieces]:
    """A run in which a query reads the state before its own position writes, maybe once it has faded."""
    layer = decoding.layer if faded else unfading(decoding)
    nothing = dict.fromkeys(("v", "beta", *(() if faded else ("log_decay",))), np.zeros_like)

    def advance(_: int, x: Any, at: Any, cache: Cache) -> Any:
        y, _ = decoding.advance(layer, x, at, cache, Tapped(**nothing))
        return y, decoding.advance(decoding.layer, x, at, cache)[1]

    return one_by_one(decoding, where, advance)


def fades(decoding: Decoding) -> bool:
    return "state" in decoding.config.cache_axes() and decoding.config.variant not in ("linear", "delta")


def when(fits: Callable[[Decoding], bool], make: Callable[[Decoding], Iterator[Pieces]]) -> Any:
    return lambda decoding: make(decoding) if fits(decoding) else chain()


STATES = (
    StepMistake(
        "the state of earlier steps is not used: each step starts from 0",
        "begin a step with the state that the step before returned",
        of_state(lambda d: lost(d, tuple(batch_axes(d)))),
    ),
    StepMistake(
        "the state is not updated after the prompt",
        "hand on the state that a step returns",
        of_state(lambda d: frozen(d, tuple(batch_axes(d)))),
    ),
    StepMistake(
        "the window of the short convolution is not carried from step to step",
        "cache the last inputs of the convolution, also where a step is shorter than the window",
        of_state(lost_alone),
    ),
    StepMistake(
        "only the last position of a step gets into the state",
        "write every new position into the state, one after the other",
        of_state(lambda d: partly(d, 1, STEPS), lambda d: partly(d, 1, ALL)),
    ),
    StepMistake(
        "only the first position of a step gets into the state",
        "write every new position into the state, one after the other",
        of_state(lambda d: partly(d, 0, STEPS), lambda d: partly(d, 0, ALL)),
    ),
    StepMistake(
        "decay once per step, not for each of its positions",
        "let the state decay at each new position of a step",
        of_state(when(fades, lambda d: chain(fading(d, 1), fading(d, 1, ALL)))),
    ),
    StepMistake(
        "the state is read before the position writes into it",
        "write a position's key and value into the state first, then let its query read",
        of_state(lambda d: chain(*(read_before(d, where, faded) for where in (STEPS, ALL) for faded in (False, True)))),
    ),
    StepMistake(
        "the state does not decay in steps",
        "let the state decay at each new position of a step",
        of_state(when(fades, lambda d: fading(d, 0))),
    ),
)
