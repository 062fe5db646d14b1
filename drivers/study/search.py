"""Points of a sweep, tried in parallel: by processes of this machine, by those of joblib, or on a dask or ray cluster.

Answers come in any order. What a point's figures are depends on the point alone, so every back end and any number of
workers gives the same.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .points import Task, Tried, try_point
from .processes import SearchFailed, deaf_children, on_processes

#: Where points are tried, and what each place needs to be installed.
BACKENDS = {"processes": None, "loky": "kvcore[sweep]", "dask": "kvcore[sweep]", "ray": "kvcore[ray]"}
CLUSTERS = ("dask", "ray")
_CONNECT_S = 20


@contextmanager
def searching(
    tasks: Sequence[Task], backend: str, jobs: int | None, address: str | None
) -> Iterator[Iterator[Tried]]:
    """The answers as they come. jobs: processes; None: one per core. address: of the cluster.

    Raises: SearchFailed, also while iterating.
    """
    if not tasks:
        yield iter(())
        return
    places = {"processes": lambda: on_processes(tasks, jobs), "loky": lambda: _on_loky(tasks, jobs),
              "dask": lambda: _on_dask(tasks, address), "ray": lambda: _on_ray(tasks, address)}
    with places[backend]() as answers:
        yield answers


@contextmanager
def _on_loky(tasks: Sequence[Task], jobs: int | None) -> Iterator[Iterator[Tried]]:
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise _absent("loky", error) from error
    parallel = Parallel(n_jobs=jobs or -1, backend="loky", batch_size=1, return_as="generator_unordered")
    with deaf_children():
        answers = parallel(delayed(try_point)(task) for task in tasks)
    try:
        yield _from_loky(answers)
    finally:
        answers.close()


def _from_loky(answers: Iterator[Tried]) -> Iterator[Tried]:
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
        raise _absent("dask", error) from error
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
        raise SearchFailed(f"the cluster failed: {_words(error)}") from error


@contextmanager
def _on_ray(tasks: Sequence[Task], address: str | None) -> Iterator[Iterator[Tried]]:
    try:
        import ray
        from joblib import Parallel, delayed, parallel_config, register_parallel_backend
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise _absent("ray", error) from error
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise SearchFailed(f"--address {address}: no ray cluster answers there: {_words(error)}") from error

    class Streaming(RayBackend):  # type: ignore[misc]
        # It has this from joblib's pools of forked processes, which ray's pool is none of: it calls back as they do.
        supports_return_generator = True

    try:
        register_parallel_backend("ray", Streaming)
        with parallel_config(backend="ray", n_jobs=-1):
            parallel = Parallel(batch_size=1, return_as="generator_unordered")
            yield _from_ray(parallel(delayed(try_point)(task) for task in tasks))
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Find out whether anybody listens: ray itself tries for minutes, and says so again and again. Raises: OSError."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdecimal() and int(port) < 1 << 16:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


def _from_ray(answers: Iterator[Tried]) -> Iterator[Tried]:
    from ray.exceptions import RayError

    try:
        yield from answers
    except (OSError, TimeoutError, RayError, ImportError) as error:
        raise SearchFailed(f"the cluster failed: {_words(error)}") from error


def _absent(backend: str, error: ImportError) -> SearchFailed:
    return SearchFailed(f"--backend {backend} needs {error.name}: pip install '{BACKENDS[backend]}'")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
