"""A model's chat template: messages -> the text that its engine tokenises. Needs jinja2 (extra `templates`).

Templates are Jinja, written for the environment that Hugging Face's transformers renders them in; the same one is built
here. A template is part of the model and trusted as such, and still rendered in jinja2's sandbox.

Only plain conversations are rendered: text by named roles. Tools, parts of other kinds and unfinished messages are
prepared by engines in ways of their own, so for these the answer is None: ask the engine.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

FILE_BYTES_MAX = 16 << 20
_PLAIN = frozenset({"role", "content"})


class ChatTemplate:
    """One compiled template. specials: texts of the model's special tokens, by name, as templates use them."""

    def __init__(self, source: str, specials: dict[str, str]) -> None:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
        self._template = environment.from_string(source)
        self._specials = specials

    def render(self, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> str | None:
        """The text of a conversation; None where the template has none for it."""
        if not all(_PLAIN.issuperset(item) and isinstance(item.get("content"), str) for item in messages):
            return None
        try:
            return self._template.render({"tools": None, "documents": None} | self._specials | arguments
                                         | {"messages": messages})
        except Exception:  # a template is a program, and raises what it likes
            return None


def _to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it: no escapes of HTML, and none of other alphabets."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def beside(tokenizer: Path) -> ChatTemplate | None:
    """The template of the model whose tokenizer.json this is: from chat_template.jinja or tokenizer_config.json.

    None: the model has none, or jinja2 is not installed. Raises: OSError; ValueError for a file that is broken.
    """
    config: dict[str, Any] = {}
    path = tokenizer.with_name("tokenizer_config.json")
    if path.is_file():
        config = json.loads(_read(path))
    source = config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {item.get("name"): item.get("template") for item in source}.get("default")
    path = tokenizer.with_name("chat_template.jinja")
    if path.is_file():
        source = _read(path)
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate(source, _specials(config))
    except ImportError:
        return None
    except Exception as error:
        raise ValueError(f"{tokenizer}: its chat template cannot be compiled: {error}") from error


def _specials(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _read(path: Path) -> str:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    return path.read_text(encoding="utf-8")
