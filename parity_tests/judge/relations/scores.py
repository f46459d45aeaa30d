"""Relations of scale, softcap and precision."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import numpy as np

from parity_tests.judge.calls import Arrays, Call, Subject, attends, field, louder, score_shape
from parity_tests.judge.candidates import DTYPES
from parity_tests.judge.relations.relation import Pair, Relation, both, relation
from parity_tests.judge.relations.values import without_keeps
from parity_tests.judge.relations.weights import unordered

RELATIONS: dict[str, Relation] = {}


@relation(RELATIONS)
def the_default_scale_is_that_of_the_head(s: Subject, call: Call) -> Iterator[Pair]:
    if "scale" in call.config.fields():
        width = call.config.sizes().get("k") or call.inputs["query"].shape[-1]
        plain = s.bounded(call.with_fields(scale=None))
        yield from both(plain, s.bounded(call.with_fields(scale=1 / sqrt(width))))


@relation(RELATIONS)
def the_scale_belongs_to_the_queries(s: Subject, call: Call) -> Iterator[Pair]:
    if "scale" in call.config.fields():
        half = s.bounded(call.with_fields(scale=0.5))
        yield from both(half, s.bounded(louder(call, 0.5).with_fields(scale=1.0)))


@relation(RELATIONS)
def a_huge_softcap_caps_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """c tanh(x / c) differs from x by x^3 / (3 c^2): for c = 2^50 far less than a rounding."""
    if "softcap" in call.config.fields():
        capped = s.bounded(call.with_fields(softcap=2.0**50))
        yield from both(capped, s.bounded(call.with_fields(softcap=None)))


@relation(RELATIONS)
def sixteen_bits_are_computed_in_float32(s: Subject, call: Call) -> Iterator[Pair]:
    """The same bits as a float32 layer gives, rounded once."""
    for dtype in ("bfloat16", "float16"):

        def turned(arrays: Arrays, kind: str) -> Arrays:
            return {n: x.astype(DTYPES[kind]) if x.dtype.kind not in "biu" else x for n, x in arrays.items()}

        low = replace(call, inputs=turned(call.inputs, dtype), params=turned(call.params, dtype))
        wide = replace(low, inputs=turned(low.inputs, "float32"), params=turned(low.params, "float32"))
        got, want = s.run(low, dtype), s.run(wide, "float32")
        for name, x in want.items():
            yield f"{name} in {dtype}", got[name].astype(np.float64), x.astype(DTYPES[dtype]).astype(np.float64)


@relation(RELATIONS)
def the_last_bits_are_felt(s: Subject, call: Call) -> Iterator[Pair]:
    """Inputs a few of float64's last bits larger give another output: nothing on the way has fewer bits."""
    call = without_keeps(call).with_fields(**unordered(call.config)).given(mask=None)
    # Of one key alone the score is not felt: its weight is 1.
    if attends(call.config) and min(score_shape(call)[-2:]) < 3 * field(call.config, "dilation", 1):
        return
    y = s.run(call)["y"]
    for name, x in call.inputs.items():
        if x.dtype.kind == "f":
            moved_y = s.run(call.given(**{name: x * (1 + 2.0**-44)}))["y"]
            yield name, np.any(moved_y != y, keepdims=True), np.ones((1,) * y.ndim)
