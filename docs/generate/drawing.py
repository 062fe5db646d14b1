"""Boxes, arrows and words as SVG. Colours are variables: a page sets them, an image that stands alone has its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

_STYLE = """
svg.kv { --ink: #24292f; --soft: #6e7781; --line: #8c959f; --plain: #f6f8fa; --a: #bcd0f7; --b: #f8d9a8; --c: #bfe3c3;
  --d: #f3c1c1; }
@media (prefers-color-scheme: dark) { svg.kv { --ink: #e6edf3; --soft: #9aa4af; --line: #6e7681; --plain: #21262d;
  --a: #2f4a80; --b: #7a5520; --c: #2b5d34; --d: #7b3535; } }
svg.kv text { font: 14px system-ui, sans-serif; fill: var(--ink); }
svg.kv .soft { fill: var(--soft); }
svg.kv .small { font-size: 12px; }
svg.kv .bold { font-weight: 600; }
svg.kv .line { stroke: var(--line); stroke-width: 1.5; fill: none; }
svg.kv .dashed { stroke-dasharray: 4 4; }
svg.kv .head { fill: var(--line); stroke: none; }
svg.kv .plain { fill: var(--plain); } svg.kv .a { fill: var(--a); } svg.kv .b { fill: var(--b); }
svg.kv .c { fill: var(--c); } svg.kv .d { fill: var(--d); }
svg.kv rect { stroke: var(--line); }
""".strip()


@dataclass
class Drawing:
    """A picture of this size. label: what it shows, for who cannot see it."""

    width: int
    height: int
    label: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """A line of text whose middle is at height y."""
        style = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y + 5:g}" text-anchor="{anchor}"{style}>{escape(words, quote=False)}</text>')

    def box(self, x: float, y: float, width: float, height: float, words: str = "", kind: str = "plain") -> None:
        """A box with text in its middle, a line of it for each line."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>')
        lines = words.split("\n") if words else []
        for row, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 17 * (row - (len(lines) - 1) / 2), line, anchor="middle")

    def line(self, *points: tuple[float, float], kind: str = "") -> None:
        """A line through these points."""
        path = " ".join([f"{x:g},{y:g}" for x, y in points])
        self.parts.append(f'<polyline points="{path}" class="line{" " + kind if kind else ""}"/>')

    def arrow(self, *points: tuple[float, float], words: str = "", kind: str = "") -> None:
        """A line whose last stretch, level or upright, ends in an arrow. words: above the middle of its first one."""
        self.line(*points, kind=kind)
        (x0, y0), (x1, y1) = points[-2:]
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        back = [(x1 - 9 * dx - 4 * dy, y1 - 9 * dy - 4 * dx), (x1 - 9 * dx + 4 * dy, y1 - 9 * dy + 4 * dx)]
        corners = " ".join([f"{x:g},{y:g}" for x, y in [(x1, y1), *back]])
        self.parts.append(f'<polygon points="{corners}" class="head"/>')
        if words:
            (x0, y0), (x1, y1) = points[:2]
            if y0 == y1:
                self.text((x0 + x1) / 2, y0 - 11, words, "small soft", "middle")
            else:
                self.text(x0 + 7, (y0 + y1) / 2, words, "small soft")

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kv" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.label)}">')
        return "\n".join([head, f"<style>{_STYLE}</style>", *self.parts, "</svg>", ""])
