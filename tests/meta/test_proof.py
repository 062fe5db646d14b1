"""The figures of tests/proof.py: no value is beyond its limit, and the streams come close to most of them."""

from __future__ import annotations

import proof


def test_no_figure_is_beyond_its_limit():
    seen = {figure.name: figure for figure in proof.figures(100)}
    assert [str(figure) for figure in seen.values() if figure.worst > 1] == []
    assert all(figure.cases for figure in seen.values())
    assert seen["overtaken (D17)"].worst > 0.9
    assert seen["shares apart (D5)"].worst > 0.5
