"""Patterns: what intervals say of blocks is true, what is hidden is skipped, and a pattern of a user's own works."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attn_np
import attn_torch
from attn_jax.kernels import flash as jax_kernels
from attn_np import patterns
from attn_np.attention.masks import block_table, visible_pairs
from attn_np.contract._intervals import Interval
from attn_np.contract._patterns import Pattern, from_text
from attn_np.kernels import flash as numpy_kernels
from attn_np.kernels.blocks import index_of
from attn_torch.kernels import blocks as torch_blocks
from attn_torch.kernels.unseen import PackedPattern
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Tree
from parity_tests.tests.witness import ratio


@dataclass(frozen=True)
class Strided(Pattern):
    """Every so many positions, and only the later half of the keys: of a user's own."""

    stride: int

    def allows(self, query: Any, key: Any) -> Any:
        return (abs(query - key) % self.stride == 0) & (2 * key >= query)


def drawn(seed: int) -> tuple[Pattern, np.ndarray, int, int]:
    rng = np.random.default_rng(seed)
    t, s = (int(n) for n in rng.integers(1, 40, 2))
    return *kernels.drawn_pattern(rng, 2, t, s), t, s


EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "differences": lambda q, k: (q - k <= 3) & (k - q < 5),
    "distances": lambda q, k: (abs(q - k) > 2) | (q == k),
    "near": lambda q, k: abs(q - k) <= 4,
    "far": lambda q, k: abs(k - q) > 4,
    "remainder of a distance": lambda q, k: abs(q - k) % 5 >= 3,
    "quotients": lambda q, k: ~(q // 3 != k // 3),
    "remainders": lambda q, k: (q + 2 * k) % 5 >= 3,
    "a product": lambda q, k: (-3 * q + k * 2 >= -7) & (4 - q < k),
}


@given(
    st.sampled_from(sorted(EXPRESSIONS)), st.integers(0, 20), st.integers(0, 9), st.integers(0, 20), st.integers(0, 9)
)
@settings(max_examples=600, deadline=None)
def test_intervals_say_nothing_false(name: str, q: int, more_q: int, k: int, more_k: int) -> None:
    """What some pair meets may be met, and what is met by every pair is; a single pair is decided."""
    condition = EXPRESSIONS[name]
    ends = [np.asarray([x]) for x in (q, q + more_q, k, k + more_k)]
    known = condition(Interval(*ends[:2]), Interval(*ends[2:]))
    met = condition(np.arange(q, q + more_q + 1)[:, None], np.arange(k, k + more_k + 1))
    assert known.possible[0] >= met.any()
    assert known.certain[0] <= met.all()
    if more_q == more_k == 0:
        assert known.possible[0] == known.certain[0] == met.all()


@pytest.mark.parametrize("seed", range(40))
def test_block_table_and_pairs(seed: int) -> None:
    pattern, want, t, s = drawn(seed)
    at = (np.arange(t) + (s - t))[None], np.arange(s)[None]
    pairs = np.broadcast_to(visible_pairs(pattern, *at), (2, 1, t, s))
    np.testing.assert_array_equal(pairs, want)
    table = block_table(pattern, t, s, 4, 3, like=np.zeros(1))
    for i, j in np.ndindex(-(-t // 4), -(-s // 3)):
        block = pairs[:, 0, 4 * i : 4 * i + 4, 3 * j : 3 * j + 3].reshape(2, -1)
        possible, certain = (np.broadcast_to(x[:, i, j], 2) for x in (table.possible, table.certain))
        assert (possible >= block.any(1)).all()
        assert (certain <= block.all(1)).all()


@pytest.mark.parametrize("seed", range(8))
def test_text_and_arrays_are_the_pattern(seed: int) -> None:
    pattern, want, t, s = drawn(seed)
    arrays = iter([x for _, x in pattern.arrays()])
    again = from_text(pattern.as_text(), lambda axes: next(arrays))
    at = (np.arange(t) + (s - t))[None], np.arange(s)[None]
    np.testing.assert_array_equal(np.broadcast_to(visible_pairs(again, *at), want.shape), want)


def blocks_met(pattern: Pattern, t: int, b: int = 1) -> int:
    """How many scores NumPy's kernel computes."""
    q = np.zeros((b, t, 1, 2))
    arguments = numpy_kernels.Arguments(
        q, q, q, None, None, numpy_kernels.Band(t, t), pattern, scale=1.0, softcap=None, sinks=None, exp_factor=1.0
    )
    found = 0
    for block in numpy_kernels.query_blocks(arguments, 1):
        for part, keys, _ in numpy_kernels.visible_blocks(arguments, block):
            found += part.queries.length * len(np.arange(t)[index_of(keys)])
    return found


LINEAR: dict[str, Callable[[int], Pattern]] = {
    "chunks": lambda t: patterns.Chunks(128),
    "window": lambda t: patterns.Window(64, 64),
    "documents": lambda t: patterns.Documents(*[np.arange(t)[None] // 100] * 2),
    "global": lambda t: patterns.Window(64, 64) | patterns.GlobalKeys(np.arange(t)[None] == 7),
    "dilated": lambda t: patterns.Dilated(4) & patterns.Window(64, 64),
    # Any block of 64 positions, far apart from the next one's: a part of a block of queries is asked about by itself.
    "a block for each": lambda t: patterns.ChosenChunk(64, np.arange(t)[None] // 64 * 37 % (t // 64)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_cost_grows_with_the_length(name: str) -> None:
    """Four times the length, at most five times the scores, and of 1024 positions less than a third of all."""
    short, long = (blocks_met(LINEAR[name](t), t) for t in (1024, 4096))
    assert long <= 5 * short
    assert 3 * short < 1024 * 1024


def test_each_sequence_meets_its_own_blocks() -> None:
    """Four sequences that choose other blocks, one for each block of queries: no tree computes scores of a third."""
    b, t, block = 4, 1024, 64
    numbers = (np.arange(t) // block + 5 * np.arange(1, b + 1)[:, None]) % (t // block)
    pattern = patterns.Chunks(block) | patterns.ChosenChunk(block, numbers)
    want = visible_pairs(pattern, np.arange(t)[None], np.arange(t)[None]).sum()
    assert want == 2 * b * t * block
    assert blocks_met(pattern, t, b) == want
    q = torch.zeros(b, t, 1, 2)
    pattern_text, *arrays = PackedPattern.of(pattern.map(lambda axes, x: torch.asarray(x)))
    call = torch_blocks.BlockedCall(q, q, q, None, None, None, *arrays, None, None, None, 1.0, None, pattern_text)
    met = [
        (x.batch.stop - x.batch.start) * (x.queries.stop - x.queries.start) * torch_blocks.count(x.keys)
        for x in call.blocks()
    ]
    assert sum(met) == want
    q, places = jnp.asarray(q), tuple(jnp.asarray(x) for _, x in pattern.arrays())
    plan = jax_kernels._plan(q, q, q, None, None, 1.0, None, pattern.map(lambda axes, x: None), False)
    key_loop = jax_kernels._key_loop(plan, places, q, False)
    steps = sum(int(end) - first for first, end, _ in (key_loop(i) for i in range(plan.num_query_blocks)))
    assert steps * plan.block_queries * plan.block_keys * b == want


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_pattern_of_ones_own(tree: Tree) -> None:
    """The fast path in small blocks gives what the textbook gives, and the textbook what the same mask gives."""
    rng = np.random.default_rng(0)
    q, k, v = (tree.array(rng.normal(size=(2, 30, 2, 4))) for _ in range(3))
    i, j = np.arange(30)[:, None], np.arange(30)
    mask = (abs(i - j) % 3 == 0) & (2 * j >= i)
    module = tree.package
    (setting, *_) = kernels.SMALL[tree.name]
    by_mask = tree.numpy(module.attend(q, k, v, mask=tree.array(mask), implementation="textbook")[0])
    by_hand = tree.numpy(module.attend(q, k, v, pattern=Strided(3), implementation="textbook")[0])
    np.testing.assert_array_equal(by_hand, by_mask)
    with kernels.blocks(kernels.TREES[tree.name], setting):
        fast = tree.numpy(module.attend(q, k, v, pattern=Strided(3), implementation="fused")[0])
    exact = {name: ErrArray(tree.numpy(x), 0.0) for name, x in (("q", q), ("k", k), ("v", v))} | {"mask": mask}
    with precision(fast_precision_of(tree.name, "float64")):
        plain = {"scale": None, "softcap": None}
        want = kernels.by_numpy(exact, ErrArray(np.ones_like(fast), 0.0), plain, "textbook")["context"]
    assert ratio(fast, want) <= 1


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_what_is_no_pattern_is_refused(tree: Tree) -> None:
    attend, q = tree.package.attend, tree.array(np.zeros((2, 4, 1, 3)))
    with pytest.raises(TypeError, match=r"^attend: expected pattern to be one of `patterns`.*got tuple; pass an array"):
        attend(q, q, q, pattern=(3, 0))
    short = tree.array(np.zeros((2, 3), np.int32))
    with pytest.raises(ValueError, match=r"^attend: expected an array of the pattern of shape b t = \(2, 4\), got"):
        attend(q, q, q, pattern=patterns.Documents(short, short))
    floats, marks = tree.array(np.zeros((2, 4))), tree.array(np.zeros((2, 4), bool))
    with pytest.raises(TypeError, match=r"^attend: expected integers or booleans in a pattern.s array b t, got float"):
        attend(q, q, q, pattern=patterns.Documents(floats, floats))
    with pytest.raises(TypeError, match=r"^Documents: expected query_documents as integers, got bool; convert it"):
        attend(q, q, q, pattern=patterns.Documents(marks, marks))
    with pytest.raises(TypeError, match=r"^GlobalKeys: expected marks as booleans, got float64; convert it"):
        attend(q, q, q, pattern=patterns.Causal() & patterns.GlobalKeys(floats))


@pytest.mark.parametrize("bad", [0, -2, 1.5, True, None])
def test_sizes_of_patterns(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^Chunks: expected size to be a whole number from 1"):
        patterns.Chunks(bad)
    with pytest.raises(ValueError, match=r"^Dilated: expected dilation to be a whole number from 1"):
        patterns.Dilated(bad)
    if bad not in (0, None):
        with pytest.raises(ValueError, match=r"^Window: expected left to be a whole number from 0, or None"):
            patterns.Window(bad, 0)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_class_that_is_made_again_is_the_new_one(tree: Tree) -> None:
    """As in a notebook, and a class may have the name of one of ours."""
    x, v = (tree.array(x) for x in (np.zeros((1, 30, 1, 4)), np.eye(30)[None, :, None]))
    i, j = np.arange(30)[:, None], np.arange(30)

    def made(sign: int, name: str) -> Any:
        def allows(self: Any, query: Any, key: Any) -> Any:
            return sign * (key - query) >= 0

        return dataclass(frozen=True)(type(name, (Pattern,), {"allows": allows, "__module__": __name__}))

    for name in ("Window", "Mine"):
        old = made(-1, name)()
        for sign in (-1, 1):
            pattern = made(sign, name)()
            with kernels.blocks(kernels.TREES[tree.name], kernels.SMALL[tree.name][0]):
                context = tree.numpy(tree.package.attend(x, x, v, pattern=pattern, implementation="fused")[0])
            np.testing.assert_array_equal(context[0, :, 0] > 0, sign * (j - i) >= 0)
        with pytest.raises(TypeError, match=f"{name}: expected one class of this name, got a second"):
            old.as_text()


def test_fields_by_keyword_and_of_an_unsigned_kind() -> None:
    @dataclass(frozen=True, kw_only=True)
    class From(Pattern):
        first: Any
        step: int = 1
        axes = {"first": "b t"}

        def allows(self, query: Any, key: Any) -> Any:
            return (key - self.first >= 0) & ((key - self.first) % self.step == 0)

    first = np.arange(12, dtype=np.uint8)[None] // 2
    table = block_table(From(first=first, step=2), 12, 12, 1, 1, like=np.zeros(1))
    want = np.arange(12) - first[0][:, None].astype(int)
    np.testing.assert_array_equal(table.certain[0], (want >= 0) & (want % 2 == 0))


@dataclass(frozen=True)
class NotLong(Pattern):
    """Keys of the query's document and of the two before it, by the difference of numbers that may be unsigned."""

    queries: Any
    keys: Any
    axes = {"queries": "b t", "keys": "b s"}

    def allows(self, query: Any, key: Any) -> Any:
        return (self.queries >= self.keys) & (self.queries - self.keys <= 2)


def test_differences_of_unsigned_numbers_hide_no_block_that_is_seen() -> None:
    at = np.arange(12)[None]
    for seed in range(20):
        pattern = NotLong(*np.random.default_rng(seed).integers(0, 7, (2, 2, 12), np.uint8))
        table = block_table(pattern, 12, 12, 4, 3, like=np.zeros(1))
        pairs = visible_pairs(pattern, at, at).reshape(2, 3, 4, 4, 3)
        assert not (pairs.any((2, 4)) & ~table.possible).any() and not (table.certain & ~pairs.all((2, 4))).any()


@dataclass(frozen=True)
class OfWords(Pattern):
    """With a field that is no number."""

    words_of: Any
    first: Any = None

    def allows(self, query: Any, key: Any) -> Any:
        return key >= query


class NoDataclass(Pattern):
    """With a constructor of its own."""

    def __init__(self, n: int) -> None:
        object.__setattr__(self, "n", n)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (OfWords((1, 2)), r"^OfWords: expected words_of to be a number, None or a pattern, got \(1, 2\); say by axes="),
        (patterns.Chunks(3) | OfWords(float("inf")), r"^OfWords: expected words_of to be a number.*got inf"),
        (NoDataclass(3), r"^NoDataclass: expected a frozen dataclass, got NoDataclass; write @dataclass"),
    ],
    ids=["tuple", "infinity", "constructor"],
)
def test_classes_that_cannot_be_taken_apart_are_refused(pattern: Pattern, message: str) -> None:
    q = np.zeros((1, 4, 1, 2))
    with pytest.raises(TypeError, match=message):
        attn_np.attend(q, q, q, pattern=pattern)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda q, k: 0 <= q - k < 4, "joined by & | ~, got and, or, not"),
        (lambda q, k: (k <= q) and (q < 8), "joined by & | ~, got and, or, not"),
        (lambda q, k: (q - k) % 0 == 0, "expected a divisor that is a whole number from 1, got 0"),
        (
            lambda q, k: q // k == 1,
            "a divisor that is a whole number from 1, got a position; positions may be multiplied",
        ),
        (lambda q, k: q * k >= 1, "expected a factor that is a whole number, got a position; positions may be"),
        (lambda q, k: q * 1.5 >= k, "expected a factor that is a whole number, got 1.5; choose one"),
    ],
)
def test_what_intervals_cannot_answer_is_refused(condition: Callable[[Any, Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        condition(Interval(0, 3), Interval(0, 3))


def test_compiled_and_mapped() -> None:
    """torch.compile with lengths that vary, and `vmap`, in PyTorch's blocks."""
    rng = np.random.default_rng(1)
    x, ids = torch.tensor(rng.normal(size=(3, 2, 40, 2, 4))), torch.tensor(rng.integers(0, 3, (3, 2, 40)))

    def call(x: Any, ids: Any) -> Any:
        pattern = patterns.Documents(ids, ids) & patterns.Chunks(9)
        return attn_torch.attend(x, x, x, pattern=pattern, implementation="fused")[0]

    with kernels.blocks("attn_torch", kernels.SMALL["torch"][0]):
        want = torch.stack([call(*row) for row in zip(x, ids, strict=True)])
        # Products of more matrices at once may add in another order: sums over 4 dimensions, then over 40 keys, twice.
        bound = 2 * (4 + 40) * torch.finfo(x.dtype).eps * x.abs().max()
        assert (torch.vmap(call)(x, ids) - want).abs().max() <= bound
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
        for n in (40, 33):
            assert torch.equal(compiled(x[0, :, :n], ids[0, :, :n]), call(x[0, :, :n], ids[0, :, :n]))
