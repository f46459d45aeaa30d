"""`attn_jax.parallel` on eight simulated devices against one: functions, layouts, options, meshes, and what moves.

For each kind of mesh one process with eight devices computes what the selected tests ask for.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from math import ceil, lcm, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_tests.tests.parallel import cases
from parity_tests.tests.parallel.cases import CALLS, FUNCTIONS, LAYOUTS, RECURRENCES
from parity_tests.tests.parallel.devices_jax import MESHES
from parity_tests.tests.witness import ratio

pytestmark = pytest.mark.timeout(1800)  # the first test of a mesh waits for the programs of all

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("Auto", "Explicit")
# Asked by default: each function, layout, option and mesh once.
ASKED = (
    "Auto/8/ring_attend/contiguous/causal",
    "Explicit/2 x 4/ring_attend/zigzag/all",
    "Explicit/8/ring_attend/striped/marked",
    "Auto/2 x 4/gather_attend/striped/documents",
    "Explicit/8/gather_attend/zigzag/sinks",
    "Auto/8/ulysses_attend/zigzag/sinks",
    "Explicit/2 x 4/ulysses_attend/contiguous/all",
    "Auto/8/recur/recurrent/delta",
    "Auto/2 x 4/recur/recurrent/gated, of heads",
    "Explicit/8/recur/recurrent/gated_delta, channels",
    "Auto/2 x 2 x 2/ring_attend/zigzag/documents",
    "Explicit/2 x 2 x 2/gather_attend/zigzag/sinks",
    "Explicit/2 x 2 x 2/ulysses_attend/striped/window",
    "Explicit/2 x 2 x 2/recur/recurrent/delta",
)
# Ways to write a program with a ring; the first two are asked by default.
FORMS = ("gradients inside", "two axes", "one of two axes", "recomputed", "unchecked", "not compiled")
# b, t on each device, h, g, k, v, and whether the call is causal, so that positions travel too.
SIZES = {
    "ring_attend": (2, 24, 4, 2, 3, 5, 1),
    "gather_attend": (2, 24, 4, 2, 3, 5, 1),
    "ulysses_attend": (2, 24, 8, 2, 3, 5, 1),
    "recur": (2, 24, 4, 2, 3, 5, 0),
}


def rows() -> Iterable[Any]:
    """Every function with every layout and call, on one mesh after the other; recurrences position by position, and the
    first of each rule in chunks.
    """
    every = [(f, layout, call) for f, layout, call in product(FUNCTIONS, LAYOUTS, CALLS)]
    every += [("recur", form, call) for call in RECURRENCES for form in ("recurrent", "chunked")]
    meshes = list(product(KINDS, MESHES))
    named = ["/".join((*meshes[i % len(meshes)], *row)) for i, row in enumerate(every)]
    left = [name for name in named if name not in ASKED]
    return [*ASKED, *(pytest.param(name, marks=pytest.mark.left_out) for name in left)]


def bytes_row(function: str, devices: int = 8) -> str:
    return "/".join(("Auto", "bytes", function, *map(str, (devices, *SIZES[function]))))


class Results(dict[str, dict[str, np.ndarray]]):
    """What was found of each row; those of one kind of mesh are computed when the first of them is asked for."""

    def __init__(self, names: Iterable[str], folder: Path) -> None:
        super().__init__()
        self.names, self.folder = list(names), folder

    def __missing__(self, row: str) -> dict[str, np.ndarray]:
        kind = row.partition("/")[0]
        mine = [name for name in self.names if name.startswith(f"{kind}/")]
        path = self.folder / f"{kind}.npz"
        command = [sys.executable, "-m", "parity_tests.tests.parallel.devices_jax", str(path), *mine]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with np.load(path) as arrays:
            for name in mine:
                self[name] = {key.rpartition("|")[2]: x for key, x in arrays.items() if key.startswith(f"{name}|")}
        return dict(self)[row]


@pytest.fixture(scope="module")
def results(selected: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of every row that a selected test asks for."""
    names = [told["row"] for told in selected if "row" in told]
    names += [f"Auto/form/{told['form']}" for told in selected if "form" in told]
    names += [f"{NOT_CUT[told['refused']][0]}/refused/{told['refused']}" for told in selected if "refused" in told]
    names += [bytes_row(told["function"]) for told in selected if "function" in told]
    names += [bytes_row(told["ring"], devices) for told in selected if "ring" in told for devices in (4, 8)]
    return Results(dict.fromkeys(names), tmp_path_factory.mktemp("devices"))


@pytest.mark.parametrize("row", rows())
def test_devices_agree_with_one(row: str, results: Results) -> None:
    found, (*_, function, _, call) = results[row], row.split("/")
    assert "error" not in found, found["error"]
    want = (cases.held_recurrence if function == "recur" else cases.held)(call)[1]
    assert set(found) == set(want)
    ratios = {name: ratio(x, want[name]) for name, x in found.items()}
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("form", [*FORMS[:2], *(pytest.param(form, marks=pytest.mark.left_out) for form in FORMS[2:])])
def test_a_ring_has_its_gradients_in_every_form_of_program(form: str, results: Results) -> None:
    found, want = results[f"Auto/form/{form}"], cases.held("causal")[1]
    assert "error" not in found, found["error"]
    assert set(found) == {"dq", "dk", "dv"}
    ratios = {name: ratio(x, want[name]) for name, x in found.items()}
    assert max(ratios.values()) <= 1, ratios


# Of calls with arrays that all devices have whole, or with parts that should be whole: the kind of mesh and the words.
NOT_CUT = {
    "ring_attend": ("Auto", "q cut along its positions over 'seq', got the same on every device; write in_specs="),
    "recur": ("Auto", "q cut along its positions over 'seq', got the same on every device; write in_specs="),
    "ulysses_attend": ("Explicit", "queries with a multiple of 8 heads, one for each device, got 12; call ring_attend"),
    "apply": ("Explicit", "query cut along its positions over 'seq', got the same on every device; write in_specs="),
    "from_devices": ("Explicit", "positions that every device has, on a mesh with explicit axes, got axis 'seq'; call"),
    "to_devices": ("Explicit", "positions that every device has, on a mesh with explicit axes, got axis 'seq'; call"),
}


@pytest.mark.parametrize("refused", NOT_CUT)
def test_arrays_that_do_not_lie_so_are_refused(refused: str, results: Results) -> None:
    kind, words = NOT_CUT[refused]
    found = results[f"{kind}/refused/{refused}"]
    assert str(found.get("error", "nothing")).startswith(f"ValueError: {refused}: expected {words}"), found


def bytes_of(function: str, n: int, b: int, t: int, h: int, g: int, k: int, v: int, causal: int) -> tuple[int, int]:
    """The bytes that a device gets, forward and in both passes: numbers of 4 bytes, and as many for each position."""
    keys, places, queries, context = b * t * g * (k + v), b * t * causal, b * t * h * k, b * t * h * v
    state, pair, rounds = b * g * k * v, b * g * k * (k + v), ceil(log2(n)) + 1
    match function:
        case "ring_attend":  # keys n - 1 times in each pass; their gradients n times, as they go home
            forward = (n - 1) * (keys + places)
            backward = (n - 1) * (keys + places) + n * keys
        case "gather_attend":
            forward = (n - 1) * (keys + places)
            backward = (n - 1) * keys
        case "ulysses_attend":  # of every array the part that other devices have, with heads repeated for all devices
            exchanged = (queries + context + keys * lcm(g, n) // g) * (n - 1) // n
            forward = exchanged + (n - 1) * places
            backward = exchanged
        case _:  # pairs (A, B), and the last state, which is a sum over devices
            forward = rounds * pair + 2 * state * (n - 1) // n
            backward = rounds * pair
    return 4 * forward, 4 * (forward + backward)


def test_the_page_has_the_bytes_of_the_formula() -> None:
    """Of every number of devices, in MiB, forward and in both passes."""
    page = (ROOT / "docs/parallel.md").read_text("utf-8")
    table = page.partition("<!-- bytes")[2].partition("<!-- end of bytes -->")[0]
    lines = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", table, re.MULTILINE)
    assert [line[0] for line in lines] == ["2", "4", "8", "16", "32", "64"]
    for devices, *cells in lines:
        for function, cell in zip(SIZES, cells, strict=True):
            given = bytes_of(function, int(devices), 1, 512, 64, 8, 128, 128, int(function != "recur"))
            assert cell == " / ".join(f"{n / 2**20:.2f}" for n in given), (devices, function)


@pytest.mark.parametrize("function", SIZES)
def test_what_moves_is_what_the_formula_says(function: str, results: Results) -> None:
    """By the compiled programs; with t positions on each of 8 devices."""
    found = results[bytes_row(function)]
    assert "error" not in found, found["error"]
    assert found["received"].tolist() == list(bytes_of(function, 8, *SIZES[function]))


@pytest.mark.parametrize("ring", ["ring_attend"])
def test_a_ring_takes_no_more_memory_on_more_devices(ring: str, results: Results) -> None:
    """Temporary arrays of a device, forward and in both passes, on 4 devices and on 8 with as many positions each."""
    four, eight = (results[bytes_row(ring, devices)]["temporary"] for devices in (4, 8))
    assert np.all(eight <= 1.02 * four), (four, eight)
