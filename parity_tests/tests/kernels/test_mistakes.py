"""Mistakes planted in simulated kernels: every one is seen, most are named, and what is not in the catalogue is not."""

from collections.abc import Iterator, Sequence

import pytest

from parity_tests.kernels.arithmetic import Arithmetic, classes_of
from parity_tests.kernels.canonical import Case, Results
from parity_tests.kernels.causes import cause, wrong_results
from parity_tests.kernels.drawn import KINDS, drawn
from parity_tests.kernels.mistakes import MISTAKES
from parity_tests.kernels.planted import (
    DENSE,
    PACKED,
    PAGED,
    RECURRENT,
    SOFTMAX,
    WITH_GRADIENTS,
    Mistake,
    edited,
    mistake,
    run,
)

SEEDS, WRONG, RIGHT = 100, 6, 4
# Which are named by default; all of them in each kind of kernel, in each type, with `--everything`.
NAMED, PARTS = 33, 8

every, graded, dense, packed = mistake(SOFTMAX), mistake(WITH_GRADIENTS), mistake(DENSE), mistake(PACKED)
paged = mistake(PAGED)
recurrent, step, chunk = mistake(RECURRENT), mistake(RECURRENT, form="step"), mistake(RECURRENT, form="chunk")

# Wrong kernels whose mistake is none of the catalogue's.
HELD_OUT = (
    every("tanh cut off", "", "np.tanh(x / cap)", "np.clip(x / cap, -1, 1)"),
    every(
        "no weight below 2^-10",
        "",
        "self.m.exp2(x - base)",
        "np.where(np.isneginf(x), 0, self.m.exp2(np.maximum(x - base, -10)))",
    ),
    every("slopes squared", "", "self.slopes[:, None, None]", "self.slopes[:, None, None] ** 2"),
    every("values of a block in reverse", "", "self.keys(self.v, columns)))", "self.keys(self.v, columns)[:, ::-1]))"),
    every(
        "log-sum-exp without the logarithm",
        "",
        "(np.where(total > 0, top, 0) + sums)",
        "np.where(total > 0, top, sums)",
    ),
    every(
        "last key of a block not in the sum",
        "",
        "np.sum(p, axis=2, keepdims=True)",
        "np.sum(p[..., :-1], axis=2, keepdims=True)",
    ),
    graded("delta twice", "", "(dp - delta[:, inside, None])", "(dp - 2 * delta[:, inside, None])"),
    graded(
        "dv from squared weights",
        "",
        "dropped = m.narrow(self.dropped(p, rows, columns))",
        "dropped = m.narrow(self.dropped(p * p, rows, columns))",
    ),
    graded("scale twice in dk", "", ", q)[:, :width] * scale", ", q)[:, :width] * scale * scale"),
    dense(
        "dropout divides twice", "", "p / self.m.work.type(1 - self.rate)", "p / self.m.work.type(1 - self.rate) ** 2"
    ),
    packed(
        "sequences in reverse",
        "",
        "in case.spans():\n        count",
        "in [(r, q, s) for (r, q, _), (_, _, s) in zip(case.spans(), case.spans()[::-1], strict=True)]:\n        count",
    ),
    paged("last key of a row not seen", "", "s=length,", "s=max(1, length - 1),"),
    recurrent("beta squared", "", "m.load(case.beta[row, at]).T", "m.load(case.beta[row, at] ** 2).T"),
    recurrent("gate twice", "", "        log_decay=log_decay,", "        log_decay=2 * log_decay,"),
    step(
        "erasure along the next key",
        "",
        "v_new = v_new - m.dot(turned(k), state)",
        "v_new = v_new - m.dot(self.k[:, (i + 1) % self.k.shape[1], None], state)",
    ),
    step("gradient of beta twice", "", "dbeta[:, i] = np.sum(", "dbeta[:, i] = 2 * np.sum("),
    chunk("inverse without its sign", "", "found[:, i, :i] = -(", "found[:, i, :i] = ("),
    chunk(
        "products of a chunk with the diagonal",
        "",
        "np.tril(np.ones((count, count), m.work), -1)\n        decay_in",
        "np.tril(np.ones((count, count), m.work))\n        decay_in",
    ),
)


def arithmetics(planted: Mistake, dtype: str) -> tuple[Arithmetic, Arithmetic]:
    """What a planted kernel computes in, and what it promises: something wider, but where the mistake is of that."""
    every = classes_of(dtype)
    return every[0], every[0] if planted.precise or dtype == "float64" else every[1]


def results(planted: Mistake, kind: str, dtype: str) -> Iterator[tuple[bool, Case, Results]]:
    """Whether a planted kernel is wrong, case by case; those in which it reads or writes outside are left out."""
    has, promises = arithmetics(planted, dtype)
    for seed in range(SEEDS):
        case = drawn(kind, seed, dtype)
        try:
            got = run(case, has, planted)
        except (IndexError, ValueError):
            continue
        yield bool(wrong_results(case, got, promises)), case, got


def evidence(planted: Mistake, kind: str, dtype: str) -> Sequence[tuple[Case, Results]]:
    """Some cases that a planted kernel gets wrong, and some that it gets right."""
    wrong, right = [], []
    for is_wrong, case, got in results(planted, kind, dtype):
        (wrong if is_wrong else right).append((case, got))
        if len(wrong) >= WRONG and len(right) >= RIGHT:
            break
    return wrong[:WRONG] + right[:RIGHT]


def dtype_of(planted: Mistake) -> str:
    return "bfloat16" if planted.precise else "float32"


def test_there_are_enough_of_each_kind() -> None:
    assert len({planted.name for planted in MISTAKES}) == len(MISTAKES) >= 60
    assert all(sum(kind in planted.kinds for planted in MISTAKES) >= 15 for kind in KINDS)
    assert all(planted.fix for planted in MISTAKES)
    assert all(edited(planted) for planted in (*MISTAKES, *HELD_OUT))


@pytest.mark.parametrize("planted", MISTAKES, ids=str)
def test_a_planted_mistake_is_seen(planted: Mistake) -> None:
    """In a kernel of each kind that may have it; by default of the last one."""
    assert any(wrong for wrong, _, _ in results(planted, planted.kinds[-1], dtype_of(planted)))


@pytest.mark.left_out
@pytest.mark.parametrize("planted", MISTAKES, ids=str)
def test_a_planted_mistake_is_seen_in_every_kind_of_kernel(planted: Mistake) -> None:
    for kind in planted.kinds:
        assert any(wrong for wrong, _, _ in results(planted, kind, dtype_of(planted))), kind


@pytest.mark.parametrize("planted", MISTAKES[::NAMED], ids=str)
def test_a_planted_mistake_is_named(planted: Mistake) -> None:
    found = cause(evidence(planted, planted.kinds[-1], dtype_of(planted)), arithmetics(planted, dtype_of(planted))[1])
    assert found == planted


@pytest.mark.left_out
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_three_of_four_are_named_and_none_wrongly(dtype: str, part: int, capsys: pytest.CaptureFixture[str]) -> None:
    of = [
        (planted, kind)
        for planted in MISTAKES[part::PARTS]
        for kind in planted.kinds
        if not planted.precise or dtype == "bfloat16"
    ]
    unnamed = []
    for n, (planted, kind) in enumerate(of):
        found = cause(evidence(planted, kind, dtype), arithmetics(planted, dtype)[1])
        assert found in (planted, None), (planted, kind, found)
        unnamed += [(planted.name, kind)] if found is None else []
        if n % 20 == 0:
            with capsys.disabled():
                print(f"{dtype}, part {part}: {n + 1} of {len(of)}, {len(unnamed)} without a name", flush=True)
    assert 4 * len(unnamed) <= len(of), unnamed


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        pytest.param(planted, kind, marks=() if n % 4 == 0 and kind == planted.kinds[0] else pytest.mark.left_out)
        for n, planted in enumerate(HELD_OUT)
        for kind in planted.kinds
    ],
    ids=str,
)
def test_a_mistake_that_is_not_in_the_catalogue_is_seen_and_not_named(planted: Mistake, kind: str) -> None:
    given = evidence(planted, kind, "float32")
    assert any(wrong_results(case, got, classes_of("float32")[1]) for case, got in given)
    assert cause(given, classes_of("float32")[1]) is None


@pytest.mark.parametrize("kind", KINDS)
def test_right_kernels_have_no_cause(kind: str) -> None:
    has, promises = classes_of("float32")[:2]
    given = [(case, run(case, has)) for case in (drawn(kind, seed, "float32") for seed in range(4))]
    assert cause(given, promises) is None
