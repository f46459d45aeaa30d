"""Processes that work for a command, and end with it."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any


@contextmanager
def workers(jobs: int, start: Callable[..., None] | None = None, *given: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes; where the block is left by an error or by Ctrl-C, they end at once.

    A pool by itself waits for all that was submitted, and a worker that is interrupted goes on with the next piece. A
    command that is ended by a signal kills none: its workers see that it is gone.

    Args:
        jobs: how many.
        start: what each calls first, with what is `given`.
    """
    before = active_children()
    pool = _Pool(jobs, get_context("spawn"), _start, (start, *given))
    try:
        yield pool
    except BaseException:
        for process in active_children():
            if process not in before:
                process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


class _Pool(ProcessPoolExecutor):
    """Processes that Ctrl-C does not reach, though a terminal sends it to all: the command ends them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(fn, *args, **kwargs)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what starts now inherits it
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _start(start: Callable[..., None] | None, *given: Any) -> None:
    """Begin a worker."""
    Thread(target=_end_with_parent, daemon=True).start()
    if start is not None:
        start(*given)


def _end_with_parent() -> None:
    """End this process as soon as the one that made it is gone, in whatever way."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
