"""Settings of every test process.

Annotations are checked where pytest is called with jaxtyping's option, as `make test` does. Its import hook must stand
before our packages are imported, so nothing of `attn_*` is imported here.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from zlib import crc32

import jaxtyping
import pytest

from parity_tests.judge.xla import compile_quickly

# The tests compile some thousand small JAX functions once each. `attn-parity run` judges what XLA makes by default;
# set XLA_FLAGS to do so here.
compile_quickly()

try:
    import torch
except ModuleNotFoundError:
    torch = None
try:
    import jax
except ModuleNotFoundError:
    jax = None


# The tests that every variant gets are thousands, and JAX compiles every shape they ask for. These few variants are
# asked everything. A variant reads the same in every tree and is made of the same pieces as they are, so each of these
# tests is asked of one in so many of the others, always the same ones; in JAX, and beyond the first example, of fewer.
# All are asked of all with `--everything`.
WHOLE = ("mha", "additive", "gru")
SHARES = {
    "test_conventions": 5,
    "test_bad_input": 6,
    "test_semantics": 4,
    "test_relations": 5,
    "test_fuzz": 6,
    "test_docs": 3,
    "test_compile": 5,
    "test_ast_mutants": 12,
}
# Of those that torch.compile or torch.export works on, which take a second each.
COMPILED = {"test_transforms_torch": 5}
IN_JAX = {"test_conventions": 20, "test_semantics": 12, "test_bad_input": 20}
BEYOND_THE_FIRST = {"test_conventions": 10, "test_bad_input": 10, "test_decoding": 6}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="also what is left out to save time, most of all in JAX")


def left_out(item: pytest.Item) -> bool:
    """Whether a test of one variant is among those that only `--everything` runs."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    variant, module = params.get("variant"), item.location[0].rpartition("/")[2].removesuffix(".py")
    if not isinstance(variant, str) or variant in WHOLE:
        return False
    share = SHARES.get(module, 1)
    if {"jax", "attn_jax"} & set(re.split(r"[\[\]-]", item.name)):
        share = IN_JAX.get(module, share)
    if item.get_closest_marker("compile"):
        share = COMPILED.get(module, share)
    asked = f"{variant}/{params.get('example')}"
    if not isinstance(params.get("example"), str) or params["example"] == first_example(variant):
        asked = variant
    else:
        share = max(share, BEYOND_THE_FIRST.get(module, 1))
    return (crc32(asked.encode()) + crc32(getattr(item, "originalname", item.name).encode())) % share != 0


@cache
def first_example(variant: str) -> str:
    from attn_np import contract  # after the import hook, where there is one

    return next(iter(contract.examples(variant)))


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group: tests that share compiled code")
    if jax is not None:
        jax.config.update("jax_enable_x64", True)
    if torch is not None and "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one example in one process (`--dist loadgroup`): what JAX compiles for it serves them all."""
    if items and not items[0].config.getoption("--everything"):
        dropped = [item for item in items if left_out(item)]
        items[0].config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not left_out(item)]
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(params.get("example"), str):
            item.add_marker(pytest.mark.xdist_group(f"{params.get('variant')}/{params['example']}"))


# What JAX compiles for one example serves no other, and kept for all it takes 4 GB in each process.
TESTS_BETWEEN = 250
since = pytest.StashKey[int]()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget what was compiled, now and then, when the next test is of another example."""
    if jax is None:
        return
    done = item.config.stash.get(since, 0) + 1
    if done >= TESTS_BETWEEN and (nextitem is None or group_of(item) != group_of(nextitem)):
        jax.clear_caches()
        done = 0
    item.config.stash[since] = done


def group_of(item: pytest.Item) -> object:
    marker = item.get_closest_marker("xdist_group")
    return marker and marker.args


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations unchecked, so that a wrong argument meets the library's own words."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
