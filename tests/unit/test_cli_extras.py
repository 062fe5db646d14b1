"""A plain `pip install .` has all commands; those that need more say in one line what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kvcore.drivers.cli.extras import extra

#: Runs commands in an interpreter that has nothing but what a plain install brings.
SCRIPT = """
import sys
for name in {missing}:
    sys.modules[name] = None
from kvcore.drivers.cli import main
for command in {commands}:
    print(main(command.split()), flush=True)
"""
MISSING = ["trio", "msgspec", "h11", "zmq", "prometheus_client", "tokenizers", "xxhash", "matplotlib", "jinja2"]
COMMANDS = {
    "serve": "kvcore serve needs trio: pip install 'kvcore[gateway]'",
    "serve --help": "kvcore serve needs trio: pip install 'kvcore[gateway]'",
    "mock-worker": "kvcore mock-worker needs trio: pip install 'kvcore[gateway]'",
    "demo": "kvcore demo needs trio: pip install 'kvcore[gateway]'",
    "kvevents show x.jsonl": "kvcore kvevents show needs msgspec: pip install 'kvcore[gateway]'",
    "replay x.csv --report x.html": "--report needs matplotlib: pip install 'kvcore[report]'",
    "replay x.csv --figures x": "--figures needs matplotlib: pip install 'kvcore[report]'",
    "trace stats x.csv --figure x.svg": "--figure needs matplotlib: pip install 'kvcore[report]'",
}


def test_every_command_names_its_extra(tmp_path):
    script = SCRIPT.format(missing=MISSING, commands=list(COMMANDS))
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stderr.splitlines() == [f"kvcore: error: {message}" for message in COMMANDS.values()]
    assert answer.stdout.split() == ["2"] * len(COMMANDS)


def test_what_kvcore_itself_lacks_is_a_bug():
    with pytest.raises(ModuleNotFoundError), extra("gateway", "kvcore serve"):
        raise ModuleNotFoundError("No module named 'kvcore.nothing'", name="kvcore.nothing")
