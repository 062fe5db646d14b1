"""The source tree as the meta tests see it: its files, their imports, and a staged copy laid out as it is installed.

    python tests/tree.py    lists the source files that are longer than they should be
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = (".py", ".pyx", ".pxd", ".pyi")
#: Folders whose files are sources of this project; everything else in the tree is data, text or built.
SOURCE_FOLDERS = ("kvcore", "drivers", "tests", "benchmarks", "examples", "docs", ".ci")
LINES_TARGET = 350

_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)
_IMPORT = re.compile(
    r"^[ \t]*c?import[ \t]+([\w.]+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*[\w.]+)*)[ \t]*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One imported or cimported name. name: None for a plain import of the module."""

    module: str
    name: str | None


def sources(*folders: str, suffixes: tuple[str, ...] = SOURCE_SUFFIXES) -> list[Path]:
    """Source files below folders of the tree, sorted; built files and caches are none."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def everywhere() -> list[Path]:
    """Every source file of the project."""
    return [*sources(*SOURCE_FOLDERS), ROOT / "setup.py"]


def shown(path: Path) -> str:
    """The path as messages name it."""
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[Import]:
    """What a Python or Cython file imports and cimports, wherever in the file it does so."""
    text = path.read_text(encoding="utf-8")
    found = set()
    for module, names in _FROM.findall(text):
        bare = re.sub(r"#[^\n]*|[()]", "", names)
        found |= {Import(module, name.split()[0]) for name in bare.split(",") if name.split()}
    for modules in _IMPORT.findall(text):
        found |= {Import(module.split()[0], None) for module in modules.split(",")}
    return found


def stage(folder: Path) -> Path:
    """Copy what a type checker reads into folder/kvcore, with drivers/ at its installed place; returns folder."""
    for source, target in (("kvcore", "kvcore"), ("drivers", "kvcore/drivers")):
        for path in sources(source, suffixes=(".py", ".pyi")):
            copy = folder / target / path.relative_to(ROOT / source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (folder / "kvcore" / "py.typed").touch()
    return folder


def long_files(lines: int) -> list[str]:
    """Source files over a number of lines, longest first."""
    counted = [(len(path.read_text(encoding="utf-8").splitlines()), shown(path)) for path in everywhere()]
    return [f"{count} {name}" for count, name in sorted(counted, reverse=True) if count > lines]


if __name__ == "__main__":
    print("\n".join(long_files(LINES_TARGET)) or f"no file is over {LINES_TARGET} lines")
