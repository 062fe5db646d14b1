"""What is said where the packages of an extra are not installed: one wording for all commands and options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def extra(name: str, who: str) -> Iterator[None]:
    """Around imports of packages that the extra installs. who: the command or option that needs them.

    Raises: click.ClickException for what is not there. What kvcore itself lacks is a bug, and stays one.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "kvcore":
            raise
        raise click.ClickException(f"{who} needs {error.name or error}: pip install 'kvcore[{name}]'") from error
