"""What MkDocs calls while it builds: generated parts are put where a page asks for them. Nothing is written into docs/.

A page asks with a comment of one line: `<!-- generated: keys of a policy file -->`.
"""

from __future__ import annotations

import inspect
import re
from html import escape as html_escape

import command_page
import policy_page
import record_page
import source_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import kvcore

PARTS = {
    "keys of a policy file": policy_page.page,
    "commands": command_page.page,
    "rows of events and actions": record_page.page,
    "rows of loads": record_page.loads,
}
#: A picture that stands alone in its paragraph.
_PICTURE = re.compile(r"^!\[[^\]]*\]\((\S+\.svg)\)$", re.MULTILINE)
_ASKED = re.compile(r"^<!-- generated: (.*?) -->$", re.MULTILINE)
_REFERENCE: list[str] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file of the tree that a page leads to."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in source_pages.found(pages):
        files.append(File.generated(config, source_pages.address(path), content=source_pages.content(path)))
    return files


def _part(match: re.Match[str]) -> str:
    if match[1] not in PARTS:
        raise PluginError(f"nothing is generated as {match[1]!r}; known are {', '.join(PARTS)}")
    return PARTS[match[1]]()


def _inline(markdown: str, page: str) -> str:
    """Pictures as part of the page, so that they take its colours, light or dark."""

    def picture(match: re.Match[str]) -> str:
        svg = (source_pages.ROOT / source_pages.in_tree(page, match[1])).read_text(encoding="utf-8")
        return f'<figure class="kv-picture">{svg.strip()}</figure>'

    return _PICTURE.sub(picture, markdown)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and lead links that leave docs/ to the pages made above."""
    path = page.file.src_uri
    if path.startswith(f"{source_pages.FOLDER}/"):
        return markdown
    return _ASKED.sub(_part, source_pages.rewritten(_inline(markdown, f"docs/{path}"), f"docs/{path}"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the reference, to look it through at the end."""
    if page.file.src_uri.startswith("reference/"):
        _REFERENCE.append(html)
    return html


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a reference in which a public name, its signature or what it says is missing."""
    html = "".join(_REFERENCE)
    plain = " ".join(re.sub(r"<[^>]+>|&para;|`", "", html).split())
    faults = [text for text in ("(*args, **kwargs)", "Initialize self") if text in plain]
    for name in kvcore.__all__:
        value = getattr(kvcore, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        known = {f"{value.__module__}.{value.__qualname__}"} | {f"{value.__module__}.{name}"}
        if not any(f'id="{path}"' in html for path in known):
            faults.append(f"{name} is missing")
        first = (value.__doc__ or "").partition(". ")[0].partition("\n")[0].partition(" (DESIGN")[0]
        words = first.replace("`", "").rstrip(".").split()
        if html_escape(" ".join(words), quote=False) not in plain:
            faults.append(f"what {name} says is missing: {' '.join(words)}")
    if faults:
        raise PluginError("the reference is not whole: " + "; ".join(faults))
