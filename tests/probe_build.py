"""Builds the test-only extensions (`_probe*.pyx`) when a test asks for one, and imports it.

They open the compiled internals to tests and are never shipped. The `.pxd` files come from the kvcore that Python
imports, source tree or installed package; compiler settings come from setup.py. A build stays in `build/probe` under
a name made of all that went into it, so a change of any of it builds anew.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent
CACHE = TESTS.parent / "build" / "probe"


def load(name: str) -> ModuleType:
    """The probe extension of this name, built if need be."""
    if name not in sys.modules:
        path = built(name)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def built(name: str) -> Path:
    """Path of the shared library. Test processes that start together build it once."""
    folder = CACHE / key(name)
    library = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                compile_in(folder, name)
    return library


def package() -> Path:
    """Folder of the kvcore that Python imports."""
    return Path(importlib.util.find_spec("kvcore").origin).parent


def settings() -> dict:
    """The names that setup.py assigns, without what it does with them."""
    tree = ast.parse((TESTS.parent / "setup.py").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.Assign)]
    names: dict = {}
    exec(compile(tree, "setup.py", "exec"), names)
    return names


def key(name: str) -> str:
    """Equal for equal builds."""
    names = settings()
    facts = (str(package()), sys.version, importlib.metadata.version("Cython"),
             names["COMPILE_ARGS"], names["MACROS"], names["DIRECTIVES"])
    digest = hashlib.sha256(repr(facts).encode())
    for path in [TESTS / f"{name}.pyx", Path(__file__), *sorted(package().glob("*.pxd"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def compile_in(folder: Path, name: str) -> None:
    """Translate and compile in a process of its own: the compilers' warnings are not those of the tests."""
    shutil.copyfile(TESTS / f"{name}.pyx", folder / f"{name}.pyx")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [sys.executable, __file__, name, str(package().parent)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        raise RuntimeError(f"{name} does not build:\n{result.stdout}")


def main(name: str, include: str) -> None:
    """Build the extension in the current folder."""
    from Cython.Build import cythonize
    from setuptools import Extension, setup

    names = settings()
    extension = Extension(
        name, [f"{name}.pyx"], extra_compile_args=names["COMPILE_ARGS"], define_macros=names["MACROS"])
    setup(
        script_name=name,
        script_args=["-q", "build_ext", "--build-lib", ".", "--build-temp", "."],
        ext_modules=cythonize(
            [extension], include_path=[include], compiler_directives={**names["DIRECTIVES"], "linetrace": False}),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
