"""Settings of every test process.

Annotations are checked where pytest is called with jaxtyping's option, as `make test` does. Its import hook must stand
before our packages are imported, so nothing of `attn_*` is imported here.
"""

import gc
import os
import re
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from parity_tests.judge.xla import compile_quickly
from parity_tests.tests.everything import EVERY, FIRST, LONG, asked_of_twins, left_out

# What JAX and PyTorch trace is many small objects: to look for circles among them less often saves a tenth of the time.
gc.set_threshold(200_000, 50, 50)

# The tests compile some thousand small JAX functions once each. `attn-parity run` judges what XLA makes by default;
# set XLA_FLAGS to do so here.
compile_quickly()

try:
    import torch
except ModuleNotFoundError:
    torch = None
try:
    import jax
    from jax._src.interpreters import mlir
except ModuleNotFoundError:
    jax = mlir = None

# One context of MLIR for all that is lowered. To make one for each function takes a fifth as long as to compile a small
# one, and half of the memory is theirs.
context: Any = mlir and cache(mlir.make_ir_context)


@pytest.fixture(params=["numpy", "jax", "torch"])
def tree(request: pytest.FixtureRequest) -> Any:
    """Each of the three, a `Tree` of `inputs.py`."""
    return import_module("parity_tests.tests.inputs").TREES[request.param]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tab of Chromium, a `Browser` of `viewer/browser.py`."""
    viewer = import_module("parity_tests.tests.viewer.browser")
    if viewer.chromium() is None:
        pytest.skip("no Chromium here")
    with viewer.browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="also what is left out to save time, most of all in JAX")
    parser.addoption("--left-out", action="store_true", help="what is left out to save time, and nothing else")
    parser.addoption("--part", type=part, default=(1, 1), metavar="K/N", help="of what is left out the Kth of N parts")


def part(words: str) -> tuple[int, int]:
    """The parts of an option such as 2/3.

    Raises:
        argparse.ArgumentTypeError: it is no such option.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", words)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ArgumentTypeError(f"expected K/N with K from 1 to N, such as 2/3, got {words!r}")
    return int(found[1]), int(found[2])


def params_of(item: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


@pytest.fixture(scope="module")
def selected(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of each test of this file that was selected, for what one process computes for all of them."""
    return [params_of(item) for item in request.session.items if item.path == request.path]


def stands_back(item: pytest.Item) -> bool:
    """Whether a test is among those that only `--everything` runs: it is marked so, or `everything.py` says it."""
    if item.get_closest_marker("left_out"):
        return True
    params = params_of(item)
    variant, example, row = params.get("variant"), params.get("example"), params.get("row")
    file, test = item.path.stem, getattr(item, "originalname", item.name)
    trees = {WORDS[word] for word in re.split(r"[\[\]-]", item.name) if word in WORDS}
    of_variants = item.path.parent.name == "variants" and file.removeprefix("test_") in (*examples(), "shown")
    if of_variants and asked_of_twins(file, trees):
        return True
    if isinstance(row, str) and test in LONG:
        return left_out(file, test, row, first=True, tree="")
    if not isinstance(variant, str) or variant not in examples():
        return False
    tree = "attn_jax" if "attn_jax" in trees else trees.pop() if len(trees) == 1 else ""
    names = decoding_examples() if file in FIRST and tree == "attn_torch" else examples()
    first = not isinstance(example, str) or example == names[variant][0]
    return left_out(file, test, variant, first, tree)


# What a test's id says of the tree that it is asked in.
WORDS = {"jax": "attn_jax", "attn_jax": "attn_jax", "numpy": "attn_np", "attn_np": "attn_np"}
WORDS |= {"torch": "attn_torch", "attn_torch": "attn_torch"}


@cache
def examples() -> dict[str, tuple[str, ...]]:
    """The names of each variant's examples."""
    from attn_np import contract  # after the import hook, where there is one

    return {variant: tuple(contract.examples(variant)) for variant in contract.variants()}


@cache
def decoding_examples() -> dict[str, tuple[str, ...]]:
    """The names of those that decode, of each variant that does."""
    from attn_np import contract

    configs = {variant: contract.examples(variant) for variant in examples()}
    causal = {v: tuple(name for name, config in held.items() if config.cache_axes()) for v, held in configs.items()}
    return {variant: names for variant, names in causal.items() if names}


def pytest_configure(config: pytest.Config) -> None:
    if jax is not None and mlir is not None:
        jax.config.update("jax_enable_x64", True)
        mlir.make_ir_context = context
    if torch is not None and "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


# The files and marks of the tests that stand back in this session, for the test that asks whether a target asks them.
STANDING_BACK = pytest.StashKey[set[tuple[Path, frozenset[str]]]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked: list[pytest.Item] = []
    left: list[pytest.Item] = []
    seen: Counter[str] = Counter()
    for item in items:
        name = f"{item.path.stem}::{getattr(item, 'originalname', item.name)}"
        back = stands_back(item)
        nth = seen[name] % EVERY.get(name, 1)
        seen[name] += not back
        (left if back or nth else asked).append(item)
    config.stash[STANDING_BACK] = {(x.path, frozenset(mark.name for mark in x.iter_markers())) for x in left}
    if config.getoption("--everything"):
        return
    kept = asked
    if config.getoption("--left-out"):
        kth: Any = config.getoption("--part", (1, 1))
        k, n = kth
        kept = left[k - 1 :: n]
    dropped = set(items).difference(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in dropped])
    items[:] = kept


def pytest_collection_finish() -> None:
    """What is imported by now stays: no search for circles need go through it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What is cached to the end stays too: pytest's own last searches would go through it several times."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where the tests with one mark are asked, files that do not speak of it are not even loaded."""
    mark = str(config.getoption("markexpr"))
    if not mark.isidentifier() or not collection_path.match("test_*.py"):
        return None
    return f"mark.{mark}" not in collection_path.read_text("utf-8") or None


OF_A_VARIANT = ("test_transforms_jax.py::test_one_layer",)
MESH = re.compile(r"\b(Auto|Explicit)\b")


@cache
def group_of(nodeid: str) -> str:
    """What tests that go to one process share: an example, for which JAX compiles, a variant, a mesh, or their file.

    The first of them computes what serves the others, too.
    """
    name, _, params = nodeid.partition("[")
    if any(part in name for part in OF_A_VARIANT):
        found = variants_in().search(params)
        return f"{name}[{found[1]}]" if found else name
    found, file = examples_in().search(params), name.partition("::")[0]
    if mesh := MESH.search(params):
        return f"{file}[{mesh[1]}]"
    return found[1] if found else file


@cache
def variants_in() -> re.Pattern[str]:
    return named(examples())


@cache
def examples_in() -> re.Pattern[str]:
    return named(f"{variant}-{example}" for variant, held in examples().items() for example in held)


def named(names: Iterable[str]) -> re.Pattern[str]:
    """Finds one of some names among the parameters in a test's id."""
    return re.compile(rf"(?:^|-)({'|'.join(sorted(map(re.escape, names), key=len, reverse=True))})(?:-|\]|$)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadgroup` by the groups above.

    Not by xdist's marker: it is written into the name of a test, where pytest 9.2 no longer looks for it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            """Groups that are done are forgotten: to count through all of them takes longer than most tests do."""
            for group in [name for name, tests in workload.items() if all(tests.values())]:
                del workload[group]
            return sum(list(tests.values()).count(False) for tests in workload.values())

    config.option.loadscopereorder = False  # few tests may take long, and the last files are short
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


# What JAX compiles for one example serves few others: it is forgotten after this many functions, of about 1 MB each.
LOWERED_BETWEEN = 1500


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget what was compiled, now and then, when the next test is of another example."""
    if jax is None or context.cache_info().hits < LOWERED_BETWEEN:
        return
    if nextitem is None or group_of(item.nodeid) != group_of(nextitem.nodeid):
        jax.clear_caches()
        context.cache_clear()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations unchecked, so that a wrong argument meets the library's own words."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
