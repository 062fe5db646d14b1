"""A report in a real browser: headless Chromium shows it without an error, on a desk, on a phone, dark and printed.

KVCORE_ARTEFACTS names a folder in which the pictures of the page are kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kvcore.drivers.cli import main
from matplotlib.image import imread
from reports import TRACES
from tree import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of a run whose prompts' content is known."""
    page = tmp_path_factory.mktemp("report") / "report.html"
    trace = str(TRACES / "mooncake_sample.jsonl")
    assert main(["replay", trace, "--workers", "3", "--queue-threshold", "0.5", "-q", "--report", str(page)]) == 0
    return page


@pytest.fixture
def artefacts(tmp_path):
    """Where pictures of the page go."""
    kept = os.environ.get("KVCORE_ARTEFACTS")
    folder = tmp_path if kept is None else Path(kept)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def browse(page, profile, *options):
    """Open a page: (what the browser prints, its console messages)."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", *options, page.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return answer.stdout, [line for line in answer.stderr.splitlines() if "CONSOLE" in line]


def test_an_error_would_be_seen(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<!DOCTYPE html><title>bad</title><script>nowhere()</script>")
    assert "nowhere is not defined" in browse(page, tmp_path / "profile", "--dump-dom")[1][0]
    page.write_text('<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
                    '<title>bad</title><img src="https://example.org/a.png">')
    assert "Content Security Policy" in browse(page, tmp_path / "profile", "--dump-dom")[1][0]


def test_the_page_has_no_errors(report, tmp_path):
    tree, messages = browse(report, tmp_path / "profile", "--dump-dom")
    assert messages == []
    assert tree.count("<svg") == report.read_text().count("<svg") == 9
    assert tree.count("<figcaption") == 9


def test_a_comparison_has_no_errors(artefacts, tmp_path):
    page, policy = tmp_path / "comparison.html", str(ROOT / "examples/policies/premium.yaml")
    trace = str(TRACES / "mooncake_sample.jsonl")
    assert main(["compare", policy, policy, "--trace", trace, "--limit", "50", "--resamples", "10", "-q",
                 "--report", str(page)]) == 0
    tree, messages = browse(page, tmp_path / "profile", "--dump-dom")
    assert messages == []
    assert tree.count("<svg") == page.read_text().count("<svg") >= 10
    picture = artefacts / "comparison.png"
    assert browse(page, tmp_path / "profile", "--window-size=500,3000", f"--screenshot={picture}")[1] == []
    right = imread(picture)[:, -4:, :3]
    assert abs(right - right[0, 0]).max() < 0.02, "nothing is wider than a phone"


@pytest.mark.parametrize(("name", "size", "options", "paper"), [
    ("desk", "1280,3000", [], 1.0),
    ("phone", "500,3000", [], 1.0),
    ("dark", "1280,3000", ["--blink-settings=preferredColorScheme=0"], 0x17 / 255),
])
def test_how_it_looks(report, artefacts, tmp_path, name, size, options, paper):
    picture = artefacts / f"report-{name}.png"
    _, messages = browse(
        report, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}", *options)
    assert messages == []
    pixels = imread(picture)[..., :3]
    assert pixels.shape[1] == int(size.partition(",")[0])
    assert pixels[5, 5, 1] == pytest.approx(paper, abs=0.01), "the paper has the colour of the theme"
    colours = {tuple(pixel) for pixel in (pixels[::4, ::4].reshape(-1, 3) * 255).round().astype(int).tolist()}
    assert len(colours) > 200, "text, lines and heat maps are there"
    right = pixels[:, -4:, :]
    assert abs(right - right[0, 0]).max() < 0.02, "nothing is wider than the page"


def test_it_can_be_printed(report, artefacts, tmp_path):
    paper = artefacts / "report.pdf"
    _, messages = browse(report, tmp_path / "profile", f"--print-to-pdf={paper}")
    assert messages == []
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type/Page/") >= 3
