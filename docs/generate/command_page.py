"""The commands of the program as Markdown, from what click knows of them: the words are those of --help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from kvcore.drivers.cli import cli


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command that does something or has commands below it, as (words, command, context)."""
    yield from _below("kvcore", cli, click.Context(cli, info_name="kvcore"))


def _below(
    words: str, command: click.Command, context: click.Context,
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield words, command, context
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _below(f"{words} {name}", child, click.Context(child, info_name=name, parent=context))


def escaped(text: str) -> str:
    """Text in which nothing is markup but what stands in backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([\\*_\[\]<|#])", r"\\\1", parts[index])
    return "".join(parts)


def options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """(names, help with defaults) of every option but --help."""
    found = [
        item.get_help_record(context) for item in command.get_params(context)
        if isinstance(item, click.Option) and "--help" not in item.opts]
    return [record for record in found if record is not None]


def help_blocks(command: click.Command) -> list[str]:
    """Paragraphs of the help text; a block behind a backspace stays as it is laid out."""
    return [block for block in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")) if block]


def _help(command: click.Command) -> list[str]:
    shown = []
    for block in help_blocks(command):
        if not block.startswith("\b"):
            shown.append(escaped(" ".join(block.split())))
            continue
        head, *lines = block.removeprefix("\b").strip("\n").splitlines()
        if lines and head.endswith(":"):
            shown += [head, "\n".join(["```text", *[line.removeprefix("  ") for line in lines], "```"])]
        else:
            shown.append("\n".join(["```text", head, *lines, "```"]))
    return shown


def _section(words: str, command: click.Command, context: click.Context) -> list[str]:
    mark = "#" * (1 + len(words.split()))
    usage = command.get_usage(context).removeprefix("Usage: ")
    blocks = [f"{mark} {words}", "\n".join(["```text", " ".join(usage.split()), "```"]), *_help(command)]
    table = options(command, context)
    if table:
        rows = [f"| `{names}` | {escaped(text)} |".replace("`|", "` |") for names, text in table]
        blocks.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    return blocks


def page() -> str:
    """Every command with its usage, help, examples and options."""
    return "\n\n".join([block for words, command, context in commands() for block in _section(words, command, context)])
