"""What Hugging Face's `apply_chat_template` gives a chat template: a sandbox, filters, a clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset(("index", "index0", "first", "last", "length", "previtem", "nextitem"))


class RenderingError(ValueError):
    """The template refused the messages, or the model's folder lacks what is needed."""


class _Generation(Extension):
    """`{% generation %}` of training templates: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **rest: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **rest)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to the fields of messages and of `loop`: half of a rendering's time.

    jinja2 looks for an attribute first and then for a key, which for a dict is an exception a field.
    A name that no dict has as an attribute can only be a key; `loop` has nothing public to hide.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class Template:
    """A chat template.  Raises RenderingError where it does not compile."""

    def __init__(self, source: str) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RenderingError(f"the chat template does not compile: {error}") from error

    def render(self, values: Mapping[str, Any], now_us: int) -> str:
        """The text, at the time that the template prints.  Raises RenderingError where it refuses."""

        def strftime_now(form: str) -> str:
            return datetime.fromtimestamp(now_us / 1e6, UTC).strftime(form)

        try:
            return self._template.render({**values, "strftime_now": strftime_now})
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            OverflowError,
        ) as error:
            raise RenderingError(f"the chat template refuses these messages: {error}") from error
