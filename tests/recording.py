"""A recorded run, and its text as Python code that can be pasted into a regression test."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import Enum

from kvcore.actions import AnyAction
from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent


@dataclass
class Run:
    """A configuration and what was stepped and answered, batch by batch."""

    config: SchedulerConfig
    steps: list[tuple[tuple[AnyEvent, ...], tuple[AnyAction, ...]]] = field(default_factory=list)

    def add(self, events, actions) -> None:
        self.steps.append((tuple(events), tuple(actions)))


def record(scheduler, batches) -> Run:
    """Step a scheduler through batches of valid events and keep what it said."""
    run = Run(scheduler.config)
    for events in batches:
        run.add(events, scheduler.step_many(events))
    return run


def as_code(config: SchedulerConfig, batches) -> str:
    """The batches as code; names are those of kvcore's value modules."""
    lines = [f"config = {literal(config)}", "batches = ["]
    for events in batches:
        lines.append("    (")
        lines += [f"        {literal(event)}," for event in events]
        lines.append("    ),")
    return "\n".join([*lines, "]"])


def literal(value) -> str:
    """Source text of a value; fields that have their default value are left out."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    parts = []
    for item in dataclasses.fields(value):
        content = getattr(value, item.name)
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if default is dataclasses.MISSING:
            parts.append(literal(content))
        elif content != default:
            parts.append(f"{item.name}={literal(content)}")
    return f"{type(value).__name__}({', '.join(parts)})"
