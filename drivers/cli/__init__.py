"""The `kvcore` program: one module per sub-command. Heavy modules are imported when a command runs, not before.

Errors are one line on stderr, `kvcore: error: ...`, and exit status 2; Ctrl-C is `kvcore: interrupted` and 130. A
traceback and status 1 stand for a bug in kvcore itself; status 1 alone is the answer of `kvcore journal replay` that
something differs, and status 3 that of `kvcore bench --compare` that something has grown. A reader that closes our
output early (`| head`) is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from kvcore.errors import KvcoreError

from .bench import bench_command
from .compare import compare_command
from .demo import demo_command
from .journal import journal_group
from .kvevents import kvevents_group
from .mock_worker import mock_worker_command
from .policy import policy_group
from .replay import replay_command
from .serve import serve_command
from .sweep import sweep_command
from .trace import trace_group

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130

#: What click >= 8.2 raises for a bare `kvcore` or `kvcore policy`; before that it printed the help itself.
_BARE: tuple[type[click.UsageError], ...] = tuple(
    [kind] if (kind := getattr(click.exceptions, "NoArgsIsHelpError", None)) else []
)


def program_version() -> str:
    """Version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvcore")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"kvcore {program_version()}")
        ctx.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'kvcore COMMAND --help' describes a command, with examples. In bash, "
    "eval \"$(_KVCORE_COMPLETE=bash_source kvcore)\" completes its words (zsh, fish: zsh_source, fish_source).",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Scheduling of large-model inference fleets: replay traffic, check policies, look into journals.

    \b
    Examples:
      kvcore replay trace.jsonl.gz --workers 16
      kvcore policy check premium.yaml
      kvcore compare premium.yaml equal.yaml --trace azure.csv --workers 4
      kvcore demo
    """


cli.add_command(serve_command)
cli.add_command(replay_command)
cli.add_command(compare_command)
cli.add_command(sweep_command)
cli.add_command(trace_group)
cli.add_command(policy_group)
cli.add_command(journal_group)
cli.add_command(bench_command)
cli.add_command(kvevents_group)
cli.add_command(mock_worker_command)
cli.add_command(demo_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. argv: arguments without the program's name; None: those of the process. Returns: exit status."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    status = _run(sys.argv[1:] if argv is None else list(argv))
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if status == 0 and not isinstance(error, BrokenPipeError):
            status = _fail(f"standard output: {error.strerror}")
    return status


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere, or the flush at exit would fail on it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _run(argv: list[str]) -> int:
    if "_KVCORE_COMPLETE" in os.environ:  # a shell asks for completions; click ends the process
        cli.main(argv, prog_name="kvcore")
    try:
        # Not cli.main(): it would turn a closed pipe into status 1, and an EOFError into an interrupt.
        with cli.make_context("kvcore", argv) as context:
            cli.invoke(context)
    except click.exceptions.Exit as wish:
        return wish.exit_code
    except _BARE as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        command = "kvcore" if error.ctx is None else error.ctx.command_path
        return _fail(f"{error.format_message().rstrip('.')} (see {command} --help)")
    except (click.ClickException, KvcoreError) as error:
        return _fail(error.format_message() if isinstance(error, click.ClickException) else str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvcore: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{place}{error.strerror or error}")
    return 0


def _fail(message: str) -> int:
    click.echo("kvcore: error: " + " ".join(line.strip() for line in message.splitlines()), err=True)
    return EXIT_ERROR
