"""The stories of dispatches that fail, as the core tells them and as the oracle does."""

from __future__ import annotations

import pytest
from oracle import Oracle
from retry_stories import STORIES
from stories import short

from kvcore.scheduler import Scheduler


@pytest.mark.parametrize("make", [Scheduler, Oracle])
@pytest.mark.parametrize("story", STORIES)
def test_story(story, make):
    config, batches, wanted = STORIES[story]
    scheduler = make(config)
    answers = [scheduler.step_many(batch) for batch in batches]
    assert short(answers[-1]) == wanted
