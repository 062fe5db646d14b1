"""The exceptions of kvcore: each names whose mistake it is (DESIGN 5).

What the world refuses is never an exception: it is an action with a reason.
"""

from __future__ import annotations


class KvcoreError(Exception):
    """Base of every exception that kvcore raises on purpose."""


class InvalidEvent(KvcoreError, ValueError):
    """The caller broke the contract of `step`: nothing of the batch was applied.

    index: position of the offending event in the batch, counted from 0.
    reason: what is wrong with it, one phrase.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"event {index}: {reason}")
        self.index = index
        self.reason = reason


class InvalidConfig(KvcoreError, ValueError):
    """A SchedulerConfig that no scheduler can run."""


class InvalidPolicy(KvcoreError, ValueError):
    """A policy document that cannot be used; nothing was loaded.

    source: file name or an inline marker; location: `root` or `model "NAME"`, with the class or bucket where one is
    meant; key: the offending key or None; line: 1-based line in the text or None; reason: one phrase.
    """

    def __init__(
        self, reason: str, *, source: str = "<policy>", location: str = "root", key: str | None = None,
        line: int | None = None,
    ) -> None:
        place = source if line is None else f"{source}:{line}"
        what = location if key is None else f"{location}: {key}"
        super().__init__(f"{place}: {what}: {reason}")
        self.source = source
        self.location = location
        self.key = key
        self.line = line
        self.reason = reason


class AdmissionError(KvcoreError, RuntimeError):
    """An admission policy raised, or answered what the protocol does not know: the scheduler is poisoned.

    policy_type, class_name: which; call: the method that was called; reason: what went wrong, one phrase.
    """

    def __init__(self, policy_type: str, class_name: str, call: str, reason: str) -> None:
        super().__init__(f"admission policy {policy_type!r} of class {class_name!r}, {call}: {reason}")
        self.policy_type = policy_type
        self.class_name = class_name
        self.call = call
        self.reason = reason


class InvalidTrace(KvcoreError, ValueError):
    """An input file of requests that cannot be used.

    file: its path; line: 1-based line, or None when the whole file is meant; reason: one phrase.
    """

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class InvalidJournal(KvcoreError, ValueError):
    """A journal that cannot be read.

    file: its path, or an inline marker; line: 1-based line; reason: one phrase.
    """

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class InvalidSnapshot(KvcoreError, ValueError):
    """Bytes from which no scheduler can be restored: damaged, of another version, or never a snapshot.

    reason: one phrase.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"snapshot: {reason}")
        self.reason = reason


class JournalMismatch(KvcoreError):
    """A journal was stepped again, and something else came out.

    index: the batch, counted from 0. event: its events, a tuple: one decision is made for all of them. expected: what
    the journal holds; actual: what came out. Both are tuples of actions, or digests where the actions agree.
    """

    def __init__(
        self, index: int, event: tuple[object, ...], expected: object, actual: object, *, text: str | None = None,
    ) -> None:
        super().__init__(text or f"batch {index}: expected {expected!r}, not {actual!r}")
        self.index = index
        self.event = event
        self.expected = expected
        self.actual = actual
