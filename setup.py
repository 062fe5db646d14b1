"""Extensions and compiler directives; everything else is in pyproject.toml.

KVCORE_DEBUG=1 builds with bounds checks and with the core's own invariant checks compiled in.
KVCORE_TRACE=1 builds with line tracing, for coverage of the Cython modules.
"""

import hashlib
import os
import pathlib
import struct
import sys

from Cython import __version__ as CYTHON
from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("KVCORE_DEBUG", "0") == "1"
TRACE = os.environ.get("KVCORE_TRACE", "0") == "1"
FLAVOUR = ("debug" if DEBUG else "release") + ("-trace" if TRACE else "")

#: package -> modules; a leading folder differs from the package only for kvcore.drivers (see pyproject.toml).
MODULES = {
    "kvcore": (
        "kvcore",
        ["events.py", "actions.py", "request.py", "replica.py", "policy.py", "explanation.py", "hashing.pyx",
         "_slots.pyx", "_heap.pyx", "_prefix.pyx", "_taints.pyx", "_overtaking.pyx", "_requests.pyx", "_lanes.pyx",
         "_drr.pyx", "_ledger.pyx", "_workers.pyx", "_selector.pyx", "_keys.pyx", "_fleet.pyx", "_placement.pyx",
         "_backlog.pyx", "_inspect.pyx", "_accept.pyx", "scheduler.pyx", "_elementary.pyx", "_tournament.pyx",
         "_active.pyx", "_predicted.pyx", "_marks.pyx", "_standings.pyx", "_overlaps.pyx", "_tables.pyx",
         "_forecast.pyx", "_lifecycle.pyx", "_ledger_audit.pyx", "_policies.pyx", "_endings.pyx", "_admission.pyx",
         "_dispatch.pyx", "_reload.pyx", "_decisions.pyx", "_obstacles.pyx", "_explain.pyx", "_wire.pyx",
         "_digest.pyx", "_snapshot.pyx", "_restore.pyx", "_worker_facts.pyx", "_ledger_resume.pyx",
         "_request_facts.pyx", "_frame.pyx",
         "_restore_requests.pyx", "_peers.pyx", "_exchange.pyx", "_restore_peers.pyx", "_classify.pyx", "_outbox.pyx",
         "_settle.pyx", "_arrivals.pyx", "_batch.pyx", "records.pyx", "_constructor.pyx",
         "_eligible.pyx"],
    ),
    "kvcore.drivers.replay": (
        "drivers/replay",
        ["rows.py", "_blockcache.pyx", "_sequences.pyx", "_plan.pyx", "_worker.pyx", "_engine.pyx", "_table.pyx",
         "_scan.pyx", "_loop.pyx", "_lines.pyx", "_packed.pyx", "_window.pyx", "_open.pyx", "_tell.pyx",
         "_rowloop.pyx"],
    ),
}

#: Modules that are the same without the interpreter's lock (ARCHITECTURE A44): values that never change once they are
#: made, and functions of their arguments alone. The others have owners, and one owner at a time.
UNLOCKED = {f"kvcore.{name}" for name in (
    "events", "actions", "request", "replica", "policy", "explanation", "hashing", "_elementary")}

# IEEE double without contraction: the same costs on every machine (DESIGN D20). -g0: the debug information that
# setuptools asks for takes a third of the compiler's time. -fno-plt: one jump less in each call of Python's library.
COMPILE_ARGS = ["-O1" if DEBUG else "-O3", "-g0", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-plt"]
MACROS = [("KVCORE_DEBUG", "1" if DEBUG else "0")]
if TRACE:
    MACROS += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": False,  # it would forbid nogil methods, which are the better proof
    "overflowcheck": False,
    "cdivision": True,
    "linetrace": TRACE,
}


def flavour_stamp() -> str:
    """A file that is as new as the last change of flavour: what was built in another flavour is built again."""
    stamp = pathlib.Path("build/flavour.txt")
    stamp.parent.mkdir(exist_ok=True)
    if not stamp.exists() or stamp.read_text() != FLAVOUR:
        stamp.write_text(FLAVOUR)
    return str(stamp)


def extensions() -> list[Extension]:
    """One Extension per compiled module that exists in this tree."""
    stamp = flavour_stamp()
    found = []
    for package, (folder, files) in MODULES.items():
        for file in files:
            path = f"{folder}/{file}"
            if os.path.exists(path):
                name = f"{package}.{file.rsplit('.', 1)[0]}"
                found.append(Extension(
                    name, [path], extra_compile_args=COMPILE_ARGS, define_macros=MACROS, depends=[stamp]))
    return found


def include_path() -> list[str]:
    """Cython looks for the .pxd files of kvcore.drivers in a folder kvcore/drivers: here is one."""
    link = "build/include/kvcore/drivers"
    os.makedirs(os.path.dirname(link), exist_ok=True)
    if not os.path.islink(link):
        os.symlink("../../../drivers", link)
    return [".", "build/include"]


def translated() -> list[Extension]:
    """The extensions with their C sources, translated if anything that they come from has changed.

    Cython compares times, also of its own files, which build isolation makes look new: here contents are compared.
    """
    found = extensions()
    folder = pathlib.Path(f"build/cython-{FLAVOUR}")
    sources = [pathlib.Path(item.sources[0]) for item in found]
    headers = sorted(path for top in ("kvcore", "drivers") for path in pathlib.Path(top).rglob("*.pxd"))
    digest = hashlib.sha256(CYTHON.encode())
    for path in [pathlib.Path("setup.py"), *sources, *headers]:
        digest.update(repr((path.as_posix(), path.read_bytes())).encode())
    mark = folder / "sources.sha256"
    files = [folder / path.with_suffix(".c") for path in sources]
    if mark.exists() and mark.read_text() == digest.hexdigest() and all(file.exists() for file in files):
        for item, file in zip(found, files, strict=True):
            item.sources = [file.as_posix()]
        return found
    mark.unlink(missing_ok=True)
    unlocked = [item for item in found if item.name in UNLOCKED]
    locked = [item for item in found if item.name not in UNLOCKED]
    found = [
        item
        for items, directives in ((unlocked, DIRECTIVES | {"freethreading_compatible": True}), (locked, DIRECTIVES))
        for item in cythonize(
            items, compiler_directives=directives, include_path=include_path(), build_dir=folder.as_posix(),
            force=TRACE, nthreads=os.cpu_count())
    ]
    mark.write_text(digest.hexdigest())
    return found


if sys.byteorder != "little" or struct.calcsize("L") != 8:
    sys.exit("kvcore is built for little-endian machines with 64-bit longs only")

setup(
    ext_modules=translated(),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
