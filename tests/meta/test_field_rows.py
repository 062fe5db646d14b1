"""Every field report has its place: tests named after it, a test elsewhere, or what its test waits for."""

from __future__ import annotations

import ast
import re
import runpy
from collections import defaultdict
from pathlib import Path

from tree import ROOT

FOLDER = ROOT / "tests" / "regressions"
TABLE = runpy.run_path(str(FOLDER / "field_rows.py"))
KNOWN = {row: group for group, rows in TABLE["ROWS"].items() for row in rows}


def named_rows(path: Path) -> dict[int, list[str]]:
    """Row -> test functions of a file that are named after it; `test_E88_E95_...` counts for both."""
    found = defaultdict(list)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        prefix = re.match(r"test((?:_E\d+)+)_", node.name) if isinstance(node, ast.FunctionDef) else None
        for row in re.findall(r"\d+", prefix[1]) if prefix else ():
            found[int(row)].append(node.name)
    return found


def files_of_rows() -> dict[int, list[str]]:
    """Row -> files with tests that are named after it."""
    files = defaultdict(list)
    for path in sorted(FOLDER.glob("test_*.py")):
        for row in named_rows(path):
            files[row].append(path.name)
    return files


def test_every_row_stands_in_exactly_one_place():
    places = (files_of_rows().keys(), TABLE["ELSEWHERE"].keys(), TABLE["LATER"].keys())
    assert {row: sum(row in place for place in places) for row in KNOWN} == dict.fromkeys(KNOWN, 1)
    assert (TABLE["ELSEWHERE"].keys() | TABLE["LATER"].keys()) - KNOWN.keys() == set()


def test_the_tests_of_a_row_stand_together():
    assert {row: files for row, files in files_of_rows().items() if len(files) > 1} == {}


def test_every_row_is_counted():
    """12 + 8 + 11 + 21 rows, none of them in two groups, each with a title of its own."""
    assert [len(rows) for rows in TABLE["ROWS"].values()] == [12, 8, 11, 21]
    titles = [title for rows in TABLE["ROWS"].values() for title in rows.values()]
    assert len(KNOWN) == len(titles) == len(set(titles)) == 52


def test_what_is_tested_elsewhere_is_there():
    paths = {path for paths in TABLE["ELSEWHERE"].values() for path in paths}
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_every_test_of_a_row_names_its_report():
    """The docstring begins with the public thread, so that a reader can look it up."""
    silent = []
    for path in sorted(FOLDER.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.FunctionDef) and re.match(r"test_E\d", node.name)
            if named and not re.match(r"[\w-]+#\d+", ast.get_docstring(node) or ""):
                silent.append(node.name)
    assert silent == []
