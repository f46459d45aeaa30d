"""`attn_torch.parallel` in four processes against one: functions, layouts, options, and what all of them refuse."""

from collections.abc import Iterable
from itertools import product
from multiprocessing import set_forkserver_preload
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

import attn_np
import attn_torch
from attn_torch.parallel.messages import DESCRIPTION_BYTES, difference, fixed_size
from parity_tests.tests.parallel import cases, layer_cases, processes_torch
from parity_tests.tests.parallel.cases import CALLS, FUNCTIONS, LAYOUTS, RECURRENCES
from parity_tests.tests.parallel.refused import REFUSED, REFUSED_LAYERS, UNCUT
from parity_tests.tests.witness import bounded, cotangent, ratio

pytestmark = pytest.mark.timeout(600)  # the first test waits for all that the processes do

# Asked by default besides: each function and layout with all options, each call of a ring in zigzag, and each rule.
ASKED = ("ulysses_attend/zigzag/sinks", "gather_attend/striped/marked")


def rows() -> Iterable[Any]:
    for function, layout, call in product(FUNCTIONS, LAYOUTS, CALLS):
        name = f"{function}/{layout}/{call}"
        asked = call == "all" or name in ASKED or (function, layout) == ("ring_attend", "zigzag")
        yield pytest.param(f"all/{name}", marks=() if asked else pytest.mark.left_out)
    yield from ("mesh/ring_attend/zigzag/all", "mesh/recur/recurrent/delta")
    for call, form in product(RECURRENCES, ("recurrent", "chunked")):
        yield pytest.param(f"all/recur/{form}/{call}", marks=() if form == "recurrent" else pytest.mark.left_out)


X = np.random.default_rng(0).normal(size=(4, 5, 16))  # of a layer with heads over one axis of a mesh, rows over another

# Of each case what the first process is told and what the second is.
SAME = "expected the same call in every process, got"
DIFFERENT: dict[str, tuple[str, str]] = {
    "layouts": (
        f"ring_attend: {SAME} layout='zigzag' in process 0 and layout='striped' in process 1 of the group; ",
        "",
    ),
    "functions": (
        f"ring_attend: {SAME} ring_attend in process 0 and gather_attend in process 1",
        f"gather_attend: {SAME}",
    ),
    "other lengths": (
        f"ulysses_attend: {SAME} q of shape (2, 6, 4, 3) and torch.float64 in process 0 and q of shape (2, 4,",
        "",
    ),
    "one of them": (f"ring_attend: {SAME} q of shape", "ring_attend: expected layout to be one of contiguous, zigzag,"),
    "gradients": (f"ring_attend: {SAME} k of shape (2, 6, 2, 3) and torch.float64 in process 0 and k of shape", ""),
    "rules": (f"recur: {SAME} rule='linear' in process 0 and rule='delta' in process 1 of the group; give all of", ""),
    "a tape": (f"apply: {SAME} tape=False in process 0 and tape=True in process 1 of the group; give all of them", ""),
    "an unknown argument": (
        f"apply: {SAME} mha in evaluation in process 0 and a call that it refuses in process 1",
        "apply: mha: expected arguments of the layer's call, got spiral; see help of the layer's call",
    ),
    "configs": (
        f"apply: {SAME} rope_base=9.0 in process 0 and rope_base=7.0 in process 1 of the group; give",
        "",
    ),
    "layouts of parts": (
        f"from_devices: {SAME} layout='zigzag' in process 0 and layout='striped' in process 1 of the group; give all",
        "",
    ),
    "other lengths of parts": (
        f"from_devices: {SAME} x of shape (2, 6, 4, 3) and torch.float64 in process 0 and x of shape (2, 4, 4, 3) and",
        "",
    ),
    "one part": (
        f"from_devices: {SAME} x of shape (2, 5, 4, 3) and torch.float64 in process 0 and a call that it refuses in",
        "from_devices: expected x with an even number of positions on each device for layout='zigzag', got 5; pad",
    ),
    "two axes": (
        "ring_attend: expected a mesh with one axis, got axes ('data', 'seq'); take the one of the sequence",
        "",
    ),
    "no group": ("recur: expected group to be a process group or a DeviceMesh, got str; None is all processes", ""),
    "a DTensor": ("ring_attend: expected q as this process's own tensor, got a DTensor; pass q.to_local()", ""),
}


@pytest.fixture(scope="module")
def found(selected: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    """The results of every row and case that a selected test asks for, from one run of the processes."""
    folder, rows = tmp_path_factory.mktemp("processes"), dict[str, Any]()
    for params in selected:
        if "layer" in params:
            rows[f"layer/{params['layer']}"] = layer_cases.held_layer(params["layer"])[0]
        elif "row" in params:
            _, function, _, call = params["row"].split("/")
            rows[params["row"]] = (cases.held_recurrence if function == "recur" else cases.held)(call)[0]
        elif "case" in params:
            rows[f"refused/{params['case']}"] = {}
    rows |= {"refused/another's group": {}, "heads and rows": {"x": X, "dy": cotangent(X.shape)}}
    # What the processes import takes seconds: one server imports it, and they are its copies.
    set_forkserver_preload([processes_torch.__name__])
    mp.start_processes(processes_torch.run, (str(folder), rows), processes_torch.WORLD, start_method="forkserver")
    found: dict[str, dict[str, np.ndarray]] = {row: {} for row in rows}
    with np.load(folder / "results.npz") as arrays:
        for key, x in arrays.items():
            row, _, name = key.rpartition("|")
            found[row][name] = x
    return found


@pytest.mark.parametrize("row", list(rows()))
def test_processes_agree_with_one(row: str, found: dict[str, dict[str, np.ndarray]]) -> None:
    _, function, _, call = row.split("/")
    want = (cases.held_recurrence if function == "recur" else cases.held)(call)[1]
    assert set(found[row]) == set(want)
    ratios = {name: ratio(x, want[name]) for name, x in found[row].items()}
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_LAYERS, *(f"uncut, {name}" for name in UNCUT)])
def test_a_call_that_cannot_be_right_is_refused_in_every_process(
    case: str, found: dict[str, dict[str, np.ndarray]]
) -> None:
    if case in REFUSED or case in REFUSED_LAYERS:
        *_, error, words = (REFUSED | REFUSED_LAYERS)[case]
    else:
        error, words = ValueError, UNCUT[case.removeprefix("uncut, ")][2]
    told = found[f"refused/{case}"]["told"]
    assert len(told) == processes_torch.WORLD
    assert all(str(one).startswith(f"{error.__name__}: {words}") for one in told), told


@pytest.mark.parametrize("case", DIFFERENT)
def test_calls_that_differ_between_processes_are_refused(case: str, found: dict[str, dict[str, np.ndarray]]) -> None:
    told, (words, of_second) = (
        [str(one).partition(": ")[2] for one in found[f"refused/{case}"]["told"]],
        DIFFERENT[case],
    )
    assert all(one.startswith((of_second or words) if i == 1 else words) for i, one in enumerate(told)), told


def test_long_calls_are_compared_to_their_end() -> None:
    """A description has a fixed size on its way; one that is longer ends in a digest of all."""
    first, second = (fixed_size(b"; ".join([b"recur", b"x" * DESCRIPTION_BYTES, end])) for end in (b"1", b"2"))
    assert len(first) == len(second) == len(fixed_size(b"recur")) == DESCRIPTION_BYTES
    assert first != second and first[:1900] == second[:1900]
    words = difference(first.decode(), second.decode())
    assert all(one.startswith("more, with the digest ") for one in words), words


@pytest.mark.parametrize("layer", layer_cases.layers())
def test_a_layer_over_processes_is_that_of_one(layer: str, found: dict[str, dict[str, np.ndarray]]) -> None:
    want = layer_cases.held_layer(layer)[1]
    ratios = {name: ratio(x, want[name]) for name, x in found[f"layer/{layer}"].items()}
    assert set(ratios) >= {"y", "dquery"} and max(ratios.values()) <= 1, ratios


def test_heads_over_one_axis_and_rows_over_another(found: dict[str, dict[str, np.ndarray]]) -> None:
    """With FSDP2, on two by two processes; and a checkpoint of that is read by a layer with heads in all four."""
    got = found["heads and rows"]
    one = attn_np.build("gqa", d_model=16, num_heads=8, num_kv_heads=4, dtype="float64")
    want = bounded(one.config, {"query": X}, one.params())
    assert max(ratio(got[name], want[name]) for name in ("y", *(f"d{name}" for name in one.params()))) <= 1
    assert all(np.array_equal(got[name], param) for name, param in one.params().items())


def test_a_group_of_others_is_refused(found: dict[str, dict[str, np.ndarray]]) -> None:
    told = [str(one) for one in found["refused/another's group"]["told"]]
    words = "ValueError: ring_attend: expected a group that this process is in, got another; call it in its members"
    assert [one.startswith(words) for one in told] == [False, True, False, True]
    assert told[0] == told[2] == "nothing"


@pytest.mark.parametrize("function", ["ring_attend", "gather_attend", "ulysses_attend", "recur"])
def test_no_processes_are_refused(function: str) -> None:
    x = torch.zeros(1, 2, 1, 2)
    with pytest.raises(ValueError, match=f"{function}: expected processes of torch.distributed, got none; call torch."):
        getattr(attn_torch.parallel, function)(x, x, x)
