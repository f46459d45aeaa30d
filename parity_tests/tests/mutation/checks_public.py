"""What the public functions below the layers must do, and how they are differentiated."""

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import attn_np
from attn_np import patterns
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.judging import compare
from parity_tests.tests.mutation.calls import Parts, claim, claim_same, refuses, same
from parity_tests.tests.mutation.checks_functions import ATTENDS, attend_expected, run_attend


def attend_pulled_back(call: str, alias: str) -> None:
    """`value_and_vjp` of `attend` gives the gradients of its rule, each in the dtype of its argument."""
    package, (options, _) = import_module(alias), ATTENDS[call]
    for dtype in ("float64", "bfloat16"):
        inputs, dy, _ = attend_expected(2, call, dtype, 6)
        want = {name: x for name, x in run_attend(alias, inputs, dy, options).items() if name[0] == "d"}
        for recompute in (False, True):
            (_, weights), pull = package.value_and_vjp(
                package.attend, **options | {"implementation": "textbook"}, **inputs, recompute=recompute
            )
            found = pull(dy)
            claim(weights is None and found.params == {}, "an output alone")
            claim({f"d{name}" for name in found.inputs} == set(want), "names of gradients")
            for name, x in found.inputs.items():
                claim(same(x, want[f"d{name}"].astype(inputs[name].dtype)), f"d{name}")
            claim_same(pull(dy).inputs, found.inputs, "pulled twice")
    if call == "queries":
        return
    inputs, dy, want = attend_expected(2, call, "float64", 6)
    found = package.value_and_vjp(package.attend, **options, **inputs)[1](dy)
    for name, x in found.inputs.items():
        claim(compare(x, want[f"d{name}"])["ratio"] <= 1, f"d{name} by the path that the call takes")


def doubled(scores: Any, allowed: Any = None, factor: float = 2.0) -> Any:
    """Weights that are a multiple of the scores."""
    return scores * factor if allowed is None else np.where(allowed, scores * factor, 0.0)


def doubled_vjp(tape: Any, dy: Any, *, scores: Any, allowed: Any = None, factor: float = 2.0) -> Any:
    claim(same(tape["y"], doubled(scores, allowed, factor)), "what a rule is given")
    return {"scores": dy * factor if allowed is None else np.where(allowed, dy * factor, 0.0), "factor": None}


def scaled(x: Any, **options: Any) -> Any:
    return options["factor"] * x


def scaled_vjp(tape: Any, dy: Any, *, x: Any, factor: float) -> Any:
    return {"x": factor * dy}


def pulled_back(alias: str) -> None:
    """Functions of the caller's, weights with gradients of their own, and what is refused."""
    package, (inputs, dy, _) = import_module(alias), attend_expected(2, "all", "float64", 6)
    pull_of = partial(package.value_and_vjp, package.attend)
    vars(doubled)["vjp"] = doubled_vjp
    x = np.arange(6.0).reshape(2, 3)
    y, pull = package.value_and_vjp(doubled, x)
    claim(same(y, 2 * x) and list(pull(x).inputs) == ["scores"] and same(pull(x).inputs["scores"], 2 * x), "a rule")
    y, pull = package.value_and_vjp(partial(doubled, factor=3.0), x)
    claim(same(y, 3 * x) and same(pull(x).inputs["scores"], 3 * x), "a rule with an argument that is fixed")
    vars(scaled)["vjp"] = scaled_vjp
    y, pull = package.value_and_vjp(scaled, x, factor=3.0)
    claim(same(y, 3 * x) and same(pull(x).inputs["x"], 3 * x), "a rule with arguments that are collected")
    options: dict[str, Any] = {"softcap": 1.5, "rate": 0.25, "return_weights": True}
    plain = {name: array for name, array in inputs.items() if name != "sinks"}
    for some, settings in ((plain, options), ({n: plain[n] for n in "qkv"}, {"return_weights": True})):
        (context, weights), pull = pull_of(**some, **settings, softmax_fn=partial(doubled, factor=3.0))
        whole = pull(dy, weights).inputs
        zero = pull(np.zeros_like(dy), weights).inputs
        claim_same(pull(None, weights).inputs, zero, "an output that the loss does not use")
        for name, found in whole.items():
            along, slopes, unsure = np.zeros_like(some[name]), [], 0.0
            along.flat[5] = 1.0
            for step in (2.0**-13, 2.0**-14):
                losses = []
                for moved in (some[name] + step * along, some[name] - step * along):
                    c, w = package.attend(**some | {name: moved}, **settings, softmax_fn=partial(doubled, factor=3.0))
                    losses.append(float(np.sum(c * dy) + np.sum(w * weights)))
                    # every product and sum behind a term of the loss rounds once
                    size = np.sum(np.abs(c * dy)) + np.sum(np.abs(w * weights))
                    unsure = max(unsure, c.size * np.finfo(float).eps * float(size) / step)
                slopes.append((losses[0] - losses[1]) / (2 * step))
            # a central difference errs by the square of its step: the two differ by three times the error of the second
            bound = abs(slopes[0] - slopes[1]) + 2 * unsure
            claim(abs(slopes[1] - found.flat[5]) <= bound, f"the slope along {name}")
    claim(not np.any(context[0, 2, -1]) or "mask" not in some, "a query without keys")
    refuses(lambda: package.value_and_vjp(len, x), TypeError, "value_and_vjp: expected a layer or a function with a")
    words = "value_and_vjp: expected a function with a gradient, got relative_buckets"
    refuses(lambda: package.value_and_vjp(package.relative_buckets, x), TypeError, words)
    (y, _), pull = pull_of(**plain)
    refuses(lambda: pull(y, y), ValueError, "vjp: expected None for what the call did not return")
    refuses(lambda: pull(y[0]), ValueError, "vjp: expected dy of shape")
    refuses(lambda: pull(y.astype("float32")), TypeError, "vjp: expected dy of the output's dtype")


def weights_of_scores(alpha: float, alias: str) -> None:
    """`softmax` and `entmax` are within their bounds along any axis, with a mask or none, and so are gradients."""
    package, rng = import_module(alias), np.random.default_rng(4)
    scores, mask, dy = rng.normal(size=(3, 5, 7)), rng.random((3, 5, 7)) < 0.7, rng.normal(size=(3, 5, 7))
    mask[1, 2], mask[0, 1] = False, np.arange(7) == 4
    call: Any = partial(package.entmax, alpha=alpha)
    whole: Any = partial(attn_np.entmax, alpha=alpha)
    for axis in (-1, 0):
        for some in (mask, mask[0], None):
            with precision(precision_of("float64")):
                want: Any = whole(ErrArray(scores, 0.0), some, axis=axis)
                found = ErrArray(want.v, 0.0) if alpha == 2 else want
                rule = vars(attn_np.entmax)["vjp"]
                slopes = rule({"y": found}, ErrArray(dy, 0.0), alpha=alpha, axis=axis)["scores"]
            got, pull = package.value_and_vjp(call, scores, some, axis=axis)
            claim(compare(got, want)["ratio"] <= 1, f"weights along {axis}")
            claim(compare(pull(dy).inputs["scores"], slopes)["ratio"] <= 1, f"gradients along {axis}")
            if alpha == 1:
                y, back = package.value_and_vjp(package.softmax, scores, some, axis=axis)
                claim(same(y, got) and same(back(dy).inputs["scores"], pull(dy).inputs["scores"]), "softmax")
    narrow = scores.astype("float32")
    claim(
        same(call(narrow.astype("float16")), call(narrow.astype("float16").astype("float32")).astype("float16")), "16"
    )
    claim(compare(call(narrow).astype("float64"), whole32(narrow, alpha))["ratio"] <= 1, "32 bits")
    claim(call(scores[:, :0], axis=1).shape == (3, 0, 7) and call(scores[:0]).shape == (0, 5, 7), "nothing")
    with np.errstate(invalid="ignore"):
        for value in (np.nan, np.inf):
            spoiled = np.where(np.arange(7) == 3, value, scores)
            claim(same(call(spoiled, np.arange(7) != 3), call(scores, np.arange(7) != 3)), "hidden")
            spoiled[1:] = scores[1:]
            got = call(spoiled)
            claim(np.isnan(got[0]).all() and same(got[1:], call(scores)[1:]), "in sight")
    lost = call(np.full((2, 3), -np.inf), np.array([[True], [False]]))
    claim(np.isnan(lost[0]).all() and not lost[1].any(), "scores that overflowed")


def whole32(scores: np.ndarray, alpha: float) -> Any:
    """What the whole reference gives, with bounds for float32."""
    with precision(precision_of("float32")):
        carried: Any = ErrArray(scores.astype("float64"), 0.0)
        return attn_np.entmax(carried, alpha=alpha)


def wrong_scores(alias: str) -> None:
    """What has no weights is refused."""
    package, scores = import_module(alias), np.zeros((3, 5, 7))
    for name in ("softmax", "entmax"):
        call = getattr(package, name)
        refuses(lambda call=call: call(scores > 0), TypeError, f"{name}: expected scores of a float dtype, got bool")
        refuses(lambda call=call: call(scores.tolist()), TypeError, f"{name}: expected scores as a NumPy array")
        refuses(lambda call=call: call(scores, scores), TypeError, f"{name}: expected a boolean mask")
        refuses(lambda call=call: call(scores, scores[:2] > 0), ValueError, f"{name}: expected mask broadcastable")
        refuses(lambda call=call: call(scores, axis=3), ValueError, f"{name}: expected axis to be one of the scores' 3")
    refuses(
        lambda: package.entmax(scores, alpha=0.5), ValueError, "entmax: expected alpha to be a finite number from 1"
    )


LONG: dict[str, Any] = {
    "rope_scaling": "longrope", "original_max_positions": 6,
    "short_factor": (1.0, 1.5, 2.0), "long_factor": (1.25, 3.0, 4.5),
}  # fmt: skip


def rotated_by_angles(alias: str) -> None:
    """Angles by position, section and scale; what turns, turns back in the gradient."""
    package, places = import_module(alias), np.array([[0, 1, 5, 3], [2, 3, 3, 0]])
    for dtype in ("float64", "float32"):
        found = package.rotary_angles(places, 6, rope_base=50.0, dtype=dtype)
        turns = places[..., None] * np.array([50.0 ** (-2 * i / 6) for i in range(3)])
        claim(same(found[0], np.cos(turns).astype(dtype)) and same(found[1], np.sin(turns).astype(dtype)), "angles")
    claim(package.rotary_angles(places, 6)[0].dtype == np.float32, "float32 by default")
    claim(package.rotary_angles(places[:, :0], 6)[0].shape == (2, 0, 3), "no positions")
    plain = package.rotary_angles(places, 6, rope_base=50.0, dtype="float64")
    scaled = package.rotary_angles(places, 6, rope_base=50.0, dtype="float64", xpos=-9.0)
    scale = np.exp(places[..., None] * (np.log((np.arange(3) / 3 + 0.4) / 1.4) / -9.0))
    claim(all(same(x, y * scale) for x, y in zip(scaled, plain, strict=True)), "xPos")
    two = np.stack([places, places[::-1]])
    found = package.rotary_angles(two, 6, rope_base=50.0, dtype="float64", sections=(1, 2))
    other = package.rotary_angles(places[::-1], 6, rope_base=50.0, dtype="float64")
    for x, one, rest in zip(found, plain, other, strict=True):
        claim(same(x[..., :1], one[..., :1]) and same(x[..., 1:], rest[..., 1:]), "sections")
    three = np.stack([places, places[::-1], places + 1])
    each = [package.rotary_angles(x, 14, dtype="float64")[0] for x in three]
    found = package.rotary_angles(three, 14, dtype="float64", sections=(4, 1, 2), sections_interleaved=True)[0]
    dealt = zip(np.moveaxis(found, -1, 0), (0, 1, 2, 0, 0, 2, 0), strict=True)
    claim(all(same(x, each[axis][..., i]) for i, (x, axis) in enumerate(dealt)), "sections in turn")
    rng, parts = np.random.default_rng(2), Parts(alias)
    for layout in ("half", "interleaved"):
        for shape in ((2, 4, 3, 7), (2, 4, 6)):
            x = rng.normal(size=shape)
            y, pull = package.value_and_vjp(package.rotate, x, *plain, layout=layout)
            claim(same(y, parts.rotate(x, *parts.for_heads(*plain, layout), layout)), "turned")
            back = package.rotate(y, *plain, layout=layout, inverse=True)
            gradients = pull(y).inputs
            claim(same(gradients["x"], back) and list(gradients) == ["x", "cos", "sin"], "the gradient turns back")
            a, b, da, db = (
                z[..., i:6:2] if layout == "interleaved" else z[..., 3 * i : 3 * i + 3] for z in (x, y) for i in (0, 1)
            )
            heads = tuple(range(2, len(shape) - 1))
            dcos, dsin = np.sum(a * da + b * db, axis=heads), np.sum(a * db - b * da, axis=heads)
            claim(same(gradients["cos"], dcos) and same(gradients["sin"], dsin), "gradients of the angles")
            _, pull = package.value_and_vjp(package.rotate, x, *(z[0] for z in plain), layout=layout, inverse=True)
            gradients = pull(y).inputs
            claim(same(gradients["cos"], dcos.sum(0)), "of angles that sequences share")
            claim(same(gradients["sin"], np.sum(b * da - a * db, axis=heads).sum(0)), "of angles that turn back")
            forth = package.value_and_vjp(package.rotate, x, *plain, layout=layout, inverse=True)[1](y).inputs["x"]
            claim(same(forth, package.rotate(y, *plain, layout=layout)), "and back again")
            claim(
                same(package.rotate(x, plain[0][0], plain[1][0]), package.rotate(x, plain[0][:1], plain[1][:1])), "one"
            )
    x, options = rng.normal(size=(2, 4, 3, 6)), {"rope_base": 50.0, "xpos": -9.0, "max_positions": 7}
    y, pull = package.value_and_vjp(package.rotate, x, places, **options)
    claim(same(y, package.rotate(x, *scaled)), "positions in place of their angles")
    gradients = pull(y).inputs
    claim(
        same(gradients["x"], package.rotate(y, *scaled, inverse=True)) and list(gradients) == ["x"], "and none of them"
    )
    half = rng.normal(size=(2, 4, 6)).astype("float16")
    narrow = package.rotary_angles(places, 6)
    claim(same(package.rotate(half, *narrow), package.rotate(half.astype("float32"), *narrow).astype("float16")), "16")
    positions = np.arange(-9, 10)
    buckets = package.relative_buckets(positions, num_buckets=8, max_distance=6)
    want = [attn_np.relative_buckets(np.array(n), num_buckets=8, max_distance=6) for n in positions.tolist()]
    claim(buckets.tolist() == [int(n) for n in want] and buckets[9] == 0 and buckets[-1] == 7, "buckets")
    after = package.relative_buckets(positions, num_buckets=8, max_distance=6, bidirectional=False)
    claim(not after[9:].any() and after[0] == 7, "later keys")
    claim(package.relative_buckets(np.array([-200, 200])).tolist() == [15, 31], "32 buckets up to 128")


def lengths_of_positions(alias: str) -> None:
    """The largest position chooses the tables; where it is not known both are there, and "dynamic" is refused."""
    package, short, long = import_module(alias), np.array([[0, 5, 2]]), np.array([[0, 6, 2]])
    base = {"rope_base": 50.0, "dtype": "float64"}
    factors = LONG["short_factor"], LONG["long_factor"]
    amplitude = attn_np.rotary_angles(short[:, :1] * 0, 6, **base, **LONG)[0][0, 0, 0]
    for places, factor in ((short, factors[0]), (long, factors[1])):
        turns = places[..., None] * (np.array([50.0 ** (-2 * i / 6) for i in range(3)]) / factor)
        want = np.cos(turns) * amplitude
        claim(same(package.rotary_angles(places, 6, **base, **LONG, max_positions=9)[0], want), "by the largest")
        claim(same(package.rotary_angles(places, 6, **base, **LONG)[0], want), "without a limit")
    files = [vars(import_module(f"{alias}.{name}")) for name in ("positions.rotary", "positions.rotary_functions")]
    known = [{name: file[name] for name in ("concrete", "known_range")} for file in files]
    for file in files:
        file |= {"concrete": lambda x: False, "known_range": lambda x: None}
    try:
        for places in (short, long):
            found = package.rotary_angles(places, 6, **base, **LONG, max_positions=9)
            claim(same(found[0], attn_np.rotary_angles(places, 6, **base, **LONG)[0]), "both tables")
        options: dict[str, Any] = {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 6}
        words = "rotary_angles: expected positions whose values are known for rope_scaling='dynamic'"
        refuses(lambda: package.rotary_angles(short, 6, **options, max_positions=9), ValueError, words)
        claim(package.rotary_angles(short, 6, **options, max_positions=6)[0].shape == (1, 3, 3), "never that long")
        words = "rotary_angles: expected max_positions in a compiled program"
        refuses(lambda: package.rotary_angles(short, 6), ValueError, words)
    finally:
        for file, functions in zip(files, known, strict=True):
            file |= functions
    layer: Any = package.build("rotary", dtype="float64", d_model=6, num_heads=1, max_positions=9, **LONG)
    x = np.random.default_rng(3).normal(size=(1, 3, 6))
    claim(same(layer(x, positions=np.arange(3)[None]), layer(x)), "a layer")
    fields: dict[str, Any] = {"d_model": 6, "num_heads": 1, "max_positions": 9, "rope_sections": (1, 2)}
    places, layers = (
        np.array([[[0, 1, 2]], [[0, 0, 5]]]),
        [p.build("rotary", **fields, dtype="float64") for p in (package, attn_np)],
    )
    cos_sin = attn_np.rotary_angles(places, 6, sections=(1, 2), dtype="float64")
    for positions in (places, cos_sin, tuple(a[0] for a in cos_sin)):
        (y, pull), (want, back) = (
            p.value_and_vjp(one, x, positions=positions) for p, one in zip((package, attn_np), layers, strict=True)
        )
        claim(same(y, want) and same(y, layers[1](x, positions=places)), "positions on two axes, and their angles")
        claim_same(pull(y).inputs, back(y).inputs, "gradients")
    words = "rotary: expected positions as integers, or as a pair (cos, sin), got 1 arrays"
    refuses(lambda: layers[0](x, positions=cos_sin[:1]), ValueError, words)


def wrong_positions(alias: str) -> None:
    """What cannot be turned is refused."""
    package, places, x = import_module(alias), np.array([[0, 1, 5]]), np.zeros((1, 3, 6))
    angles, cos = package.rotary_angles, np.zeros((3, 3))
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: angles(x, 6), TypeError, "rotary_angles: expected positions as integers, got float64"),
        (lambda: angles(places, 5), ValueError, "rotary_angles: expected an even width"),
        (
            lambda: angles(places, 6, max_positions=5),
            ValueError,
            "rotary_angles: expected positions from 0 to 4",
        ),
        (lambda: angles(places - 1, 6), ValueError, "rotary_angles: expected positions from 0 to 4, got -1"),
        (lambda: angles(places - 9, 6), ValueError, "rotary_angles: expected positions from 0 to 0, got -9"),
        (lambda: angles(places, 6, dtype="int8"), ValueError, "rotary_angles: expected dtype to be one of"),
        (lambda: angles(places.tolist(), 6), TypeError, "rotary_angles: expected positions as a NumPy array"),
        (lambda: package.rotate(x[0], cos, cos), ValueError, "rotate: expected x of shape"),
        (lambda: package.rotate(x, cos[:2], cos[:2]), ValueError, "rotate: expected cos of shape"),
        (lambda: package.rotate(x, cos, cos[:, :2]), ValueError, "rotate: expected cos and sin of one shape"),
        (lambda: package.rotate(x, cos > 0, cos), TypeError, "rotate: expected cos of dtype float64"),
        (lambda: package.rotate(x, cos), TypeError, "rotate: expected cos and sin, or positions as integers"),
        (lambda: package.rotate(x, cos, cos, xpos=2.0), ValueError, "rotate: expected no options of positions beside"),
        (lambda: package.rotate(x > 0, cos, cos), TypeError, "rotate: expected x of a float dtype"),
        (lambda: package.rotate(x, cos, cos, layout="x"), ValueError, "rotate: expected layout to be one of"),
        (
            lambda: package.relative_buckets(x),
            TypeError,
            "relative_buckets: expected relative_positions as signed integers",
        ),
        (lambda: package.relative_buckets(places, num_buckets=3), ValueError, "relative_buckets: expected num_buckets"),
        (
            lambda: package.relative_buckets(places, max_distance=1),
            ValueError,
            "relative_buckets: expected max_distance",
        ),
    ]
    for call, error, words in wrong:
        refuses(call, error, words)


def attends_from_places(alias: str) -> None:
    """Offsets and lengths show what a mask of the same pairs shows, forward and backward; numbers may be NumPy's."""
    package, rng = import_module(alias), np.random.default_rng(6)
    b, t, s = 2, 5, 7
    q, k, v = rng.normal(size=(b, t, 4, 3)), rng.normal(size=(b, s, 2, 3)), rng.normal(size=(b, s, 2, 5))
    first, last = np.arange(t)[:, None], np.arange(s)
    kinds: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"causal": True}, lambda at: last <= at),
        ({"window": 2}, lambda at: last >= at - 2),
        ({"window": [1, np.int64(0)]}, lambda at: (last >= at - 1) & (last <= at)),
        ({"pattern": patterns.Chunks(3)}, lambda at: last // 3 == at // 3),
        ({"pattern": patterns.Chunks(3), "causal": np.True_}, lambda at: (last // 3 == at // 3) & (last <= at)),
        ({}, lambda at: last + 0 * at >= 0),
    )
    for offset in (None, 0, 1, 2, 4, -2, np.int64(3), np.array(3), np.array([0, 4]), np.array([3, 1], np.uint8)):
        at = np.broadcast_to(t * 0 + s - t if offset is None else offset, b).astype(int)[:, None, None, None] + first
        for lengths in (None, np.array([3, 7])):
            for options, sees in kinds:
                mask = sees(at) & (True if lengths is None else last < lengths[:, None, None, None])
                want, back = package.value_and_vjp(package.attend, q, k, v, mask=mask, softcap=2.0, return_weights=True)
                found, pull = package.value_and_vjp(
                    package.attend, q, k, v, **options, offset=offset, lengths=lengths,
                    softcap=np.float64(2), return_weights=True,
                )  # fmt: skip
                claim(all(same(x, y) for x, y in zip(found, want, strict=True)), f"{offset}, {lengths}, {options}")
                claim_same(pull(want[0]).inputs, back(want[0]).inputs, "gradients")
    plain = package.attend(q, k, v, scale=0.5, rate=0.25, keep=last > 1)[0]
    claim(same(package.attend(q, k, v, scale=np.array(0.5), rate=np.float32(0.25), keep=last > 1)[0], plain), "numbers")
    claim(same(package.attend(q, k, v, softcap=0)[0], package.attend(q, k, v)[0]), "a softcap of 0")
    flat = package.attend(q[:, :, 0], k[:, :, 0], v[:, :, 0], causal=True, offset=1)[0]
    claim(
        same(flat, package.attend(q[:, :, :1], k[:, :, :1], v[:, :, :1], causal=True, offset=1)[0][:, :, 0]), "no heads"
    )
    loaded = vars(import_module(f"{alias}.attention.functions"))
    known, numbers = loaded["concrete"], loaded["lengths_are_numbers"]
    try:
        loaded["lengths_are_numbers"] = lambda: False
        for offset in (-1, 0, 3):
            lengths = package.attend(q, k, v, causal=True, offset=offset)[0]
            every = package.attend(q, k, v, causal=True, offset=np.array([offset] * b))[0]
            claim(same(lengths, every), "lengths that are not numbers")
        loaded["concrete"] = lambda x: False
        traced = package.attend(q, k, v, causal=True, offset=Traced(np.array(1)))[0]
        claim(
            same(traced, package.attend(q, k, v, causal=True, offset=np.array([1, 1]))[0]), "a value that is not known"
        )
    finally:
        loaded |= {"concrete": known, "lengths_are_numbers": numbers}


class Traced(np.ndarray):
    """An array whose value is not known, as in a compiled program."""

    def __new__(cls, x: np.ndarray) -> "Traced":
        return x.view(cls)


def wrong_places(alias: str) -> None:
    """What is no position, no length and no window is refused."""
    attend, x = import_module(alias).attend, np.zeros((2, 5, 1, 3))
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"offset": True}, ValueError, "expected offset as an integer"),
        ({"offset": 0.5}, ValueError, "expected offset as an integer"),
        ({"offset": np.zeros(2)}, TypeError, "expected offset as integers, got float64"),
        ({"offset": np.zeros(3, int)}, ValueError, "expected offset of shape (b,) = (2,), got (3,)"),
        ({"lengths": 3}, TypeError, "expected lengths as a NumPy array"),
        ({"lengths": np.zeros(2)}, TypeError, "expected lengths as integers, got float64"),
        ({"lengths": np.zeros((2, 1), int)}, ValueError, "expected lengths of shape (b,) = (2,), got (2, 1)"),
        ({"offset": 0, "causal": 1}, ValueError, "expected causal to be True or False"),
        ({"offset": 0, "window": (1,)}, ValueError, "expected window to be a tuple"),
        ({"offset": 0, "window": True}, ValueError, "expected window to be a tuple"),
        ({"offset": 0, "pattern": 3}, TypeError, "expected pattern to be one of"),
        ({"offset": 0, "k": x[0]}, ValueError, ""),
        ({"offset": 0, "q": x[0, 0]}, ValueError, "expected q with three or four axes"),
        ({"lengths": np.zeros(2, int), "k": x[0, 0]}, ValueError, "expected k with three or four axes"),
        ({"softcap": False}, ValueError, "expected softcap to be a finite int or float above 0.0"),
    ]
    for options, error, words in wrong:
        refuses(lambda options=options: attend(**{"q": x, "k": x, "v": x} | options), error, f"attend: {words}")


def merged_parts(alias: str) -> None:
    """Logarithms of sums of exponentials are within their bounds, with their gradients, and join parts of the keys."""
    package, (inputs, dy, _) = import_module(alias), attend_expected(2, "all, sinks", "float64", 6)
    calls: dict[str, dict[str, Any]] = {"mask bias sinks": {"softcap": 1.5}, "mask": {"softcap": 1.5}, "": {}}
    for names, options in calls.items():
        some = {name: inputs[name] for name in f"q k v {names}".split()}
        carried: Any = {name: ErrArray(x, 0.0) if x.dtype != bool else x for name, x in some.items()}
        with precision(precision_of("float64")), np.errstate(invalid="ignore"):
            want, back = attn_np.value_and_vjp(attn_np.attend, **carried, **options, return_lse=True)
            dlse = np.where(np.isfinite(want[2].v), np.cos(np.arange(want[2].size)).reshape(want[2].shape), 0.0)
            slopes: Any = back(ErrArray(dy, 0.0), None, ErrArray(dlse, 0.0)).inputs
        for path in ("fused", "textbook"):
            asked: dict[str, Any] = {**some, **options, "return_lse": True, "implementation": path}
            found, pull = package.value_and_vjp(package.attend, **asked)
            claim(found[1] is None and compare(found[2], want[2])["ratio"] <= 1, "lse")
            for name, grad in pull(dy, None, dlse).inputs.items():
                claim(compare(grad, slopes[name])["ratio"] <= 1, f"d{name}")
        tape: dict[str, Any] = {}
        claim(
            same(package.attend(**some, **options, return_lse=True, tape=tape)[2], found[2]) and "q" in tape, "a tape"
        )
    some = {name: inputs[name] for name in ("q", "k", "v", "mask")}
    whole, _, lse = package.attend(**some, return_lse=True)
    parts = []
    for keys in (slice(0, 2), slice(2, 7)):
        part = some | {name: some[name][:, keys] for name in "kv"} | {"mask": some["mask"][..., keys]}
        parts.append(package.attend(**part, return_lse=True)[::2])
    with np.errstate(invalid="ignore"):
        (context, total), pull = package.value_and_vjp(package.merge, parts)
        seen = np.isfinite(lse)
        wide: Any = [tuple(ErrArray(x, 0.0) for x in part) for part in parts]
        with precision(precision_of("float64")):
            want, back = attn_np.value_and_vjp(attn_np.merge, wide)
            claim(compare(context, want[0])["ratio"] <= 1 and compare(total, want[1])["ratio"] <= 1, "joined")
            dlse = np.where(seen, np.sin(np.arange(lse.size)).reshape(lse.shape), 0.0)
            want = back(ErrArray(dy, 0.0), ErrArray(dlse, 0.0)).inputs["parts"]
            alone = back(ErrArray(dy, 0.0)).inputs["parts"]
            sums = back(None, ErrArray(dlse, 0.0)).inputs["parts"]
        for got, right in ((pull(dy, dlse), want), (pull(dy), alone), (pull(None, dlse), sums)):
            for pair, bounds in zip(got.inputs["parts"], right, strict=True):
                claim(all(compare(x, y)["ratio"] <= 1 for x, y in zip(pair, bounds, strict=True)), "gradients of parts")
    flat = [(c[:, :, 0], x[:, 0]) for c, x in parts]
    claim(same(package.merge(flat)[0], context[:, :, 0]), "without heads")
    half = [(c.astype("float16"), x.astype("float32")) for c, x in parts]
    claim(package.merge(half)[0].dtype == np.float16 and package.merge(half)[1].dtype == np.float32, "16 bits")
    claim(
        package.value_and_vjp(package.merge, half)[1](context.astype("float16")).inputs["parts"][0][0].dtype
        == "float16",
        "16",
    )
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([], ValueError, "expected a list of pairs"),
        ([whole], ValueError, "expected a list of pairs"),
        ([(whole, lse[:1])], ValueError, "expected lse of shape"),
        ([(whole, lse), (whole[:1], lse)], ValueError, "expected contexts of one shape"),
        ([(whole, lse > 0)], TypeError, "expected lse of a float dtype"),
        ([(whole[0, 0], lse)], ValueError, "expected contexts b t h v"),
    ]
    for given, error, words in wrong:
        refuses(lambda given=given: package.merge(given), error, f"merge: {words}")
    for options in ({"normalize_over": "queries"}, {"softmax_fn": doubled}):
        call = partial(package.attend, **some, **options, return_lse=True)
        refuses(call, ValueError, "attend: expected return_lse=True with")


RULES: dict[str, tuple[str, ...]] = {
    "linear": ("beta",),
    "gated": ("g", "g k", "b t g"),
    "delta": ("", "beta"),
    "gated_delta": ("b t g", "beta b t g k"),
}


def recurred_by(package: Any, some: dict[str, Any], options: dict[str, Any]) -> None:
    """One call of `recur` and its gradients, beside those of the whole reference."""
    wide: Any = {name: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for name, x in some.items()}
    with precision(precision_of("float64")):
        want, back = attn_np.value_and_vjp(attn_np.recur, **wide, **options)
        dys = [np.cos(np.arange(y.size)).reshape(y.shape) for y in want]
        slopes: Any = back(*(ErrArray(dy, 0.0) for dy in dys)).inputs
    found, pull = package.value_and_vjp(package.recur, **some, **options)
    claim(all(compare(x, y)["ratio"] <= 1 for x, y in zip(found, want, strict=True)), f"by {options}")
    grads = pull(*dys).inputs
    claim(set(grads) == {name for name, x in some.items() if x.dtype.kind == "f"}, "names of gradients")
    claim(all(compare(x, slopes[name])["ratio"] <= 1 for name, x in grads.items()), f"gradients by {options}")


def no_gradient(alias: str) -> None:
    """A backward pass without a gradient is refused, and so is a tape of what records nothing."""
    package, x = import_module(alias), np.ones((1, 3, 4))
    layer = package.build("dot_product", dtype="float64").eval()
    tape = package.trace(layer, x)[1]
    for call in (lambda: layer.vjp(tape, None), lambda: layer.vjp(tape)):
        refuses(call, TypeError, "dot_product: expected the gradient of y in vjp, got none")
    pull = package.value_and_vjp(package.softmax, x)[1]
    for call in (lambda: pull(None), pull):
        refuses(call, TypeError, "softmax: expected the gradient of an output, got none")
    refuses(lambda: package.trace(package.softmax, x), TypeError, "trace: expected a layer or a function with a tape")


def recurred(alias: str) -> None:
    """Recurrences are within their bounds by every rule and in every form, and so are their gradients."""
    package, rng = import_module(alias), np.random.default_rng(6)
    q, k, v = (rng.normal(size=(3, 6, heads, width)) for heads, width in ((4, 3), (2, 3), (2, 5)))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    dims, some = {"b": 3, "t": 6, "g": 2, "k": 3}, dict[str, Any]()
    for rule, kinds in RULES.items():
        for kind in kinds:
            some = {"q": q, "k": k, "v": v} | ({"beta": rng.random((3, 6, 2))} if "beta" in kind else {})
            axes = kind.removeprefix("beta").split()
            some |= {"decay": rng.random([dims[x] for x in axes])} if axes else {}
            some |= {"state": rng.normal(size=(3, 2, 3, 5))} if "beta" in kind else {}
            for form, size in (("recurrent", 64), ("chunked", 4), ("chunked", 3), ("auto", 64)):
                recurred_by(package, some, {"rule": rule, "form": form, "chunk_size": size})
            recurred_by(package, some, {"rule": rule, "scale": 0.3})
    other: Any = {"q": q, "k": k, "v": v, "erase_key": 0.5 * k[:, ::-1], "beta": rng.random((3, 6, 2))}
    for form in ("recurrent", "chunked"):
        recurred_by(package, other, {"rule": "delta", "form": form, "chunk_size": 4})
    packed: Any = {"q": q, "k": k, "v": v, "documents": np.array([[0, 0, 1, 1, 1, 0]] * 3)}
    recurred_by(package, packed, {"rule": "delta", "form": "chunked", "chunk_size": 4})
    for rows in (slice(0, 2), slice(2, 5), slice(5, 6)):
        alone = {name: x[:, rows] for name, x in packed.items() if name != "documents"}
        by_itself = package.recur(**alone, rule="delta", form="recurrent")[0]
        packed_y = package.recur(**packed, rule="delta", form="recurrent")[0]
        claim(same(packed_y[:, rows], by_itself), "documents as calls of their own")
    (y, end), pull = package.value_and_vjp(package.recur, **some, rule="gated_delta")
    alone = pull(None, end).inputs
    claim_same(alone, pull(np.zeros_like(y), end).inputs, "the state's gradient alone")
    claim_same(pull(y).inputs, pull(y, np.zeros_like(end)).inputs, "the outputs' gradient alone")
    half = {name: x.astype("float32" if name in ("decay", "state") else "float16") for name, x in some.items()}
    y, state = package.recur(**half, rule="gated_delta", scale=np.float64(0.3))
    wide = {name: x.astype("float32") for name, x in half.items()}
    whole, end = package.recur(**wide, rule="gated_delta", scale=0.3)
    claim(same(y, whole.astype("float16")) and same(state, end), "16 bits")
    tape: dict[str, Any] = {}
    package.recur(**some, rule="gated_delta", form="parallel", tape=tape)
    names = {"scores", "key_products", "inverse", "w", "u", "v_new", "states", "states_before"}
    claim(set(tape) == names and tape["states"].shape == (3, 1, 2, 3, 5), "a tape")
    claim(package.recur(q[:, :0], k[:, :0], v[:, :0])[0].shape == (3, 0, 4, 5), "no positions")
    claim(package.recur(q[:, :1], k[:, :1], v[:, :1], tape=tape)[1].shape == (3, 2, 3, 5), "one position")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"rule": "gru"}, ValueError, "rule to be one of"),
        ({"form": 3}, ValueError, "form to be one of"),
        ({"chunk_size": True}, ValueError, "chunk_size to be an integer"),
        ({"scale": "1"}, ValueError, "scale to be a finite"),
        ({"q": q[0]}, ValueError, "q with four axes"),
        ({"k": k[:, :3]}, ValueError, "k of shape"),
        ({"q": q[:, :, :3]}, ValueError, "queries with a multiple of the 2 heads"),
        ({"decay": q}, ValueError, "no decay= with rule='linear'"),
        ({"rule": "gated"}, ValueError, "decay= with rule='gated'"),
        ({"rule": "gated", "decay": q}, ValueError, "decay of shape"),
        ({"rule": "gated", "decay": np.array([0.5, 1.5])}, ValueError, "decay from 0 to 1, got 0.5 to 1.5"),
        ({"k": None}, TypeError, "an array for k"),
        ({"erase_key": k}, ValueError, "no erase_key= with rule='linear'"),
        ({"rule": "delta", "erase_key": q}, ValueError, "erase_key of shape"),
        ({"documents": np.zeros((3, 5), int)}, ValueError, "documents of shape"),
        ({"documents": q[:, :, 0, 0]}, TypeError, "documents of integers"),
        ({"v": v.astype("float32")}, TypeError, "v of dtype float64"),
        ({"v": v.tolist()}, TypeError, "v as a NumPy array"),
    ]
    for changed, error, words in wrong:
        call = partial(package.recur, **{"q": q, "k": k, "v": v} | changed)
        refuses(call, error, f"recur: expected {words}")
