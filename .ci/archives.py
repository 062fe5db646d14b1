"""Looks into a built sdist and a built wheel: python .ci/archives.py SDIST WHEEL, at the root of the tree."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

BUILT = {".so", ".c", ".o", ".html", ".pyc"}
HEADS = {".py", ".pxd", ".pyi", ".j2"}
DOCUMENTS = {".md", ".py", ".svg", ".css", ".js"}
#: Where a folder of the tree is in the wheel.
INSTALLED = {"kvcore": "kvcore", "drivers": "kvcore/drivers"}


def tree(suffixes: set[str]) -> set[str]:
    """Files of the sources with these suffixes."""
    return {
        path.as_posix() for folder in INSTALLED for path in Path(folder).rglob("*") if path.suffix in suffixes}


def sdist_faults(path: str) -> list[str]:
    """What is wrong with the sdist."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = tree(HEADS | {".pyx"}) | {
        "kvcore/py.typed", "setup.py", "pyproject.toml", "README.md", "LICENSE", "mkdocs.yml"}
    needed |= {path.as_posix() for path in Path("docs").rglob("*") if path.suffix in DOCUMENTS}
    return [f"sdist lacks {name}" for name in sorted(needed - names)] + [
        f"sdist holds {name}" for name in sorted(names) if PurePosixPath(name).suffix in BUILT]


def wheel_faults(path: str) -> list[str]:
    """What is wrong with the wheel."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    needed = {"kvcore/py.typed"}
    for name in tree(HEADS):
        folder, _, rest = name.partition("/")
        needed.add(f"{INSTALLED[folder]}/{rest}")
    faults = [f"wheel lacks {name}" for name in sorted(needed - names)]
    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    sources = tree({".pyx", ".py"})
    for name in tree({".pyx", ".pxd"}):
        folder, _, rest = name.partition("/")
        stem = name.rpartition(".")[0]
        module = f"{INSTALLED[folder]}/{rest.rpartition('.')[0]}"
        # A .pxd that stands alone, like _types.pxd, has nothing to compile.
        if module not in compiled and sources & {f"{stem}.pyx", f"{stem}.py"}:
            faults.append(f"wheel lacks the compiled {module}")
    unwanted = BUILT - {".so"} | {".pyx"}
    faults += [f"wheel holds {name}" for name in sorted(names) if PurePosixPath(name).suffix in unwanted]
    roots = {name.partition("/")[0] for name in names}
    faults += [f"wheel owns {name}" for name in roots if name != "kvcore" and not name.endswith(".dist-info")]
    return faults


if __name__ == "__main__":
    found = sdist_faults(sys.argv[1]) + wheel_faults(sys.argv[2])
    print("\n".join(found) or "the archives hold what they should")
    sys.exit(bool(found))
