"""What every contract takes and what it refuses, in which words: calls of public functions, and configs, of which one
thing is changed.

Of each call below every argument is given other values: an axis one longer, shorter, of length 1 or 0, left out or
added; other types; numbers beside their limits; words that do not exist. So is each field of every example of a
variant, by values of its kind. `refusals.json` holds the words of what is refused, and a digest for each argument or
field, which a config that is taken enters with what its methods say. A change is to be looked at, and
`python -m parity_tests.tests.contract.test_refusals` records it again, and a new variant with it.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import contract, patterns
from attn_np.contract import Config
from attn_np.contract import _drop_in as checks
from attn_np.ops import DTYPES
from attn_np.ops.specs import checked_specs
from parity_tests.tests.transforms.calls import SCALINGS
from parity_tests.tests.variants.pairs import values

FILE = Path(__file__).with_name("refusals.json")
# By call or variant.
RECORDED: dict[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
Arguments = dict[str, Any]
build: Any = attn_np.build


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def floats(**shapes: tuple[int, ...]) -> Arguments:
    return {name: drawn(*shape) for name, shape in shapes.items()}


# Calls ----------------------------------------------------------------------------------------------------------------

QKV = floats(q=(2, 3, 4, 6), k=(2, 5, 2, 6), v=(2, 5, 2, 7))
HEADLESS = floats(q=(2, 3, 6), k=(2, 5, 6), v=(2, 5, 7))
TRUE = np.ones((2, 4, 3, 5), bool)
SAME = floats(query=(2, 3, 4, 6), key=(2, 3, 2, 6), value=(2, 3, 2, 7))
HEADS_FIRST = floats(query=(2, 4, 3, 6), key=(2, 2, 5, 6), value=(2, 2, 5, 7))
RECUR = floats(q=(2, 3, 4, 6), k=(2, 3, 2, 6), v=(2, 3, 2, 7))
POSITIONS = np.arange(6).reshape(2, 3)
STATE = drawn(2, 2, 6, 7)
SHARES = np.full((2, 3, 2), 0.5)
GRU: Arguments = {"input_dim": 3, "hidden_dim": 3, "dtype": "float64"}
WINDOW: Arguments = {"d_model": 6, "num_heads": 2, "causal": True, "window": (1, None), "dtype": "float64"}


def with_documents(queries: Any, keys: Any, prefix: Any, **arrays: Any) -> Any:
    """Attention under a pattern whose arrays are arguments here."""
    return attn_np.attend(**arrays, pattern=patterns.Documents(queries, keys) | patterns.Prefix(prefix))


def with_pattern(kind: str, **fields: Any) -> Any:
    return attn_np.attend(**QKV, pattern=getattr(patterns, kind)(**fields))


def with_weights(weights: Any) -> Any:
    return attn_np.attend(**QKV, softmax_fn=lambda scores, allowed: weights)


def with_slopes(slopes: Any, **options: Any) -> Any:
    return attn_np.attend(**QKV, terms=attn_np.terms.Slopes(slopes), **options)


def with_table(table: Any) -> Any:
    bucket_of = partial(attn_np.relative_buckets, num_buckets=4, max_distance=8)
    return attn_np.attend(**QKV, terms=attn_np.terms.Table(table, bucket_of))


def with_bias_of(returned: Any) -> Any:
    term: Any = type("Mine", (attn_np.terms.Term,), {"bias": lambda self, at: returned})()
    return attn_np.attend(**QKV, terms=term)


def merged(context: Any, lse: Any, other_context: Any, other_lse: Any) -> Any:
    return attn_np.merge([(context, lse), (other_context, other_lse)])


def with_params(**values: Any) -> Any:
    layer = build("mha", d_model=6, num_heads=2, use_bias=False, dtype="float64")
    layer.set_params(values)
    return layer.params()


def kept_in(layer: Any, batch_size: Any, max_length: Any, **sizes: Any) -> Any:
    return layer.init_cache(batch_size, max_length, **sizes).arrays


def stepped(layer: Any, query: Any, before: Any = None, **options: Any) -> Any:
    """A step after others; the cache has room for 5 positions."""
    cache = layer.init_cache(2, 5, **({} if layer.config.variant != "dot_product" else {"k": 6, "v": 6}))
    cache = cache if before is None else layer.step(before, cache)[1]
    return layer.step(query, cache, **options)[0]


def tokens(source: Any, target: Any) -> Any:
    return build("seq2seq", input_dim=3, hidden_dim=5, vocab_size=6)(source, target)


def as_flax(**arrays: Any) -> Any:
    """The check of Flax's function, which only JAX has."""
    found = checked_specs(checks.FLAX_FUNCTION, **arrays)
    checks.check_arrays_present(checks.FLAX_FUNCTION, found)
    checks.check_flax(found)


def as_transformers(scaling: Any, softcap: Any, **arrays: Any) -> Any:
    """The check of an attention function of `transformers`, which only PyTorch has."""
    checks.check_transformers(checked_specs(checks.TRANSFORMERS_FUNCTION, **arrays), scaling, softcap)


def calls() -> Iterator[tuple[str, Callable[..., Any], Arguments]]:
    """Calls that are right, by name, with each argument of theirs in one of them."""
    attend, drop_in = attn_np.attend, attn_np.drop_in
    scores: Arguments = {"mask": TRUE, "bias": drawn(2, 4, 3, 5), "causal": True, "window": (2, 1), "softcap": 2.0}
    yield "attend", attend, QKV | scores | {"scale": 0.5, "implementation": "auto"}
    yield "attend, keep", attend, QKV | {"keep": TRUE, "rate": 0.25, "return_weights": True}
    yield "attend, sinks", attend, QKV | {"sinks": drawn(4), "return_lse": True}
    yield "attend, queries", attend, QKV | {"normalize_over": "queries"}
    yield "attend, fused", attend, QKV | {"implementation": "fused"}
    yield "attend, offset", attend, QKV | {"causal": True, "offset": 1, "lengths": np.array([5, 0])}
    yield "attend, offsets", attend, QKV | {"window": 2, "offset": np.array([0, 3])}
    yield "attend, one head", attend, HEADLESS | {"mask": TRUE[:, 0], "bias": drawn(2, 3, 5)}
    documents = {"queries": POSITIONS, "keys": np.zeros((2, 5), int), "prefix": np.array([0, 2])}
    yield "attend, documents", with_documents, QKV | documents
    for kind, fields in {
        "Window": {"left": 1, "right": 0},
        "Chunks": {"size": 2, "left": 1, "right": 0},
        "ChosenChunk": {"size": 2, "chunk_index": POSITIONS},
        "Dilated": {"dilation": 2},
        "GlobalKeys": {"marks": np.zeros((2, 5), bool)},
        "GlobalQueries": {"marks": np.zeros((2, 3), bool)},
    }.items():
        yield f"attend, {kind}", partial(with_pattern, kind), fields
    yield "attend, softmax_fn", with_weights, {"weights": drawn(2, 4, 3, 5)}
    yield "attend, slopes", with_slopes, {"slopes": drawn(4), "offset": 1}
    yield "attend, a table", with_table, {"table": drawn(4, 4)}
    yield "attend, a term", with_bias_of, {"returned": drawn(4, 7)}
    parts = floats(context=(2, 3, 4, 6), lse=(2, 4, 3), other_context=(2, 3, 4, 6), other_lse=(2, 4, 3))
    yield "merge", merged, parts
    yield "merge, one head", merged, {name: x[:, 0] if "lse" in name else x[:, :, 0] for name, x in parts.items()}
    table = {"table": np.array([[1, 0], [2, -1]]), "lengths": np.array([4, 2])}
    pool = floats(q=(2, 3, 4, 6), k_pages=(3, 2, 2, 6), v_pages=(3, 2, 2, 7)) | table
    yield "attend_paged", attn_np.attend_paged, pool | {"causal": True, "window": (2, 1), "scale": 0.5, "offset": 1}
    offsets = {"offset": np.array([0, 3]), "softcap": 2.0, "sinks": drawn(4), "return_lse": True}
    yield "attend_paged, offsets", attn_np.attend_paged, pool | offsets
    new = floats(pages=(3, 2, 2, 6), new=(2, 3, 2, 6)) | {"positions": np.array([[1, 2, 3], [0, 1, -1]])}
    yield "write_pages", attn_np.write_pages, new | {"table": table["table"]}
    yield "softmax", attn_np.softmax, {"scores": drawn(2, 3, 5), "mask": TRUE[0, 0], "axis": -1}
    yield "entmax", attn_np.entmax, {"scores": drawn(2, 3, 5), "mask": TRUE[0, 0], "axis": 0, "alpha": 1.5}
    recur: Arguments = RECUR | {"form": "chunked", "chunk_size": 2, "scale": 0.5, "state": STATE}
    yield "recur", attn_np.recur, recur
    yield "recur, gated", attn_np.recur, RECUR | {"rule": "gated", "decay": np.array([0.0, 1.0])}
    yield "recur, delta", attn_np.recur, RECUR | {"rule": "delta", "beta": SHARES}
    yield "recur, both", attn_np.recur, RECUR | {"rule": "gated_delta", "beta": SHARES, "decay": SHARES}
    yield "recur, channels", attn_np.recur, RECUR | {"rule": "gated", "decay": np.ones((2, 3, 2, 6))}
    scalings = SCALINGS | {"dynamic": {"rope_scaling_factor": 2.0, "original_max_positions": 4}}
    for kind, options in scalings.items():
        turned: Arguments = {"positions": POSITIONS, "width": 8, "rope_scaling": kind}
        yield f"rotary_angles, {kind}", attn_np.rotary_angles, turned | options
    yield "rotary_angles", attn_np.rotary_angles, {
        "positions": np.stack([POSITIONS, POSITIONS]), "width": 8, "sections": (3, 1), "max_positions": 6,
        "rope_base": 50.0, "xpos": 64.0, "dtype": "float64",
    }  # fmt: skip
    taking_turns = {"sections": (2, 2), "sections_interleaved": True}
    yield (
        "rotary_angles, in turn",
        attn_np.rotary_angles,
        {"positions": np.stack([POSITIONS, POSITIONS]), "width": 8} | taking_turns,
    )
    yield "rotate", attn_np.rotate, floats(x=(2, 3, 4, 8), cos=(2, 3, 3), sin=(2, 3, 3)) | {"layout": "half"}
    yield "rotate, one head", attn_np.rotate, floats(x=(2, 3, 8), cos=(3, 4), sin=(3, 4))
    yield (
        "rotate, positions",
        attn_np.rotate,
        {"x": drawn(2, 3, 4, 8), "cos": POSITIONS, "max_positions": 6, "xpos": 64.0},
    )
    buckets = {"num_buckets": 8, "max_distance": 9, "bidirectional": True}
    yield "relative_buckets", attn_np.relative_buckets, {"relative_positions": POSITIONS - 3} | buckets
    yield "alibi_slopes", attn_np.alibi_slopes, {"num_heads": 3}
    of_torch = drop_in.scaled_dot_product_attention
    shared = {"enable_gqa": True, "dropout_p": 0.5, "keep": TRUE, "scale": 0.5, "attn_mask": TRUE}
    yield "drop_in, torch", of_torch, HEADS_FIRST | shared
    yield "drop_in, torch, causal", of_torch, {name: x[0, :2] for name, x in HEADS_FIRST.items()} | {"is_causal": True}
    of_jax = drop_in.dot_product_attention
    square = {"bias": drawn(2, 4, 3, 3), "mask": TRUE[..., :3], "scale": 0.5, "is_causal": True}
    yield "drop_in, jax", of_jax, SAME | square
    lengths = {"query_seq_lengths": np.array([3, 0]), "key_value_seq_lengths": np.array([1, 3])}
    yield "drop_in, jax, lengths", of_jax, SAME | lengths | {"local_window_size": (1, 0), "implementation": "xla"}
    yield "drop_in, jax, one sequence", of_jax, {name: x[0] for name, x in SAME.items()} | {"local_window_size": 1}
    yield "drop_in, flax", as_flax, SAME | {"bias": square["bias"], "mask": square["mask"]}
    yield (
        "drop_in, transformers",
        as_transformers,
        HEADS_FIRST | {"attention_mask": TRUE[:, :1], "scaling": 0.5, "softcap": 2.0, "s_aux": drawn(4)},
    )
    for name, layer in {
        "a window": build("mha", **WINDOW),
        "sizes of a call": build("dot_product", causal=True),
        "states": build("linear", d_model=6, num_heads=2, causal=True, dtype="float64"),
        "both ways": build("mha", **WINDOW | {"causal": False}),
    }.items():
        sizes = {"k": 6, "v": 6} if name == "sizes of a call" else {}
        yield f"init_cache, {name}", partial(kept_in, layer), {"batch_size": 2, "max_length": 5} | sizes
        valid = {"valid": np.array([[True, True], [False, True]])}
        yield f"step, {name}", partial(stepped, layer), {"query": drawn(2, 2, 6), "before": drawn(2, 3, 6)} | valid
    yield "set_params", with_params, floats(w_q=(6, 2, 3), w_k=(6, 2, 3), w_v=(6, 2, 3), w_o=(2, 3, 6))
    words = {"source": POSITIONS, "target": POSITIONS[:, :2]}
    yield "seq2seq, tokens", tokens, words
    free = build("seq2seq", **GRU)
    yield "seq2seq, generate", free.generate, floats(source=(2, 4, 3), target=(2, 1, 3)) | {"steps": 2}
    table = build("seq2seq", input_dim=3, hidden_dim=5, vocab_size=6)
    yield "seq2seq, greedy", table.greedy, {"source": POSITIONS, "target": POSITIONS[:, :1], "steps": 2, "stop": 1}


def other_arrays(x: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Other arrays in place of one, and what is none."""
    for axis, n in enumerate(x.shape):
        for length in sorted({0, 1, n - 1, n + 1} - {n}):
            yield f"axis {axis} of {length}", np.take(x, np.arange(length) % n, axis)
    yield "without its first axis", x[0]
    yield "with an axis more", x[None]
    yield "without axes", x.reshape(-1)[0].reshape(())
    for dtype in ("float64", "float32", "bfloat16", "int64", "uint8", "bool"):
        kind = DTYPES.get(dtype, dtype)
        if x.dtype != kind:
            yield f"as {dtype}", (np.abs(x) if dtype == "uint8" else x).astype(kind)
    if x.dtype.kind == "i":
        yield "one more", x + 1
        yield "below 0", x - x.max() - 1
        yield "far", x + 1000
    if x.dtype == np.float64 and (abs(x) <= 1).all():
        yield "below 0", x - x.max() - 2.0**-30
        yield "above 1", x - x.max() + 1 + 2.0**-30
    yield "as a list", x.tolist()
    yield "None", None


def other_numbers(x: float) -> Iterator[Any]:
    """Numbers beside one and beside usual limits, and what is none."""
    whole = isinstance(x, int)
    yield from sorted({0, 1, 2, -1, x - 1, x + 1, 2 * x, -x} if whole else {0, 1, -x, x / 2, 2 * x, 1000.0, 10**400})
    yield from (0.5, 1.5, float("nan"), float("inf"), -float("inf"), True, "1", None)


def others(x: Any) -> Iterator[tuple[str, Any]]:
    """Other values of an argument, by their names."""
    if isinstance(x, np.ndarray):
        yield from other_arrays(x)
        return
    found: Iterator[Any]
    if isinstance(x, bool):
        found = iter((not x, int(x), None, "yes"))
    elif isinstance(x, int | float):
        found = other_numbers(x)
    elif isinstance(x, str):
        found = iter(("frobnicate", x.upper(), 3, None))
    else:
        longer, ends = (*x, x[-1]), ((x[0] + 1, *x[1:-1], x[-1] - 1), (-1, *x[1:]), (True, *x[1:]))
        found = iter((x[::-1], longer, x[:-1], (), list(x), *ends, (None,) * len(x), (0.5, *x[1:]), 3, "ab", None))
    yield from ((repr(value) if len(repr(value)) < 40 else "huge", value) for value in found if repr(value) != repr(x))


def optional_of(function: Callable[..., Any]) -> list[str]:
    """The arguments of a public function that a call may leave out, but for those that every value suits."""
    if isinstance(function, partial) or function.__module__ == __name__:
        return []
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is not p.empty and p.name not in ("tape", "return_weights")]


def changed(function: Callable[..., Any], arguments: Arguments, more: bool) -> Iterator[tuple[str, str, Arguments]]:
    """Calls in which one argument, by its name, is another or, with `more`, is there where it was not."""
    for name, x in arguments.items():
        for words, value in others(x):
            yield name, words, arguments | {name: value}
    for name in optional_of(function) if more else ():
        if name not in arguments:
            for value in (0, 1, -1, 0.5, True, "frobnicate", (1, 2)):
                yield name, repr(value), arguments | {name: value}


def outcome(call: Callable[[], Any]) -> str | None:
    """The words of a refusal by a contract; None if the call is taken.

    Raises:
        AssertionError: an error that is none of a contract's.
    """
    try:
        with np.errstate(all="ignore"):
            call()
    except (ValueError, TypeError) as error:
        words = str(error)
        assert re.match(r"[^:]+: expected .+, got .+; .+", words, re.DOTALL), f"no words of a contract: {words}"
        return words
    return None


Refusals = dict[str, dict[str, str]]  # the words of each, by the argument or the field and what it was changed to


def refusals(name: str, function: Callable[..., Any], arguments: Arguments) -> Refusals:
    found: Refusals = {}
    for argument, change, given in changed(function, arguments, "," not in name):
        try:
            words = outcome(lambda given=given: function(**given))
        except Exception as error:
            raise AssertionError(f"{name}: {argument} {change}: {type(error).__name__}: {error}") from error
        found.setdefault(argument, {}).update({} if words is None else {change: words})
    return found


def recorded(found: Refusals) -> dict[str, Any]:
    """Refusals as they are kept: what they expect, without numbers, and of each argument what stands for them all."""
    texts = {words for changes in found.values() for words in changes.values() if not words.startswith(TAKEN)}
    words = sorted({re.sub(r"\d+", "#", re.sub("got .+; ", "got #; ", text, flags=re.DOTALL)) for text in texts})
    of_all = {name: sha256(json.dumps(changes).encode()).hexdigest()[:10] for name, changes in found.items()}
    return {"words": words, "arguments": of_all}


def claim_recorded(name: str, found: Refusals) -> None:
    """Fail where refusals are others than those that were recorded, and say which."""
    got, want = recorded(found), RECORDED.get(name, {"words": [], "arguments": {}})
    new, gone = (sorted({*a["words"]} - {*b["words"]}) for a, b in ((got, want), (want, got)))
    others = [x for x in got["arguments"] if got["arguments"][x] != want["arguments"].get(x)]
    changes = "\n".join(f"{x} {change}: {words}" for x in others for change, words in found[x].items())
    assert got == want, f"{name}: new {new}, gone {gone}; now refused of {others}:\n{changes}"


SHARES_OF_CALLS = 4


@pytest.mark.parametrize("share", range(SHARES_OF_CALLS))
def test_a_changed_call_is_taken_or_refused_as_before(share: int) -> None:
    for name, function, arguments in list(calls())[share::SHARES_OF_CALLS]:
        assert outcome(lambda f=function, given=arguments: f(**given)) is None or "both ways" in name, name
        claim_recorded(name, refusals(name, function, arguments))


# Configs --------------------------------------------------------------------------------------------------------------


def other_values(field: Any, x: Any, known: list[Any]) -> Iterator[Any]:
    """Values of a field's own kind beside one: those of other examples, and numbers beside it and its limits."""
    yield from (tuple(value) if isinstance(value, list) else value for value in known)
    if isinstance(x, bool):
        yield not x
    elif isinstance(x, int):
        yield from (1, 2, x - 1, x + 1, 2 * x, 1025, None)
    elif isinstance(x, float):
        yield from (0.0, -x, x / 2, 2 * x, 1.0, 1000.0, None)
    elif isinstance(x, tuple) and x:
        yield from (x[::-1], (*x, x[-1]), x[:-1], (), None)
        if all(isinstance(n, int | float) for n in x):
            yield from ((x[0] + 1, *x[1:-1], x[-1] - 1), (0, *x[1:]), (-x[0], *x[1:]))
    elif x is None and "bool" not in str(field.type):
        yield from (1, 2, 3, 0.5, 1.0)


def refused_configs(variant: str) -> Refusals:
    """The refusals of a variant's examples, each with one field changed; of those taken, what they say."""
    found: Refusals = {}
    known = values(variant)
    for example, config in contract.examples(variant).items():
        for name in config.fields():
            own, field, seen = getattr(config, name), config.__dataclass_fields__[name], set()
            for value in other_values(field, own, known.get(name, [])):
                if repr(value) in seen or repr(value) == repr(own):
                    continue
                seen.add(repr(value))
                make: Any = partial(replace, config, **{name: value})
                found.setdefault(name, {})[f"{example} {value!r}"] = outcome(make) or said_by(make())
    return found


TAKEN = "taken: "


@cache
def methods_of(kind: type[Config]) -> list[str]:
    """The methods of a config that need no argument, but for those whose results are in others'."""
    names = [name for name, f in inspect.getmembers(kind, inspect.isfunction) if not name.startswith(("_", "check"))]
    free = [n for n in names if len(inspect.signature(getattr(kind, n)).parameters) == 1]
    return [name for name in free if name not in ("as_dict", "children", "meaning", "own_params", "params")]


def said_by(config: Config) -> str:
    """What each method of a config returns that needs no argument, and the angles of passes of some lengths."""
    parts: dict[str, Any] = {}
    for name in methods_of(type(config)):
        try:
            parts[name] = getattr(config, name)()
        except ArithmeticError as error:  # buckets of a config without any
            parts[name] = type(error).__name__
    rotates: Any = config if getattr(config, "rope_base", None) is not None else None
    parts |= {f"frequencies {length}": rotates and rotates.frequencies(length) for length in (1, 7, 40)}
    return TAKEN + re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", repr(parts))


def test_every_variant_is_recorded() -> None:
    """One that is missing would have no test below, and nothing would fail."""
    missing = sorted(set(contract.variants()) - set(RECORDED))
    assert not missing, f"{missing}: run python -m parity_tests.tests.contract.test_refusals"


@pytest.mark.parametrize("variant", [v for v in contract.variants() if v in RECORDED])
def test_a_changed_field_is_taken_or_refused_as_before(variant: str) -> None:
    claim_recorded(variant, refused_configs(variant))


if __name__ == "__main__":
    every = {name: recorded(refusals(name, function, given)) for name, function, given in calls()}
    every |= {variant: recorded(refused_configs(variant)) for variant in contract.variants()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x, indent=0)}" for name, x in every.items())
    FILE.write_text("{\n" + lines + "\n}\n", "utf-8")
