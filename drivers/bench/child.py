"""The process that `kvcore bench` measures: `python -m kvcore.drivers.bench.child JSON MODE NAME...`.

JSON: {"policy": path, "model": name or null, "load": {...}}; MODE and NAME as measured.serve takes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kvcore.policy import PolicyProfile
from kvcore.policy_file import load_policy

from .load import Load, record
from .measured import Work, serve

#: The only piece of work: what stepping the recorded events costs, per event.
STEP = "step, per event"


def main(argv: Sequence[str]) -> int:
    """Record the load, then measure stepping it. Returns: exit status."""
    asked = json.loads(argv[0])
    document = load_policy(Path(asked["policy"]).read_text(encoding="utf-8"), asked["policy"])
    profile = document.profile_for(asked["model"])
    assert isinstance(profile, PolicyProfile)
    recording = record(Load(**asked["load"]), profile)
    return serve({STEP: Work(recording.prepare, recording.events, ratio=True)}, argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
