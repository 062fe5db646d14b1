"""Both live drivers have the same surface: names, parameters, exceptions. What differs is named here."""

from __future__ import annotations

import inspect

import pytest
from kvcore.drivers import protocol, threads
from kvcore.drivers import trio as trio_driver

from kvcore.errors import KvcoreError

#: Only with threads: what stands for waiting in another task.
EXTRA = {"admit_later"}


def public(kind) -> dict:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_routers_have_the_same_methods():
    ours, theirs = public(trio_driver.Router), public(threads.Router)
    assert set(theirs) - set(ours) == EXTRA
    assert set(ours) <= set(theirs)
    for name, method in ours.items():
        mine, other = parameters(method), parameters(theirs[name])
        if name == "admit":
            mine.remove("cancel_on_evict")
            other = [item for item in other if item not in ("on_evict", "timeout_s")]
        assert mine == other, name


def test_leases_have_the_same_methods():
    ours, theirs = public(trio_driver.Lease), public(threads.Lease)
    assert set(theirs) - set(ours) == {"later"}
    assert set(ours) - set(theirs) == {"guard"}       # a scope is trio's: threads are not cancelled


def test_they_are_opened_alike():
    assert parameters(trio_driver.open_scheduler) == parameters(threads.open_scheduler)


def test_the_same_exceptions_come_out_of_both():
    assert set(threads.__all__) | {"Evicted"} == set(trio_driver.__all__)
    for name in set(threads.__all__) & set(vars(protocol)):
        assert getattr(threads, name) is getattr(trio_driver, name)


@pytest.mark.parametrize("name", ["Rejected", "Evicted", "Withdrawn", "Closed", "Misuse"])
def test_what_drivers_raise_is_of_kvcore(name):
    """One `except KvcoreError` is enough, and what a caller could have avoided is a RuntimeError, too."""
    kind = getattr(protocol, name)
    assert issubclass(kind, protocol.DriverError)
    assert issubclass(kind, KvcoreError)
    assert issubclass(kind, RuntimeError) is (name in ("Closed", "Misuse"))


@pytest.mark.parametrize("kind", [trio_driver.Router, trio_driver.Lease, threads.Router, threads.Lease])
def test_every_public_method_is_described(kind):
    assert [name for name, value in public(kind).items() if callable(value) and not value.__doc__] == []
