"""STYLE as a test: layers, purity of the core, budgets, and a few lines that must not stand in a source file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from probe_build import settings
from tree import LINES_TARGET, ROOT, SOURCE_SUFFIXES, everywhere, imports, long_files, shown, sources

#: Every module of kvcore/, lowest first. A module imports from lower layers and from those before it in its own.
LAYERS = {
    "vocabulary": ["_types"],
    "values": ["errors", "request", "_constructor", "replica", "policy", "events", "actions", "config", "stats",
               "hashing", "_yaml_marks", "_admission_protocol", "_admission_values", "_session_concurrency",
               "_program_budget", "admission", "_policy_keys", "policy_file", "policy_lint", "explanation",
               "_explanation_text"],
    "layouts": ["_journal_codec", "_journal_values"],
    "containers": ["_wire", "_slots", "_heap", "_blocks", "_prefix", "_active", "_predicted", "_overtaking",
                   "_elementary", "_tournament"],
    "domain": ["_requests", "_keys", "_lanes", "_drr", "_marks", "_load", "_ledger", "_ledger_audit",
               "_ledger_resume", "_taints", "_workers", "_peers", "_classify", "records"],
    "decision": ["_exchange", "_fleet", "_selector", "_standings", "_overlaps", "_eligible", "_placement", "_outbox",
                 "_tables",
                 "_backlog", "_inspect", "_digest", "_policies", "_endings", "_admission", "_decisions", "_dispatch",
                 "_forecast",
                 "_lifecycle", "_settle", "_arrivals", "_batch", "_reload", "_request_facts", "_worker_facts",
                 "_accept", "_obstacles",
                 "_explain", "_frame", "_snapshot", "_restore_peers", "_restore_requests", "_restore"],
    "scheduler": ["scheduler"],
    "record": ["journal", "_journal_cut"],
    "public": ["__init__"],
    "program": ["__main__"],
}
ORDER = [name for layer in LAYERS.values() for name in layer]

#: What a module must not reach, not even through others: all else but these of kvcore.
CLOSED = {
    "_wire": {"_types"},
    "_slots": {"_types"},
    "_heap": {"_types"},
    "_prefix": {"_types", "_blocks"},
    "_overtaking": {"_types"},
    "_elementary": {"_types"},
    "_tournament": {"_types"},
    "_active": {"_types", "_blocks", "_prefix"},
    "_predicted": {"_types", "_blocks", "_prefix"},
    "_marks": {"_types", "_heap"},
    "_taints": {"_types"},
    "_lanes": {"_types", "_heap", "_overtaking"},
    "_classify": {"_types", "policy", "errors"},
    "_drr": {"_types", "_heap", "_overtaking", "_lanes"},
    "_ledger": {"_types", "_heap", "_blocks", "_prefix", "_active", "_load"},
    "_keys": {"_types", "_heap"},
    "_peers": {"_types"},
    "_selector": {"_types", "_heap", "_blocks", "_prefix", "_active", "_load", "_ledger", "_elementary"},
}

#: Who may see events and actions: the door, the scheduler and who routes facts, who words an answer or hands it on; how
#: they stand in a journal, and the journal; and _restore, which knocks at the door with what it reads.
SEES_EVENTS = {"_accept", "_exchange", "_request_facts", "_worker_facts", "_restore", "_restore_peers",
               "_restore_requests", "scheduler",
               "records", "_journal_values", "journal", "_journal_cut", "__init__"}
SEES_ACTIONS = {"_exchange", "_placement", "records", "_outbox", "_arrivals", "_backlog", "_endings",
                "_admission", "_forecast", "_dispatch", "_lifecycle", "_restore", "scheduler", "_journal_values",
                "journal", "_journal_cut", "__init__"}

STDLIB = {
    "__future__", "base64", "collections", "collections.abc", "copy", "dataclasses", "difflib", "enum", "fractions",
    "hashlib", "heapq", "itertools", "json", "math", "re", "struct", "textwrap", "types", "typing",
}
C_LIBRARY = {"cython", "libc.math", "libc.stdint", "libc.stdlib", "libc.string"}
#: What few modules may have: packages beyond the standard library, and that which finds what is installed.
FOR_SOME = {"numpy": {"_tables", "_batch", "_outbox", "records", "scheduler"},
            "yaml": {"_policy_keys", "_yaml_marks"}, "importlib": {"admission"}}
#: Who runs code of others, which may raise anything.
RUNS_OTHERS = {"admission", "_policies"}

LINES_MAX = 500
COLUMNS_MAX = 120

CORE = sources("kvcore")
DRIVERS = sources("drivers")
EVERYWHERE = everywhere()


def in_core(path: Path) -> set[str]:
    """Modules of kvcore that a file imports, by their bare name; the package itself is `__init__`."""
    known = {other.stem for other in CORE}
    found = set()
    for item in imports(path):
        parts = item.module.split(".")
        if parts[0] != "kvcore":
            continue
        if len(parts) > 1:
            found.add(parts[1])
        else:
            found.add(item.name if item.name in known else "__init__")
    return found


def core_graph() -> dict[str, set[str]]:
    """Module -> modules of kvcore that its .py, .pyx, .pxd and .pyi import."""
    graph: dict[str, set[str]] = {}
    for path in CORE:
        graph.setdefault(path.stem, set()).update(in_core(path) - {path.stem})
    return graph


def reach(graph: dict[str, set[str]], module: str) -> set[str]:
    """Everything that a module imports, directly or not."""
    found: set[str] = set()
    front = {module}
    while front:
        front = set().union(*(graph.get(name, set()) for name in front)) - found
        found |= front
    return found


def offending(paths: list[Path], pattern: str) -> list[str]:
    """Lines that match, as file:line: text."""
    search = re.compile(pattern).search
    return [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if search(line)
    ]


def test_imports_are_seen_in_every_form(tmp_path):
    path = tmp_path / "example.pyx"
    path.write_text('"""\nfrom here on nothing\nimport is a word\n"""\nimport a.b as c, d\ncimport e\n'
                    "from f cimport (\n    g,  # why\n    h as i)\nfrom kvcore import _x\n"
                    "def f():\n    from .j import k, l  # late\n")
    assert {(item.module, item.name) for item in imports(path)} == {
        ("a.b", None), ("d", None), ("e", None), ("f", "g"), ("f", "h"), ("kvcore", "_x"), (".j", "k"), (".j", "l")}


def test_every_module_has_its_layer():
    assert {path.stem for path in CORE} - set(ORDER) == set()


def test_imports_go_downward_only():
    upward = [
        f"{module} imports {other}"
        for module, others in core_graph().items()
        for other in others
        if module != "__main__" and (other not in ORDER or ORDER.index(other) > ORDER.index(module))
    ]
    assert upward == []


def test_the_program_is_the_only_way_from_the_core_to_the_drivers():
    assert [module for module, others in core_graph().items() if "drivers" in others] == ["__main__"]
    assert core_graph()["__main__"] == {"drivers"}


@pytest.mark.parametrize("module", CLOSED)
def test_closed_modules_reach_only_what_they_are_given(module):
    assert reach(core_graph(), module) <= CLOSED[module]


def test_few_modules_see_events_and_actions():
    graph = core_graph()
    assert {module for module, others in graph.items() if "events" in others} <= SEES_EVENTS
    assert {module for module, others in graph.items() if "actions" in others} <= SEES_ACTIONS


def test_the_core_is_pure():
    """No clock, socket, file, thread, randomness or logging: nothing outside the allowed modules is imported."""
    impure = []
    for path in CORE:
        for item in imports(path):
            root = item.module.split(".")[0]
            allowed = item.module in STDLIB | C_LIBRARY or root in ("kvcore", "cpython")
            if not allowed and path.stem not in FOR_SOME.get(root, set()):
                impure.append(f"{shown(path)} imports {item.module}")
    assert impure == []


def test_the_core_calls_nothing_impure():
    names = ("print", "open", "input", "eval", "exec", "compile", "breakpoint", "__import__", "hash", "globals")
    # The key of the table of numbers, whose layout shows nowhere.
    keyed = 'self._key = <uint64_t>hash("kvcore")'
    found = offending(CORE, rf"^(?!\s*c?def ).*(?<![\w.])(?:{'|'.join(names)})\(")
    assert [line for line in found if not line.endswith(keyed)] == []
    assert offending(CORE, r"\bexcept BaseException\b|^\s*except:") == []
    own = [path for path in CORE if path.stem not in RUNS_OTHERS]
    assert offending(own, r"\bexcept Exception\b") == []
    assert offending(CORE, r"""extern from (?!\*|"Python\.h")""") == []


def test_drivers_import_public_names_only():
    private = [
        f"{shown(path)}: {item.module} {item.name or ''}"
        for path in DRIVERS
        for item in imports(path)
        if item.module.startswith("kvcore") and not item.module.startswith("kvcore.drivers")
        and (item.module.split(".")[-1].startswith("_") or (item.name or "").startswith("_"))
    ]
    assert private == []


def test_the_replay_and_its_report_have_no_clock():
    """Virtual time and seeded draws only; whoever runs a replay measures it from outside."""
    banned = {"asyncio", "click", "logging", "random", "secrets", "socket", "threading", "time"}
    found = [
        f"{shown(path)} imports {item.module}"
        for path in sources("drivers/replay", "drivers/report")
        for item in imports(path)
        if item.module.split(".")[0] in banned
    ]
    assert found == []


#: Modules of the live drivers that are turned by others: no loop, no clock, nothing that waits.
TURNED = ("protocol", "told", "runs", "lease", "owner", "desk")


def test_what_live_drivers_share_waits_for_nothing():
    """Nor does it know who turns it; get_ident is a number, not a thread."""
    banned = {"asyncio", "concurrent", "queue", "random", "select", "socket", "time", "trio"}
    found = [
        f"{shown(path)} imports {item.module} {item.name or ''}"
        for path in DRIVERS if path.parent == ROOT / "drivers" and path.stem in TURNED
        for item in imports(path)
        if item.module.split(".")[0] in banned or (item.module == "threading" and item.name != "get_ident")
    ]
    assert found == []
    assert {path.stem for path in DRIVERS} >= set(TURNED)


def test_trio_and_threads_know_nothing_of_each_other():
    mixed = {"trio": ("threads", "thread_lease"), "trio_lease": ("threads", "thread_lease"),
             "threads": ("trio", "trio_lease"), "thread_lease": ("trio", "trio_lease")}
    found = [
        f"{path.stem} imports {item.module}"
        for path in DRIVERS if path.parent == ROOT / "drivers"
        for item in imports(path)
        if item.module.lstrip(".") in mixed.get(path.stem, ())
        and (item.module.startswith(".") or item.module != path.stem)
    ]
    assert found == []


#: Packages of drivers/, and what each may import of the others; `live` are the modules beside them.
MAY_IMPORT = {
    "live": set(), "http": set(), "replay": set(), "kvevents": {"live"}, "mock": {"http", "replay"},
    "gateway": {"http", "kvevents", "live"}, "bench": {"replay"}, "study": {"replay"}, "report": {"replay", "study"},
    "traces": {"replay"},
    "cli": {"bench", "gateway", "kvevents", "mock", "replay", "report", "study", "traces"},
}
#: Modules of these packages that wait for nothing: text, bytes and times come in as arguments.
SANS_IO = {
    "http": {"values", "wire"},
    "kvevents": {"decoder", "frames", "mirror", "names", "predicted", "sequence", "tracker", "values"},
    "gateway": {"bodies", "chat_template", "config", "config_file", "echo", "errors", "hints", "refusals",
                "retry_after", "settings", "sse", "upstreams"},
    "mock": {"asks", "blocks", "faults", "model", "tokens"},
}


def package_of(path: Path) -> str:
    """Which package of drivers/ a file belongs to."""
    return "live" if path.parent == ROOT / "drivers" else path.parent.name


def packages_imported(path: Path) -> set[str]:
    """Other packages of drivers/ that a file imports, however it names them."""
    found = set()
    for item in imports(path):
        module = item.module.replace("kvcore.drivers.", "..") if path.parent != ROOT / "drivers" else item.module
        if module.startswith("..") or (path.parent == ROOT / "drivers" and module.startswith(".")):
            first = module.lstrip(".").split(".")[0] or str(item.name)
            found.add(first if first in MAY_IMPORT else "live")
    return found - {package_of(path)}


def test_packages_of_the_drivers_know_only_those_below_them():
    files = [path for path in DRIVERS if path.name != "__init__.py"]
    assert {package_of(path) for path in files} == set(MAY_IMPORT)
    upward = [
        f"{shown(path)} imports {other}"
        for path in files for other in packages_imported(path) - MAY_IMPORT[package_of(path)]
    ]
    assert upward == []
    assert packages_imported(ROOT / "drivers/gateway/gateway.py") == {"http", "kvevents", "live"}, "the test is blind"


def test_http_knows_nothing_of_the_product():
    found = [
        f"{shown(path)} imports {item.module}"
        for path in sources("drivers/http") for item in imports(path) if item.module.split(".")[0] == "kvcore"
    ]
    assert found == []


def test_modules_that_wait_for_nothing_can_not():
    banned = {"asyncio", "select", "socket", "threading", "time", "trio", "zmq"}
    for package, names in SANS_IO.items():
        paths = [ROOT / "drivers" / package / f"{name}.py" for name in sorted(names)]
        found = [
            f"{shown(path)} imports {item.module}"
            for path in paths for item in imports(path) if item.module.split(".")[0] in banned
        ]
        assert found == []


def test_files_are_short():
    assert long_files(LINES_MAX) == [], f"over {LINES_MAX} lines; {LINES_TARGET} is the target (python tests/tree.py)"


def test_lines_are_short():
    assert offending(EVERYWHERE, rf"^.{{{COLUMNS_MAX + 1},}}") == []


def test_lines_end_where_their_text_ends():
    assert offending(EVERYWHERE, r"[ \t]+$|\t") == []


def test_nothing_is_left_for_later():
    assert offending(EVERYWHERE, r"\b(?:T[O]DO|FIXM[E]|X{2,3})\b") == []


def test_no_banners_and_no_code_in_comments():
    banner = r"^\s*#\s*[-=#*~]{3,}"
    code = r"^\s*#\s*(?:c?p?def \w+.*\(.*:$|class \w+.*:$|(?:from [\w.]+ )?c?import [\w.]+$|return$|print\()"
    assert offending(EVERYWHERE, f"{banner}|{code}") == []


def test_cython_is_plain_modules():
    """No include files, no compile-time conditions, directives in setup.py only (STYLE: Cython conventions)."""
    cython = [path for path in CORE + DRIVERS if path.suffix in (".pyx", ".pxd")]
    assert offending(cython, r"^\s*(?:include ['\"]|DEF |IF |#\s*cython:)") == []
    assert [shown(path) for path in (ROOT / "kvcore").glob("*.pxi")] == []


def test_modules_that_need_no_lock_hold_nothing_that_changes():
    """What setup.py marks as compatible with free threading: no variable of the module, no field that can be set."""
    names = settings()["UNLOCKED"]
    assert {"kvcore.events", "kvcore.actions", "kvcore.request", "kvcore.hashing"} <= names
    stems = {name.removeprefix("kvcore.") for name in names}
    files = [path for path in CORE if path.stem in stems and path.suffix != ".pyi"]
    assert {path.stem for path in files} == stems
    variable = r"^cdef (?:object|dict|list|set|\w+_t|int|double)\s*\*?\s*_?[a-z]\w*\s*(?:=|$)"
    container = r"^\w+(?:: [^=]+)? = (?:\[|\{|dict\(|list\(|set\()"
    field = r"^    cdef (?!readonly |inline |class |int \w+\()\w[\w \*]*$|^    cdef public "
    assert offending(files, rf"{variable}|{container}|\bglobal\b") == []
    assert offending([path for path in files if path.suffix == ".pxd"], field) == []


def test_every_module_says_what_it_is():
    """A docstring or, for a .pxd, a comment comes first. Stubs repeat what stands elsewhere."""
    silent = [
        shown(path)
        for path in CORE + DRIVERS
        if path.suffix != ".pyi" and path.name not in ("__init__.py", "__main__.py")
        and not path.read_text(encoding="utf-8").startswith('"""' if path.suffix != ".pxd" else "# ")
    ]
    assert silent == []


def test_every_suffix_is_known():
    """A new kind of source file must be told to this test."""
    data = {".so", ".c", ".html", ".typed", ".pyc", ".j2"}
    kinds = {path.suffix for folder in ("kvcore", "drivers") for path in (ROOT / folder).rglob("*") if path.is_file()}
    assert kinds - data - {""} <= set(SOURCE_SUFFIXES)
