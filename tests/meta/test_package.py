"""What is packed and what is installed: every source in the sdist, every contract in the wheel, no generated C.

The archives themselves are built and looked into by the continuous integration script: that takes a compiler's time.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from probe_build import settings
from tree import ROOT, shown, sources

import kvcore

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Compiled modules by installed name, with their source file.
COMPILED = {
    f"{package}.{Path(file).stem}": ROOT / folder / file
    for package, (folder, files) in settings()["MODULES"].items() for file in files
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """What setuptools would put into the archives; see packing.py."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "packing.py"), str(tmp_path_factory.mktemp("notes"))],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def installed_name(path: Path) -> str:
    """Where a file of kvcore/ or drivers/ is installed."""
    name = shown(path)
    return name if name.startswith("kvcore/") else f"kvcore/{name}"


def test_sdist_holds_every_source(packed):
    needed = {shown(path) for path in sources("kvcore", "drivers", "tests")}
    needed |= {"kvcore/py.typed", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "ARCHITECTURE.md",
               "CHANGELOG.md", "LICENSE", "tests/golden/fixed_history.json", "examples/policies/premium.yaml",
               "examples/traces/azure_code_sample.csv"}
    assert needed - set(packed["sdist"]) == set()


def test_sdist_holds_nothing_built(packed):
    built = (".so", ".c", ".html", ".pyc", ".o")
    assert [name for name in packed["sdist"] if name.endswith(built) or name.startswith("build/")] == []


def test_wheel_holds_modules_headers_and_stubs(packed):
    needed = {installed_name(path) for path in sources("kvcore", "drivers", suffixes=(".py", ".pxd", ".pyi", ".j2"))}
    assert set(packed["wheel"]) == needed | {"kvcore/py.typed"}


def test_setup_knows_every_cython_module():
    assert set(sources("kvcore", "drivers", suffixes=(".pyx",))) - set(COMPILED.values()) == set()
    headed = {path.with_suffix(".py") for path in sources("kvcore", "drivers", suffixes=(".pxd",))}
    assert {path for path in headed if path.exists()} - set(COMPILED.values()) == set()


@pytest.mark.parametrize("module", [name for name, path in COMPILED.items() if path.exists()])
def test_compiled_modules_are_compiled(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def test_headers_and_marker_are_installed():
    """A package built on kvcore can cimport it, and a type checker finds its types."""
    folder = Path(kvcore.__file__).parent
    assert (folder / "py.typed").exists()
    assert {path.name for path in sources("kvcore", suffixes=(".pxd",))} <= {path.name for path in folder.iterdir()}


def test_no_generated_c_is_installed():
    files = importlib.metadata.files("kvcore") or []
    assert [str(file) for file in files if file.suffix in (".c", ".html")] == []


def test_versions_agree():
    assert kvcore.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("kvcore")


def test_no_global_package_but_kvcore():
    """drivers/ is installed as kvcore.drivers only."""
    assert {name.split(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]} == {"kvcore"}
    folders = {path.parent for path in sources("kvcore", "drivers")}
    names = {installed_name(folder / "x").rsplit("/", 1)[0].replace("/", ".") for folder in folders}
    assert names == set(PROJECT["tool"]["setuptools"]["packages"])
