"""The policy in force: read from its file, replaced while everything runs, and refused whole if anything is wrong.

A reload reads, checks and compares before anything changes. What it finds wrong names the file and line, and the old
policy stays; what it changes is told as a diff. Hints are read and classes are named under another policy from the very
step on that puts it in force, before what that step decides is carried out: the desk is a tap of the scheduler.

Never here: signals, HTTP.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
import yaml

from kvcore.actions import AnyAction
from kvcore.admission import Factory
from kvcore.errors import InvalidEvent, InvalidPolicy
from kvcore.events import AnyEvent, PolicyReplaced
from kvcore.policy import PolicyProfile
from kvcore.policy_file import PolicyDocument, check_admission, describe, load_policy
from kvcore.policy_lint import lint

from ..protocol import Tap
from ..trio import Router
from .config import GatewayConfig
from .config_file import InvalidGatewayConfig
from .hints import HintReader, names_of

#: The loader's limit of about a million characters, at up to four bytes each.
FILE_BYTES_MAX = 4 << 20

def read_text(path: str) -> str:
    """The text of a file. Raises: InvalidGatewayConfig with its name, and the line of what is no UTF-8."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise InvalidGatewayConfig(path, "", getattr(error, "strerror", None) or str(error)) from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidGatewayConfig(path, "", f"larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidGatewayConfig(f"{path}:{line}", "", f"not UTF-8 text (byte 0x{data[error.start]:02x})") from error


def as_text(profile: PolicyProfile | None) -> str:
    """A profile as a policy file, every default spelled out."""
    if profile is None:
        return ""
    described = describe(PolicyDocument(root=profile))
    del described["models"]
    text: str = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
    return text


class PolicyDesk:
    """The policy of one gateway.

    profile: in force; None: one class takes every request. hints: reads hints under it. warnings: what its author may
    not have meant. generation: policies put in force since the start. admission: types of admission policies beside
    the built-in ones. then: the next tap.
    Raises: InvalidPolicy, InvalidGatewayConfig for a file that cannot be used.
    """

    def __init__(self, config: GatewayConfig, admission: Mapping[str, Factory] | None = None) -> None:
        self._config, self._admission = config, admission
        self._reloading = trio.Lock()
        self.then: Tap | None = None
        self.generation = 0
        self._adopt(self._read())

    @property
    def config(self) -> GatewayConfig:
        """The gateway's configuration under this policy."""
        return self._config.with_profile(self.profile)

    def class_name(self, class_index: int) -> str | None:
        """What a class of the policy in force is called; None: it has none of that index."""
        return self._names[class_index] if 0 <= class_index < len(self._names) else None

    async def reload(self, router: Router) -> list[str]:
        """Read the file again and put it in force. Returns a diff, empty where nothing has changed.

        Raises: InvalidPolicy, InvalidGatewayConfig; then nothing has changed.
        """
        async with self._reloading:
            profile = await trio.to_thread.run_sync(self._read)
            if profile is None:
                raise InvalidGatewayConfig("gateway", "policy", "there is no policy file to read again")
            before, after = as_text(self.profile).splitlines(), as_text(profile).splitlines()
            diff = list(difflib.unified_diff(before, after, "in force", self._config.policy or "", lineterm=""))
            if diff:
                try:
                    await router.submit(PolicyReplaced, profile)
                except InvalidEvent as error:
                    raise InvalidGatewayConfig(self._config.policy or "", "", error.reason) from error
        return diff

    def tap(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Any) -> None:
        """Hear of every step; then the next tap."""
        for event in events:
            if isinstance(event, PolicyReplaced):
                self._adopt(event.profile)
                self.generation += 1
        if self.then is not None:
            self.then(events, actions, core)

    def _adopt(self, profile: PolicyProfile | None) -> None:
        self.profile = profile
        self.warnings = () if profile is None else tuple(lint(profile))
        self.hints = HintReader(self._config.hints, profile)
        self._names = tuple([item.name for item in self._config.scheduler_config.in_force(profile).classes])

    def _read(self) -> PolicyProfile | None:
        path, model = self._config.policy, self._config.model
        profile = None
        if path is not None:
            document = load_policy(read_text(path), source=path)
            check_admission(document, self._admission)
            profile = document.profile_for(model)
            if profile is None:
                raise InvalidPolicy(
                    f"there is neither a root profile nor one for the model {model!r}" if model is not None
                    else f"there is no root profile; name one of its models: {', '.join(document.models)}", source=path)
        known = names_of(profile)
        for name in self._config.hints.classes:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f", did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
                raise InvalidGatewayConfig("configuration", f"hints.classes.{name}", f"no such class or family{guess}")
        return profile
