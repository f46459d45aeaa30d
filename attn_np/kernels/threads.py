"""Blocks in threads: BLAS is held at one thread, and as many Python threads as it had share the blocks.

BLAS's own threads would meet at the end of every product, and what stands between two products would have one thread.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from attn_np.ops import Array


@cache
def blas() -> ThreadpoolController:
    """The BLAS libraries of this process, NumPy's among them."""
    return ThreadpoolController().select(user_api="blas")


class OneBlasThread:
    """Holds BLAS at one thread during calls, several of which may overlap: the first sets, the last restores."""

    def __init__(self) -> None:
        self.lock, self.callers, self.threads = Lock(), 0, 1
        self.limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[int]:
        """Yields the number of threads that BLAS had."""
        with self.lock:
            if self.callers == 0:
                counts = [library.num_threads for library in blas().lib_controllers if library.num_threads]
                self.threads, self.limit = max(counts, default=1), blas().limit(limits=1)
            self.callers += 1
            threads = self.threads
        try:
            yield threads
        finally:
            with self.lock:
                self.callers -= 1
                if self.callers == 0:
                    self.limit.restore_original_limits()

    def after_fork(self) -> None:
        """A child process has its parent's count of callers, but none of the threads that would release the lock
        or restore.
        """
        self.lock = Lock()
        if self.callers > 0:
            self.callers = 0
            self.limit.restore_original_limits()


one_blas_thread = OneBlasThread()
if hasattr(os, "register_at_fork"):  # where processes fork at all
    os.register_at_fork(after_in_child=one_blas_thread.after_fork)


def in_threads(work: Callable[[Any], None], plan: Callable[[int], Sequence[Any]]) -> None:
    """Do every task of `plan(threads)`, each in one thread; a task that is alone keeps BLAS's threads."""

    def quietly(task: Any) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # each thread has its own; hidden numbers may be anything
            work(task)

    if len(tasks := plan(1)) == 1:
        work(*tasks)
        return
    with one_blas_thread() as threads, ThreadPoolExecutor(threads) as pool:
        list((pool.map if threads > 1 else map)(quietly, plan(threads)))


class Scratch(dict[str, Array]):
    """Memory by name, used again for every block of a task: fresh memory costs a page fault every 4 kB."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        count = prod(shape)
        if name not in self or self[name].size < count:
            self[name] = np.empty(count, dtype)
        return self[name][:count].reshape(shape)
