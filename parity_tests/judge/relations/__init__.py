"""What must hold whatever the reference says: relations between two calls of one layer, and invariants of one call.

A mistake that all three trees share, the reference included, is invisible to a comparison of trees. It still breaks
some of these: keys have no order, a hidden key may as well not be there, a window is a mask. Nothing here knows the
right numbers. Where two calls must agree, they do so within the bounds that the reference derives for each of them; the
reference may have the same mistake, because its bounds only say how much rounding can do.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.judge.calls import Call, Subject, attends
from parity_tests.judge.candidates import extras
from parity_tests.judge.judging import compare
from parity_tests.judge.relations import decoding, masks, order, recurrence, scores, values, weights
from parity_tests.judge.relations.relation import Relation

THEMES = (order, weights, values, masks, scores, recurrence, decoding)
RELATIONS: dict[str, Relation] = {name: held for theme in THEMES for name, held in theme.RELATIONS.items()}


def ratios(name: str, subject: Subject, call: Call) -> dict[str, float]:
    """Largest difference over the sum of both bounds, by array; arrays without bounds must be equal.

    Nothing where the contract says why the relation does not hold, or the layer lacks what it is about.
    """
    lacking = NEEDS.get(name, set()) - offered(call.config)
    return {} if lacking or name in call.config.broken_relations() else compared(name, subject, call)


# What a relation is about, where not every layer has it: returned weights, an argument, a field.
NEEDS = {
    "weights_add_up_to_one": {"weights"},
    "a_constant_on_all_scores_changes_nothing": {"bias"},
    "a_large_bias_decides": {"bias", "weights"},
    "every_key_twice_changes_nothing": {"weights"},
    "twice_the_scores_square_the_weights": {"weights"},
    "indifferent_scores_share_evenly": {"weights"},
    "the_output_is_the_weights_times_the_values": {"weights"},
    "weights_do_not_know_dropout": {"weights"},
    "evaluation_drops_nothing": {"dropout"},
    "keeping_everything_is_no_dropout": {"dropout"},
}


def offered(config: Config) -> set[str]:
    """Arguments and fields, and "weights" where they are returned."""
    weighs = not attends(config) or "return_weights" in extras(config.variant, config.class_name)
    return {*config.arguments(), *config.fields(), *(["weights"] if weighs else [])}


def compared(name: str, subject: Subject, call: Call) -> dict[str, float]:
    """The same, whatever the contract says."""
    found: dict[str, float] = {}
    for what, got, want in RELATIONS[name](subject, call):
        found[what] = max(found.get(what, 0.0), apart(got, want))
    return found


def apart(got: Any, want: Any) -> float:
    want = want if isinstance(want, ErrArray) else ErrArray(want, 0.0)
    if isinstance(got, ErrArray):
        if got.shape != want.shape:
            return np.inf
        got, want = got.v, ErrArray(want.v, want.b + got.b)
    if not np.isfinite(want.b).all():
        return np.inf
    return compare(np.asarray(got, np.float64), want)["ratio"]


def broken(subject: Subject, call: Call) -> Iterator[str]:
    """Every relation that does not hold, in words."""
    for name in RELATIONS:
        wrong = {what: r for what, r in ratios(name, subject, call).items() if not r <= 1}
        if wrong:
            yield f"{name}: " + ", ".join(f"{what} {r:.3g}" for what, r in wrong.items())
