"""Processes that work for a command, and end with it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any


@contextmanager
def workers(jobs: int, start: Callable[..., None] | None = None, *given: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes; where the block is left by an error or by Ctrl-C, they end at once.

    A pool by itself waits for all that was submitted, and a worker that is interrupted goes on with the next piece.

    Args:
        jobs: how many.
        start: what each calls first, with what is `given`.
    """
    before = active_children()
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), start, given)
    try:
        yield pool
    except BaseException:
        for process in active_children():
            if process not in before:
                process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()
