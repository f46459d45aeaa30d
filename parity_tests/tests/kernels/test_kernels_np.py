"""NumPy's fast path where rows are unlike: NaN that some see, huge values in one row of a batch, edges of windows."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any

import numpy as np
import pytest

from attn_np.attention.attend import attend, attend_vjp
from attn_np.contract._tape import BackwardTape
from attn_np.kernels import flash as kernels
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.tests.inputs import TREES, Arrays, first_difference
from parity_tests.tests.kernels.test_kernels import BLOCKS, fused, held, judged, numpy_results, small_blocks
from parity_tests.tests.witness import cotangent, ratio

NUMPY = TREES["numpy"]
HEADS = {"own heads": 6, "two share": 3, "three share": 2, "one for all": 1}


def drawn(b: int, t: int, s: int, g: int, *, h: int = 6, width: int = 5, dtype: str = "float64") -> Arrays:
    """Random q, k and v; values have the width of `cotangent`'s users."""
    rng = np.random.default_rng([b, t, s, g])
    shapes = {"q": (b, t, h, width), "k": (b, s, g, width), "v": (b, s, g, 3)}
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def without(inputs: Arrays, name: str, at: Any, value: float = 0.0) -> Arrays:
    """The same inputs with one place of one array set."""
    changed = inputs[name].copy()
    changed[at] = value
    return inputs | {name: changed}


BOUNDS: dict[str, dict[str, Any]] = {}


def bounds(key: str, inputs: Arrays, options: dict[str, Any], dtype: str = "float64") -> dict[str, Any]:
    """What the textbook gives with its bounds, computed once for all settings of the blocks."""
    if key not in BOUNDS:
        BOUNDS[key] = held(inputs, options, dtype)
    return BOUNDS[key]


def errors(got: Arrays, want: dict[str, Any], at: dict[str, Any]) -> dict[str, float]:
    """Error by bound of some places of each array."""
    return {name: ratio(got[name][index], want[name][index]) for name, index in at.items()}


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("g", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_numbers_that_nobody_sees_may_be_anything(name: str, value: float, g: int, blocks: str) -> None:
    """One array alone has them; other keys are seen by one head of those that share them, and not by the first."""
    inputs = drawn(2, 11, 13, g)
    inputs["mask"] = np.random.default_rng(1).random((2, 6, 11, 13)) < 0.7
    inputs["mask"][:, :, :, 5:8] = False
    inputs["mask"][:, 5, :, 5] = inputs["mask"][:, 1, :, 6] = inputs["mask"][0, 3, 2, 7] = True
    inputs["mask"][1, :, :, 4] = inputs["mask"][1, :, 6] = False  # a key that nobody sees, a query that sees nothing
    spoilt = without(inputs, name, (1, 6) if name == "q" else (1, 4), value)
    with small_blocks(NUMPY, blocks):
        judged(fused(NUMPY, spoilt, {}), bounds(f"unseen {g}", inputs, {}))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("g", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("by", ["mask", "causal", "window"])
def test_nan_that_some_rows_see_stays_with_them(by: str, name: str, g: int, blocks: str) -> None:
    """Rows that see it are NaN; rows that do not, other heads and other rows of the batch are as without it."""
    inputs, options = drawn(2, 11, 13, g), {}
    near = np.arange(13) <= np.arange(11)[:, None] + 2
    if by == "window":
        options, near = {"window": (3, 0)}, near & (np.arange(13) >= np.arange(11)[:, None] - 1)
    elif by == "causal":
        options = {"causal": True}
    else:
        inputs["mask"] = near
    last = g - 1  # the last key/value head, and the last query head, which uses it
    spoilt = without(inputs, name, (1, 6, -1), np.nan)
    want = bounds(f"visible {by} {name} {g}", without(inputs, name, (1, 6, -1)), options)
    with small_blocks(NUMPY, blocks):
        got = fused(NUMPY, spoilt, options)
    users = slice(5, 6) if name == "q" else slice(6 * last // g, 6)
    sees = np.arange(11) == 6 if name == "q" else near[:, 6]
    assert np.isnan(got["context"][1, sees][:, users]).all()
    worst = errors(got, want, dict.fromkeys(got, np.s_[0]))
    if name != "v":  # a weight of 0 times a value that is NaN is NaN, on the textbook path as well
        worst |= {"unseen": errors(got, want, {"context": (1, np.flatnonzero(~sees))})["context"]}
    if users.start > 0:  # other query heads, and the key/value heads that they alone use
        others = users.start * g // 6
        worst |= errors(got, want, {"context": np.s_[:, :, : users.start], "dq": np.s_[:, :, : users.start]})
        if others > 0:
            worst |= errors(got, want, {"dk": np.s_[:, :, :others], "dv": np.s_[:, :, :others]})
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("blocks", ["own", "blocks", "blocks of several heads"])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    "what", ["large values", "small values", "one small value", "scores of 89", "large keys", "large queries"]
)
def test_rows_of_a_batch_may_be_unlike(what: str, row: int, blocks: str) -> None:
    """Scores near 29 or -29, not subtracted, must meet no value that overflows or underflows with their weights; and
    one row, head or key may be large alone.
    """
    inputs = drawn(2, 40, 40, 3, dtype="float32")
    size = np.sqrt(28 * np.sqrt(5) / 5)
    inputs["q"][:], inputs["k"][:] = size, -size if "small value" in what else size
    inputs["k"] *= np.random.default_rng(0).uniform(0.97, 1.0, size=inputs["k"].shape).astype("float32")
    last = np.s_[row, -1, -1]
    if what == "large values":
        inputs["v"][row, -1, -1] *= 1e28
    elif what == "small values":
        inputs["v"][row] *= 1e-32
    elif what == "one small value":
        inputs["v"][row, :, :, 1] *= 1e-32
    elif what == "scores of 89":  # whose power is no float32
        inputs["k"][row] *= 89 / 28
    elif what == "large keys":
        inputs["k"][last] *= 40
    else:
        inputs["q"][last] *= 40
    with small_blocks(NUMPY, "whole" if blocks == "own" else blocks):
        for options in ({}, {"causal": True}):
            judged(fused(NUMPY, inputs, options), bounds(f"unlike {what} {row} {options}", inputs, options, "float32"))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("seed", range(16))
def test_numbers_may_be_of_any_size_at_any_place(seed: int, blocks: str) -> None:
    """Whatever block a row of the batch, a position and a head are in, and whatever stands beside them there."""
    rng = np.random.default_rng(seed)
    b, t, s, g = (int(rng.choice(sizes)) for sizes in ((1, 2, 5, 13), (3, 7, 40), (5, 13, 40), (6, 3, 1)))
    inputs = drawn(b, t, s, g, dtype="float32")
    sizes = {"q": (0, 400), "k": (0, 400), "v": (0, 1e-32, 1e28)}
    for name in rng.choice(list("qkv"), rng.integers(1, 4), replace=False):
        place = tuple(rng.integers(inputs[name].shape[:3]))
        inputs[name][place] *= rng.choice(sizes[name])
    options: dict[str, Any] = [{}, {"causal": True}, {"window": (int(rng.integers(s)), 1)}][seed % 3]
    if rng.random() < 0.5:
        inputs["sinks"] = rng.choice([0, 1, 100, -100, -np.inf], 6).astype("float32")
    if rng.random() < 0.5:
        inputs["mask"] = rng.random((b, 6, t, s)) < 0.8
    with small_blocks(NUMPY, blocks):
        judged(fused(NUMPY, inputs, options), bounds(f"any size {seed}", inputs, options, "float32"))


@pytest.mark.parametrize("blocks", ["whole", "blocks"])
@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_may_be_as_small_as_numbers_are(sinks: bool, blocks: str) -> None:
    """A row whose weights add up to 1e14 before they are divided divides a gradient of 1e-30 by as much."""
    inputs = drawn(1, 40, 40, 3, dtype="float32")
    inputs["q"][:] = inputs["k"][:] = np.sqrt(28 * np.sqrt(5) / 5)
    inputs |= {"sinks": np.full(6, 20, "float32")} if sinks else {}
    dy = cotangent((1, 40, 6, 3)).astype("float32")
    tiny = np.float32(2.0**-100)
    with small_blocks(NUMPY, blocks):
        got, want = (numpy_results(inputs, x, {}, "fused") for x in (dy * tiny, dy))
    for name in (
        ("dv", "dsinks") if sinks else ("dv",)
    ):  # multiplied by a power of 2, every number but its exponent stays
        np.testing.assert_array_equal(got[name], want[name] * tiny)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("g", HEADS.values(), ids=HEADS)
def test_blocks_of_several_rows_of_a_batch(g: int, blocks: str) -> None:
    """The last of which are fewer."""
    inputs = drawn(13, 3, 5, g)
    with small_blocks(NUMPY, blocks):
        judged(fused(NUMPY, inputs, {"causal": True}), bounds(f"rows {g}", inputs, {"causal": True}))


@pytest.mark.parametrize("blocks", ["whole", "blocks"])
@pytest.mark.parametrize("head", [0, -1])
def test_a_sink_may_be_large_alone(head: int, blocks: str) -> None:
    """Of one head, where no score is: the power of 100 is no float32."""
    inputs = drawn(2, 40, 40, 3, dtype="float32")
    inputs["sinks"] = np.zeros(6, "float32")
    inputs["sinks"][head] = 100
    with small_blocks(NUMPY, blocks):
        judged(fused(NUMPY, inputs, {}), bounds(f"sink {head}", inputs, {}, "float32"))


@pytest.mark.parametrize("g", [8, 2])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": (50, None)}], ids=str)
def test_sizes_that_divide_nothing(options: dict[str, Any], g: int) -> None:
    """In the path's own blocks, of several rows of the batch and of one; the first and the last row are judged."""
    for b, t in ((13, 200), (3, 130)):
        inputs = drawn(b, t, t, g, h=8, width=2, dtype="float32")
        dy = cotangent((b, t, 8, 3)).astype("float32")
        got = numpy_results(inputs, dy, options, "fused")
        for row in (0, b - 1):
            arrays: dict[str, Any] = {name: ErrArray(x[row : row + 1], 0.0) for name, x in inputs.items()}
            with precision(precision_of("float32")):
                want = numpy_results(arrays, ErrArray(dy[row : row + 1], 0.0), options, "textbook")
            judged({name: x[row : row + 1] for name, x in got.items()}, want)


EDGES = [(t, s, n) for t, s in ((7, 13), (13, 7), (11, 11), (1, 9)) for n in sorted({0, 1, t - 2, t - 1, s - 2, s - 1})]


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize(("t", "s", "n"), [edge for edge in EDGES if edge[2] >= 0])
def test_edges_of_windows(t: int, s: int, n: int, blocks: str) -> None:
    """As wide as the queries or keys are many, and one and two less; as many queries as keys, fewer and more."""
    inputs = drawn(1, t, s, 2, h=2)
    windows: Sequence[tuple[int | None, int | None]] = ((n, None), (None, n), (n, n), (n, 0), (0, n), (n, s))
    with small_blocks(NUMPY, blocks):
        for window in windows:
            want = bounds(f"edge {t} {s} {window}", inputs, {"window": window})
            judged(fused(NUMPY, inputs, {"window": window}), want)
        want = bounds(f"edge {t} {s} {(n, 0)}", inputs, {"window": (n, 0)})
        judged(fused(NUMPY, inputs, {"causal": True, "window": (n, None)}), want)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("g", HEADS.values(), ids=HEADS)
def test_no_two_threads_add_to_one_gradient(g: int, blocks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two tasks of the backward pass have a key/value head of a row of the batch in common."""
    tasks: list[Sequence[Any]] = []
    real = kernels.in_threads

    def in_threads(work: Any, plan: Any) -> None:
        tasks.append(plan(3))
        real(work, plan)

    monkeypatch.setattr(kernels, "in_threads", in_threads)
    with small_blocks(NUMPY, blocks):
        fused(NUMPY, drawn(3, 11, 13, g), {"causal": True})
    _, backward = tasks
    owners = np.zeros((3, g), int)
    for blocks_of_task in backward:
        (at,) = {(block.batch.indices(3), block.kv_heads.indices(g)) for block in blocks_of_task}
        owners[tuple(slice(*span) for span in at)] += 1
    assert (owners == 1).all()


class InTurn:
    """Threads of which one works at a time, and hands over to the next at every block."""

    def __init__(self) -> None:
        self.turn, self.queue = Condition(), list[int]()

    def __call__(self, work: Any, plan: Any) -> None:
        tasks = plan(3)
        self.queue = list(reversed(range(len(tasks))))

        def do(i: int) -> None:
            with self.turn:
                self.turn.wait_for(lambda: self.queue[0] == i)
            try:
                work(tasks[i])
            finally:
                with self.turn:
                    self.queue.remove(i)
                    self.turn.notify_all()

        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(do, range(len(tasks))))

    def hand_over(self) -> None:
        with self.turn:
            i = self.queue.pop(0)
            self.queue.append(i)
            self.turn.notify_all()
            self.turn.wait_for(lambda: self.queue[0] == i)


@pytest.mark.parametrize("g", HEADS.values(), ids=HEADS)
def test_threads_in_any_order_give_the_same_bits(g: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one writes no other reads or writes: one after the other, or in turn and in another order."""
    inputs: Any = drawn(3, 11, 13, g)
    table = np.random.default_rng(g).normal(size=(6, 23))
    dy = cotangent((3, 11, 6, 3))

    def results() -> Arrays:
        tape: Any = BackwardTape()
        bias = lambda relative_position: table[None, :, None][..., relative_position[0, 0] + 12]  # noqa: E731
        context, _ = attend(**inputs, causal=True, relative_bias_fn=bias, tape=tape, implementation="fused")
        dq, dk, dv, _ = attend_vjp(tape, dy, kv_heads=g, needs_diagonal_grad=True)
        return {"context": context, "dq": dq, "dk": dk, "dv": dv, "ddiagonals": tape["ddiagonal_bias"]}

    turns, real = InTurn(), kernels.scores_

    def scores_(*arguments: Any) -> Any:
        tanh = real(*arguments)
        turns.hand_over()
        return tanh

    with small_blocks(NUMPY):
        monkeypatch.setattr(kernels, "in_threads", lambda work, plan: [work(task) for task in plan(3)])
        want = results()
        monkeypatch.setattr(kernels, "in_threads", turns)
        monkeypatch.setattr(kernels, "scores_", scores_)
        assert first_difference(results(), want) is None


def test_what_a_cap_makes_of_a_hidden_score_may_be_nan() -> None:
    """A hidden score of inf - inf has no tanh; its slope must not reach the gradients of what is seen."""
    inputs = drawn(1, 5, 7, 2, h=2, width=64)  # BLAS adds up numbers far apart in parts of their own
    inputs["q"][:, 2], inputs["k"][:, 5, :, ::2], inputs["k"][:, 5, :, 1::2] = 1e200, 1e200, -1e200
    inputs["mask"] = np.ones((5, 7), bool)
    inputs["mask"][2, 5] = False
    for blocks in BLOCKS:
        with small_blocks(NUMPY, blocks):
            got = fused(NUMPY, inputs, {"softcap": 2.0})
        assert all(np.isfinite(x).all() for x in got.values()), blocks


@pytest.mark.parametrize("softcap", [1e-40, 2.0**70])
@pytest.mark.parametrize("t", [11, 300])
def test_a_cap_may_be_of_any_size(t: int, softcap: float) -> None:
    inputs = drawn(2, t, t, 2, h=2, dtype="float32")
    got = fused(NUMPY, inputs, {"softcap": softcap, "causal": True})
    want = held(inputs, {"softcap": softcap, "causal": True}, "float32")
    if softcap > 1:
        judged(got, want)
    assert all(np.isfinite(x).all() for x in got.values())
