"""What `attend` and the functions of the dialect must do, and the rules of their derivatives."""

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from inspect import signature
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np import contract, patterns
from attn_np.contract._norms import Norm
from attn_np.contract._tape import BackwardTape
from attn_np.normalizers import norms as _norms
from attn_np.normalizers import sparse as _sparse_weights
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge import kernels
from parity_tests.judge.judging import compare
from parity_tests.tests.mutation.calls import Arrays, Parts, claim, claim_same, refuses, same
from parity_tests.tests.mutation.sources import module_of, plain

# attend ---------------------------------------------------------------------------------------------------------------

ATTENDS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "scaled": ({"scale": 0.375}, "mask"),
    "near": ({"causal": True, "window": (3, None)}, "mask"),
    "causal window": ({"causal": True, "window": (2, 3)}, ""),
    "all": ({"window": (None, 1), "softcap": 1.5, "rate": 0.25}, "mask bias keep"),
    "kept": ({}, "keep"),
    "sinks": ({"causal": True, "scale": 0.375}, "sinks"),
    "pattern": ({"pattern": patterns.Chunks(3) | patterns.Prefix(np.array([1, 4])), "softcap": 1.5}, "mask"),
    "all, sinks": ({"window": (None, 1), "softcap": 1.5, "rate": 0.25}, "mask bias keep sinks"),
    "queries": ({"normalize_over": "queries", "softcap": 0.75, "implementation": "textbook"}, "mask bias"),
}


@cache
def attended(groups: int, names: str, dtype: str = "float64", queries: int = 6) -> Arrays:
    """Arrays for `attend`; one query sees nothing, one key is seen by nobody, one by half of the heads only."""
    rng, b, t, s, h = np.random.default_rng(groups), 2, 5, 7, queries
    shapes = {"q": (b, t, h, 3), "k": (b, s, groups, 3), "v": (b, s, groups, 11)}
    found: Arrays = {name: rng.normal(size=shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}
    mask = rng.random((b, h, t, s)) < 0.6
    mask[0, -1, 2] = mask[1, ..., 4] = mask[0, : h // 2, :, 3] = False
    others = {
        "mask": mask,
        "bias": rng.normal(size=mask.shape).astype(DTYPES[dtype]),
        "keep": rng.random(mask.shape) > 0.25,
        "sinks": rng.normal(size=h).astype(DTYPES[dtype]),
    }
    found |= {name: others[name] for name in names.split()}
    for x in found.values():
        x.setflags(write=False)
    return found


def run_attend(package: str, inputs: Mapping[str, Any], dy: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Context, weights and the gradients of q, k, v, the bias and the sinks."""
    parts, tape = Parts(package), {}
    context, weights = parts.attend(**inputs, **options, tape=tape, return_weights=True)
    backward = {name: x for name, x in options.items() if name in ("scale", "softcap", "rate", "normalize_over")}
    heads = inputs["k"].shape[2] if len(inputs["k"].shape) == 4 else None
    found = parts.attend_vjp(tape, dy, **backward, kv_heads=heads)
    claim(len(found) == 4, "four gradients")
    claim(
        "sinks" not in tape or tape["sinks"].dtype == tape["q"].dtype, "sinks are computed in the dtype of the queries"
    )
    names = ("context", "weights", "dq", "dk", "dv", "dbias", "dsinks")
    values = (context, weights, *found, tape.get("dsinks"))
    return {name: x for name, x in zip(names, values, strict=True) if x is not None}


def flattened(inputs: Arrays) -> Arrays:
    """The inputs of one head without its axis."""
    return {name: x[:, :, 0] if name in "qkv" else x[:, 0] for name, x in inputs.items()}


@cache
def attend_expected(groups: int, call: str, dtype: str, heads: int) -> tuple[Arrays, np.ndarray, dict[str, Any]]:
    """Inputs, a cotangent in the dtype it is computed in, and what the whole reference gives for them."""
    options, names = ATTENDS[call]
    inputs = attended(groups, names, dtype, heads) if heads else flattened(attended(1, names, dtype, 1))
    dy = np.random.default_rng(5).normal(size=(*inputs["q"].shape[:-1], 11))
    dy = dy.astype("float64" if dtype == "float64" else "float32")
    carried = {n: ErrArray(x.astype(np.float64), 0.0) if x.dtype != bool else x for n, x in inputs.items()}
    with precision(precision_of(dtype)), np.errstate(invalid="ignore", over="ignore"):
        return inputs, dy, run_attend("attn_np", carried, ErrArray(dy.astype(np.float64), 0.0), options)


def attending(groups: int, call: str, dtype: str, heads: int, alias: str) -> None:
    """`attend` and its backward pass are within their bounds; what is returned has the dtype of the queries."""
    inputs, dy, want = attend_expected(groups, call, dtype, heads)
    found = run_attend(alias, inputs, dy, ATTENDS[call][0])
    claim(list(found) == list(want), f"{list(found)}, not {list(want)}")
    for name, x in found.items():
        out = dtype if name in ("context", "weights") else dy.dtype.name
        claim(x.dtype.name == out, f"{name} is {x.dtype.name}")
        verdict = compare(x.astype(np.float64), want[name], out)
        claim(verdict["ratio"] <= 1, f"{name}: error/bound {verdict['ratio']:.3g}")


class _Step:
    """A step of decoding as far as masks ask for it: its own mask within a window, or where a uniform one starts."""

    def __init__(self, start: int | None = None) -> None:
        self.start, self.like_full_pass = start, start is not None
        self.max_filled = None if start is None else start + 5

    def window_mask(self, left: int | None, right: int | None) -> np.ndarray:
        return np.arange(7) <= np.arange(5)[:, None] + (0 if right is None else right)


def visibilities(alias: str) -> None:
    """Visibility zeroes what the whole mask does, and is no array of `t s` unless the mask is."""
    parts, rng = Parts(alias), np.random.default_rng(3)
    windows = ({}, {"causal": True}, {"window": (1, None)}, {"window": (0, 0)}, {"window": (None, 1), "causal": True})
    for t, s in ((5, 7), (7, 7), (9, 7), (12, 3), (5, 1), (5, 0)):
        q, k = rng.normal(size=(2, t, 3, 4)), rng.normal(size=(2, s, 3, 4))
        last = np.arange(s) == s - 1
        masks = [
            None,
            np.array(False),
            rng.random(s) < 0.3,
            rng.random((2, 1, 1, s)) < 0.3,
            np.zeros((2, 1, 1, s), bool),
            last,
        ]
        arrays = [np.ones((2, 1, 1, 1), bool), np.array([[[[True]]], [[[False]]]]), rng.random((2, 3, t, s)) < 0.3]
        for mask in [*masks, *arrays]:
            for options in windows:
                queries, keys = parts.query_and_key_masks(mask, t, s, like=q, **options)
                full = parts.attention_mask(mask, t, s, like=q, **options)
                full = parts.broadcast_mask(full, (2, 3, t, s), q)
                small = mask is None or mask.ndim < 2 or mask.shape[-2] == 1
                for x in (queries, keys):
                    claim(x is None or not small or x.ndim < 2 or min(x.shape[-2:]) <= 1, "no array of t s")
                if t <= s and mask is None and "window" not in options:
                    claim(queries is None and keys is None, "causality alone hides nothing from all")
                claim(same(parts.zero_unseen("bhts->bthk", queries, q), parts.zero_unseen("bhts->bthk", full, q)), "q")
                claim(same(parts.zero_unseen("bhts->bshk", keys, k), parts.zero_unseen("bhts->bshk", full, k)), "k")
        q, k = q[:, :, 0], k[:, :, 0]
        for mask in (last, last[None], rng.random((2, 1, s)) < 0.3):
            queries, keys = parts.query_and_key_masks(mask, t, s, like=q, causal=True)
            full = parts.attention_mask(mask, t, s, like=q, causal=True)
            for spec, some, x in (("bts->btk", queries, q), ("bts->bsk", keys, k)):
                claim(same(parts.zero_unseen(spec, some, x), parts.zero_unseen(spec, full, x)), f"{spec}, no heads")
    for options in ({}, {"causal": True}):
        mask = parts.attention_mask(None, 5, 7, like=np.ones(1), step=_Step(), **options)
        claim(same(mask, _Step().window_mask(None, 0 if options else None)), "in a step the cache says who sees whom")
    every: dict[str, Any] = {"like": np.ones(1), "causal": True, "window": (3, None)}
    want = parts.attention_mask(None, 5, 7, **every)
    claim(same(parts.attention_mask(None, 5, 5, **every, step=_Step(2)), want), "the end of a full pass")


def patterned(alias: str) -> None:
    """Patterns show whom they say, in a call, beside a mask, a window and in a step; what blocks are said is true."""
    parts = Parts(alias)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        t, s = (int(n) for n in rng.integers(1, 12, 2))
        pattern, pairs = kernels.drawn_pattern(rng, 2, t, s)
        mask = rng.random((2, 1, 1, s)) < 0.6
        every: dict[str, Any] = {"like": np.ones(1), "pattern": pattern}
        claim(np.array_equal(np.broadcast_to(parts.attention_mask(None, t, s, **every), pairs.shape), pairs), "pairs")
        allowed = parts.attention_mask(mask, t, s, **every, causal=True)
        causal = np.arange(s) <= np.arange(t)[:, None] + (s - t)
        claim(np.array_equal(np.broadcast_to(allowed, pairs.shape), pairs & mask & causal), "beside others")
        flat = parts.attention_mask(None, t, s, **every, head_axis=False)
        claim(np.array_equal(np.broadcast_to(flat, (2, t, s)), pairs[:, 0]), "without heads")
        queries, keys = parts.query_and_key_masks(mask, t, s, **every)
        x = np.ones((2, t, 1, 1)), np.ones((2, s, 1, 1))
        shown = pairs & mask
        seen = np.any(shown, -1).swapaxes(1, 2)[..., None], np.any(shown, -2).swapaxes(1, 2)[..., None]
        claim(np.array_equal(parts.zero_unseen("bhts->bthk", queries, x[0]), seen[0]), "queries that see a key")
        claim(np.array_equal(parts.zero_unseen("bhts->bshk", keys, x[1]), seen[1]), "keys that a query sees")
        table = parts.block_table(pattern, t, s, 3, 2, like=np.ones(1))
        for i, j in np.ndindex(-(-t // 3), -(-s // 2)):
            block = pairs[:, 0, 3 * i : 3 * i + 3, 2 * j : 2 * j + 2].reshape(2, -1)
            claim(np.all(table.possible[:, i, j] >= block.any(1)), "no block is skipped that holds a pair")
            claim(np.all(table.certain[:, i, j] <= block.all(1)), "no block is taken for whole that is not")
        finest = parts.block_table(pattern, t, s, 1, 1, like=np.ones(1))
        for x in (finest.possible, finest.certain):
            claim(np.array_equal(np.broadcast_to(x, (2, t, s)), pairs[:, 0]), "single pairs are decided")
    own = patterns.Chunks(3)
    claim(
        parts.query_and_key_masks(None, 7, 7, like=np.ones(1), pattern=own) == (None, None),
        "every position sees itself",
    )
    step = _Step(2)
    want = parts.attention_mask(None, 5, 7, like=np.ones(1), pattern=own)
    claim(same(parts.attention_mask(None, 5, 5, like=np.ones(1), pattern=own, step=step), want), "a uniform step")


@cache
def fused_expected(groups: int, call: str, dtype: str, scale: float) -> tuple[Arrays, np.ndarray, dict[str, Any]]:
    """As `attend_expected`, of a call that needs no weights; queries so many times as large."""
    options, names = ATTENDS[call]
    inputs = dict(attended(groups, names.replace("keep", ""), dtype))
    inputs["q"] = inputs["q"] * inputs["q"].dtype.type(scale)
    dy = np.random.default_rng(5).normal(size=(2, 5, 6, 11)).astype("float64" if dtype == "float64" else "float32")
    carried = {n: ErrArray(x.astype(np.float64), 0.0) if x.dtype != bool else x for n, x in inputs.items()}
    with precision(precision_of(dtype)), np.errstate(invalid="ignore", over="ignore"):
        want = run_attend("attn_np", carried, ErrArray(dy.astype(np.float64), 0.0), options | {"rate": 0.0})
    for x in (*inputs.values(), dy):
        x.setflags(write=False)
    return inputs, dy, want


def judge_fused(
    alias: str, inputs: Arrays, dy: np.ndarray, want: dict[str, Any], options: dict[str, Any], dtype: str
) -> None:
    """The fast path gives the numbers of the reference forward and backward, in one piece and in blocks of any size."""
    parts = Parts(alias)
    for setting in ({}, *kernels.SMALL["numpy"]):
        with kernels.blocks(alias, setting):
            tape = BackwardTape()
            context, weights = parts.attend(**inputs, **options, implementation="fused", tape=tape)
            dq, dk, dv, dbias = parts.attend_vjp(tape, dy)
        claim(weights is None and "probs" not in tape, "the weights are never formed")
        claim(all(same(tape[name], inputs[name]) for name in "qkv"), "what was given is taped")
        found = {"context": context, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": tape.get("dsinks")}
        for name, x in found.items():
            claim((x is None) == (name not in want), f"{name} that is asked for")
            if x is not None:
                out = dtype if name == "context" else dy.dtype.name
                claim(x.dtype.name == out, f"{name} is {x.dtype.name}")
                verdict = compare(x.astype(np.float64), want[name], out)
                claim(verdict["ratio"] <= 1, f"{name} in blocks {setting}: error/bound {verdict['ratio']:.3g}")


def fusing(groups: int, call: str, dtype: str, scale: float, alias: str) -> None:
    """The fast path gives the textbook's numbers."""
    judge_fused(alias, *fused_expected(groups, call, dtype, scale), ATTENDS[call][0] | {"rate": 0.0}, dtype)


@cache
def headless_expected(mask: int, bias: int) -> tuple[Arrays, np.ndarray, dict[str, Any]]:
    """As `fused_expected`, of a call without a head axis; mask and bias of these ranks, 0 for none."""
    inputs = flattened(attended(1, " ".join(["mask"] * (mask > 0) + ["bias"] * (bias > 0)), queries=1))
    inputs |= {name: inputs[name][(1,) * (3 - n)] for name, n in (("mask", mask), ("bias", bias)) if n}
    dy = np.random.default_rng(5).normal(size=(2, 5, 11))
    carried = {n: ErrArray(x, 0.0) if x.dtype != bool else x for n, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        return inputs, dy, run_attend("attn_np", carried, ErrArray(dy, 0.0), {})


def fused_without_heads(mask: int, bias: int, alias: str) -> None:
    """The fast path where there is no head axis, with masks and biases of any rank."""
    judge_fused(alias, *headless_expected(mask, bias), {}, "float64")


def fused_for_plain_arrays(alias: str) -> None:
    """What the fast path does not support goes the textbook's way, and is refused where the fast one is asked for."""
    parts, inputs = Parts(alias), attended(2, "")
    kernels = vars(import_module(f"{alias}.kernels.flash"))
    supports, kernels["supports"] = kernels["supports"], lambda q, k, v: False
    try:
        textbook = parts.attend(**inputs, implementation="textbook")[0]
        claim(same(parts.attend(**inputs)[0], textbook), "the textbook's bits")
        expected = "attend: expected implementation='fused' with plain arrays of the framework"
        refuses(partial(parts.attend, **inputs, implementation="fused"), ValueError, expected)
        claim(parts.attend(**inputs, implementation="textbook")[1] is None, "weights that nobody asked for")
    finally:
        kernels["supports"] = supports
    needing = {
        "keep": np.ones((2, 6, 5, 7), bool),
        "softmax_fn": lambda scores, allowed: scores,
        "return_weights": True,
    }
    for name, x in needing.items():
        words = f"'fused' without arguments that need the weights, got {name}; leave it out"
        refuses(partial(parts.attend, **inputs, **{name: x}, implementation="fused"), ValueError, words)
    claim(supports(*inputs.values()), "plain arrays")
    for n in range(3):
        arrays: list[Any] = list(inputs.values())
        arrays[n] = ErrArray(arrays[n], 0.0)
        claim(not supports(*arrays), "arrays that carry errors")


def fused_past_rubbish(alias: str) -> None:
    """What nobody sees may be NaN on the fast path too, and a query that sees nothing gets 0."""
    parts, (clean, dy, want) = Parts(alias), fused_expected(2, "scaled", "float64", 1.0)
    inputs = clean | {name: clean[name].copy() for name in "kv"}
    inputs["k"][1, 4] = inputs["v"][1, 4] = np.nan
    for setting in ({}, *kernels.SMALL["numpy"]):
        with kernels.blocks(alias, setting):
            tape = BackwardTape()
            context, _ = parts.attend(**inputs, **ATTENDS["scaled"][0], implementation="fused", tape=tape)
            dq, dk, dv, _ = parts.attend_vjp(tape, dy)
        for name, x in {"context": context, "dq": dq, "dk": dk, "dv": dv}.items():
            claim(compare(x, want[name])["ratio"] <= 1, f"{name} beside NaN")
        claim(not (context[0, 2, -1].any() or dq[0, 2, -1].any()), "a query without keys")
        claim(not (dk[1, 4].any() or dv[1, 4].any()), "a key that nobody sees")


def sinks_that_are_none(alias: str) -> None:
    """A sink of -inf is none, beside hidden keys too; one beyond all scores leaves nothing for the keys."""
    for call in ("plain", "all"):
        options, names = ATTENDS[call]
        inputs, dy, want = attend_expected(2, call, "float64", 6)
        found = run_attend(alias, inputs | {"sinks": np.full(6, -np.inf)}, dy, options)
        claim(not found.pop("dsinks").any() and list(found) == list(want), "the gradient of a sink that is none")
        for name, x in found.items():
            claim(compare(x, want[name])["ratio"] <= 1, f"{name} with sinks of -inf")
        found = run_attend(alias, inputs | {"sinks": np.full(6, 1e4)}, dy, options)
        claim(not any(x.any() for x in found.values()), "sinks beyond all scores")


def weighed(alias: str) -> None:
    """`softmax_fn` makes the weights from the scores and the mask, and `softmax_fn_vjp` takes their gradient back."""
    parts, inputs, tape, asked = Parts(alias), attended(2, "mask bias"), {}, []
    made, back = (np.random.default_rng(n).normal(size=inputs["mask"].shape) for n in (7, 8))

    def weigh(*args: Any) -> Any:
        asked.append(args)
        return made

    context, weights = parts.attend(**inputs, softmax_fn=weigh, tape=tape, return_weights=True)
    claim(same(weights, made) and context.shape == (2, 5, 6, 11), "the weights")
    claim(len(asked) == 1 and same(asked[0][0], tape["biased"]) and same(asked[0][1], inputs["mask"]), "what they see")
    *_, dbias = parts.attend_vjp(tape, np.cos(context), softmax_fn_vjp=lambda *args: asked.append(args) or back)
    claim(same(dbias, back) and same(asked[1][0], made) and same(asked[1][1], tape["dprobs"]), "the way back")
    for options in ({"normalize_over": "queries"}, {"sinks": np.zeros(6)}):
        refuses(
            partial(parts.attend, **inputs, **options, softmax_fn=weigh),
            ValueError,
            "attend: expected softmax_fn without sinks and with normalize_over='keys', which belong to the softmax",
        )


def head_by_head(call: str, value: float, alias: str) -> None:
    """A key that the query heads of one key/value head may not see stays out, though other heads see theirs."""
    options, names = ATTENDS[call]
    clean = attended(2, names)
    dirty = clean | {name: clean[name].copy() for name in "kv"}
    for name in "kv":
        dirty[name][0, 3, 0] = value
    dy = np.cos(np.arange(2 * 5 * 6 * 11)).reshape(2, 5, 6, 11)
    got, want = (run_attend(alias, x, dy, options) for x in (dirty, clean))
    claim_same(got, want, "poisoned")
    claim(not got["dk"][0, 3, 0].any() and not got["dv"][0, 3, 0].any() and got["dv"][0, 3, 1].all(), "its gradients")


def hidden_from_attend(alias: str) -> None:
    """Gradients of a query without keys and of a hidden key are 0, though a key beside holds NaN; no tape is needed."""
    inputs = {name: x.copy() for name, x in attended(6, "mask").items()}
    plain = Parts(alias).attend(**inputs, return_weights=True)
    dy = np.cos(np.arange(plain[0].size)).reshape(plain[0].shape)
    found = run_attend(alias, inputs, dy, {})
    claim(same(plain[0], found["context"]) and same(plain[1], found["weights"]), "without a tape")
    inputs["mask"][..., 0, 0] = True
    inputs["k"][:, 0] = inputs["v"][:, 0] = np.nan
    found = run_attend(alias, inputs, dy, {})
    claim(not found["dq"][0, 2, -1].any(), "gradient of a query without keys")
    claim(not (found["dk"][1, 4].any() or found["dv"][1, 4].any()), "gradient of a hidden key")


def wrong_attends(alias: str) -> None:
    """Unknown words, numbers and arrays that do not fit are refused."""
    attend, inputs = import_module(alias).attend, attended(2, "mask bias keep sinks")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"implementation": "fast"}, ValueError, "implementation to be one of"),
        ({"normalize_over": "values"}, ValueError, "normalize_over to be one of"),
        ({"normalize_over": "queries"}, ValueError, "expected one sink for each head of q, and normalize_over='keys'"),
        ({"causal": 1}, ValueError, "expected causal"),
        ({"window": (-1, 0)}, ValueError, "expected window"),
        ({"scale": "x"}, ValueError, "expected scale"),
        ({"softcap": -1.0}, ValueError, "expected softcap"),
        ({"rate": 1.0}, ValueError, "expected rate"),
        *(({name: inputs[name].tolist()}, TypeError, f"expected {name} as a NumPy array") for name in inputs),
        *(({name: inputs[name][None]}, ValueError, f"expected {name} ") for name in inputs if name != "q"),
    ]
    for options, error, words in wrong:
        refuses(
            lambda options=options: attend(**inputs | options),
            error,
            f"attend: expected {words.partition('expected ')[2] or words}",
        )


# Functions of the dialect ---------------------------------------------------------------------------------------------


class _Foreign:
    """An array type with rules of its own: it names the functions that hand themselves over to it."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function, types, args, kwargs


class _Other(_Foreign):
    """Another one."""


@cache
def primitives() -> tuple[tuple[str, int], ...]:
    """Functions that an array type may take over: name and how many arguments have a place."""
    found = []
    for module in (f"attn_np.{module_of(file)}" for file in plain()):
        for name, function in vars(import_module(module)).items():
            if hasattr(function, "__wrapped__") and function.__module__ == module:
                places = signature(function.__wrapped__).parameters.values()
                found.append((name, 3 if any(p.kind == p.VAR_POSITIONAL for p in places) else len(places)))
    return tuple(found)


def handed_over(alias: str) -> None:
    """An array type with an error rule for a function takes the function over, in whichever place it stands."""
    parts = Parts(alias)
    for name, count in primitives():
        function, foreign = getattr(parts, name), _Foreign()
        for place in range(count):
            args = tuple(foreign if i == place else np.ones(1) for i in range(count))
            found = function(*args, key=1)
            claim(found == (function, (_Foreign,), args, {"key": 1}), f"{name} handed over as {found}")
        both = function(*[_Foreign(), *[_Other()] * (count - 1)], key=1)
        claim(both[1] == (_Foreign,), f"{name} asks the first of two types")
        claim(function.__name__ == name and function.__wrapped__ is not function, f"the name of {name}")


JUDGED: dict[str, tuple[str, ...]] = {
    "l2_normalize": ("x eps",),
    "rms_norm": ("x weight eps", "x none eps"),
    "layer_norm": ("x weight bias eps", "x weight none eps", "x none bias eps", "x none none eps"),
    "silu": ("x",),
    "softplus": ("x",),
    "amax_detached": ("x last", "x first"),
    "part_of_softmax": ("x top all parts",),
    "part_of_softmax_vjp": ("weight dy share parts", "x dy share parts"),
    "l2_normalize_vjp": ("x eps dy",),
    "rms_norm_vjp": ("x weight eps dy", "x none eps dy"),
    "layer_norm_vjp": ("x weight bias eps dy", "x weight none eps dy", "x none bias eps dy", "x none none eps dy"),
    "silu_vjp": ("x dy",),
    "softplus_vjp": ("x dy",),
}
"""What functions of the dialect and rules are called with, each call in words for `arguments_of`."""


@cache
def arguments_of(words: str, dtype: str) -> tuple[Any, ...]:
    """Random arrays by these names; eps is as large as the squares that it is added to."""
    rng = np.random.default_rng(8)
    shapes = {"x": (2, 3, 5), "dy": (2, 3, 5), "weight": (5,), "bias": (5,)}
    known: dict[str, Any] = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    x = known["x"]
    known |= {"top": x.max(-1, keepdims=True), "all": np.exp(x).sum(-1, keepdims=True), "share": known["dy"][..., :1]}
    numbers = {"eps": 0.25, "none": None, "first": 0, "last": -1, "parts": 3}
    return tuple((known | numbers)[word] for word in words.split())


@cache
def expected_of(name: str, words: str, dtype: str) -> tuple[Any, ...]:
    """What the whole reference gives, each number with its bound."""
    given = arguments_of(words, dtype)
    carried = [ErrArray(x.astype(np.float64), 0.0) if isinstance(x, np.ndarray) else x for x in given]
    with precision(precision_of(dtype)):
        found = getattr(Parts("attn_np"), name)(*carried)
    return found if isinstance(found, tuple) else (found,)


def judged_functions(dtype: str, alias: str) -> None:
    """Norms, gates and the rules of their derivatives are within their bounds, with and without weights."""
    for name, calls in JUDGED.items():
        for words in calls:
            found = getattr(Parts(alias), name)(*arguments_of(words, dtype))
            want = expected_of(name, words, dtype)
            found = found if isinstance(found, tuple) else (found,)
            claim([x is None for x in found] == [x is None for x in want], f"{name} of {words}: what it gives")
            for x, y in zip(found, want, strict=True):
                if x is not None:
                    claim(x.dtype == dtype and x.shape == y.shape, f"{name} of {words}: {x.dtype} {x.shape}")
                    verdict = compare(x.astype(np.float64), y, dtype)
                    claim(verdict["ratio"] <= 1, f"{name} of {words}: error/bound {verdict['ratio']:.3g}")


def functions(alias: str) -> None:
    """Elementary functions at the ends of their range, and places that hold no number."""
    parts = Parts(alias)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        claim(parts.sigmoid(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 0.5, 1.0], "sigmoid")
        ends = np.array([0.0, 1.0])
        claim(np.array_equal(parts.lerp(np.array([3e300, 3.0]), np.array([3e300, 5.0]), ends), [3e300, 5.0]), "lerp")
        scores, allowed = np.array([[1e300, -1e300], [3.0, 4.0]]), np.array([[True, True], [False, False]])
        claim(parts.softmax(scores, allowed).tolist() == [[1.0, 0.0], [0.0, 0.0]], "softmax")
        lost = parts.softmax(np.array([[-np.inf, -np.inf], [-np.inf, 3.0]]))
        claim(np.isnan(lost[0]).all() and lost[1].tolist() == [0.0, 1.0], "scores that overflowed")
        lost = parts.softmax(np.array([[-np.inf, 3.0], [4.0, 3.0]]), np.array([True, False]))
        claim(np.isnan(lost[0]).all() and lost[1].tolist() == [1.0, 0.0], "allowed scores that overflowed")
        sums = parts.softmax(np.zeros((2, 3)), np.array([True, False, True]), 0)
        claim(np.array_equal(sums, [[0.5, 0, 0.5]] * 2), "a mask of lower rank than the axis that adds up to 1")
        claim(parts.softmax(np.zeros((2, 0))).shape == (2, 0), "softmax over nothing")
        claim(parts.softplus(np.array([-800.0, 800.0])).tolist() == [0.0, 800.0], "softplus")
        claim(parts.silu(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 0.0, 800.0], "silu")
    claim(np.array_equal(parts.softmax(np.zeros((2, 4)), axis=0), np.full((2, 4), 0.5)), "softmax over another axis")
    table = np.arange(6.0).reshape(3, 2)
    for tokens in ([-1], [3], [0, 3]):
        refuses(
            partial(parts.take, table, np.array(tokens)),
            ValueError,
            "index into a table: expected indices from 0 to 2",
        )
    claim(same(parts.take(table, np.array([[2, 0]])), table[[2, 0]][None]), "rows of a table")
    for dtype in ("bfloat16", "float16"):
        x = np.ones((2, 2), DTYPES[dtype])
        claim(parts.rms_norm(x.astype("float32"), x[0], 1.0).dtype == np.float32, f"a weight of {dtype}")
        claim(same(parts.einsum("ab,bc->ac", x, x), np.full((2, 2), np.float32(2))), f"a product of {dtype}")
        claim(same(parts.linear("ab,bc->ac", x, x, x[0]), np.full((2, 2), np.float32(3))), f"a projection in {dtype}")
    claim(parts.take(table.astype("float16"), np.array([1])).dtype == np.float32, "rows of a table in 16 bits")
    claim(parts.to_dtype(None, "float16") is None and parts.upcast(None) is None, "None stays None")
    claim(parts.to_dtype(table, "float64") is table and parts.upcast(table) is table, "what fits stays as it is")
    claim(same(parts.arange(3, table), np.arange(3)) and same(parts.zeros((2,), table), np.zeros(2)), "new arrays")
    claim(parts.zeros((2,), table.astype("float32")).dtype == np.float32, "dtype of zeros")
    claim(parts.dtype_name(table) == "float64", "names")
    mask = np.ones((1, 3), bool)
    claim(parts.hide_neg_inf(None, None) is None and parts.hide_neg_inf(mask, None) is mask, "no bias")
    claim(
        parts.attention_mask(None, 2, 3, like=table) is None and parts.attention_mask(mask, 2, 3, like=table) is mask,
        "no limits",
    )
    names = {"exp", "tanh", "sqrt", "where", "maximum", "broadcast_to", "concatenate", "stack", "argmax"}
    claim(all(getattr(parts, name) is getattr(np, name) for name in names), "NumPy's own functions")
    claim(same(parts.sum_to(np.ones((2, 3, 4)), (3, 1)), np.full((3, 1), 8.0)), "sum over copies")
    claim(same(parts.sum_to(np.ones((1, 3, 4)), (1, 4)), np.full((1, 4), 3.0)), "sum over copies in one batch row")
    claim(same(parts.sum_to(np.ones((3, 1, 4)), (1, 1, 1)), np.full((1, 1, 1), 12.0)), "sum over copies, one apart")
    claim(parts.sum_to(table, (3, 2)) is table, "nothing was copied")


def sparse(alias: str) -> None:
    """Sparsemax by hand, hidden entries and rows, scores that are no number; `attend` with other weights."""
    parts = Parts(alias)
    x = np.array([[0.5, 0.25, -9.0], [4.0, 1.0, 4.0]])
    want = np.array([[0.625, 0.375, 0.0], [0.5, 0.0, 0.5]])
    claim(same(parts.sparsemax(x), want) and same(parts.sparsemax(x.T, axis=0), want.T), "by hand, over either axis")
    claim(same(parts.sparsemax(x.T, None, -2), want.T), "over the axis before the last")
    first = np.stack([want[0], 0.0 * want[1]], 1)
    claim(same(parts.sparsemax(x.T[None], np.array([[True, False]] * 3), 1)[0], first), "a mask of fewer axes")
    four = np.array([0.5, 0.25, 0.25, 0.0])
    claim(same(parts.sparsemax(four), four), "weights themselves")
    claim(same(parts.sparsemax(np.array([2.0**60, 0.0])), np.array([1.0, 0.0])), "huge scores")
    claim(same(parts.sparsemax(x[None].swapaxes(1, 2), None, 1), want.T[None]), "over the axis between")
    seen = np.array([[True, False, True], [False] * 3])
    claim(parts.sparsemax(x, seen).tolist() == [[1, 0, 0], [0, 0, 0]], "hidden entries")
    claim(parts.sparsemax(np.zeros((2, 0))).shape == (2, 0), "over nothing")
    for bad in ([-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 1.0]):
        with np.errstate(invalid="ignore"):
            for allowed in (np.array([True, True]), np.array([True, False]), None):
                claim(np.isnan(parts.sparsemax(np.array(bad), allowed)).all(), f"{bad}")
    dy = np.array([[1.0, 3.0, 5.0], [2.0, 7.0, 6.0]])
    low = parts.sparsemax_vjp(want[:, None].astype("float32"), dy[:, None].astype("float32"))
    claim(same(low[:, 0], parts.sparsemax_vjp(want, dy).astype("float32")), "its rule in float32")
    claim(same(parts.sparsemax_vjp(want, dy), np.array([[-1.0, 1.0, 0.0], [-2.0, 0.0, 2.0]])), "its rule")
    claim(not parts.sparsemax_vjp(0 * want, dy).any(), "the rule without support")
    inputs, tape, other = attended(2, "mask"), {}, {}
    plain = parts.attend(**inputs, tape=tape, return_weights=True)
    found = parts.attend(**inputs, softmax_fn=parts.softmax, tape=other, return_weights=True)
    dy = np.ones(plain[0].shape).cumsum(1)
    claim(all(map(same, found, plain)), "weights by softmax")
    grads = parts.attend_vjp(tape, dy), parts.attend_vjp(other, dy, softmax_fn_vjp=parts.softmax_vjp)
    claim(all(map(same, grads[0][:3], grads[1][:3])), "gradients by softmax's rule")


@cache
def halved(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores, a mask, weights of 1.5-entmax by halving an interval a hundred times, and their bounds.

    The rows are near, far apart, equal, or one score above many equal ones.
    """
    rng = np.random.default_rng(n)
    rows = [size * rng.normal(size=n) for size in (0.25, 1, 1, 1, 1, 4)]
    rows += [np.where(np.arange(n) == n // 2, 3.0, 3.0 - gap) for gap in (0.0, 0.25, 1.0, 1.75, 1.99, 2.0, 2.5)]
    x = (np.array(rows) + np.resize([5.0, -500.0], (len(rows), 1))).astype(dtype)
    seen = rng.random(x.shape) < 0.75
    seen[:, n // 2] = True
    seen[0] = False
    z = np.where(seen, x.astype(np.float64), -np.inf)
    z = (z - np.max(z, axis=-1, keepdims=True, initial=-600.0)) / 2
    low, high = np.full((len(x), 1), -1.0), np.zeros((len(x), 1))
    for _ in range(100):
        middle = (low + high) / 2
        much = np.sum(np.maximum(z - middle, 0.0) ** 2, axis=-1, keepdims=True) >= 1
        low, high = np.where(much, middle, low), np.where(much, high, middle)
    root = np.where(seen, np.maximum(z - low, 0.0), 0.0)
    with precision(precision_of(dtype)):
        bound = _sparse_weights.entmax15(ErrArray(x.astype(np.float64), 0.0), seen).b
    return x, seen, root * root, bound


def entmax(alias: str) -> None:
    """1.5-entmax against an interval that is halved, over either axis, and what has no weights; its rule by hand."""
    parts = Parts(alias)
    for n, dtype in ((7, "float64"), (3, "float64"), (3, "float32")):
        x, seen, want, bound = halved(n, dtype)
        found = parts.entmax15(x, seen)
        claim(found.dtype == dtype and same(parts.entmax15(x.T, seen.T, 0), found.T), "over either axis")
        claim(np.all(np.abs(found - want) <= bound), f"{n} scores in {dtype}")
        claim(same(parts.entmax15(x[None].swapaxes(1, 2), seen.T, 1)[0], found.T), "over the axis between")
    claim(same(parts.entmax15(np.array([3.0, 1.0, 0.0])), np.array([1.0, 0.0, 0.0])), "nothing hidden")
    claim(parts.entmax15(np.zeros((2, 0))).shape == (2, 0), "over nothing")
    for bad in ([-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 1.0]):
        with np.errstate(invalid="ignore"):
            for allowed in (np.array([True, True]), np.array([True, False]), None):
                claim(np.isnan(parts.entmax15(np.array(bad), allowed)).all(), f"{bad}")
    probs, dy = np.array([[1.0, 9.0, 0.0], [1.0, 0.0, 0.0]]), np.array([[1.0, 3.0, 5.0], [2.0, 7.0, 6.0]])
    claim(same(parts.entmax15_vjp(probs, dy), np.array([[-1.5, 1.5, 0.0], [0.0, 0.0, 0.0]])), "its rule")
    by_last = parts.entmax15_vjp(probs[:, None], dy[:, None])[:, 0]
    claim(same(by_last, parts.entmax15_vjp(probs, dy)), "over the last axis")
    claim(same(parts.entmax15_vjp(probs.T, dy.T, 0), np.array([[-1.5, 1.5, 0.0], [0.0, 0.0, 0.0]]).T), "over the rows")
    claim(not parts.entmax15_vjp(0 * probs, dy).any(), "the rule without support")


def hardest(alias: str) -> None:
    """One of every row, the first of equals; nothing of what is hidden, and no number where there is none."""
    parts = Parts(alias)
    x = np.array([[0.5, 2.0, 2.0], [-4.0, -9.0, -5.0], [-7.0, -8.0, -7.5]])
    want = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    claim(same(parts.hardmax(x), want), "the largest, the first of equals")
    claim(same(parts.hardmax(x.astype("float32")), want.astype("float32")), "the dtype of the scores")
    allowed = np.array([[True, True, True], [True, False, True], [False, True, False], [False, False, False]])
    places = parts.top_k_indices(np.concatenate([x, x[:1]]), allowed, 2)
    claim(same(places, np.array([[1, 2], [0, 2], [1, 3], [3, 3]])), "where the two largest are, of equals the first")
    claim(parts.top_k_indices(x, allowed[:3], 0).shape == (3, 0), "no places")
    long = np.random.default_rng(7).integers(0, 9, (5, 61)) * 0.5  # many equals
    long[1], long[2] = np.arange(61.0), -np.arange(61.0)
    first_largest = np.array([sorted(range(61), key=lambda i, row=row: (-row[i], i))[:3] for row in long])
    claim(same(parts.top_k_indices(long, np.ones((5, 61), bool), 3), first_largest), "few of many")
    seen = np.array([[True, False, True], [False, True, True], [False, False, False]])
    claim(parts.hardmax(x, seen).tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]], "hidden scores")
    claim(parts.hardmax(x, seen[0]).tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0]], "a mask of fewer axes")
    claim(parts.hardmax(x, seen[2:]).tolist() == [[0, 0, 0]] * 3, "nothing in sight")
    claim(same(parts.hardmax(x[None, None], seen[None])[0], parts.hardmax(x, seen)[None]), "over the last axis")
    claim(parts.hardmax(np.zeros((2, 3, 0))).shape == (2, 3, 0), "over nothing")
    for bad in ([-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 1.0]):
        for allowed in (np.array([True, True]), np.array([True, False]), None):
            claim(np.isnan(parts.hardmax(np.array([bad, [0.0, 1.0]]), allowed)[0]).all(), f"{bad}")
    claim(same(parts.hardmax(np.array([[np.nan, 1.0]]), np.array([False, True])), np.array([[0.0, 1.0]])), "hidden NaN")
    claim(same(parts.straight_through(want, np.round(x)), want), "the value of the first")


def normed(alias: str) -> None:
    """Heads by themselves, in groups and together; with weights of each kind, a bias, or neither; and the gradients."""
    norms: Any = import_module(f"{alias}.normalizers.norms")
    x, rng = np.random.default_rng(4).normal(size=(1, 2, 6, 3)), np.random.default_rng(5)
    dy = rng.normal(size=x.shape)
    claim(norms.normalize(None, None, "q", x) is x, "no norm")
    claim(norms.normalize_vjp(None, None, "q", x, dy, {}) is dy, "no norm")
    ways = (("head", "shared"), ("head", None), ("all", "own"), (2, "own"), ("head", "tied"))
    for kind, (over, weight) in product(("rms", "layer", "l2"), ways):
        norm = Norm(kind, over, weight, bias=kind == "layer" and weight == "own", offset=0.5, eps=0.25)
        params = {name: rng.normal(size=(3,) if weight == "shared" else (6, 3)) for name in norm.names("q")}
        found, want = (dict[str, Any]() for _ in range(2))
        for there, room, lift in ((found, norms, lambda a: a), (want, _norms, lambda a: ErrArray(a, 0.0))):
            layer, dw = SimpleNamespace(**{name: lift(a) for name, a in params.items()}), dict[str, Any]()
            with precision(precision_of("float64")):
                there["y"] = room.normalize(layer, norm, "q", lift(x))
                there["dx"] = room.normalize_vjp(layer, norm, "q", lift(x), lift(dy), dw)
                room.normalize_vjp(layer, norm, "q", lift(x), lift(dy), twice := dict(dw))  # gradients add up
            there |= dw | {f"{name} twice": grad for name, grad in twice.items()}
        claim(found.keys() == want.keys(), f"names {kind} {over} {weight}")
        for name, array in found.items():
            claim(compare(array, want[name])["ratio"] <= 1, f"{name} {kind} {over} {weight}")


def for_rotate(cos: Any, sin: Any, layout: str) -> tuple[Any, Any]:
    """Cosines and sines of pairs, `b t r`, for both numbers of each pair, in all heads: `b t 1 k`."""
    n = cos.shape[-1]
    order = [*range(n), *range(n)] if layout == "half" else [i // 2 for i in range(2 * n)]
    signs = np.array([-1, 1]).repeat(n) if layout == "half" else np.array([-1, 1] * n)
    return cos[..., order][:, :, None], (sin[..., order] * signs.astype(sin.dtype))[:, :, None]


def turned(alias: str) -> None:
    """Tables are rounded once and made for known positions only; without a head axis the same; no base, no turning."""
    config: Any = contract.examples("rotary")["longrope"]
    parts = Parts(alias)
    x = np.random.default_rng(4).normal(size=(2, 3, 1, 7))
    claim(parts.cos_sin_for(SimpleNamespace(rope_base=None), None, 3, like=x) == (None, None), "without a base")
    claim(parts.rotate(x, None, None, "half") is x, "without a base")
    for wrong, words in (([[0, 13]], "0 to 13"), ([[-1, 2]], "-1 to 2")):
        call = partial(parts.cos_sin_for, config, np.array(wrong), 2, like=x)
        refuses(call, ValueError, f"rotary: expected positions from 0 to 12, got {words}")
    whole, places = parts.cos_sin_for(config, None, 3, like=x), np.array([[0, 0, 1], [0, 0, 0]])
    real = np.array([[True, False, True], [False, False, True]])
    found = parts.cos_sin_for(config, None, 3, like=x, real=real)
    claim(all(same(a, b[0][places]) for a, b in zip(found, whole, strict=True)), "what is not real takes no place")
    for like, length in ((x, 13), (x.astype("float32"), 13)):
        angles = np.arange(length)[:, None] * np.array(config.frequencies(length))
        want = [(f(angles) * config.cos_sin_factor()).astype(like.dtype) for f in (np.cos, np.sin)]
        for positions in (np.array([[0, 12, 5]]), np.zeros((2, 0), int)):
            for layout in (None, "half", "interleaved"):
                found = parts.cos_sin_for(config, positions, positions.shape[1], like=like, layout=layout)
                both = for_rotate(want[0][positions], want[1][positions], layout or config.rope_layout)
                claim(all(same(a, b) for a, b in zip(found, both, strict=True)), "tables")
        for layout in ("half", "interleaved"):
            cos, sin = for_rotate(want[0][[[3, 1, 4]]], want[1][[[3, 1, 4]]], layout)
            found = parts.cos_sin_for(config, None, 13, like=like, layout=layout)
            both = for_rotate(want[0][None], want[1][None], layout)
            claim(all(same(a, b) for a, b in zip(found, both, strict=True)), "positions that follow each other")
            for back in (False, True):
                whole = parts.rotate(like, cos, sin, layout, inverse=back)
                claim(
                    same(whole[:, :, 0], parts.rotate(like[:, :, 0], cos, sin, layout, inverse=back)), "without heads"
                )
                claim(same(whole[..., 4:], like[..., 4:]), "numbers that do not turn")
    for n, shape in ((1, (2, 3, 1, 3)), (4, (8, 3, 8, 9)), (4, (2, 3, 1, 8))):
        x, cos, sin = (np.cos(np.arange(np.prod(s)) + 1).reshape(s) for s in (shape, (1, 3, n), (2, 3, n)[-2:]))
        for layout, pairs in (
            ("half", [(i, n + i) for i in range(n)]),
            ("interleaved", [(2 * i, 2 * i + 1) for i in range(n)]),
        ):
            found, want = parts.rotate(x, *for_rotate(cos, sin[None], layout), layout), x.copy()
            for i, (one, two) in enumerate(pairs):
                c, s = cos[:, :, None, i], sin[None][:, :, None, i]
                want[..., one] = x[..., one] * c - x[..., two] * s
                want[..., two] = x[..., two] * c + x[..., one] * s
            claim(same(found, want), f"pairs in {layout}")


def encoded(alias: str) -> None:
    """Encodings of distances: sines before cosines, each slower than the one before, rounded once. Their buckets."""
    parts = Parts(alias)
    angles = np.arange(-3, 2)[:, None] * np.power(50.0, -np.arange(0, 6, 2) / 6)
    want = np.hstack([np.sin(angles), np.cos(angles)])
    for dtype in ("float64", "float32"):
        like = want.astype(dtype)
        found = parts.sinusoids(-3, 2, 6, 50.0, like=like)
        claim(same(found, like), f"sines and cosines in {dtype}")
        claim(parts.sinusoids(-3, 2, 6, 50.0, like=like) is found, "made once")
        factors = parts.query_scale_table(0.5, 2, 4, like=like)
        claim(same(factors, (1 + 0.5 * np.log([1.0, 2.0, 2.0, 3.0])).astype(dtype)), f"temperatures in {dtype}")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 6))
    at_queries, at_keys = (parts.sinusoids(*ends, 6, 50.0, like=want) for ends in ((5, 8), (0, 9)))
    products = np.einsum("bthd,sd->bhts", parts.to_key_positions(x, at_queries), at_keys)
    bound = 32 * np.finfo(float).eps * np.abs(x).sum(-1)  # angles below 9, rounded, and six products of their sines
    for i, j in np.ndindex(3, 9):
        of_pair = parts.sinusoids(5 + i - j, 6 + i - j, 6, 50.0, like=want)[0]
        error = np.abs(products[:, :, i, j] - x[:, i] @ of_pair)
        claim((error <= bound[:, i]).all(), "products with encodings of positions are those of distances")
    config: Any = contract.examples("disentangled")["p2c"]
    found = parts.signed_bucket_table(config, like=want)
    claim(same(found, np.array(config.signed_buckets(), np.int32)), "buckets of distances")


def picked(alias: str) -> None:
    """Entries by their index, for each head alike and for one batch row or all; copies send their gradients back."""
    parts, rng = Parts(alias), np.random.default_rng(6)
    shared, heads = rng.normal(size=(2, 3, 5)), np.zeros((2, 3, 4, 7))
    queries = np.arange(168.0).reshape(2, 3, 4, 7)
    claim(same(parts.split_rows(queries, 1), queries[:, None]), "each row is a sequence")
    claim(same(parts.split_rows(queries, 2), queries[None]), "all rows are of one sequence")
    pairs = np.stack([queries[:, :, :2], queries[:, :, 2:]], 2)
    claim(same(parts.group_heads(queries, 2), pairs), "neighbours share a head of keys")
    claim(same(parts.expand_to_heads(shared, heads), np.repeat(shared[:, :, None], 4, 2)), "one array for all heads")
    x, dy = rng.normal(size=(2, 3, 4, 5)), rng.integers(-9, 9, size=(2, 3, 4, 7)).astype(np.float64)
    for rows in (1, 2):
        index = rng.integers(0, 5, size=(rows, 4, 7))
        found, back, want = parts.gather_last(x, index), parts.gather_last_vjp(x, index, dy), np.zeros(x.shape)
        claim(found.shape == dy.shape and back.shape == x.shape, "shapes")
        for b, h, t, s in np.ndindex(*dy.shape):
            at = index[b % rows, t, s]
            claim(found[b, h, t, s] == x[b, h, t, at], "an entry")
            want[b, h, t, at] += dy[b, h, t, s]
        claim(same(back, want), "sums of whole numbers")
        narrow = parts.gather_last_vjp(x.astype("float32"), index, dy.astype("float32"))
        claim(same(narrow, want.astype("float32")), "gradients in float32")


def rows_of_tables(alias: str) -> None:
    """Rows by their index, of few numbers and of many; copies send their gradients back."""
    parts, rng = Parts(alias), np.random.default_rng(7)
    for width in ((3,), (16,), (17,), (2, 5)):
        table = rng.integers(-9, 9, size=(6, *width)) * 1.0
        index = rng.integers(0, 5, size=(4, 7)).astype("uint64")  # the last row is not read
        dy, want = rng.integers(-9, 9, size=(4, 7, *width)).astype("float32"), np.zeros(table.shape, "float32")
        claim(same(parts.take(table, index, fits=True), table[index]), f"rows of {width}")
        for at in np.ndindex(*index.shape):
            want[index[at]] += dy[at]
        claim(same(parts.take_vjp(table, index, dy), want), f"sums of rows of {width}")


def between_entries(alias: str) -> None:
    """Entries at whole numbers and at quarters between, their slopes, and gradients; sums from each entry on."""
    parts, rng = Parts(alias), np.random.default_rng(6)
    for n in (1, 5):
        x, dy = rng.integers(-9, 9, size=(2, 3, 4, n)).astype("float64"), rng.integers(-9, 9, size=(2, 3, 4, 7)) * 1.0
        position = rng.integers(0, 4 * n - 3, size=dy.shape) / 4
        position[..., 0], position[..., 1] = n - 1, 0.0
        found, slope = parts.interpolate_last(x, position), parts.slope_last(x, position)
        dx, dposition = parts.interpolate_last_vjp(x, position, dy)
        back = np.zeros(x.shape)
        for at in np.ndindex(*dy.shape):
            row, low = x[at[:3]], int(position[at] // 1)
            part, after = position[at] - low, min(low + 1, n - 1)
            claim(found[at] == (1 - part) * row[low] + part * row[after], "a number between two")
            claim(slope[at] == row[after] - row[low], "the slope to the next")
            claim(dposition[at] == dy[at] * slope[at], "the position's gradient")
            back[(*at[:3], low)] += (1 - part) * dy[at]
            back[(*at[:3], after)] += part * dy[at]
        claim(same(dx, back), "shares of two neighbours")
        narrow = [a.astype("float32") for a in (x, position, dy)]
        claim(same(parts.interpolate_last(*narrow[:2]), found.astype("float32")), "in float32")
        claim(same(parts.interpolate_last_vjp(*narrow)[0], back.astype("float32")), "gradients in float32")
    want = [[sum(row[i:]) for i in range(7)] for row in dy.reshape(-1, 7).tolist()]
    claim(same(parts.reverse_cumsum(dy), np.array(want).reshape(dy.shape)), "sums from each entry on")


class _Halving(dict[str, Any]):
    """A judge's tape: every step of a scan goes on from half of what it carried, and its first result is replaced."""

    def tap_step(self, names: list[str], i: int, carry: Any, ys: tuple[Any, ...]) -> Any:
        self.setdefault("asked", []).append((names, i))
        return carry / 2, (ys[0] + 100, *ys[1:])


def watched_scan(alias: str) -> None:
    """A tape with `step` sees every step of a scan, in the order in which they run, and may replace what it gives."""
    parts, x = Parts(alias), np.arange(6.0).reshape(2, 3)
    for reverse in (False, True):
        tape, carried, given = _Halving(), np.zeros(2), []
        times = (2, 1, 0) if reverse else (0, 1, 2)
        last, ys = parts.scan(
            lambda carry, xs: (carry + xs[0], (carry, xs[0])), carried, (x, None), names=("a", "b"), tape=tape,
            reverse=reverse,
        )  # fmt: skip
        for i in times:
            given.append(carried + 100)
            carried = (carried + x[:, i]) / 2
        claim(tape["asked"] == [(["a", "b"], i) for i in times], f"asked {tape['asked']}")
        claim(same(last, carried), "the carry")
        claim(same(ys[0], np.stack(given[::-1] if reverse else given, axis=1)) and same(ys[1], x), "the results")
        claim(same(tape["a"], ys[0]) and same(tape["b"], x), "the tape")
