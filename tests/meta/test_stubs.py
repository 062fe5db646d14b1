"""Types: mypy --strict on kvcore and its drivers as they are installed, and stubs against the compiled modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tree import ROOT, shown, sources, stage

#: Differences that every extension type has and no stub can state; one name or pattern a line.
ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")
STUBTEST = ("mypy.stubtest", "--allowlist", str(ALLOWLIST), "--ignore-disjoint-bases", "--concise")


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The Python sources and stubs, laid out as they are installed. Without compiled modules: never import from it."""
    return stage(tmp_path_factory.mktemp("staged"))


def run(staged: Path, work: Path, *command: str) -> None:
    """Run a module of mypy in an empty folder; its output is the failure."""
    environment = os.environ | {"MYPYPATH": str(staged), "MYPY_CACHE_DIR": str(staged / "cache"), "NO_COLOR": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", *command], cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def stubbed() -> list[str]:
    """Compiled modules that have a stub beside them, by their installed name."""
    return [
        ".".join(("kvcore", *path.relative_to(ROOT / ("kvcore" if folder == "kvcore" else ".")).with_suffix("").parts))
        for folder in ("kvcore", "drivers")
        for path in sources(folder, suffixes=(".pyi",))
    ]


def test_strict(staged, tmp_path):
    run(staged, tmp_path, "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "-p", "kvcore")


def test_stubs_say_what_the_compiled_modules_are(staged, tmp_path):
    modules = stubbed()
    assert {"kvcore.scheduler", "kvcore.hashing"} <= set(modules)
    run(staged, tmp_path, *STUBTEST, *modules)


def test_a_stub_that_lies_is_found(tmp_path):
    """The test above bites: a renamed argument of a compiled function is a difference."""
    staged, work = stage(tmp_path / "staged"), tmp_path / "work"
    work.mkdir()
    stub = staged / "kvcore" / "hashing.pyi"
    stub.write_text(stub.read_text(encoding="utf-8").replace("local: int", "lokal: int"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"kvcore\.hashing\.chain"):
        run(staged, work, *STUBTEST, "--ignore-unused-allowlist", "kvcore.hashing")


def test_every_stub_has_its_compiled_module():
    alone = [shown(path) for path in sources("kvcore", "drivers", suffixes=(".pyi",))
             if not path.with_suffix(".pyx").exists()]
    assert alone == []
