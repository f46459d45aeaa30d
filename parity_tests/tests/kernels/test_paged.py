"""`attend_paged` and `write_pages`: keys and values in a pool of pages, and a table of those of each sequence.

The witness goes through tables, pages and positions one number at a time. What no query may see is NaN: other pages,
pages that the table names beyond the lengths, positions before a window.
"""

import runpy
import tracemalloc
from math import exp, inf, log, tanh
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_jax
import attn_np
import attn_torch
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, same
from parity_tests.tests.kernels.test_merge import cotangents, differentiated, lifted
from parity_tests.tests.witness import cotangent, ratio

ROOT = Path(__file__).parents[3]
# Pages, positions of each, heads of keys, widths of keys and values, heads and positions of queries.
N, P, G, K, V, H, T = 11, 3, 2, 5, 7, 6, 2
# The second and third sequence share a page; -1 and 99 are no pages.
TABLE = np.array([[4, 2, 7, 9, -1], [8, 5, 99, -1, 99], [8, 0, 2, -1, -1], [6, -1, -1, -1, -1]])
LENGTHS = np.array([11, 5, 7, 1])
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "causal": ({"causal": True}, ""),
    "a window": ({"causal": True, "window": 2, "softcap": 1.5}, "sinks"),
    "a window both ways": ({"window": (3, 1), "offset": np.array([4, 3, 0, 0]), "scale": 0.375}, ""),
    "a window ahead": ({"window": (0, 4)}, ""),
    "from one position": ({"causal": True, "offset": 2}, "sinks"),
}


def options_of(call: str, array: Any) -> dict[str, Any]:
    return {name: array(x) if isinstance(x, np.ndarray) else x for name, x in CALLS[call][0].items()}


def sees(call: str, row: int, query: int, key: int) -> bool:
    options = CALLS[call][0]
    offset = np.broadcast_to(options.get("offset", LENGTHS - T), len(LENGTHS))
    left, right = options.get("window", (inf, inf)) if not isinstance(options.get("window"), int) else (2, inf)
    at, right = offset[row] + query, 0 if options.get("causal") else right
    return key < LENGTHS[row] and -left <= key - at <= right


def given(call: str, poison: bool = True) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"q": (len(TABLE), T, H, K), "k_pages": (N, P, G, K), "v_pages": (N, P, G, V), "sinks": (H,)}
    found = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    seen = np.zeros((N, P), bool)
    for row, length in enumerate(LENGTHS):
        for key in range(length):
            seen[TABLE[row, key // P], key % P] |= any(sees(call, row, query, key) for query in range(T))
    for name in ("k_pages", "v_pages"):
        found[name][~seen] = np.nan if poison else 0.0
    return {name: x for name, x in found.items() if name in f"q k_pages v_pages {CALLS[call][1]}".split()}


def loops(call: str) -> Arrays:
    """The context and the lse, one number at a time."""
    inputs, options = given(call), CALLS[call][0]
    context, lse = np.zeros((len(TABLE), T, H, V)), np.zeros((len(TABLE), H, T))
    for row, query, head in np.ndindex(len(TABLE), T, H):
        raised: dict[int, float] = {}
        for key in range(LENGTHS[row]):
            if sees(call, row, query, key):
                vector = inputs["k_pages"][TABLE[row, key // P], key % P, head // (H // G)]
                score = sum(float(a * b) for a, b in zip(inputs["q"][row, query, head], vector, strict=True))
                score *= options.get("scale", K**-0.5)
                cap = options.get("softcap")
                score = score if cap is None else cap * tanh(score / cap)
                raised[key] = exp(score)
        total = sum(raised.values()) + (exp(inputs["sinks"][head]) if "sinks" in inputs else 0.0)
        lse[row, head, query] = log(total) if total else -inf
        for key, weight in raised.items():
            value = inputs["v_pages"][TABLE[row, key // P], key % P, head // (H // G)]
            context[row, query, head] += weight / total * value
    return {"context": context, "lse": lse}


def held(call: str) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """What the reference gives with its bounds, and the cotangents of context and lse."""
    some: Any = lifted(given(call, poison=False)) | {"table": TABLE, "lengths": LENGTHS, "return_lse": True}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        options = CALLS[call][0]
        (y, lse), pull = attn_np.value_and_vjp(attn_np.attend_paged, **some, **options)
        dy, dlse = cotangent(y.shape), cotangents(lse.v)
        grads: Any = pull(ErrArray(dy, 0.0), ErrArray(dlse, 0.0)).inputs
    return {"context": y, "lse": lse} | {f"d{name}": x for name, x in grads.items()}, dy, dlse


def results(tree: Tree, package: Any, call: str, dy: np.ndarray, dlse: np.ndarray) -> Arrays:
    """The context, the lse and the gradients by a package; in JAX of a program, to which every number is traced."""
    inputs, options = given(call), options_of(call, tree.array) | {"return_lse": True}
    places = {"table": tree.array(TABLE), "lengths": tree.array(LENGTHS)}
    if tree.name == "numpy":
        with np.errstate(invalid="ignore"):
            (y, lse), pull = package.value_and_vjp(package.attend_paged, **inputs, **places, **options)
            grads = {f"d{name}": x for name, x in pull(dy, dlse).inputs.items()}
        return {"context": y, "lse": lse} | grads

    def attended(table: Any, lengths: Any, **arrays: Any) -> Any:
        return package.attend_paged(**arrays, table=table, lengths=lengths, **options)

    program = jax.jit(attended) if tree.name == "jax" else attended
    (y, lse), grads = differentiated(tree, lambda **x: program(**places, **x), inputs, dy, dlse)
    return {"context": y, "lse": lse} | grads


@pytest.mark.parametrize("call", CALLS)
def test_scalar_loops(call: str) -> None:
    want, _, _ = held(call)
    for name, x in loops(call).items():
        assert ratio(x, want[name]) <= 1, name


@pytest.mark.parametrize("call", CALLS)
def test_what_nobody_sees_may_be_anything(tree: Tree, call: str) -> None:
    """Forward and backward within the bounds, where the rest of the pool is NaN; its gradient is 0."""
    want, dy, dlse = held(call)
    found = results(tree, tree.package, call, dy, dlse)
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert ratio(x, want[name]) <= 1, name
    hidden = np.isnan(given(call)["k_pages"])
    assert hidden.any() and not found["dk_pages"][hidden].any()


def test_gradients_are_those_of_keys_in_order() -> None:
    """By PyTorch's autograd of its own function, for keys that are gathered by an index that is made by hand."""
    want, dy, _ = held("plain")
    leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in given("plain", poison=False).items()}
    for row, length in enumerate(LENGTHS):
        index = [(int(TABLE[row, key // P]), key % P) for key in range(length)]
        k, v = (torch.stack([leaves[name][at] for at in index]) for name in ("k_pages", "v_pages"))
        q, k, v = (x.transpose(0, 1) for x in (leaves["q"][row], k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        (y.transpose(0, 1) * torch.from_numpy(dy[row])).sum().backward()
    arrays: Any = given("plain", poison=False) | {"table": TABLE, "lengths": LENGTHS}
    outputs = attn_np.value_and_vjp(attn_np.attend_paged, **arrays)
    for name, grad in outputs[1](dy).inputs.items():
        assert leaves[name].grad is not None
        bound = ErrArray(np.asarray(leaves[name].grad), 2 * want[f"d{name}"].b)
        assert ratio(grad, bound) <= 1, name


@pytest.mark.parametrize("options", [{"causal": True}, {"causal": True, "window": 3}])
def test_slopes_fall_with_the_distance_of_positions(tree: Tree, options: dict[str, Any]) -> None:
    """As a bias of each pair of positions does, for keys that are gathered by hand; so do the gradients of slopes."""
    inputs, slopes, total = (
        given("causal", poison=False),
        np.array([0.5, 0.25, 1.0, 2.0, 0.125, 0.75]),
        ErrArray(np.zeros(H), 0.0),
    )
    places, want = {"table": TABLE, "lengths": LENGTHS}, []
    dy = cotangent((len(TABLE), T, H, V))
    for row, length in enumerate(LENGTHS):
        key = np.arange(length)
        at = TABLE[row, key // P], key % P
        distance = np.abs(key - (length - T + np.arange(T))[:, None])
        one: Any = {"q": inputs["q"][[row]], "k": inputs["k_pages"][at][None], "v": inputs["v_pages"][at][None]}
        one["bias"] = -slopes[:, None, None] * distance
        with precision(precision_of("float64")), np.errstate(invalid="ignore"):
            (y, _), pull = attn_np.value_and_vjp(attn_np.attend, **lifted(one), **options)
            grads: Any = pull(ErrArray(dy[[row]], 0.0)).inputs
            total = total + (grads["bias"] * -ErrArray(np.array(distance, float), 0.0)).sum(-1).sum(-1)
        want.append(y)
    array = tree.array(slopes)
    terms = tree.package.terms.Slopes(array)
    y = tree.package.attend_paged(**tree.arrays(inputs | places), terms=terms, **options)
    for row, held_row in enumerate(want):
        assert ratio(tree.numpy(y)[[row]], held_row) <= 1
    if tree.name == "numpy":
        call = attn_np.value_and_vjp(attn_np.attend_paged, **inputs, **places, terms=terms, **options)
        found: Any = call[1](dy).inputs
        assert ratio(found["terms"]["slopes"], ErrArray(total.v, 2 * total.b)) <= 1


def test_16_bits_are_rounded_once(tree: Tree) -> None:
    inputs = {name: x.astype(DTYPES["bfloat16"]) for name, x in given("causal").items()}
    places = {"table": TABLE.astype("int32"), "lengths": LENGTHS.astype("uint8")}
    y = tree.package.attend_paged(**tree.arrays(inputs | places), causal=True)
    wide = {name: x.astype(np.float32) for name, x in inputs.items()}
    want = tree.numpy(tree.package.attend_paged(**tree.arrays(wide | places), causal=True))
    assert same(tree.numpy(y), want.astype(DTYPES["bfloat16"]))


# A step reads and writes what its sequences have, whatever the pool has besides ---------------------------------------


def peak_of(pool: int, window: Any) -> int:
    """The most memory that a call of NumPy takes for 8 positions in a pool."""
    q, pages = np.ones((1, 1, 1, 64)), np.ones((pool, 4, 1, 64))
    table, lengths = np.arange(16)[None] % pool, np.array([64 if window else 8])
    call: Any = lambda: attn_np.attend_paged(q, pages, pages, table, lengths, causal=True, window=window)  # noqa: E731
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("window", [None, 4])
def test_memory_is_that_of_the_positions_that_are_seen(window: int | None) -> None:
    """A pool 64 times as large costs nothing; keys and values of 12 positions, copied a few times, are 12 kB each."""
    small, large = peak_of(16, window), peak_of(1024, window)
    assert large < small + 12 * 64 * 8
    assert large < 8 * 2 * 12 * 64 * 8


def temporary_of(pool: int, write: bool) -> int:
    """The bytes that a program of JAX has of its own, with the pages donated."""
    import attn_jax

    pages, table = jax.ShapeDtypeStruct((pool, 4, 1, 64), "float32"), jax.ShapeDtypeStruct((1, 8), "int32")
    new, places = jax.ShapeDtypeStruct((1, 1, 1, 64), "float32"), jax.ShapeDtypeStruct((1, 1), "int32")
    if write:
        program = jax.jit(attn_jax.write_pages, donate_argnums=0).lower(pages, new, table, places)
    else:
        lengths = jax.ShapeDtypeStruct((1,), "int32")
        program = jax.jit(attn_jax.attend_paged).lower(new, pages, pages, table, lengths)
    memory: Any = program.compile().memory_analysis()
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("write", [False, True])
def test_memory_of_a_program_does_not_depend_on_the_pool(write: bool) -> None:
    assert temporary_of(1024, write) == temporary_of(16, write)


def test_torch_and_numpy_write_in_place() -> None:
    for name in ("numpy", "torch"):
        tree = TREES[name]
        pages = tree.array(np.zeros((N, P, 1)))
        new, places = tree.array(np.ones((1, 1, 1))), tree.array(np.array([[0]]))
        assert tree.package.write_pages(pages, new, places, places) is pages
        assert pages[0, 0, 0] == 1


# Writing --------------------------------------------------------------------------------------------------------------

POSITIONS = {
    "new ones": np.array([[11, 12, 13], [5, -1, -1], [-1, 7, 8], [-1, -1, -1]]),
    "none": np.full((4, 3), -1),
    "one": np.array([[-1, -1, -1], [-1, -1, 4], [-1, -1, -1], [-1, -1, -1]]),
    "a first one, which is not the first of the call": np.array([[-1, -1, 0], [2, 1, 0], [5, 3, 4], [-1, -1, -1]]),
}
WRITTEN = np.array([[4, 2, 7, 9, 1], [8, 5, 99, -1, 99], [3, 0, 10, -1, -1], [99, -1, -1, -1, -1]])


def drawn_pages() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, P, G, K)), rng.normal(size=(4, 3, G, K)), rng.normal(size=(N, P, G, K))


def written_by_hand(case: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pages after, and the gradients of pages and entries, position by position."""
    pages, new, dy = drawn_pages()
    dpages, dnew = dy.copy(), np.zeros_like(new)
    for (row, i), at in np.ndenumerate(POSITIONS[case]):
        if at >= 0:
            page, place = WRITTEN[row, at // P], at % P
            pages[page, place], dnew[row, i], dpages[page, place] = new[row, i], dy[page, place], 0.0
    return pages, dpages, dnew


def written(tree: Tree, package: Any, case: str) -> tuple[np.ndarray, ...]:
    pages, new, dy = drawn_pages()
    places = tree.array(WRITTEN), tree.array(POSITIONS[case])
    if tree.name == "numpy":
        y, pull = package.value_and_vjp(package.write_pages, pages, new, *places)
        grads = pull(dy).inputs
        return y, grads["pages"], grads["new"]
    if tree.name == "torch":
        leaves = [torch.from_numpy(x.copy()).requires_grad_() for x in (pages, new)]
        y = package.write_pages(*leaves, *places)
        grads = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
        return y.detach().numpy(), grads[0].numpy(), grads[1].numpy()

    @jax.jit
    def program(pages: Any, new: Any, dy: Any, places: Any) -> Any:
        y, pull = jax.vjp(lambda pages, new: package.write_pages(pages, new, *places), pages, new)
        return y, *pull(dy)

    return tuple(np.asarray(x) for x in program(*map(tree.array, (pages, new, dy)), places))


@pytest.mark.parametrize("case", POSITIONS)
def test_entries_are_where_they_belong_and_nowhere_else(tree: Tree, case: str) -> None:
    found = written(tree, tree.package, case)
    for x, want in zip(found, written_by_hand(case), strict=True):
        assert np.array_equal(x, want)
    pages, new, _ = map(tree.array, drawn_pages())
    plain = tree.package.write_pages(pages, new, tree.array(WRITTEN), tree.array(POSITIONS[case]))
    assert np.array_equal(tree.numpy(plain), found[0])


def test_entries_are_rounded_to_the_dtype_of_the_pages(tree: Tree) -> None:
    pages, new, _ = drawn_pages()
    places = tree.array(WRITTEN), tree.array(POSITIONS["new ones"])
    y = tree.package.write_pages(tree.array(pages.astype(DTYPES["bfloat16"])), tree.array(new), *places)
    assert same(tree.numpy(y)[7], written_by_hand("new ones")[0][7].astype(DTYPES["bfloat16"]))


# The example ----------------------------------------------------------------------------------------------------------

EXAMPLE = str(ROOT / "examples/continuous_batching.py")
# By name: which function, and the argument that it gets wrong.
MISTAKES: dict[str, tuple[str, int, Any]] = {
    "written to the wrong page": ("write_pages", 2, lambda table: table.roll(1, 1).clamp(min=0)),
    "written to the wrong place": ("write_pages", 3, lambda positions: positions ^ (positions >= 0)),
    "another request's pages": ("attend_paged", 3, lambda table: table.roll(1, 0).clamp(min=0)),
    "the order of pages ignored": ("attend_paged", 3, lambda table: table.clamp(min=0).sort(1).values),
    "the new position not seen": ("attend_paged", 4, lambda lengths: lengths - 1),
}


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert capsys.readouterr().out == "63 tokens in 26 calls; 10 of 10 requests as alone\n"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_example_sees_a_mistake(
    mistake: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, index, wrong = MISTAKES[mistake]
    package = TREES["torch"].package
    real = getattr(package, name)

    def call(*args: Any, **options: Any) -> Any:
        return real(*args[:index], wrong(args[index]), *args[index + 1 :], **options)

    monkeypatch.setattr(package, name, call, raising=False)
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert int(capsys.readouterr().out.split(";")[1].split()[0]) < 10


# What is refused ------------------------------------------------------------------------------------------------------

READS: Any = given("plain", poison=False) | {"table": TABLE, "lengths": LENGTHS}
WRITES: Any = {"pages": drawn_pages()[0], "new": drawn_pages()[1], "table": WRITTEN, "positions": POSITIONS["new ones"]}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a page that the pool lacks": ({"table": TABLE + N}, ValueError, "expected table of pages from 0 to 10, got 20"),
    "no page where one is read": (
        {"lengths": np.array([11, 7, 7, 1])}, ValueError, "expected table of pages from 0 to 10, got 99",
    ),
    "a page below 0": ({"table": TABLE - 9}, ValueError, "expected table of pages from 0 to 10, got -9"),
    "a length beyond the table": (
        {"lengths": LENGTHS + 5}, ValueError, "expected lengths from 0 to 15, which is 5 pages of 3 positions, got 16",
    ),
    "a length below 0": ({"lengths": LENGTHS - 2}, ValueError, "expected lengths from 0 to 15, which is 5 pages of 3"),
    "lengths of another batch": ({"lengths": LENGTHS[1:]}, ValueError, "expected lengths of shape (4,), got (3,)"),
    "lengths that are floats": ({"lengths": LENGTHS / 2}, TypeError, "expected lengths as integers, got float64"),
    "a table of another batch": (
        {"table": TABLE[1:]}, ValueError, "expected table of shape (4, m), at least one page for each sequence, got (3",
    ),
    "an empty table": ({"table": TABLE[:, :0]}, ValueError, "expected table of shape (4, m), at least one page"),
    "a table of floats": ({"table": TABLE / 2}, TypeError, "expected table as integers, got float64"),
    "no table": ({"table": None}, TypeError, "expected an array for table, got None; pass table="),
    "an empty pool": (
        {"k_pages": READS["k_pages"][:0], "v_pages": READS["v_pages"][:0]},
        ValueError, "expected k_pages of at least one page with room for one position, got (0, 3, 2, 5)",
    ),
    "keys without heads": ({"k_pages": READS["k_pages"][:, :, 0]}, ValueError, "expected k_pages with four axes"),
    "keys of another width": ({"k_pages": READS["v_pages"]}, ValueError, "expected k_pages of width 5, as q is, got 7"),
    "values in other pages": (
        {"v_pages": READS["v_pages"][1:]}, ValueError, "expected v_pages of shape (11, 3, 2, 'v'), got (10, 3, 2, 7)",
    ),
    "heads that cannot share": (
        {"q": READS["q"][:, :, :3]}, ValueError, "expected queries with a multiple of the 2 heads of keys and values",
    ),
    "keys of another dtype": (
        {"k_pages": READS["k_pages"].astype("float32")}, TypeError, "expected k_pages of dtype float64, as q is, got",
    ),
    "an offset between positions": ({"offset": 0.5}, ValueError, "expected offset as an integer, or an array"),
    "offsets of another batch": ({"offset": LENGTHS[:2]}, ValueError, "expected offset of shape (4,), got (2,)"),
}  # fmt: skip
NOT_WRITTEN: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "beyond the table": (
        {"positions": POSITIONS["new ones"] + 2}, ValueError,
        "expected positions from -1, which is not written, to 14, got 15",
    ),
    "below -1": ({"positions": POSITIONS["new ones"] - 1}, ValueError, "expected positions from -1, which is not wri"),
    "a page that the pool lacks": (
        {"positions": POSITIONS["none"] + 7}, ValueError, "expected table of pages from 0 to 10, got",
    ),
    "pages without room": (
        {"pages": WRITES["pages"][:, :0]}, ValueError, "expected pages of at least one page with room for one position",
    ),
    "positions of another shape": (
        {"positions": POSITIONS["none"][:, 1:]}, ValueError, "expected positions of shape (4, 3), got (4, 2)",
    ),
    "entries of another shape": (
        {"new": WRITES["new"][:, :, 0]}, ValueError, "expected new of shape ('b', 't', 2, 5), got (4, 3, 5)",
    ),
    "entries of integers": ({"new": WRITTEN[:, :3]}, ValueError, "expected new of shape ('b', 't', 2, 5), got (4, 3)"),
    "pages of integers": (
        {"pages": np.zeros((2, 3), int), "new": np.zeros((4, 3))},
        TypeError, "expected pages of a float dtype, got int64; convert it",
    ),
    "a table of another batch": ({"table": WRITTEN[1:]}, ValueError, "expected table of shape (4, m), at least one"),
    "pages of one axis": ({"pages": np.zeros(3)}, ValueError, "expected pages n p ..., each with room for p positions"),
}  # fmt: skip


def refused_call(tree: Tree, case: str, who: str, plain: Arrays, changed: Any) -> str:
    arrays = {n: tree.array(x) if isinstance(x, np.ndarray) else x for n, x in (plain | changed[0]).items()}
    with pytest.raises(changed[1]) as caught:
        getattr(tree.package, who)(**arrays)
    return str(caught.value)


@pytest.mark.parametrize(
    ("who", "case"), [("attend_paged", x) for x in REFUSED] + [("write_pages", x) for x in NOT_WRITTEN]
)
def test_what_cannot_be_is_refused_in_the_same_words(who: str, case: str) -> None:
    plain, cases = (READS, REFUSED) if who == "attend_paged" else (WRITES, NOT_WRITTEN)
    texts = {refused_call(tree, case, who, plain, cases[case]) for tree in TREES.values()}
    assert len(texts) == 1
    assert texts.pop().startswith(f"{who}: {cases[case][2]}")


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_where_there_is_nothing_to_write_pages_stay(tree: Tree, shape: tuple[int, int]) -> None:
    pages, _, _ = drawn_pages()
    new, positions = np.ones((*shape, *pages.shape[2:])), np.zeros(shape, np.int64)
    found = tree.package.write_pages(*map(tree.array, (pages.copy(), new, WRITTEN[: shape[0]], positions)))
    assert np.array_equal(tree.numpy(found), pages)


def test_pages_of_numpy() -> None:
    """JAX takes them, as it does everywhere; NumPy says that it cannot write to some."""
    pages: Any
    new: Any
    pages, new, _ = drawn_pages()
    places: Any = WRITTEN, POSITIONS["new ones"]
    want = attn_np.write_pages(pages.copy(), new, *places)
    assert np.array_equal(attn_jax.write_pages(pages.copy(), new, *places), want)
    pages.setflags(write=False)
    with pytest.raises(ValueError, match="write_pages: expected pages that can be written to, got a read-only array"):
        attn_np.write_pages(pages, new, *places)


@pytest.mark.compile
def test_a_compiled_program_writes_no_page_that_the_pool_lacks() -> None:
    write: Any = torch.compile(attn_torch.write_pages, backend="aot_eager")
    for page in (-1, 3):
        pages = torch.zeros(3, 2, 1)
        write(pages, torch.ones(1, 1, 1), torch.tensor([[page]]), torch.tensor([[0]]))
        assert not pages.any()


def test_a_traced_page_that_the_pool_lacks_is_nan_and_is_not_written() -> None:
    """In JAX, which raises nothing there: never another page's numbers."""
    tree = TREES["jax"]
    reads = tree.arrays(READS | {"lengths": np.array([11, 7, 7, 1])})
    y = tree.numpy(jax.jit(tree.package.attend_paged)(**reads))
    assert [bool(np.isnan(row).any()) for row in y] == [False, True, False, False]
    writes = tree.arrays(WRITES | {"positions": np.array([[11, -1, 15], [6, 99, -5], [-1, -1, -1], [3, 4, 5]])})
    found, want = tree.numpy(jax.jit(tree.package.write_pages)(**writes)), WRITES["pages"].copy()
    want[WRITTEN[0, 3], 2] = WRITES["new"][0, 0]
    assert np.array_equal(found, want)


# Planted bugs ---------------------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[str, str, str]] = {
    "the table off by one": ("causal", "where(is_read, column, 0)), 0)", "where(is_read, column + 1, 0)), 0)"),
    "a page too few": ("causal", "column * size < lengths[:, None]", "(column + 1) * size < lengths[:, None]"),
    "a stale page read": ("plain", "lengths > first, lengths - first, 0", "lengths > first, lengths - first + size, 0"),
    "lengths off by one": ("plain", "lengths > first, lengths - first, 0", "lengths > first, lengths - first + 1, 0"),
    "a key too few": ("causal", "lengths > first, lengths - first, 0", "lengths > first, lengths - first - 1, 0"),
    "the order of pages ignored": ("causal", "entries_of(table, where(is_read, column, 0))", "column"),
    "pages backwards": ("causal", "+ arange(columns, lengths)[None", "+ (columns - 1 - arange(columns, lengths))[None"),
    "a window that begins at its query": ("a window", "clip((start - window[0]) // size", "clip(start // size"),
    "a window's keys counted from the first page": ("a window", ", 0), first * size", ", 0), 0 * first"),
    "an offset left out": ("a window both ways", "if offset is None else 0 * lengths +", "if True else 0 * lengths +"),
}  # fmt: skip
WRITE_BUGS = {
    "a page too early": ("entries_of(table, positions // size)", "entries_of(table, (positions + 1) // (size + 1))"),
    "a place too late": ("size), positions % size", "size), (positions + 1) % size"),
    "padding written": ("is_written = (positions >= 0)", "is_written = (positions >= -1)"),
    "another sequence's table": ("(table, positions // size)", "(table[[1, 0, 3, 2]], positions // size)"),
}  # fmt: skip


def wrong(tree: Tree, alias: str, call: str) -> bool:
    """Whether a package refuses a right call, or gives it numbers out of their bounds."""
    want, dy, dlse = held(call)
    try:
        found = results(tree, __import__(alias), call, dy, dlse)
    except ValueError:
        return True
    return any(not ratio(x, want[name]) <= 1 for name, x in found.items())


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, name: str) -> None:
    call, old, new = BUGS[bug]
    tree = TREES[name]
    with planted(Mutant(bug, SHARED, old, new, "", ""), tree.package.__name__) as alias:
        assert wrong(tree, alias, call)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("bug", WRITE_BUGS)
def test_a_planted_bug_of_writing_is_seen(bug: str, name: str) -> None:
    tree = TREES[name]
    with planted(Mutant(bug, SHARED, *WRITE_BUGS[bug], "", ""), tree.package.__name__) as alias:
        try:
            found = written(tree, __import__(alias), "new ones")
        except (ValueError, RuntimeError):  # an index that there is not
            return
    assert any(not np.array_equal(x, want) for x, want in zip(found, written_by_hand("new ones"), strict=True))


@pytest.mark.parametrize(
    ("old", "new"), [("take_vjp(pool, pages, ", "take_vjp(pool, 0 * pages, "), ("None, dlse, q=q", "None, None, q=q")]
)
def test_a_planted_bug_of_the_rule_is_seen(old: str, new: str) -> None:
    with planted(Mutant("rule", SHARED, old, new, "", ""), "attn_np") as alias:
        assert wrong(TREES["numpy"], alias, "causal")
