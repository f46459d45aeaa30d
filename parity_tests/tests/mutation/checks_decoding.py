"""What `init_cache` and `step` must do: the full pass in pieces, whatever the pieces and the padding between them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import product
from typing import Any, ClassVar

import numpy as np

from attn_np.contract import Arg, Config
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.judging import compare
from parity_tests.tests import decoding as laws
from parity_tests.tests.decoding import BATCH, Decoder, T, Work, decoder, ways, work, wrong
from parity_tests.tests.mutation.calls import (
    Labelled,
    Parts,
    claim,
    claim_same,
    layers,
    made,
    refuses,
    same,
)
from parity_tests.tests.witness import bounded, cotangent

B = BATCH
REAL = np.array([[False, False, True, True, False], [True, True, False, True, True]])


@cache
def decoding(variants: tuple[str, ...]) -> tuple[Labelled, ...]:
    """Every layer that keeps something between steps, as it is and in a ring of slots as long as its window."""
    found: list[Labelled] = []
    for name, config in layers(variants):
        if config.cache_axes():
            found.append((name, config))
            if getattr(config, "window", ()) is None:
                found.append((f"{name}, window", replace(config, window=(2, None))))
    return tuple(found)


def stepped(alias: str, todo: Work) -> Decoder:
    """The copy's layer, as laws step it."""
    return decoder(todo, "attn_np", alias)


# Pieces ---------------------------------------------------------------------------------------------------------------


def in_pieces(layer: Labelled, names: tuple[str, ...], alias: str) -> None:
    todo = work(layer[1], names)
    laws.steps_are_the_full_pass(todo, stepped(alias, todo))


def between_padding(layer: Labelled, names: tuple[str, ...], alias: str) -> None:
    """Padding takes no place, whatever it holds; then each sequence goes on from a length of its own."""
    todo = work(layer[1], names)
    module, inputs = stepped(alias, todo), todo.inputs
    taken = [np.flatnonzero(row) for row in REAL]
    rubbish = {name: np.nan if x.dtype.kind == "f" else 1 for name, x in inputs.items()}
    before = {name: np.full((B, REAL.shape[1], *x.shape[2:]), rubbish[name]) for name, x in inputs.items()}
    for name, x in inputs.items():
        for row, at in enumerate(taken):
            before[name][row, at] = x[row, : len(at)]
    after = {name: np.stack([x[r, len(at) :][:2] for r, at in enumerate(taken)]) for name, x in inputs.items()}
    kept = module.empty(todo, 6)
    tape: dict[str, Any] = {}
    y, kept = module.step(**before, cache=kept, valid=REAL, tape=tape)
    for name in ("zeroed_query", "zeroed_key", "zeroed_value", "live"):
        claim(name not in tape or not tape[name][~REAL].any(), f"{name} of padding is 0")
    claim(np.isfinite(y).all(), "not finite in padding")
    claim(kept.length.tolist() == [len(at) for at in taken], f"lengths {kept.length.tolist()}")
    for i in range(2):
        last, kept = module.step(**{name: x[:, i : i + 1] for name, x in after.items()}, cache=kept)
        for row, at in enumerate(taken):
            length = len(at) + i + 1
            want = todo.full(row, stop=length)
            claim(not wrong(last[row][None], want[:, -1:]), f"sequence {row}, position {length - 1}")
            if i == 0:
                claim(not wrong(y[row, at][None], want[:, :-1]), f"sequence {row}, beside padding")


def narrow_caches(layer: Labelled, alias: str) -> None:
    laws.a_cache_keeps_its_dtypes(layer[1], partial(stepped, alias))


def step_tape(layer: Labelled, alias: str) -> None:
    """A step tapes what a call does, and leaves its inputs and its parameters alone."""
    todo = work(layer[1], ways(layer[1])[0])
    module, inputs, start = numpy_layer(todo.case, todo.drawn.params, alias), todo.inputs, todo.part(0, 3)
    before = {name: x.tobytes() for name, x in (inputs | module.params()).items()}
    tape, whole = {}, {}
    y, _ = module.step(**start, cache=module.init_cache(B, T, **todo.sizes()), tape=tape)
    module(**start, tape=whole)
    claim(same(tape["y"], y), "with a tape")
    claim(not wrong(y, todo.full(stop=3)), "with a tape")
    lacking = set(whole) - set(tape) - {"query_mask", "key_mask"}  # the cache says what a step can see
    claim(not lacking, f"the tape lacks {lacking}")
    claim({name: x.tobytes() for name, x in (inputs | module.params()).items()} == before, "an array was written")


# No room --------------------------------------------------------------------------------------------------------------


@contextmanager
def unknown_lengths(alias: str) -> Iterator[None]:
    """As under jit and compile, where no number is known before it is computed."""
    module: Any = import_module(Parts(alias).begin_step.__module__)
    before = module.concrete
    module.concrete = lambda x: False
    try:
        yield
    finally:
        module.concrete = before


def no_room(layer: Labelled, alias: str) -> None:
    """A step is refused before it writes; where lengths are unknown the outputs are NaN and it says so."""
    todo = work(layer[1], ways(layer[1])[0])
    made = stepped(alias, todo)
    refuses(partial(made.empty, todo, 0), ValueError, "max_length to be an integer of at least 1, got 0")
    laws.without_room_a_step_is_refused(todo, made)
    with unknown_lengths(alias):
        laws.an_overrun_is_nan_and_says_so(todo, made)


# What is refused ------------------------------------------------------------------------------------------------------


def wrong_steps(layer: Labelled, alias: str) -> None:
    """Sizes, shapes, dtypes, other layers' caches and training are refused in the contract's words."""
    module, todo = made(alias, layer, "plain")[0], work(layer[1], ways(layer[1])[0])
    who, sizes, x, rest = f"{layer[1].variant}: expected ", todo.sizes(), todo.x[:, :2], todo.part(0, 2)
    laws.steps_that_cannot_be_right_are_refused(todo, module, np.asarray)
    kept, words = module.init_cache(B, 3, **sizes), "as a NumPy array, got list; convert it"
    refuses(partial(module.step, **rest | {"query": x.tolist()}, cache=kept), TypeError, f"{who}query {words}")
    real = [[True] * 2] * B
    refuses(partial(module.step, **rest, cache=kept, valid=real), TypeError, f"{who}valid {words}")
    module.step(**rest, cache=kept)
    words = f"{who}a cache that no step has used, got one used up"
    refuses(partial(module.step, **rest, cache=kept), ValueError, words)
    if "causal" in layer[1].fields() and getattr(layer[1], "causal"):  # noqa: B009 - no field of every config
        ahead = made(alias, (layer[0], replace(layer[1], causal=False)), "plain")[0]
        refuses(partial(ahead.init_cache, 2, 3, **sizes), ValueError, f"{who}a layer that decodes, got causal=False")
    if "dropout" not in layer[1].fields():
        return
    dropping = made(alias, (layer[0], replace(layer[1], dropout=0.5)), "plain")[0].train()
    start = partial(dropping.step, **rest, cache=dropping.init_cache(B, 3, **sizes))
    refuses(start, ValueError, f"{who}a layer in evaluation mode to decode with")
    dropping.eval()
    claim(np.isfinite(start()[0]).all(), "evaluation")


# The functions of a cache ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Held(Config):
    """A layer that keeps entries of two widths and a state; with heads, without them (False), without a mask (None)."""

    slots: int | None = None
    heads: bool | None = True

    class_name: ClassVar[str] = "Held"

    def sizes(self) -> dict[str, int]:
        return {"k": 3, "v": 2}

    def own_params(self) -> dict[str, Any]:
        return {}

    def arguments(self) -> dict[str, Arg]:
        mask = Arg("b h t s" if self.heads else "b t s", "mask", optional=True)
        return {"query": Arg("b t k")} | ({} if self.heads is None else {"mask": mask})

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s k", "v": "b s v", "state": "b v"}

    def cache_slots(self) -> int | None:
        return self.slots


Held.variant = "held"


@dataclass(frozen=True, kw_only=True)
class Worded(Held):
    """One that keeps tokens, an argument's own entries, and a state whose axis has a name with an s in it."""

    def sizes(self) -> dict[str, int]:
        return {"k": 3, "rest": 4}

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t k"), "words": Arg("b t", "integers")}

    def cache_axes(self) -> dict[str, str]:
        return {"query": "b s k", "words": "b s", "state": "b rest"}


def broadcast(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, (B, x.shape[1]))


def functions_of_a_cache(alias: str) -> None:
    """Entries and states come back as they were kept, in the dtype asked for; without a past nothing is kept."""
    parts, rng = Parts(alias), np.random.default_rng(2)
    k, v, state = (rng.normal(size=shape) for shape in ((B, 5, 3), (B, 5, 2), (B, 2)))
    claim(parts.append(None, k=k) is k and parts.append(None, k=k, v=v) == (k, v), "without a past")
    claim(
        parts.read_state(None, "state", state) is state and parts.write_state(None, state=state) is None,
        "without a past",
    )
    query_positions, key_positions = parts.token_positions(2, 5, like=k)
    claim(
        same(query_positions, np.array([[3, 4]])) and same(key_positions, np.arange(5)[None]),
        "the last query at the last key",
    )
    query_positions, key_positions = parts.token_positions(5, 2, like=k)
    claim(
        same(query_positions, np.array([[-3, -2, -1, 0, 1]])) and same(key_positions, np.arange(2)[None]),
        "more queries than keys",
    )
    for slots, real in product((None, 3), (None, np.ones((B, 4), bool))):
        single, double = np.zeros((), np.float32), np.zeros(())
        kept = parts.empty_cache(Held(slots=slots), B, 5, {}, single, double)
        kinds = {"k": "float32", "v": "float32", "state": "float64"}
        claim({n: x.dtype.name for n, x in kept.arrays.items()} == kinds, "dtypes")
        kept = parts.empty_cache(Worded(slots=slots), B, 5, {}, single, double)
        words = {n: x.dtype for n, x in kept.arrays.items()}
        claim(words == {"query": np.float32, "words": kept.positions.dtype, "state": np.float64}, "dtypes with words")
        kept = parts.empty_cache(Held(slots=slots), B, 5, {}, single, single)
        claim(same(kept.positions, np.full((B, (slots or 5) + 1), -1)) and same(kept.length, np.zeros(B, int)), "empty")
        claim(same(kept.overflowed, np.zeros(B, bool)) and kept.max_length == 5, "empty")
        step = parts.begin_step(Held(slots=slots), kept, k[:, :4], real)
        query_positions, key_positions = (broadcast(x) for x in parts.token_positions(4, 9, like=k, step=step))
        if slots is None and real is None:
            claim(step.start == 0 and step.max_filled == 4 and step.length.tolist() == [4, 4], "the end of a full pass")
            claim(
                step.is_appended is None and step.overflowing is None and not step.concatenated and not step.head_axis,
                "nothing else",
            )
        else:
            claim(
                step.start is None and step.concatenated == (slots == 3) and step.max_filled == (slots or 4), "opened"
            )
            claim(same(step.is_appended, np.ones((B, 4), bool)) and not step.overflowing.any(), "opened")
            claim(
                same(query_positions, step.query_positions) and same(key_positions, step.key_positions),
                "places in a step",
            )
        claim(same(query_positions, np.tile(np.arange(4), (B, 1))), "where the new positions stand")
        keys, values = parts.append(step, k=k[:, :4], v=v[:, :4])
        fresh = parts.empty_cache(Held(slots=slots), B, 5, {}, single, single)
        alone = parts.append(parts.begin_step(Held(slots=slots), fresh, k[:, :4], real), v=v[:, :4])
        claim(same(alone, values), "one array by itself")
        claim(keys.dtype == np.float64 and keys.shape[:2] == values.shape[:2] == key_positions.shape, "entries of all")
        for row in range(B):
            for place, at in enumerate(key_positions[row].tolist()):
                if at >= 0:
                    claim(same(keys[row, place], k[row, at].astype("float32").astype("float64")), "an entry of k")
                    claim(same(values[row, place], v[row, at].astype("float32").astype("float64")), "an entry of v")
        claim(set(key_positions[0].tolist()) - {-1} == set(range(4)), "where the keys stand")
        claim(step.arrays["k"].dtype == np.float32 and step.arrays["k"].shape == kept.arrays["k"].shape, "what is kept")
        claim(
            same(parts.read_state(step, "state", state), np.zeros((B, 2))),
            "an empty state, in the dtype of the fresh one",
        )
        claim(parts.write_state(step, state=state) is None, "retain returns nothing")
        y, after = parts.end_step(step, k[:, :4])
        claim(
            same(after.arrays["state"], state.astype("float32")) and list(after.arrays) == ["k", "v", "state"], "kept"
        )
        claim(same(y, k[:, :4]) and after.length.tolist() == [4, 4], "closed")
        held = [0, 1, 2, 3] if slots is None else [3, 1, 2]
        claim(after.positions[:, :-1].tolist() == [[*held, *[-1] * ((slots or 5) - len(held))]] * B, "where they stand")
        again = parts.begin_step(Held(slots=slots), after, k[:, 4:], None)
        claim(
            again.start == (4 if slots is None else None) and again.max_filled == (5 if slots is None else 3),
            "it goes on",
        )
        claim((parts.real_mask(None, again) is None) == (slots is None), "all of them count")
        claim(slots is not None or parts.real_mask(real, again) is real, "all of them count")
        claim(
            same(parts.read_state(again, "state", state), state.astype("float32").astype("float64")),
            "the state is back",
        )
        claim(not again.concatenated, "one new position takes the place of none that it sees")
        full = replace(after, overflowed=np.array([True, False]))
        twin = full.copy()
        for name in ("positions", "length", "overflowed"):
            one, other = getattr(full, name), getattr(twin, name)
            claim(same(one, other) and not np.shares_memory(one, other), f"a copy's {name}")
        claim_same(twin.arrays, full.arrays, "a copy's arrays")
        claim(not any(np.shares_memory(x, full.arrays[n]) for n, x in twin.arrays.items()), "arrays of its own")
        claim(twin.max_length == 5 and not twin.spent, "a copy")
        object.__setattr__(full, "spent", True)
        refuses(full.copy, ValueError, "cache: expected a cache that no step has used, got one used up")
    real = REAL[:, 1:]
    step = parts.begin_step(Held(slots=3), parts.empty_cache(Held(slots=3), B, 5, {}, k, k), k[:, 1:], real)
    claim(
        same(step.key_positions, np.hstack([np.full((B, 3), -1), np.where(real, np.cumsum(real, 1) - 1, -1)])), "no key"
    )
    for heads in (True, False, None):
        kept, real = parts.empty_cache(Held(), B, 9, {}, k, k), np.array([[True, True], [True, False]])
        step = parts.begin_step(Held(heads=heads), kept, k[:, :2], real)
        near = step.window_mask(None, None)
        claim(near.shape == ((B, 1, 2, 2) if heads else (B, 2, 2)) and kept.max_length == 9, "with heads or without")
        claim(
            near.reshape(B, 2, 2).tolist() == [[[True, True]] * 2, [[True, False], [False] * 2]], "keys that are there"
        )
        claim(step.window_mask(None, 0).reshape(B, 2, 2)[0, 0].tolist() == [True, False], "no later key")
        claim(step.window_mask(0, 0).reshape(B, 2, 2)[0, 1].tolist() == [False, True], "its own alone")


def what_counts(alias: str) -> None:
    """Positions count that a padding mask shows and, in a step, that are real."""
    parts, real = Parts(alias), REAL[:, :4]
    step = parts.begin_step(
        Held(), parts.empty_cache(Held(), B, 5, {}, np.zeros(()), np.zeros(())), np.zeros((B, 4, 3)), real
    )
    mask = np.array([[True, False, True, False]])
    claim(parts.real_mask(None) is None and parts.real_mask(mask) is mask, "without a past")
    claim(
        same(parts.real_mask(None, step), real) and same(parts.real_mask(mask, step), real & mask),
        "in a step",
    )


def written(alias: str) -> None:
    """`write` puts entries into the slots of their rows; what goes with it does what it says."""
    parts = Parts(alias)
    buffer, slot = np.zeros((2, 4, 3)), np.array([[3, 0], [1, 2]])
    x = np.arange(1.0, 13.0).reshape(2, 2, 3)
    claim(parts.write_slots(buffer, slot, x) is buffer, "in place")
    for row in range(2):
        for i in range(2):
            claim(same(buffer[row, slot[row, i]], x[row, i]), "an entry")
    claim(buffer[0, 1:3].any() == buffer[1, [0, 3]].any() == np.False_, "other slots")
    buffer = np.zeros((2, 4, 3))
    claim(parts.write_slice(buffer, 1, x) is buffer and same(buffer[:, 1:3], x), "side by side")
    claim(not buffer[:, [0, 3]].any(), "other slots")
    numbered = np.full((2, 4), -1)
    claim(
        parts.write_positions(numbered, 1, 3) is numbered and numbered.tolist() == [[-1, 1, 2, -1]] * 2,
        "numbers of slots",
    )
    claim([parts.is_longer(t, 2) for t in (1, 2, 3)] == [False, False, True], "more than n")
    claim(parts.allows_data_dependent_shapes(x) is True, "shapes may follow from NumPy's numbers")
    for shape in ((2, 5, 3, 4), (2, 5, 3)):
        empty = parts.empty_slots(shape, x)
        claim(empty.shape == shape and empty.dtype == x.dtype and not empty.any(), "empty slots")
    claim(parts.empty_slots((2, 5, 3, 4), x)[:, :, 0].strides[1] == 4 * 8, "a head's entries lie side by side")
    claim(parts.cumsum(np.array([[True, False, True], [True, True, True]]), 1).tolist() == [[1, 1, 2], [1, 2, 3]], "1")
    claim(parts.cumsum(np.array([[True, False], [True, True]]), 0).tolist() == [[1, 0], [2, 1]], "a count down axis 0")
    claim(parts.clip(np.array([-5, 0, 3, 9]), 0, 4).tolist() == [0, 0, 3, 4], "clip")
    claim(parts.concrete(x) is True, "NumPy's numbers are known")
    asked: list[Any] = []
    kept = parts.constant_like(lambda numpy, *args: asked.append(args) or numpy.array(args))
    claim(all(same(kept(2, 3, like=x), np.array((2, 3))) for _ in range(2)) and asked == [(2, 3)], "made once")
    claim(same(kept(3, 2, like=x), np.array((3, 2))) and len(asked) == 2, "made for other values")
    for dtype in ("float64", "float32", "int64"):
        made_ = parts.constants((0.5, 1.0, 2.0 / 3.0), np.zeros(1, dtype))
        claim(same(made_, np.array((0.5, 1.0, 2.0 / 3.0)).astype(dtype)), f"constants in {dtype}")


def refused_calls(alias: str) -> None:
    """`attend` and `step` refuse what cannot be right, after a call that was."""
    parts, package = Parts(alias), import_module(alias)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(B, n, 2, 3)) for n in (4, 5, 5))
    parts.attend(q, k, v, causal=True, scale=1.0, rate=0.0, window=(1, 2), softcap=1.0)
    for bad in ({"causal": 1}, {"scale": True}, {"rate": True}, {"window": (1, 2.0)}, {"softcap": True}):
        refuses(partial(parts.attend, q, k, v, **bad), ValueError, f"expected {next(iter(bad))}")
    refuses(partial(parts.attend, q, k[:, :4], v), ValueError, "expected")
    dropping = package.build("mha", d_model=6, num_heads=2, dtype="float64", causal=True, dropout=0.5).eval()
    x, cache = rng.normal(size=(B, 6, 6)), dropping.init_cache(B, 6)
    one, real = x[:, :1], np.ones((B, 1), bool)
    _, cache = dropping.step(one, cache, valid=real, key=one, value=one)
    step = partial(dropping.step, one, cache, valid=real, key=one, value=one)
    refuses(partial(step, valid=real[:1]), ValueError, "expected valid")
    refuses(partial(step, key=x[:, :2], value=x[:, :2]), ValueError, "keys of the new positions")
    dropping.train()
    refuses(step, ValueError, "evaluation mode")


def over_devices(alias: str) -> None:
    """A layer whose sequence lies on two devices gives what it gives whole: with keys in a ring, and gathered."""
    package = import_module(alias)
    parallel: Any = import_module(f"{alias}.parallel")
    x = np.random.default_rng(5).normal(size=(2, 8, 6))
    ways: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("mha", {"window": (3, None)}, {}),
        ("mha", {"memory_keys": 3}, {}),
        ("mha", {"scale": 1.0}, {"implementation": "textbook"}),
        ("mha", {"softcap": 1.5}, {"tape": {}}),
        ("self_attention", {}, {}),
        ("alibi", {}, {}),
    )
    for variant, more, options in ways:
        fields = {"d_model": 6, "causal": True, "dtype": "float64", **more}
        layer = package.build(variant, **fields, **({} if variant == "self_attention" else {"num_heads": 2}))
        want = bounded(layer.config, {"query": x}, layer.params())["y"]
        y = parallel.apply(layer, parallel.to_devices(x, devices=2, layout="zigzag"), layout="zigzag", **options)
        found = compare(parallel.from_devices(y, layout="zigzag"), want)
        claim(found["ratio"] <= 1, f"{variant} {more} {found}")


def states_over_devices(alias: str) -> None:
    """So does a layer whose state goes from device to device, and its convolution gets the positions before."""
    package = import_module(alias)
    parallel: Any = import_module(f"{alias}.parallel")
    x, documents = np.random.default_rng(5).normal(size=(2, 8, 6)), np.array([[0, 0, 0, 1, 1, 1, 1, 2], [3] * 8])
    for variant, more in (("gated_delta", {"conv_size": 3}), ("linear", {"causal": True}), ("retention", {})):
        layer = package.build(variant, d_model=6, num_heads=2, dtype="float64", **more)
        want = bounded(layer.config, {"query": x}, layer.params())["y"]
        claim(compare(layer(x), want)["ratio"] <= 1, f"{variant} on one device")
        for n in (1, 4):  # shards that are shorter than the convolution
            found = compare(parallel.from_devices(parallel.apply(layer, parallel.to_devices(x, devices=n))), want)
            claim(found["ratio"] <= 1, f"{variant} on {n} devices {found}")
            want_packed = bounded(layer.config, {"query": x, "documents": documents}, layer.params())["y"]
            cut, numbers = (parallel.to_devices(a, devices=n) for a in (x, documents))
            found = compare(parallel.from_devices(parallel.apply(layer, cut, documents=numbers)), want_packed)
            claim(found["ratio"] <= 1, f"{variant} on {n} devices, packed {found}")


def convolved(alias: str) -> None:
    """A short convolution, its gradients and its pieces, with padding between and packed documents or without."""
    package, x = import_module(alias), np.random.default_rng(8).normal(size=(2, 8, 6))
    layer: Any = package.build("gated_delta", d_model=6, num_heads=2, conv_size=3, dtype="float64", seed=6)
    real = np.array([[0, 1, 1, 0, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0, 0]], bool)
    numbers = np.array([[7, 0, 0, 9, 9, 1, 1, 1], [2, 3, 9, 3, 3, 5, 9, 9]])
    for masked, packed in product((False, True), repeat=2):
        named = ({"valid": real} if masked else {}) | ({"documents": numbers} if packed else {})
        inputs = {"query": x} | {"mask" if name == "valid" else name: a for name, a in named.items()}
        results, tape = bounded(layer.config, inputs, layer.params()), {}
        want, grads = results["y"], layer.vjp(tape, cotangent(layer(**inputs, tape=tape).shape))
        for name, dx in {**grads.inputs, **grads.params}.items():
            claim(
                compare(dx, results[f"d{name}"])["ratio"] <= 1, f"gradient of {name}, masked {masked}, packed {packed}"
            )
        cache, found = layer.init_cache(2, 8), []
        for part in (slice(0, 3), slice(3, 4), slice(4, 8)):
            y, cache = layer.step(x[:, part], cache, **{name: a[:, part] for name, a in named.items()})
            found.append(y)
        y = np.where(real[..., None] | (not masked), np.concatenate(found, 1), want.v)
        claim(compare(y, want)["ratio"] <= 1, f"masked {masked}, packed {packed}")


def patterns_over_devices(alias: str) -> None:
    """A layer whose keys go round gets documents as a pattern, also beside the window of its own."""
    package = import_module(alias)
    parallel: Any = import_module(f"{alias}.parallel")
    x, numbers = np.random.default_rng(6).normal(size=(2, 8, 6)), np.array([[0, 0, 0, 1, 1, 1, 1, 2], [3] * 8])
    together = numbers[:, None, :, None] == numbers[:, None, None, :]
    for more in ({}, {"window": (2, 0)}):
        layer = package.build("rotary", d_model=6, num_heads=3, causal=True, dtype="float64", **more)
        want = bounded(layer.config, {"query": x, "mask": together}, layer.params())["y"]
        for n in (1, 4):
            cut, own = (parallel.to_devices(a, devices=n) for a in (x, numbers))
            pattern = package.patterns.Documents(own, own)
            found = compare(parallel.from_devices(parallel.apply(layer, cut, pattern=pattern)), want)
            claim(found["ratio"] <= 1, f"{more} on {n} devices {found}")


def angles_twice(alias: str) -> None:
    """A pair (cos, sin) with each angle twice, as halves or as neighbours, is the pair with each once."""
    package, rng = import_module(alias), np.random.default_rng(9)
    layer: Any = package.build("rotary", d_model=6, num_heads=2, head_dim=8, dtype="float64", seed=4)
    for t in (0, 5):
        x, angles = rng.normal(size=(2, t, 6)), rng.normal(size=(2, t, 4))
        once = np.cos(angles), np.sin(angles)
        want = layer(x, positions=once)
        for pair in ([np.concatenate([a, a], -1) for a in once], [np.repeat(a, 2, -1) for a in once]):
            claim(same(layer(x, positions=tuple(pair)), want), f"{t} angles twice")


def forgotten(alias: str) -> None:
    """Gates by which keys are forgotten: outputs, weights and gradients, with padding and without, and in steps."""
    package, rng = import_module(alias), np.random.default_rng(8)
    layer: Any = package.build("forgetting", d_model=6, num_heads=2, dtype="float64", seed=3)
    padding = np.array([[True] * 5, [False, False, True, True, True]])[:, None, None]
    for inputs in ({}, {"mask": padding}, {"bias": rng.normal(size=(2, 5, 5)), "mask": padding}):
        inputs = {"query": rng.normal(size=(2, 5, 6)), **inputs}
        want = bounded(layer.config, inputs, layer.params())
        tape: dict[str, Any] = {}
        y, weights = layer(**inputs, return_weights=True, tape=tape)
        grads = layer.vjp(tape, cotangent(y.shape))
        found = {"y": y, "out1": weights} | {f"d{n}": x for n, x in {**grads.inputs, **grads.params}.items()}
        claim(set(found) == set(want), f"names {set(found) ^ set(want)}")
        claim(all(compare(x, want[n])["ratio"] <= 1 for n, x in found.items()), f"forgetting with {sorted(inputs)}")
    x = rng.normal(size=(2, 5, 6))
    want, cache, steps = bounded(layer.config, {"query": x}, layer.params())["y"], layer.init_cache(2, 6), []
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        y, cache = layer.step(x[:, start:stop], cache)
        steps.append(y)
    claim(compare(np.concatenate(steps, 1), want)["ratio"] <= 1, "forgetting in steps")
