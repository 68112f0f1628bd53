"""Messages to text to token ids, by the tokenizer and the chat template of a Hugging Face folder.

Strings that come from a harness are escaped before the template sees them, so that a control token
written inside a user's or a tool's text is text to the tokenizer, never a control token:

    MARK "m"        a MARK that the harness wrote
    MARK "s"        put inside what would otherwise read as a control token
    MARK "t" i MARK "e"      the place of assistant turn i, whose sampled ids stand in for its text

The template renders marked text; `pieces` cuts it at the turns, and `encode` takes the marks out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from ingest.engines.model import model_facts
from ingest.matching import Ids
from ingest.proxy import folding, windows
from ingest.proxy.neutral import Message
from ingest.proxy.parsing import form_named, form_of
from ingest.proxy.templating import RenderingError, Template

__all__ = ("MARK", "Piece", "Rendered", "Renderer", "RenderingError")

MARK = "\U000f8e3a"  # a private-use character: no model writes it, and one that a harness writes is escaped
_TURN = re.compile(f"{MARK}t([0-9]+){MARK}e")
GENERATION_PROMPTS_KEPT = 64


def _mapping(arguments: str) -> Any:
    """Arguments as templates iterate them; text that is no JSON stays text."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _place(turn: int) -> str:
    return f"{MARK}t{turn}{MARK}e"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise RenderingError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _token_text(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer without added tokens: all text is text to it."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    data["post_processor"] = None
    return Tokenizer.from_str(json.dumps(data))


@dataclass(frozen=True)
class Rendered:
    """A rendering: marked text, which ends with `generation`, what opens the policy's turn."""

    text: str
    generation: str

    @property
    def body(self) -> str:
        return self.text[: len(self.text) - len(self.generation)]


@dataclass(frozen=True)
class Piece:
    """Marked text after assistant turn `turn` (None: from the beginning), up to the next turn."""

    turn: int | None
    text: str


class Renderer:
    """Tokenizer and template of one model.  A pure function of its arguments; not tied to a thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        names: Mapping[str, str],
        stop_ids: Iterable[int],
        *,
        parser: str = "",
    ) -> None:
        """`names`: bos_token, eos_token and so on, as the template knows them.

        `parser` names the form of the model's tool calls (parsing.py); "": the one that the template shows.
        """
        self._tokenizer = tokenizer
        self._plain_tokenizer = _plain(tokenizer)
        added = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.content}
        self._control_ids = added
        any_of = "|".join(re.escape(t) for t in sorted(added, key=len, reverse=True)) or r"(?!)"
        # Behind a token of one character the mark stands after it.
        self._control = re.compile(f"({any_of})(?!{MARK}s)")
        self._json_hides = any(json.dumps(t, ensure_ascii=False) != f'"{t}"' for t in added)
        self._names = dict(names)
        self._bos = added.get(names.get("bos_token", ""))
        self._generation_prompts: dict[str, str] = {}
        self.stop_ids = tuple(sorted(set(stop_ids)))
        # The model's, where its config tells; else the tokenizer's, which no prompt goes beyond.
        self.vocab_size = tokenizer.get_vocab_size()
        try:
            self.form = form_named(parser) if parser else form_of(template)
        except ValueError as error:
            raise RenderingError(str(error)) from error
        self._template = Template(template)
        self._folding = folding.Folding()
        self._folding = folding.probe(lambda messages: self._text(messages, None, {}, 0, True))

    @classmethod
    def load(cls, folder: Path, *, parser: str = "", chat_template: str = "") -> Renderer:
        """From tokenizer.json, chat_template.jinja (or tokenizer_config.json) and the configs.

        `chat_template` is a file to take in place of the folder's.  Raises RenderingError where something
        is missing or the tokenizer has ids outside the model.
        """
        if not (folder / "tokenizer.json").is_file():
            raise RenderingError(f"{folder} has no tokenizer.json; a Hugging Face model folder is needed")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = _read_json(folder / "tokenizer_config.json")
        config = _read_json(folder / "config.json")
        template_file = Path(chat_template) if chat_template else folder / "chat_template.jinja"
        if chat_template and not template_file.is_file():
            raise RenderingError(f"proxy.chat_template is {chat_template}, which is no file")
        template = template_file.read_text() if template_file.is_file() else settings.get("chat_template")
        if isinstance(template, list):
            template = {t["name"]: t["template"] for t in template}.get("default")
        if not isinstance(template, str):
            raise RenderingError(
                f"{folder} has no chat template, in chat_template.jinja or tokenizer_config.json; put one "
                "there, or name a file by the setting proxy.chat_template"
            )
        names = {k: _token_text(v) for k, v in settings.items() if k.endswith("_token") and v}
        stop_ids: set[int] = set()
        for source in (config, _read_json(folder / "generation_config.json")):
            found = source.get("eos_token_id")
            stop_ids |= (
                set(found) if isinstance(found, list) else ({found} if isinstance(found, int) else set())
            )
        eos = tokenizer.token_to_id(names.get("eos_token", ""))
        stop_ids |= {eos} if eos is not None else set()
        if not stop_ids:
            raise RenderingError(f"{folder} names no eos token: no call would end before its limit")
        size, known = model_facts(folder).vocab_size, tokenizer.get_vocab_size()
        if size is not None and known > size:
            raise RenderingError(
                f"{folder}: the tokenizer has {known} ids, the model {size}; they do not belong together"
            )
        renderer = cls(tokenizer, template, names, stop_ids, parser=parser)
        renderer.vocab_size = size or known
        return renderer

    # ------------------------------------------------------------------------------ to text
    @cached_property
    def windowed(self) -> bool:
        """Does a window of the history tell the template as much as the whole?  Found out by trying, once."""
        return windows.holds(self)

    def _escape(self, text: str) -> str:
        if MARK in text:
            text = text.replace(MARK, MARK + "m")
        while self._control.search(text):  # again where breaking one token made another whole
            text = self._control.sub(lambda m: f"{m[0][0]}{MARK}s{m[0][1:]}", text)
        return text

    def _escaped(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._escape(value)
        if isinstance(value, Mapping):
            return {self._escape(str(k)): self._escaped(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._escaped(v) for v in value]
        return value

    def _escaped_tools(self, tools: Sequence[Any] | None) -> Sequence[Any] | None:
        """Looked through as JSON, which is quick; walked only where there is something to escape."""
        if tools and not self._json_hides:
            text = msgspec.json.encode(tools).decode()
            if MARK not in text and not self._control.search(text):
                return tools
        return self._escaped(tools) if tools else None

    def _arguments(self, arguments: str) -> Any:
        """As the template takes them: a mapping, or text; what is no mapping in one where it must be one."""
        found = _mapping(arguments) if self._folding.mapping else None
        if isinstance(found, dict):
            return self._escaped(found)
        text = self._escape(arguments)
        return text if self._folding.raw else {"arguments": text}

    def _fields(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": message.role, "content": self._escape(message.text)}
        if message.reasoning is not None:
            fields["reasoning_content"] = self._escape(message.reasoning)
        if message.calls:
            fields["tool_calls"] = [
                {
                    "type": "function",
                    "id": self._escape(call.id),
                    "function": {
                        "name": self._escape(call.name),
                        "arguments": self._arguments(call.arguments),
                    },
                }
                for call in message.calls
            ]
        if message.call_id:
            fields["tool_call_id"] = self._escape(message.call_id)
        if message.name:
            fields["name"] = self._escape(message.name)
        return fields

    def _text(
        self,
        messages: list[dict[str, Any]],
        tools: Any,
        options: Mapping[str, Any],
        now_us: int,
        prompt: bool,
    ) -> str:
        values = {**options, **self._names, "messages": self._folding.fold(messages), "tools": tools}
        return self._template.render({**values, "add_generation_prompt": prompt}, now_us)

    def _generation_prompt(self, options: Mapping[str, Any]) -> str:
        """What add_generation_prompt adds; "" where a template will not say."""
        key = json.dumps(options, sort_keys=True)
        if key not in self._generation_prompts:
            probe: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
            try:
                short = self._text(probe, None, options, 0, False)
                long = self._text(probe, None, options, 0, True)
            except RenderingError:
                short = long = ""
            if len(self._generation_prompts) >= GENERATION_PROMPTS_KEPT:
                self._generation_prompts.clear()
            self._generation_prompts[key] = long[len(short) :] if long.startswith(short) else ""
        return self._generation_prompts[key]

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = (),
        options: Mapping[str, Any] | None = None,
        *,
        now_us: int,
        turns: Set[int] = frozenset(),
    ) -> Rendered:
        """The marked text of a request, generation prompt included.

        `turns` are the indices of assistant messages that are left as places for their sampled ids.
        `now_us` is the time that templates print: one for an execution, or its prefix would change.
        Raises RenderingError where the template refuses, or loses or doubles a turn's place.
        """
        options = self._escaped(options or {})
        text = self._marked(dict(enumerate(messages)), tools, options, now_us=now_us, turns=turns)
        return self._rendered(text, options)

    def render_after(
        self,
        messages: Sequence[Message],
        base: int,
        tools: Sequence[Any] | None = (),
        options: Mapping[str, Any] | None = None,
        *,
        now_us: int,
        turns: Set[int],
    ) -> Rendered:
        """The end of what `render` gives: from the place of turn `base` on; its cost is that of the end.

        Raises RenderingError likewise, and where the template is none of which a window of the history
        tells as much as the whole (`windowed`).
        """
        if not self.windowed:
            raise RenderingError("this chat template must see the whole history")
        options = self._escaped(options or {})
        text = self.after(messages, base, tools or (), options, now_us=now_us, turns=turns, short=True)
        return self._rendered(text, options)

    def after(
        self,
        messages: Sequence[Message],
        base: int,
        tools: Sequence[Any],
        options: Mapping[str, Any],
        *,
        now_us: int,
        turns: Set[int],
        short: bool,
    ) -> str:
        """Marked text from the place of turn `base` on, after a window of the history or after all of it."""
        before = windows.window(messages, base) if short else range(base)
        shown = {i: messages[i] for i in (*before, *range(base, len(messages)))}
        if short:
            tools = tools[:1]  # whether there are any is all that the end can tell
        text = self._marked(shown, tools, options, now_us=now_us, turns=turns)
        return text[text.index(_place(base)) :]

    def _marked(
        self,
        shown: Mapping[int, Message],
        tools: Sequence[Any] | None,
        options: Mapping[str, Any],
        *,
        now_us: int,
        turns: Set[int],
    ) -> str:
        """`shown`: the messages to render, by their index in the request."""
        plain = [
            {"role": "assistant", "content": _place(i)} if i in turns else self._fields(message)
            for i, message in shown.items()
        ]
        text = self._text(plain, self._escaped_tools(tools), options, now_us, True)
        found, wanted = [int(i) for i in _TURN.findall(text)], [i for i in shown if i in turns]
        if found != wanted:
            raise RenderingError(f"the chat template keeps the turns {found} of {wanted}")
        return text

    def _rendered(self, text: str, options: Mapping[str, Any]) -> Rendered:
        prompt = self._generation_prompt(options)
        return Rendered(text, prompt if text.endswith(prompt) else "")

    # ------------------------------------------------------------------------------- to ids
    @staticmethod
    def pieces(text: str) -> list[Piece]:
        """Marked text, cut at the places of turns."""
        parts = _TURN.split(text)
        return [Piece(None, parts[0])] + [Piece(int(parts[i]), parts[i + 1]) for i in range(1, len(parts), 2)]

    def encode(self, text: str) -> Ids:
        """Token ids of marked text, int32 (n,); one BOS at most, no special tokens that it does not hold."""
        if MARK not in text:
            ids = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)
        else:
            ids = self._encode_marked(text)
        if self._bos is not None:
            while len(ids) > 1 and ids[0] == ids[1] == self._bos:
                ids = ids[1:]
        return ids

    def _encode_marked(self, text: str) -> Ids:
        parts: list[Ids] = []
        for k, part in enumerate(self._control.split(text)):
            if k % 2:
                parts.append(np.array([self._control_ids[part]], np.int32))
            elif part:
                plain = part.replace(MARK + "s", "").replace(MARK + "m", MARK)
                encoded = self._plain_tokenizer.encode(plain, add_special_tokens=False).ids
                parts.append(np.array(encoded, np.int32))
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def decode(self, ids: Ids) -> str:
        """The text of sampled ids, control tokens included."""
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text
