"""Reads a page of a report as a browser would: what nests, what it refers to, what it would load."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input", "path", "use", "rect", "image"}


class Reader(HTMLParser):
    """Checks that elements nest; collects ids, what refers to them, and what would be loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.loads, self.tags = [], [], set(), [], []

    def handle_startendtag(self, tag, attrs):
        self.look(tag, attrs)

    def handle_starttag(self, tag, attrs):
        self.look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def look(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            elif key in ("src", "href", "xlink:href", "action", "data") and tag not in ("html",):
                if value.startswith("#"):
                    self.references.add(value[1:])
                elif not value.startswith("data:image/png;base64,"):
                    self.loads.append((tag, value))
            elif key == "aria-labelledby":
                self.references.add(value)
            if value:
                self.references.update(re.findall(r"url\(#([^)]+)\)", value))


def read(html):
    """The page, parsed."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def check_alone(reader):
    """Nothing is loaded or run, and ids are unique and all there."""
    assert reader.loads == []
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    assert len(set(reader.ids)) == len(reader.ids) > 100
    assert reader.references - set(reader.ids) == set()
    assert len(reader.references) > 20
