"""The stories of verdicts under an overtaking bound, as the core tells them and as the oracle does."""

from __future__ import annotations

import pytest
from bound_stories import CONFIG, STORIES
from oracle import Oracle

from kvcore.actions import Dispatch
from kvcore.scheduler import Scheduler


@pytest.mark.parametrize("make", [Scheduler, Oracle])
@pytest.mark.parametrize("story", STORIES)
def test_story(story, make):
    scheduler = make(CONFIG)
    for events, wanted in STORIES[story]:
        actions = scheduler.step_many(events)
        assert " ".join(a.request_id for a in actions if isinstance(a, Dispatch)) == wanted
