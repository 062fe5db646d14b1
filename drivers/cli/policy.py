"""`kvcore policy`: look at a policy file before it is rolled out."""

from __future__ import annotations

import json
import math
import shutil
import sys
from io import StringIO
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.table import Table

    from kvcore.policy import PolicyClass, PolicyProfile
    from kvcore.policy_file import PolicyDocument
    from kvcore.policy_lint import WorstCase

#: The loader's limit of about a million characters, at up to four bytes each.
FILE_BYTES_MAX = 4 << 20
#: Wide enough that nothing is wrapped when the output is not a terminal.
_PIPE_COLUMNS = 10_000
_QUEUE_LIMITS = (
    ("requests", "request_queue_limit_per_worker"),
    ("raw tokens", "raw_isl_token_queue_limit_per_worker"),
    ("cached tokens", "cached_token_queue_limit_per_worker"),
)
#: Largest prompt in worst cases where none is given: the context of most models that are served today.
MAX_PROMPT_TOKENS = 131_072
_SYNTHETIC = "the built-in class `default` takes every request"


class PolicyFileError(click.ClickException):
    """A file that cannot be read or holds no valid policy: one line on stderr, exit status 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line, also when the group runs without the program around it."""
        click.echo(f"kvcore: error: {self.message}", file=file, err=file is None)


@click.group("policy", short_help="Check policy files.")
def policy_group() -> None:
    """Check policy files: how requests are classified, queued and given their share."""


@policy_group.command("check")
@click.argument("file", metavar="FILE")
@click.option("--model", metavar="NAME", help="Show only the policy in effect for this model.")
@click.option(
    "--max-prompt", metavar="N", type=click.IntRange(1, 2**53),
    help=f"Tokens of the largest prompt: the largest cost in worst cases ({MAX_PROMPT_TOKENS} if not given); if given, "
    "also looked at for warnings.",
)
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print the policy in effect as JSON, itself a policy file; all else goes to standard error.",
)
def check_command(file: str, model: str | None, max_prompt: int | None, as_json: bool) -> None:
    """Validate the policy in FILE, - for standard input, and print what is in effect, every default spelled out.

    For each class it also prints the worst case of a waiting request: how many prompt tokens of all classes may be
    served before it, as long as its class and lane may run. Own backlog is what waits in its class when it arrives.
    Unbounded: nothing keeps younger requests of higher priority from passing it for ever. While an admission policy
    holds a request back, it does not wait in this sense.

    Admission policies are built to see that they can be, by types that are built in or installed.

    The exit status is 0 if the policy is valid, also with warnings, and 2 if it is not.

    \b
    Examples:
      kvcore policy check premium.yaml
      kvcore policy check premium.yaml --max-prompt 32768
      kvcore policy check premium.yaml --model llama-70b --json
    """
    from kvcore.errors import InvalidPolicy
    from kvcore.policy_file import PolicyDocument, check_admission, describe, load_policy
    from kvcore.policy_lint import lint

    try:
        document = load_policy(read_policy_text(file), source=file)
        check_admission(document)
    except InvalidPolicy as error:
        raise PolicyFileError(str(error)) from error
    warnings = lint(document, max_prompt)
    scope = None if model is None else _scope(document, model)
    if model is not None:
        document = PolicyDocument(root=document.profile_for(model))
    max_prompt = max_prompt or MAX_PROMPT_TOKENS
    if as_json:
        click.echo(json.dumps(describe(document), indent=2))
        for line in [*_notes(scope, document, max_prompt), *[f"warning: {warning}" for warning in warnings]]:
            click.echo(_one_line(line), err=True)
    else:
        click.echo(_report(file, scope, document, warnings, max_prompt), nl=False)


def _one_line(text: str) -> str:
    """The text with line breaks, control characters and undecodable bytes of file names escaped."""
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text])


def read_policy_text(file: str) -> str:
    """The text of a policy file. Raises: PolicyFileError."""
    try:
        with open("/dev/stdin" if file == "-" else file, "rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise PolicyFileError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise PolicyFileError(f"{file}: larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyFileError(f"{file}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x})") from error


def _scope(document: PolicyDocument, model: str) -> str:
    """Which profile the output is about when a model was asked for."""
    if model in document.models:
        return f"model {model}: its own profile is in effect"
    if document.root is not None:
        return f"model {model}: no profile of its own, the root profile is in effect"
    return f"model {model}: no profile of its own and no root profile, {_SYNTHETIC}"


def _profiles(scope: str | None, document: PolicyDocument) -> list[tuple[str, PolicyProfile]]:
    """What the profiles of the document are called, and they themselves."""
    root = [] if document.root is None else [("root" if scope is None else "profile", document.root)]
    return root + [(f"model {name}", profile) for name, profile in document.models.items()]


def _notes(scope: str | None, document: PolicyDocument, max_prompt: int) -> list[str]:
    """The worst cases, a line each, for where there is no table."""
    from kvcore.policy_lint import worst_cases

    lines = [
        f"worst case: {title}, class {case.class_name}: {_worst(case)}"
        for title, profile in _profiles(scope, document) for case in worst_cases(profile, max_prompt)
    ]
    return [_worst_headline(max_prompt), *lines] if lines else []


def _report(file: str, scope: str | None, document: PolicyDocument, warnings: list[str], max_prompt: int) -> str:
    """The readable form: rich tables on a terminal, else plain aligned columns."""
    from rich.console import Console

    from kvcore.policy_lint import worst_cases

    terminal = sys.stdout is not None and sys.stdout.isatty()
    buffer = StringIO()
    width = shutil.get_terminal_size().columns if terminal else _PIPE_COLUMNS
    # Names come from the file: neither markup nor emoji codes in them mean anything.
    console = Console(
        file=buffer, width=width, force_terminal=terminal, markup=False, emoji=False, highlight=False, soft_wrap=True,
    )
    console.print(_one_line(f"{file}: valid"), style="bold")
    if scope is not None:
        console.print(_one_line(scope))
    elif document.root is None and not document.models:
        console.print(f"no profile: {_SYNTHETIC}")
    for title, profile in _profiles(scope, document):
        console.print()
        console.print(_one_line(_headline(title, profile)), style="bold")
        console.print(_bucket_table(profile, terminal))
        console.print()
        console.print(_class_table(profile, terminal))
        for item in profile.classes:
            if item.admission is not None:
                parameters = json.dumps(item.admission.parameters)
                console.print(f"admission of {item.name}: {item.admission.type} {parameters}")
        console.print()
        console.print(_worst_headline(max_prompt))
        rows = [[case.class_name, _worst(case)] for case in worst_cases(profile, max_prompt)]
        console.print(_table(terminal, ["class", "served before it"], rows))
    if warnings:
        console.print()
    for warning in warnings:
        console.print(_one_line(f"warning: {warning}"), style="yellow")
    return "\n".join([line.rstrip() for line in buffer.getvalue().splitlines()]) + "\n"


def _headline(title: str, profile: PolicyProfile) -> str:
    return (
        f"{title}: default family {profile.default_policy_family}, "
        f"arbitration {profile.arbitration.value}, capacity {profile.capacity.value}"
    )


def _table(terminal: bool, headings: list[str], rows: list[list[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False, header_style="bold" * terminal,
    )
    for heading, cells in zip(headings, zip(*rows, strict=True), strict=True):
        # On a narrow terminal phrases are wrapped first, short names last.
        longest_word = max([len(word) for cell in cells for word in cell.split()])
        table.add_column(heading, overflow="fold", min_width=min(longest_word, 20))
    for row in rows:
        table.add_row(*row)
    return table


def _bucket_table(profile: PolicyProfile, terminal: bool) -> Table:
    ends = [f"to {item.min_tokens - 1}" for item in profile.buckets[1:]] + ["or more"]
    rows = [[item.name, f"{item.min_tokens} {end}"] for item, end in zip(profile.buckets, ends, strict=True)]
    return _table(terminal, ["bucket", "uncached prompt tokens"], rows)


def _class_table(profile: PolicyProfile, terminal: bool) -> Table:
    bounded = any(item.max_overtake_tokens is not None for item in profile.classes)
    headings = ["class", "family", "bucket", "order", "quantum", "share", "busy above", "limit per worker"]
    quanta = sum([item.quantum for item in profile.classes])
    rows = []
    for item in profile.classes:
        overtaking = "no bound" if item.max_overtake_tokens is None else f"{item.max_overtake_tokens} tokens"
        rows.append([
            item.name,
            item.policy_family or "(by its name)",
            item.cache_bucket or "(any)",
            item.queue_policy.value,
            str(item.quantum),
            f"{100 * item.quantum / quanta:.1f}%",
            _busy(item),
            _limits(item),
            *[overtaking] * bounded,
        ])
    return _table(terminal, headings + ["overtaking"] * bounded, rows)


def _busy(item: PolicyClass) -> str:
    parts = []
    if item.prefill_busy_threshold is not None:
        parts.append(f"{item.prefill_busy_threshold} tokens")
    if item.prefill_busy_threshold_frac is not None:
        parts.append(f"{item.prefill_busy_threshold_frac!r} x max batched tokens")
    return " or ".join(parts) or "(never waits)"


def _limits(item: PolicyClass) -> str:
    values = [(unit, getattr(item, key)) for unit, key in _QUEUE_LIMITS]
    return ", ".join([f"{value} {unit}" for unit, value in values if value is not None]) or "(none)"


def _worst_headline(max_prompt: int) -> str:
    return f"worst case of a waiting request, prompts of up to {max_prompt:,} tokens (--max-prompt):"


def _worst(case: WorstCase) -> str:
    if case.slope is None or case.constant is None:
        return case.reason
    return f"at most {math.ceil(case.constant):,} + {_decimal(case.slope)} x own backlog served tokens"


def _decimal(value: Fraction) -> str:
    """The value rounded up to three decimals, as few of them as say the same but at least one."""
    whole, thousandths = divmod(math.ceil(1000 * value), 1000)
    return f"{whole:,}.{thousandths:03}".rstrip("0").ljust(len(f"{whole:,}.0"), "0")
