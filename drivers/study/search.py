"""Points of a sweep, tried in parallel: on the cores of this machine (loky) or on a dask cluster.

Answers come in any order. What a point's figures are depends on the point alone, so every back end and any number of
workers gives the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvcore.errors import KvcoreError

from .points import Task, Tried, try_point

BACKENDS = ("loky", "dask")
_CONNECT_S = 20


class SearchFailed(KvcoreError):
    """The workers of a sweep can not be had, or are gone."""


def missing_extra() -> str | None:
    """What is not installed of the extra `sweep`, or None."""
    try:
        import joblib  # noqa: F401 - whether it is there
    except ImportError as error:
        return str(error.name)
    return None


@contextmanager
def searching(tasks: Sequence[Task], backend: str, jobs: int, address: str | None) -> Iterator[Iterator[Tried]]:
    """The answers as they come. jobs: processes; -1: one per core. address: of the cluster's scheduler.

    Raises: SearchFailed, also while iterating.
    """
    if not tasks:
        yield iter(())
        return
    if backend == "dask":
        with _on_dask(tasks, address) as answers:
            yield answers
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, backend="loky", batch_size=1, return_as="generator_unordered")
    with _deaf_children():
        answers = parallel(delayed(try_point)(task) for task in tasks)
    try:
        yield _answers(answers)
    finally:
        answers.close()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C, which reaches every process of a terminal.

    They end when we end them. Here it is held back: blocked, and ignored only because the start of loky's resource
    tracker takes the block away, so that later processes would be born hearing.
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


def _answers(answers: Iterator[Tried]) -> Iterator[Tried]:
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        yield from answers
    except TerminatedWorkerError as error:
        reason = str(error).splitlines()[0]
        raise SearchFailed(f"a process has ended under its work, perhaps for lack of memory: {reason}") from error


@contextmanager
def _on_dask(tasks: Sequence[Task], address: str | None) -> Iterator[Iterator[Tried]]:
    try:
        from distributed import Client
        from joblib import Parallel, delayed, parallel_config
    except ImportError as error:
        raise SearchFailed(f"--backend dask needs {error.name}: pip install 'kvcore[sweep]'") from error
    try:
        client: Any = Client(address, timeout=_CONNECT_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise SearchFailed(f"--address {address}: no dask scheduler answers there: {error}") from error
    with client, parallel_config(backend="dask"):
        parallel = Parallel(batch_size=1, return_as="generator_unordered")
        yield _from_cluster(parallel(delayed(try_point)(task) for task in tasks))


def _from_cluster(answers: Iterator[Tried]) -> Iterator[Tried]:
    from distributed import KilledWorker

    try:
        yield from answers
    except (OSError, TimeoutError, KilledWorker, ImportError) as error:
        # ImportError: its workers have no kvcore. OSError: also of a scheduler that is gone.
        raise SearchFailed(f"the cluster failed: {' '.join(str(error).split()) or type(error).__name__}") from error
