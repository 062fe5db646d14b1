"""Points of a sweep, tried by processes of this machine that are forked from this one.

So they have everything that is loaded here, the rows of a small trace too, and start in milliseconds. They are forked
all at once, before the pool starts a thread.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process

from kvcore.errors import KvcoreError

from .points import Task, Tried, try_point


class SearchFailed(KvcoreError):
    """The workers of a sweep can not be had, or are gone."""


@contextmanager
def deaf_children() -> Iterator[None]:
    """Ctrl-C in a terminal reaches every process: those born meanwhile do not hear it, and end when we end them.

    Here it is held back: blocked, and ignored only because loky's resource tracker takes the block away as it starts,
    so that later processes would be born hearing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def on_processes(tasks: Sequence[Task], jobs: int | None) -> Iterator[Iterator[Tried]]:
    """The answers as they come. jobs: processes, one of them in this one; None: one per core. Raises: SearchFailed."""
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    if jobs == 1:
        yield map(try_point, tasks)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("fork"), initializer=_follow_parent)
    futures: list[Future[Tried]] = []
    try:
        with deaf_children(), warnings.catch_warnings():
            # Python warns of threads at a fork: numpy's have been idle since they were made, and it prepares them.
            warnings.simplefilter("ignore", DeprecationWarning)
            gc.freeze()     # or each would walk through what they share, and copy it by that
            futures += [pool.submit(try_point, task) for task in tasks]
        yield _answers(futures)
    finally:
        gc.unfreeze()
        if not all(future.done() for future in futures):
            for process in set(active_children()) - others:
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _answers(futures: list[Future[Tried]]) -> Iterator[Tried]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise SearchFailed("a process has ended under its work, perhaps for lack of memory") from error


def _follow_parent() -> None:
    """In a worker: end when the parent has, however it did."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
