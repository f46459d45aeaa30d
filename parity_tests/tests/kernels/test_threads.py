"""BLAS is held at one thread from the first call that enters to the last one that leaves, in any order of both."""

from types import SimpleNamespace

import numpy as np
import pytest

from attn_np.kernels import threads as _kernel_threads


class Blas:
    """Three libraries, of 3 threads, of 5, and of an unknown number."""

    def __init__(self) -> None:
        self.threads = 5
        self.lib_controllers = [SimpleNamespace(num_threads=n) for n in (3, 5, None)]

    def limit(self, limits: int) -> "Blas":
        assert self.threads == 5, "limited twice"
        self.threads = limits
        return self

    def restore_original_limits(self) -> None:
        assert self.threads == 1, "restored twice"
        self.threads = 5


@pytest.mark.parametrize("seed", range(20))
def test_calls_that_overlap_hold_one_thread_until_the_last_leaves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, blas, held, inside = np.random.default_rng(seed), Blas(), _kernel_threads.OneBlasThread(), []
    monkeypatch.setattr(_kernel_threads, "blas", lambda: blas)
    for _ in range(30):
        if inside and rng.random() < 0.5:
            inside.pop(rng.integers(len(inside))).__exit__(None, None, None)
        else:
            inside.append(held())
            assert inside[-1].__enter__() == 5
        assert (blas.threads, held.callers) == (1 if inside else 5, len(inside))
    if inside:  # a child process has none of the threads of its parent
        held.after_fork()
        assert (blas.threads, held.callers) == (5, 0)
