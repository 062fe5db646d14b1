"""The documents' code: fenced blocks of the pages, run page by page in the order in which they stand.

    sh      run by one bash per page, so that variables, folders and background jobs go on from block to block
    python  run as a program
    text    what the block before it printed; a line `...` stands for any number of lines
    title="NAME" on any other block: a file that the blocks behind it find

A page runs in a folder with a copy of examples/. `pip install`, and what makes and enters a virtual environment, is
left out: tests run where kvcore is installed. Ports are changed to free ones. A line `<!-- not run: why -->` before a
block, or `<!-- not checked: why -->` before a text, says so.

    PYTHONPATH=tests python tests/documents.py      writes what is printed into the pages
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tree import ROOT

#: Pages whose code is run. Reference pages are generated, but for their heads, which hold none.
PAGES = [*sorted([path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]), "README.md"]
LANGUAGES = {"sh", "python", "text", "yaml"}
_FENCE = re.compile(
    r'(?:^<!-- (not run|not checked): ([^\n]+) -->\n)?^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$',
    re.MULTILINE | re.DOTALL)
_PORTS = re.compile(r"(?<=[ :])(?:8[01]\d\d|55\d\d)\b")
_LEFT_OUT = re.compile(r"^(?:pip install .*?(?: && |$)|python3 -m venv .*$|\. \S+/bin/activate$)", re.MULTILINE)
#: Lines that depend on the machine, or change with every change of the core's state.
_UNSTEADY = ("run ", "memory ", "digest ")
SECONDS_MAX = 240


@dataclass(frozen=True)
class Block:
    """One fenced block. mark: "not run", "not checked" or empty, and why. start, end: of its text in the page's."""

    language: str
    title: str
    text: str
    mark: str
    why: str
    start: int
    end: int

    @property
    def runs(self) -> bool:
        """Whether it is a program."""
        return self.language in ("sh", "python") and not self.title and self.mark != "not run"


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(match[3], match[4] or "", match[5], match[1] or "", match[2] or "", match.start(5), match.end(5))
        for match in _FENCE.finditer(text)]


def checked(found: list[Block]) -> list[tuple[Block, int]]:
    """The texts that are compared, each with the place of the program that prints them."""
    return [
        (block, place - 1) for place, block in enumerate(found)
        if block.language == "text" and not block.mark and not block.title and place and found[place - 1].runs]


def _free_ports(text: str) -> dict[str, str]:
    """A free port for each that the text names, and for the gateway's own two."""
    found: dict[str, str] = {}
    for name in sorted({*_PORTS.findall(text), "8000", "8001"}):
        while name not in found:
            # Below those that are given to whoever asks for any: nobody else gets it before it is used.
            port = random.SystemRandom().randrange(20_000, 32_000)
            with socket.socket() as trial, suppress(OSError):
                trial.bind(("127.0.0.1", port))
                if str(port) not in found.values():
                    found[name] = str(port)
    return found


def _script(found: list[Block], folder: Path, ports: dict[str, str]) -> str:
    """One bash script of all blocks; what each prints goes into a file of its own."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"]
    for place, block in enumerate(found):
        text = _PORTS.sub(lambda match: ports[match[0]], block.text)
        source = folder / f"{place}.source"
        source.write_text(text, encoding="utf-8")
        if block.title:
            lines.append(f"cp {source} {block.title}")
        elif block.runs:
            body = _LEFT_OUT.sub("", text) if block.language == "sh" else f"python {source}\n"
            lines.append(f"{{\n:\n{body}}} > {folder}/{place}.out 2>&1")
    return "\n".join([*lines, ""])


def run_page(text: str) -> tuple[list[str], str]:
    """Run the blocks of a page; (what each printed, what went wrong)."""
    found = blocks(text)
    with tempfile.TemporaryDirectory() as name:
        folder, there = Path(name) / "blocks", Path(name) / "there"
        folder.mkdir()
        shutil.copytree(ROOT / "examples", there / "examples")
        ports = _free_ports("".join([block.text for block in found]))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        hidden = {"PYTHONPATH", "PYTHONWARNINGS"}
        environment = {key: value for key, value in os.environ.items() if key not in hidden} | {
            "PATH": path, "NO_COLOR": "1", "COLUMNS": "120", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1",
            "KVCORE_SERVE_PORT": ports["8000"], "KVCORE_SERVE_ADMIN_PORT": ports["8001"]}
        answer = subprocess.run(
            ["timeout", str(SECONDS_MAX), "bash", "-c", _script(found, folder, ports)], cwd=there, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        outputs = []
        for place in range(len(found)):
            path_out = folder / f"{place}.out"
            outputs.append(path_out.read_text(encoding="utf-8") if path_out.exists() else "")
    if answer.returncode == 0:
        return outputs, ""
    last = max([place for place, output in enumerate(outputs) if output], default=0)
    return outputs, f"exit status {answer.returncode}\n{answer.stderr}\n{found[last].text}\nprinted\n{outputs[last]}"


def steady(text: str) -> list[str]:
    """The lines that are the same everywhere."""
    return [line.rstrip() for line in text.splitlines() if not line.startswith(_UNSTEADY) and line.strip()]


def says(shown: str, printed: str) -> bool:
    """Whether a page's text is what was printed."""
    pattern = "".join([
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in steady(shown)])
    return re.fullmatch(pattern, "".join([line + "\n" for line in steady(printed)])) is not None


def renewed(text: str) -> str:
    """A page with what is printed now, wherever nothing is left out of it."""
    outputs, fault = run_page(text)
    if fault:
        raise SystemExit(fault)
    for block, place in reversed(checked(blocks(text))):
        if "..." not in block.text.splitlines() and not says(block.text, outputs[place]):
            text = text[:block.start] + outputs[place] + text[block.end:]
    return text


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        there = ROOT / page
        old = there.read_text(encoding="utf-8")
        new = renewed(old)
        print(page, "renewed" if new != old else "as it was")
        there.write_text(new, encoding="utf-8")
