"""The gate of `pytest benchmarks --gate FILE`: measures what bench_gate.py asked for, and holds it against a base line.

Instructions and counters repeat exactly, so one look at them is enough; ratios are measured as measuring.py says.
"""

from __future__ import annotations

from pathlib import Path

from kvcore.drivers.bench import gate as base_lines
from kvcore.drivers.bench.gate import COUNTER, INSTRUCTIONS, RATIO, TOLERANCE, BaseLines, Verdict, build_key, processor
from kvcore.drivers.bench.measuring import best_ratios, has_valgrind, instructions, python, usual_ratios

WORKS_FILE = Path(__file__).with_name("gate_works.py")
FIRST = "first run of this build"


class Gate:
    """One run of the gate. path: file of base lines, None: no gate. reason: record instead of comparing.

    failed: whether something has grown. text: what there is to say, lines to print.
    Raises: InvalidBaseLine; OSError.
    """

    def __init__(self, path: str | None, reason: str | None) -> None:
        self.failed = False
        self.text: list[str] = []
        self._reason = reason
        self._works: dict[str, bool] = {}
        self._counters: dict[str, int] = {}
        self._lines: BaseLines | None = None
        if path is not None:
            file = Path(path)
            self._lines = BaseLines(file) if reason is not None and not file.exists() else BaseLines.read(file)

    def want(self, name: str, ratio: bool) -> None:
        """A piece of work is to be measured."""
        self._works[name] = ratio

    def counted(self, counters: dict[str, int]) -> None:
        """Counters of this run."""
        self._counters |= counters

    def run(self) -> None:
        """Measure, compare, record."""
        if self._lines is None:
            return
        key = build_key()
        known = self._lines.builds.get(key)
        base = {} if known is None else known.on(processor())
        figures = self._measure({} if self._reason is not None else base)
        self.text.append(f"build: {key}")
        if not figures:
            self.failed = True
            self.text.append("NOTHING MEASURED: bench_gate.py was not among the benchmarks that ran")
            return
        rows = base_lines.compare(base, figures)
        self.text += base_lines.table(rows)
        if self._reason is not None or known is None:
            reason = self._reason or FIRST
            self._lines.record(key, figures, reason)
            self._write()
            warning = "" if self._reason is not None else "WARNING: no base line for this build; "
            self.text.append(f"{warning}recorded in {self._lines.path}: {reason}")
            return
        self.failed = any(row.verdict is Verdict.GROWN for row in rows)
        self.text.append(f"{len(rows)} figures against the base line: {known.reason}")
        ratios = [row.verdict for row in rows if row.name.startswith(RATIO)]
        if ratios and set(ratios) == {Verdict.NEW}:
            self._lines.add_ratios(key, figures)
            self._write()
            self.text.append(f"WARNING: no ratios of this processor yet ({processor()}); "
                             f"recorded in {self._lines.path}")
        elif any(row.verdict is Verdict.NEW for row in rows):
            self.text.append("WARNING: some figures have no base line yet; --gate-update REASON records them")
        if self.failed:
            self.text.append(f"FAILED: more than {TOLERANCE:.0%} over the base line. If that is meant, record it: "
                             "--gate-update REASON")

    def _write(self) -> None:
        assert self._lines is not None
        self._lines.path.write_text(self._lines.text(), encoding="utf-8")

    def _measure(self, before: base_lines.Figures) -> dict[str, float]:
        figures: dict[str, float] = {f"{COUNTER}: {name}": value for name, value in self._counters.items()}
        command = python(str(WORKS_FILE))
        if self._works and not has_valgrind():
            self.text.append("WARNING: there is no valgrind here: instructions are not measured")
        elif self._works:
            counted = instructions(command, list(self._works))
            figures |= {f"{INSTRUCTIONS}: {name}": round(value, 1) for name, value in counted.items()}

        names = [name for name, ratio in self._works.items() if ratio]
        if names:
            known = any(f"{RATIO}: {name}" in before for name in names)
            found = usual_ratios(command, names) if not known else best_ratios(
                command, names, lambda name, value: value <= before.get(f"{RATIO}: {name}", 0) * (1 + TOLERANCE))
            figures |= {f"{RATIO}: {name}": float(f"{value:.4g}") for name, value in found.items()}
        return figures
