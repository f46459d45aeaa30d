"""What `attend_paged` and `write_pages` must do, and what they refuse: the calls of their tests, of a copy."""

from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

import attn_np
from parity_tests.judge.judging import compare
from parity_tests.tests.inputs import TREES, same
from parity_tests.tests.kernels import test_paged as paged
from parity_tests.tests.mutation.calls import claim, claim_same, refuses


@cache
def expected(call: str) -> Any:
    return paged.held(call)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """The same as Python's numbers."""
    offset = options["offset"]
    return options | {"causal": True, "window": (2, None), "offset": offset if offset.shape else offset.item()}


def read_from_pages(alias: str) -> None:
    """Contexts, logarithms and gradients are within their bounds, where the rest of the pool is NaN."""
    package = import_module(alias)
    for call in paged.CALLS:
        want, dy, dlse = expected(call)
        found = paged.results(TREES["numpy"], package, call, dy, dlse)
        claim(found.keys() == want.keys(), "names")
        for name, x in found.items():
            claim(compare(x, want[name])["ratio"] <= 1, f"{name} of {call}")
    some: Any = paged.given("causal", poison=False) | {"table": paged.TABLE, "lengths": paged.LENGTHS}
    options: dict[str, Any] = {"causal": np.True_, "window": [np.int64(2), None], "offset": np.array(2)}
    terms = [x.terms.Slopes(np.arange(1.0, 7.0)) for x in (package, attn_np)]
    tape: dict[str, Any] = {}
    y = package.attend_paged(**some, **options, terms=terms[0], tape=tape)
    plain = attn_np.attend_paged(**some, causal=True, window=2, offset=2, terms=terms[1], tape={})
    claim(same(y, plain), "numbers of NumPy's")
    claim("context" in tape and tape["k"].shape[1] == 6, "a tape of two pages")
    for some_options in (options, {"causal": True, "window": (2, None), "offset": np.array([0, 1, 2, 2])}):
        (_, lse), pull = package.value_and_vjp(package.attend_paged, **some, **some_options, return_lse=True)
        plain = plain_options(some_options)
        (y, _), back = attn_np.value_and_vjp(attn_np.attend_paged, **some, **plain, return_lse=True)
        for dys in ((y, lse), (y,), (None, lse)):
            claim_same(pull(*dys).inputs, back(*dys).inputs, "gradients")
    known = vars(import_module(f"{alias}.attention.paged"))
    real = known["allows_data_dependent_shapes"]
    try:
        known["allows_data_dependent_shapes"] = lambda x: False
        every = package.attend_paged(**some, causal=True, tape=tape)
    finally:
        known["allows_data_dependent_shapes"] = real
    claim(tape["k"].shape[1] == paged.TABLE.shape[1] * paged.P, "every column of the table")
    claim(compare(every, expected("causal")[0]["context"])["ratio"] <= 1, "by every column")
    package.attend_paged(**some, causal=True, tape=tape)
    claim(tape["k"].shape[1] == 4 * paged.P, "the columns of the longest sequence")
    nothing: dict[str, Any] = {"lengths": np.zeros(4, np.uint8), "table": -np.ones((4, 5), np.int8)}
    none = package.attend_paged(**some | nothing, tape=tape)
    claim(not none.any() and tape["k"].shape[1] == paged.P, "sequences without positions")
    shifted = package.attend_paged(**some, causal=True, offset=np.array(2), tape=tape)
    claim(same(shifted, package.attend_paged(**some, causal=True, offset=np.array([2] * 4), tape=tape)), "one offset")
    small = some | {"table": paged.TABLE.astype(np.int8), "lengths": paged.LENGTHS.astype(np.uint8)}
    for offset in (None, np.array([0, 3, 1, 2], np.uint64), np.array(3, np.uint8)):
        found, want = (package.attend_paged(**x, causal=True, offset=offset, tape=tape) for x in (small, some))
        claim(same(found, want), "small integers")
        taken = known["to_python_scalar"]
        try:
            known["to_python_scalar"] = lambda x: x  # as where its value is not known
            claim(same(package.attend_paged(**small, causal=True, offset=offset, tape=tape), want), "unknown integers")
        finally:
            known["to_python_scalar"] = taken
    empty = {name: x if "pages" in name else x[:0] for name, x in some.items()}
    claim(package.attend_paged(**empty).shape == (0, paged.T, paged.H, paged.V), "no sequences")
    refuses(
        lambda: package.attend_paged(**some | {"lengths": [1]}), TypeError, "attend_paged: expected lengths as a Nu"
    )
    for changed, error, words in paged.REFUSED.values():
        refuses(partial(package.attend_paged, **paged.READS | changed), error, f"attend_paged: {words}")


def written_to_pages(alias: str) -> None:
    """Entries are where they belong, in place, with their gradients; the rest is what it was."""
    package = import_module(alias)
    for case in paged.POSITIONS:
        found = paged.written(TREES["numpy"], package, case)
        for x, want in zip(found, paged.written_by_hand(case), strict=True):
            claim(same(x, want), case)
    pages = np.zeros((3, 2, 1), "float32")
    after = package.write_pages(pages, np.ones((1, 1, 1)), np.array([[2]], "uint8"), np.array([[1]], "uint8"))
    claim(after is pages and pages[2, 1, 0] == 1 and pages.sum() == 1, "in place")
    pages.setflags(write=False)
    one = np.array([[0]])
    call = partial(package.write_pages, pages, np.ones((1, 1, 1)), one, one)
    refuses(call, ValueError, "write_pages: expected pages that can be written to, got a read-only array")
    for width in ((), (2,)):
        pages, new, dy = (
            np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
            for shape in ((3, 2, *width), (1, 3, *width), (3, 2, *width))
        )
        _, pull = package.value_and_vjp(package.write_pages, pages, new, np.array([[2, 0]]), np.array([[3, -1, 0]]))
        grads = pull(dy).inputs
        claim(same(grads["new"], np.stack([dy[0, 1], 0 * dy[0, 0], dy[2, 0]])[None]), "gradients of entries")
        claim(dy.all() and not grads["pages"][0, 1].any() and not grads["pages"][2, 0].any(), "gradients of pages")
        claim(np.count_nonzero(grads["pages"]) == dy.size - 2 * dy[0, 0].size, "the others")
    loaded = vars(import_module(f"{alias}.attention.paged"))
    known, pages = loaded["known_range"], np.zeros((3, 2))
    try:
        loaded["known_range"] = lambda x: None
        package.write_pages(pages, np.ones((1, 3)), np.array([[2, 0]]), np.array([[4, -2, 3]]))
    finally:
        loaded["known_range"] = known
    claim(pages.sum() == pages[0, 1] == 1, "positions that are not known")
    refuses(lambda: package.write_pages([0.0], *[pages] * 3), TypeError, "write_pages: expected pages as a NumPy array")
    for changed, error, words in paged.NOT_WRITTEN.values():
        refuses(partial(package.write_pages, **paged.WRITES | changed), error, f"write_pages: {words}")
