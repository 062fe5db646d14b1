"""`kvcore policy check`: what it prints, what it refuses, and that it never shows a traceback."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvcore.drivers.cli import policy as module
from kvcore.drivers.cli.policy import policy_group
from policy_texts import MODEL_AND_ROOT, indent, policy

from kvcore.admission import BUILT_IN, AdmissionPolicy
from kvcore.policy_file import describe, load_policy

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"


def check(*arguments: str) -> Result:
    """`kvcore policy check` with these arguments."""
    return CliRunner().invoke(policy_group, ["check", *arguments])


def written(folder: Path, text: str | bytes) -> str:
    """The path of a new file with this content."""
    path = folder / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refusal(result: Result) -> str:
    """The one line on stderr of a run that failed as it should."""
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("kvcore: error: ")
    assert result.stderr.endswith("\n")
    line = result.stderr.removeprefix("kvcore: error: ")[:-1]
    assert line.isprintable()
    return line


def test_an_example_piped() -> None:
    path = str(EXAMPLES / "cached-uncached.yaml")
    result = check(path)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout == f"""\
{path}: valid

root: default family standard, arbitration exact, capacity advisory
bucket    uncached prompt tokens
cached    0 to 3071
uncached  3072 or more

class     family    bucket    order  quantum  share  busy above   limit per worker
cached    standard  cached    wspt   2048     80.0%  8192 tokens  (none)
uncached  standard  uncached  fcfs   512      20.0%  2048 tokens  1048576 raw tokens

worst case of a waiting request, prompts of up to 131,072 tokens (--max-prompt):
class     served before it
cached    unbounded: no max_overtake_tokens
uncached  unbounded: no max_overtake_tokens
"""


def test_every_kind_of_value_piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "t", lambda parameters: AdmissionPolicy())  # type: ignore[misc]
    text = policy(
        prefill_busy_threshold="7", prefill_busy_threshold_frac="16.0", request_queue_limit_per_worker="0",
        cached_token_queue_limit_per_worker="2", max_overtake_tokens="3", admission="{type: t, parameters: {a: [é]}}",
    ) + "  - {name: vip, quantum: 3}\narbitration: reference\ncapacity: strict\n"
    lines = check(written(tmp_path, text)).stdout.splitlines()
    assert "root: default family f, arbitration reference, capacity strict" in lines
    assert [line.split() for line in lines if line.startswith(("c ", "vip "))] == [
        ["c", "f", "b", "fcfs", "1", "25.0%", "7", "tokens", "or", "16.0", "x", "max", "batched", "tokens",
         "0", "requests,", "2", "cached", "tokens", "3", "tokens"],
        ["vip", "(by", "its", "name)", "(any)", "fcfs", "3", "75.0%", "(never", "waits)", "(none)", "no", "bound"],
        ["c", "never", "waits:", "dispatched", "or", "refused", "at", "once,", "as", "a", "limit", "is", "0"],
        ["vip", "unbounded:", "arbitration", "reference", "promises", "no", "bound"],
    ]
    assert 'admission of c: t {"a": ["\\u00e9"]}' in lines


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    document = load_policy(policy())
    report = module._report("p.yaml", None, document, ["root: something"], 131_072)
    assert "p.yaml: valid" in report
    assert "───" in report
    assert "warning: root: something" in report
    assert max([len(line) for line in report.splitlines() if "\x1b" not in line]) <= 100


def test_ignored_keys_and_warnings_are_listed(tmp_path: Path) -> None:
    path = written(tmp_path, "router: {a: 1}\n" + policy(queue_policy="lcfs"))
    shown = check(path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    warnings = [line for line in shown.stdout.splitlines() if line.startswith("warning: ")]
    assert [line.split(":")[1:3] for line in warnings] == [[" root", " router"], [' root, class "c"', " queue_policy"]]
    as_json = check(path, "--json")
    assert as_json.exit_code == 0
    assert [line for line in as_json.stderr.splitlines() if not line.startswith("worst case")] == warnings
    assert json.loads(as_json.stdout) == describe(load_policy(policy(queue_policy="lcfs")))


@pytest.mark.parametrize("name", ["premium.yaml", "equal.yaml", "cached-uncached.yaml"])
def test_json_is_a_policy_file_with_the_same_meaning(name: str, tmp_path: Path) -> None:
    first = check(str(EXAMPLES / name), "--json")
    assert first.exit_code == 0
    assert all(line.startswith("worst case") for line in first.stderr.splitlines())
    assert json.loads(first.stdout) == describe(load_policy((EXAMPLES / name).read_text()))
    assert check(written(tmp_path, first.stdout), "--json").stdout == first.stdout


def test_no_profile_at_all(tmp_path: Path) -> None:
    path = written(tmp_path, "worker_selection: {decode: default}\n")
    assert "no profile: the built-in class `default` takes every request" in check(path).stdout
    assert json.loads(check(path, "--json").stdout)["policy_classes"] is None


@pytest.mark.parametrize(
    ("model", "line", "classes"),
    [
        ("replaced", "model replaced: its own profile is in effect", ["near", "far"]),
        ("other", "model other: no profile of its own, the root profile is in effect", ["root_class"]),
    ],
)
def test_one_model(tmp_path: Path, model: str, line: str, classes: list[str]) -> None:
    path = written(tmp_path, MODEL_AND_ROOT)
    result = check(path, "--model", model)
    assert result.exit_code == 0
    assert line in result.stdout.splitlines()
    described = json.loads(check(path, "--json", "--model", model).stdout)
    assert [item["name"] for item in described["policy_classes"]] == classes
    assert described["models"] == {}


def test_a_model_to_which_no_profile_applies(tmp_path: Path) -> None:
    path = written(tmp_path, "models:\n  m:\n" + indent(policy(), 4))
    assert check(path, "--model", "M").stdout.splitlines()[1:] == [
        "model M: no profile of its own and no root profile, the built-in class `default` takes every request"
    ]
    assert json.loads(check(path, "--model", "M", "--json").stdout)["default_policy_family"] is None


WORST = policy(prefill_busy_threshold="0", max_overtake_tokens="1000") + """\
  - {name: slow, quantum: 3, prefill_busy_threshold: 0, max_overtake_tokens: 0}
  - {name: free, quantum: 3, prefill_busy_threshold: 0}
"""


def test_worst_cases(tmp_path: Path) -> None:
    path = written(tmp_path, WORST)
    lines = check(path, "--max-prompt", "100").stdout.splitlines()
    start = lines.index("worst case of a waiting request, prompts of up to 100 tokens (--max-prompt):")
    assert lines[start + 1 : start + 5] == [
        "class  served before it",
        "c      at most 7,806 + 7.0 x own backlog served tokens",
        "slow   at most 338 + 2.334 x own backlog served tokens",
        "free   unbounded: no max_overtake_tokens",
    ]
    as_json = check(path, "--json")
    assert as_json.stderr.splitlines()[:2] == [
        "worst case of a waiting request, prompts of up to 131,072 tokens (--max-prompt):",
        "worst case: root, class c: at most 1,055,582 + 7.0 x own backlog served tokens",
    ]
    assert load_policy(as_json.stdout) == load_policy(WORST)


def test_worst_cases_of_each_profile(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL_AND_ROOT)
    cases = [line.split(": ", 1)[1] for line in check(path, "--json").stderr.splitlines()[1:]]
    assert cases == [
        "root, class root_class: unbounded: no max_overtake_tokens",
        "model replaced, class near: never waits: no busy threshold",
        "model replaced, class far: unbounded: no max_overtake_tokens",
    ]
    (case,) = check(path, "--json", "--model", "other").stderr.splitlines()[1:]
    assert case == "worst case: profile, class root_class: unbounded: no max_overtake_tokens"


def test_the_largest_prompt_gives_reason_for_warnings(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL_AND_ROOT)
    assert "warning" not in check(path).stdout
    warnings = [line for line in check(path, "--max-prompt", "63").stdout.splitlines() if line.startswith("warning")]
    assert [line.split(": ")[1:3] for line in warnings] == [
        ['model "replaced", class "far"', "can never be chosen"],
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1), "1.0"), (Fraction(5, 4), "1.25"), (Fraction(4, 3), "1.334"), (Fraction(5, 2), "2.5"),
        (Fraction(29999, 10000), "3.0"), (Fraction(10), "10.0"), (Fraction(2**53 + 1), "9,007,199,254,740,993.0"),
    ],
)
def test_slopes_are_rounded_up(value: Fraction, text: str) -> None:
    assert module._decimal(value) == text


def test_names_cannot_draw_on_the_terminal(tmp_path: Path) -> None:
    name = r'"[red]a[/] :smile: \e[31m\n\u202e\u2028é"'
    result = check(written(tmp_path, f"models:\n  {name}:\n" + indent(policy(queue_policy="lcfs"), 4)))
    assert result.exit_code == 0
    assert r"model [red]a[/] :smile: \x1b[31m\n\u202e\u2028é: default family f" in result.stdout
    assert all(line.isprintable() for line in result.stdout.splitlines())


def test_a_bad_policy_is_one_line_with_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, policy(quantm="1"))
    assert refusal(check(path)) == f'{path}:9: root, class "c": quantm: unknown key, did you mean quantum?'
    assert refusal(check(path, "--json", "--model", "m")).startswith(f"{path}:9: ")


AGENTS = (EXAMPLES / "agents.yaml").read_text("utf-8")


def test_the_example_with_admission_policies() -> None:
    lines = check(str(EXAMPLES / "agents.yaml"), "--max-prompt", "131072").stdout.splitlines()
    assert [line for line in lines if line.startswith(("admission", "warning"))] == [
        'admission of chat: session_concurrency {"max_running": 4, "max_deferred": 16}',
        'admission of agents: program_budget {"kv_token_budget": 2000000, "pause_ttl_ns": 20000000000, '
        '"resume_after_ns": 600000000000}',
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("session_concurrency", "session_concurency",
         ": type: unknown type 'session_concurency', did you mean session_concurrency?"),
        ("max_deferred: 16", "max_defered: 16", ", parameters: max_defered: unknown key, did you mean max_deferred?"),
        ("max_running: 4", "max_running: no", ", parameters: max_running: must be a whole number, 1..9007199254740992 "
         "(2^53), not 'no'"),
        ("max_running: 4", "max_running: true", ", parameters: max_running: must be a whole number, 1..9007199254740992"
         " (2^53), not True"),
    ],
)
def test_an_admission_policy_that_cannot_be_built(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = written(tmp_path, AGENTS.replace(old, new))
    line = 1 + AGENTS[: AGENTS.index(old)].count("\n")
    for arguments in ([path], [path, "--json"], [path, "--model", "m"]):
        assert refusal(check(*arguments)) == f'{path}:{line}: root, class "chat", admission{reason}'


def test_a_parameter_that_is_missing(tmp_path: Path) -> None:
    text = "models:\n  m:\n" + indent(policy(admission="{type: program_budget}"), 4)
    path = written(tmp_path, text)
    assert refusal(check(path)) == (
        f'{path}:11: model "m", class "c", admission, parameters: kv_token_budget: is required')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ":1: root: nothing is defined"),
        (b"a: b\n\xff\xfe\n", ":2: not UTF-8 text (byte 0xff)"),
        ("models: {}\n".encode("utf-16"), ":1: not UTF-8 text (byte 0xff)"),
        (b"a: \x00\n", ":1: root: character #x0000 is not allowed"),
        (b"\t- a\n", ":1: root: not valid YAML: "),
        (b'"a\\nb\\e": 1\n', r":1: root: a\nb\x1b: unknown key"),
        (b"#" * (4 << 20) + b"#", ": larger than 4194304 bytes"),
        (b"#" * (1 << 20) + b"#", ": root: longer than 1048576 characters"),
    ],
)
def test_bad_content(tmp_path: Path, content: bytes, reason: str) -> None:
    path = written(tmp_path, content)
    assert refusal(check(path)).startswith(path + reason)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.yaml")
    assert refusal(check(missing)) == f"{missing}: No such file or directory"
    assert refusal(check(str(tmp_path))) == f"{tmp_path}: Is a directory"
    assert refusal(check("")) == ": No such file or directory"
    assert refusal(check("a\0b")).endswith("embedded null byte")
    assert refusal(check("/dev/zero")) == "/dev/zero: larger than 4194304 bytes"


def test_a_file_name_that_is_not_text(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.yaml")
    assert refusal(check(path)) == rf"{tmp_path}/\udcff\n.yaml: No such file or directory"
    Path(path).write_text(policy())
    assert check(path).stdout.splitlines()[0] == rf"{tmp_path}/\udcff\n.yaml: valid"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert check(written(tmp_path, b"\xef\xbb\xbf" + policy().encode())).exit_code == 0


def test_usage_mistakes() -> None:
    bad = (["--max-prompt", limit, "a"] for limit in ("0", "-1", "x", str(2**53 + 1)))
    for arguments in ([], ["--bogus", "x"], ["a", "b"], *bad):
        assert check(*arguments).exit_code == 2
    assert check("--help").exit_code == 0
