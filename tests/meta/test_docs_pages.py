"""The site's pages: their code runs and prints what they say, links lead somewhere, generated parts are complete."""

from __future__ import annotations

import importlib
import inspect
import re
import sys

import click
import pytest
import yaml
from documents import LANGUAGES, PAGES, blocks, checked, run_page, says
from tree import ROOT

import kvcore
from kvcore import InvalidPolicy, load_policy

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
RUN = [page for page in PAGES if any(block.runs for block in blocks(TEXTS[page]))]
REFERENCE = "".join([text for page, text in TEXTS.items() if page.startswith("docs/reference/")])


def generator(name: str):
    """A module of docs/generate, which is no package."""
    folder = str(ROOT / "docs" / "generate")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


@pytest.mark.parametrize("page", RUN)
def test_a_page_does_what_it_says(page):
    outputs, fault = run_page(TEXTS[page])
    assert fault == ""
    for block, place in checked(blocks(TEXTS[page])):
        assert says(block.text, outputs[place]), (
            f"printed:\n{outputs[place]}\nPYTHONPATH=tests python tests/documents.py {page} writes it anew")


def test_the_important_pages_are_run():
    assert {"README.md", "docs/tutorial.md", "docs/gateway.md", "docs/mock.md", "docs/howto/embed.md"} <= set(RUN)
    assert sum(len(checked(blocks(text))) for text in TEXTS.values()) > 10


def test_a_page_that_fails_is_found():
    page = '```sh\nx=3\n```\n\n```text title="x.txt"\ntold\n```\n\n```sh\necho $((x + 1)); cat x.txt\n```\n'
    outputs, fault = run_page(page)
    assert (outputs[2], fault) == ("4\ntold\n", "")
    outputs, fault = run_page(page + "```python\nraise SystemExit(7)\n```\n```sh\necho never\n```\n")
    assert "exit status 7" in fault
    assert outputs[4] == ""


def test_texts_are_compared_line_by_line():
    assert says("a\n...\nd\n", "a\nb\nc\nd\n")
    assert says("a\nrun 1 s\n", "a\nrun 2 s\n")
    assert not says("a\n...\nd\n", "a\nb\nc\n")
    assert not says("a\nb\n", "a\nc\n")
    assert not says("a\n", "a\nb\n")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_code_are_of_a_known_kind(page):
    text = TEXTS[page]
    found = blocks(text)
    assert [block for block in found if block.language not in LANGUAGES] == []
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), "a block that the tests do not see"
    prints = [block for block, _ in checked(found)]
    silent = [block for block in found if block.language == "text" and not block.title and not block.mark]
    assert [block.text for block in silent if block not in prints] == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert re.findall(r"^ {4,}(?:kvcore|pip|python|import|curl) .*", prose, re.MULTILINE) == [], "not fenced, never run"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    linked = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", TEXTS[page])
    assert [path for path in linked if not (folder / path).exists()] == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:"):]))
    assert {f"docs/{name}" for name in named if not name.startswith("source/")} == set(PAGES) - {"README.md"}


def test_nothing_is_fetched_by_a_reader():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url"} & set(settings)
    # The plugin `offline` takes one of this name for its own, which it would fetch.
    assert settings["extra"]["polyfills"] == ["iframe-worker.js"]
    assert "://" not in (ROOT / "docs" / "iframe-worker.js").read_text(encoding="utf-8")
    assert "url(" not in (ROOT / "docs" / "style.css").read_text(encoding="utf-8")


def test_pictures_are_as_they_would_be_drawn_now():
    pictures = generator("pictures")
    drawn = {f"{name}.svg": draw().svg() for name, draw in pictures.PICTURES.items()}
    assert {path.name: path.read_text(encoding="utf-8") for path in pictures.FOLDER.iterdir()} == drawn
    shown = set(re.findall(r"pictures/(\w+\.svg)", "".join(TEXTS.values())))
    assert shown == set(drawn)


def test_public_names_are_in_the_reference():
    """Every module that a public name comes from is on a page of the reference, or the name itself is."""
    named = set(re.findall(r"^::: (\S+)", REFERENCE, re.MULTILINE))
    homes = {
        name: inspect.getmodule(value) for name in kvcore.__all__
        if inspect.isclass(value := getattr(kvcore, name)) or inspect.isroutine(value)}
    assert [name for name, home in homes.items() if home is not None and home.__name__ not in named
            and f"{home.__name__}.{name}" not in named] == []
    for name in named:
        module = next(name.rsplit(".", cut)[0] for cut in range(2) if _is_module(name.rsplit(".", cut)[0]))
        assert module.startswith("kvcore")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def policy_keys() -> dict[str, object]:
    """Every key that may stand in a policy file, parameters of built-in admission policies too."""
    keys = importlib.import_module("kvcore._policy_keys")
    built_in = importlib.import_module("kvcore.admission").BUILT_IN
    found = {**keys.IGNORED, **keys.PROFILE, **keys.BUCKET, **keys.CLASS, **keys.ADMISSION, "models": keys.MODELS}
    found |= {**keys.SELECTION, **keys.INSTANCE}
    return found | {name: item for kind in built_in.values() for name, item in kind.PARAMETERS.items()}


def test_every_key_of_a_policy_file_is_on_its_page():
    page = generator("policy_page").page()
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", page, re.MULTILINE))
    assert set(rows) == set(policy_keys())
    assert rows["quantum"] == "whole number, 1 to 2^53"
    assert rows["queue_policy"] == "one of `fcfs`, `wspt`, `edf`, `lcfs`"
    fields = {item for kind in (kvcore.PolicyClass, kvcore.PolicyProfile) for item in kind.__dataclass_fields__}
    assert fields - {"classes", "buckets"} <= set(rows), "a field of a policy that no key gives"


def whole_file(**changed: object) -> str:
    """A policy file with all keys of a class, of which some are changed; None: without it."""
    item = {
        "name": "a", "policy_family": "f", "cache_bucket": "b", "queue_policy": "wspt", "quantum": 1,
        "prefill_busy_threshold": 1, "prefill_busy_threshold_frac": 0.5, "request_queue_limit_per_worker": 1,
        "raw_isl_token_queue_limit_per_worker": 1, "cached_token_queue_limit_per_worker": 1, "max_overtake_tokens": 1,
        "admission": {"type": "session_concurrency", "parameters": {"max_running": 1}}} | changed
    return yaml.safe_dump({
        "default_policy_family": "f", "uncached_isl_buckets": [{"min_tokens": 0, "bucket": "b"}],
        "policy_classes": [{key: value for key, value in item.items() if value is not None}]})


def test_the_page_says_of_a_class_what_the_validator_does():
    """Least values, what is required, and what a key is if it is absent: tried on the loader itself."""
    page = generator("policy_page").page()
    section = page[page.index("## A class"):page.index("### An admission policy")]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    (given,) = load_policy(whole_file()).root.classes
    assert {key for key, _, _ in rows} == set(given.__dataclass_fields__)
    for key, kind, absent in rows:
        if match := re.match(r"whole number, (\d+) to 2\^53", kind):
            least = int(match[1])
            assert getattr(load_policy(whole_file(**{key: least})).root.classes[0], key) == least
            for wrong in (least - 1, 2**53 + 1, "many"):
                with pytest.raises(InvalidPolicy, match=key):
                    load_policy(whole_file(**{key: wrong}))
        if absent == "**required**":
            with pytest.raises(InvalidPolicy, match="is required"):
                load_policy(whole_file(**{key: None}))
        elif key not in ("policy_family", "cache_bucket"):
            value = getattr(load_policy(whole_file(**{key: None})).root.classes[0], key)
            assert absent == ("none" if value is None else f"`{value.value}`")


def test_commands_are_described_in_the_words_of_their_help():
    commands = generator("command_page")
    page = commands.page()
    plain = re.sub(r"\\(.)", r"\1", page)
    found = list(commands.commands())
    assert {"kvcore", "kvcore serve", "kvcore journal explain", "kvcore trace synth"} <= {words for words, *_ in found}
    for words, command, context in found:
        assert re.search(rf"^#+ {words}$", page, re.MULTILINE)
        told = " ".join(command.get_help(context).split())
        for block in commands.help_blocks(command):
            line = " ".join(block.replace("\b", "").split())
            assert line in told, words
            assert all(" ".join(part.split()) in " ".join(plain.split()) for part in block.strip("\b\n").splitlines())
        for item in command.get_params(context):
            record = item.get_help_record(context) if isinstance(item, click.Option) else None
            if record is not None and "--help" not in item.opts:
                assert f"| `{record[0]}` | {record[1]} |" in plain, words
