"""Links that leave docs/: what they lead to becomes a page of the site, so that it can be read without a network.

In the sources a link is a path, which works on any host of repositories.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
#: Where in the site files of the tree are.
FOLDER = "source"
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_LANGUAGES = {
    ".py": "python", ".pyi": "python", ".pyx": "cython", ".pxd": "cython", ".yaml": "yaml", ".csv": "text",
    ".jsonl": "text", ".toml": "toml", "": "text"}
LINES_MAX = 500


def in_tree(page: str, link: str) -> str:
    """The path in the tree, seen from its root, to which a link leads. page: the path of the page that has it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def address(path: str) -> str:
    """The page, seen from docs/, on which a file of the tree stands."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{FOLDER}/{path}/index.md"
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def rewritten(text: str, page: str, link_to: Callable[[str], str] | None = None) -> str:
    """A page of the tree with links to pages of the site. page, and what link_to gets: paths in the tree."""
    here = posixpath.dirname(address(page))

    def replace(match: re.Match[str]) -> str:
        path = in_tree(page, match[2])
        if link_to is not None:
            link_to(path)
        target = address(path)
        return f"[{match[1]}]({posixpath.relpath(target, here or '.')}{match[3] or ''})"

    return _LINK.sub(replace, text)


def _files(path: str) -> list[str]:
    """The files of a folder that can be shown; none of what is no folder."""
    if not (ROOT / path).is_dir():
        return []
    return sorted([item.relative_to(ROOT).as_posix() for item in (ROOT / path).iterdir() if item.suffix in _LANGUAGES])


def found(pages: list[str]) -> list[str]:
    """Files of the tree outside docs/ that these pages lead to, one after the other; pages among them are followed."""
    seen: list[str] = []
    front = [*pages]

    def see(path: str) -> None:
        if path in seen or path.startswith("docs/"):
            return
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{path}: a page links to it")
        seen.append(path)
        if path.endswith(".md"):
            front.append(path)
        for other in _files(path):
            see(other)

    while front:
        page = front.pop()
        rewritten((ROOT / page).read_text(encoding="utf-8"), page, see)
    return seen


def content(path: str) -> str:
    """A page that shows a file of the tree: Markdown as it is, anything else as code; or the files of a folder."""
    if (ROOT / path).is_dir():
        links = [f"- [{name}]({posixpath.relpath(name, path)}.md)" for name in _files(path)]
        return "\n".join([f"# {path}", "", *links])
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return rewritten(text, path)
    lines = text.splitlines()
    rest = len(lines) - LINES_MAX
    more = [f"... and {rest} more lines"] if rest > 0 else []
    fence = "````"
    language = _LANGUAGES[Path(path).suffix]
    return "\n".join([f"# {path}", "", f"{fence}{language}", *lines[:LINES_MAX], *more, fence, ""])
