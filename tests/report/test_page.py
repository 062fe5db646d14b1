"""The page as text: stable, alone in the world, with colours that can be told apart."""

from __future__ import annotations

import re

import pytest
from kvcore.drivers.report.figures import draw
from kvcore.drivers.report.page import Grid, Page, Section, Story, render
from kvcore.drivers.report.tables import Table
from kvcore.drivers.report.theme import COLOURS, inline
from pages import check_alone, read

HOSTILE = '<script>alert("1")</script>'


def tables(names=("premium", "regular")):
    """A little of everything."""
    times = [0, 10**9, 2 * 10**9]
    return {table.name: table for table in (
        Table("distributions", ("class", "latency", "le_ns", "requests", "share"), [
            (name, key, 10**6 * (at + 1), at, at / 2) for name in names for key in ("queue_wait", "ttft", "itl", "e2e")
            for at in range(3)]),
        Table("shares", ("start_ns", "class", "uncached_tokens", "share", "quantum_share", "contended_tokens",
                         "contended_share", "due_share"),
              [(at, name, 5, 0.5, 0.5, 5 if at else 0, 0.5 if at else None, 0.5 if at else None)
               for at in times for name in names]),
        Table("queue", ("start_ns", "class", "requests_mean", "requests_max", "tokens_mean", "tokens_max"),
              [(at, name, 1.5, 2, 15.0, 20) for at in times for name in names]),
        Table("workers", ("start_ns", "row", "first_worker", "workers", "running_mean", "prefill_tokens_mean"),
              [(at, row, row, 1, 1.0 * row, 2.0) for row in range(2) for at in times]),
        Table("hits", ("start_ns", "prompt_tokens", "expected_tokens", "achieved_tokens", "reachable_tokens",
                       "lost_tokens"), [(at, 9, 3, 3, 6, 3) for at in times]),
        Table("rejects", ("class", "reason", "requests"), [(names[0], "TOO_LARGE", 3)]),
    )}


def page(drawings=(), text="quiet"):
    """A page on which a text stands everywhere."""
    section = Section(text, [Grid(text, (text,), [(text,)], text)], drawings, [text])
    return Page(text, text, [(text, text)], [section], text, text, [Story(text, [(text, text)])])


def test_the_same_page_has_the_same_bytes():
    first = render(page(draw(tables(), 0)))
    assert first == render(page(draw(tables(), 0)))
    assert first != render(page(draw(tables(("gold", "regular")), 0)))


def test_nothing_is_loaded_and_ids_are_unique():
    reader = read(render(page(draw(tables(), 0))))
    assert reader.tags.count("svg") == 11
    check_alone(reader)


def test_texts_are_escaped():
    html = render(page(draw(tables((HOSTILE, "$x^_$", "_bar", "a\x01b")), 0), HOSTILE))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "$x^_$" in html
    assert html.count("_bar</text>") == 7, "a name in each legend"
    assert "\x01" not in html
    read(html)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out(dark):
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for lines."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(name):
        bright, dim = sorted((luminance(COLOURS[name][dark]), luminance(COLOURS["paper"][dark])), reverse=True)
        return (bright + 0.05) / (dim + 0.05)

    assert min(contrast("ink"), contrast("faint")) >= 4.5
    assert min(contrast(name) for name in COLOURS if name.startswith("series")) >= 3


def test_pictures_follow_the_theme_of_the_page():
    for drawing in draw(tables(), 0):
        svg = inline(drawing.svg(), drawing.name)
        assert "var(--ink)" in svg
        assert "var(--font)" in svg
        assert "DejaVu" not in svg
        colours = set(re.findall(r"(?:fill|stroke): (#\w+)", svg))
        assert colours <= {"#ffffff", "#000000"}, "a colour that the theme does not know"
        assert "<metadata" not in svg
        assert re.match(r'<svg role="img" aria-labelledby="\w+-caption"[^>]* viewBox=', svg)
        assert not re.match(r"<svg[^>]* width=", svg)


def test_the_users_own_style_changes_nothing():
    import matplotlib

    plain = [drawing.svg() for drawing in draw(tables(), 0)]
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "lines.linewidth": 9, "svg.fonttype": "path"}):
        assert [drawing.svg() for drawing in draw(tables(), 0)] == plain


def test_nothing_to_show_is_not_shown():
    empty = {name: Table(name, table.columns, []) for name, table in tables().items()}
    assert draw(empty, 0) == []
    html = render(page())
    assert "<svg" not in html
    read(html)
