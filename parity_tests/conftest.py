"""Settings of every test process.

Annotations are checked where pytest is called with jaxtyping's option, as `make test` does. Its import hook must stand
before our packages are imported, so nothing of ours is imported here.
"""

import os
from collections.abc import Iterator

import jaxtyping
import pytest

# The tests compile some thousand small JAX functions once each: LLVM's optimisation passes would be a quarter of their
# time. `attn-parity run` judges JAX with them; set XLA_FLAGS to do so here.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

try:
    import torch
except ModuleNotFoundError:
    torch = None
try:
    import jax
except ModuleNotFoundError:
    jax = None


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group: tests that share compiled code")
    if jax is not None:
        jax.config.update("jax_enable_x64", True)
    if torch is not None and "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one example in one process (`--dist loadgroup`): what JAX compiles for it serves them all."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(params.get("example"), str):
            item.add_marker(pytest.mark.xdist_group(f"{params.get('variant')}/{params['example']}"))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations unchecked, so that a wrong argument meets the library's own words."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
