"""Documents that cannot go stale: names in README, ARCHITECTURE and tables exist, public names are described.

Their code is run by test_docs_pages.py.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from tree import ROOT

import kvcore

README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PAGES = {"README.md": README, "ARCHITECTURE.md": ARCHITECTURE}
PROGRAM = Path(sys.executable).with_name("kvcore")
COMPILED = ("kvcore.scheduler", "kvcore.hashing")


def blocks(language: str, page: str = README) -> list[str]:
    """Fenced blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def page_of(name: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command at the root of the tree, as a reader of the README would."""
    environment = os.environ | {"PYTHONWARNINGS": "error", "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(list(command), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def first_replay() -> str:
    """Output of the README's first replay."""
    return run(str(PROGRAM), *shlex.split(blocks("sh")[0].splitlines()[0].partition(" && kvcore ")[2])).stdout


def steady(text: str) -> list[str]:
    """The lines that are the same on every machine and do not change with every change of the core's state."""
    return [line for line in text.splitlines() if line and line.split()[0] not in ("run", "memory", "digest")]


def test_the_two_commands_come_first():
    assert blocks("sh")[0].splitlines() == [
        "pip install . && kvcore replay examples/traces/azure_code_sample.csv --workers 4 "
        "--policy examples/policies/premium.yaml",
        "pip install '.[test]' && pytest",
    ]


def test_the_shown_policies_are_one():
    (text,) = blocks("yaml")
    assert blocks("yaml", page_of("howto/policy.md"))[0] == text
    root = kvcore.load_policy(text, "README.md").root
    assert root is not None
    assert [(item.name, item.quantum) for item in root.classes] == [("premium", 512), ("regular", 128)]


def test_the_shown_space_is_the_example():
    (shown,), example = blocks("yaml", page_of("howto/tune.md")), (ROOT / "examples" / "space.yaml").read_text("utf-8")
    assert yaml.safe_load(shown) == yaml.safe_load(example)


def test_the_first_program_is_the_example():
    (shown,) = blocks("python")
    example = (ROOT / "examples" / "embed_first.py").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2] == shown


def test_the_program_runs_as_a_module(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "kvcore", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert all(name in answer.stdout for name in ("replay", "policy"))


def test_a_source_tree_that_is_not_compiled_says_so(tmp_path):
    """Whoever has installed kvcore and starts Python in a checkout gets the sources: the current folder comes first."""
    (tmp_path / "kvcore").mkdir()
    for path in (ROOT / "kvcore").glob("*.py"):
        shutil.copy(path, tmp_path / "kvcore")
    answer = subprocess.run(  # -S: an editable installation would find its modules for any folder called kvcore
        [sys.executable, "-S", "-c", "import kvcore"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    assert answer.returncode == 1
    assert f"ImportError: {tmp_path}/kvcore is a source tree" in answer.stderr.splitlines()[-1]


def test_the_shown_replay_is_a_real_one():
    """What the README shows is what its first command prints, but for what depends on the machine and the digest."""
    renew = "PYTHONPATH=tests python tests/meta/test_docs.py writes it anew"
    assert steady(blocks("text")[0]) == steady(first_replay()), renew


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page):
    text = PAGES[page]
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    named = re.findall(r"\b((?:kvcore|drivers|tests|examples)/[\w/.-]*\w)", text)
    assert [path for path in (*linked, *named) if not (ROOT / path).exists()] == []


def test_tables_name_every_event_and_action():
    kinds = {
        name for name in kvcore.__all__
        if inspect.isclass(kind := getattr(kvcore, name)) and issubclass(kind, kvcore.Event | kvcore.Action)}
    told = set(re.findall(r"(?:^\||,) `(\w+)`", page_of("reference/vocabulary.md"), re.MULTILINE))
    assert kinds - told == {"Event", "Action"}


def test_tables_name_the_fields():
    page = page_of("reference/vocabulary.md")
    for name, fields in re.findall(r"^\| `(\w+)`[^|]*\| `([\w, .]+)` \|", page, re.MULTILINE):
        known = getattr(kvcore, name).__dataclass_fields__
        assert [field for field in fields.replace(" ...", "").rstrip(",").split(", ") if field not in known] == [], name


def test_architecture_names_every_reason():
    reasons = [*kvcore.RejectReason, *kvcore.EvictReason]
    assert [reason.name for reason in reasons if reason.name not in ARCHITECTURE] == []


def test_architecture_names_every_module():
    modules = {path.stem for path in (ROOT / "kvcore").glob("*.p*") if path.suffix in (".py", ".pyx", ".pxd")}
    named = set(re.findall(r"\b\w+\b", ARCHITECTURE))
    assert modules - named == {"__main__"}


def test_architecture_says_what_the_cited_decisions_are():
    """And in which modules they are carried out: the code cites what is written nowhere else in the repository."""
    table = dict(re.findall(r"^\| (D\d+) \|.*\| (.*) \|$", ARCHITECTURE, re.MULTILINE))
    files = [path for path in (ROOT / "kvcore").glob("*.p*") if path.suffix in (".py", ".pyx", ".pxd")]
    cited = {path: set(re.findall(r"\bD\d+\b", path.read_text(encoding="utf-8"))) for path in files}
    assert set().union(*cited.values()) == set(table) == {f"D{number}" for number in range(1, 21)}
    for decision, where in table.items():
        homes = re.findall(r"`(\w+)`", where)
        assert [name for name in homes if not any(path.stem == name for path in files)] == [], decision
        assert any(decision in cited[path] for path in files if path.stem in homes), f"{where}: none cites {decision}"


def test_architecture_has_its_eight_parts_and_its_decisions():
    assert re.findall(r"^## (\d)\.", ARCHITECTURE, re.MULTILINE) == [str(number) for number in range(1, 9)]
    decisions = re.findall(r"^\*\*A(\d+) .*?(?=^\*\*A|^#)", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert decisions == [str(number) for number in range(1, len(decisions) + 1)]
    assert len(decisions) == ARCHITECTURE.count("Would change:") >= 12


def test_the_map_of_the_tests_is_whole():
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    known = re.findall(r"`([\w*/.]+)`", text)
    paths = [path for path in (ROOT / "tests").iterdir() if path.suffix in (".py", ".pyx") or path.is_dir()]
    there = [path.name + "/" * path.is_dir() for path in paths if path.name != "__pycache__"]
    assert [name for name in there if not any(fnmatch(name, pattern) for pattern in known)] == []
    assert [item for item in known if item[-1] in "/y" and not any(fnmatch(name, item) for name in there)] == []


def test_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == kvcore.__version__


def test_public_names_are_described():
    """At least 80 % of public modules, classes and functions written in Python have a docstring (pyproject.toml)."""
    answer = run(sys.executable, "-m", "interrogate", "--config", "pyproject.toml", "-v", "kvcore", "drivers")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_all_is_what_there_is():
    assert sorted(kvcore.__all__) == kvcore.__all__
    assert [name for name in kvcore.__all__ if not hasattr(kvcore, name)] == []


@pytest.mark.parametrize("name", [name for name in kvcore.__all__ if inspect.isclass(getattr(kvcore, name))])
def test_exported_classes_are_described(name):
    """All of them, with their public methods: docstrings of dataclasses that only repeat the fields do not count."""
    kind = getattr(kvcore, name)
    assert (kind.__doc__ or "").strip() not in ("", f"{name}()")
    assert not (kind.__doc__ or "").startswith(f"{name}(")
    members = [member for member in vars(kind) if not member.startswith("_")]
    routines = [member for member in members if inspect.isroutine(getattr(kind, member))]
    assert [member for member in routines if not getattr(kind, member).__doc__] == []


@pytest.mark.parametrize("module", COMPILED)
def test_compiled_functions_are_described(module):
    found = importlib.import_module(module)
    assert found.__doc__
    public = [name for name, value in vars(found).items() if not name.startswith("_") and inspect.isroutine(value)]
    assert [name for name in public if not getattr(found, name).__doc__] == []


if __name__ == "__main__":
    (ROOT / "README.md").write_text(README.replace(blocks("text")[0], first_replay()), encoding="utf-8")
