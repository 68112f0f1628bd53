"""What stands in a command line of the user's, and what a scorer's last line says.  Pure.

    claude -p {prompt} --model {model}     -->  ["claude", "-p", "Fix the\\n\\"bug\\"", "--model", "policy"]

The line is cut into words as a shell would, and no shell ever sees it: a placeholder is replaced inside its
word, once, so that a prompt stays one argument whatever it holds.  `{name}` in small letters is a
placeholder, `{{name}}` is the text {name}; other braces (JSON, `${HOME}`) are text.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

HARNESS_NAMES = (
    "prompt", "prompt_file", "task", "base_url", "api_key", "model", "workspace", "execution", "here",
)  # fmt: skip
SCORER_NAMES = ("prompt", "prompt_file", "task", "workspace", "execution", "here", "output")
ARGUMENT_BYTES_MAX = 131_071
"""Linux takes no longer argument, whatever the sum of all."""
WITHHELD = ("OPENAI_", "ANTHROPIC_", "CLAUDE", "CODEX_", "AWS_", "KAFKA_", "HEADRACE_")
"""Beginnings of variables that no harness gets of ours: keys and addresses of models, log and lake."""
WITHHELD_WITH_HOME = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
LOOPBACK = "127.0.0.1,localhost,::1"

_PLACE = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class BadCommand(ValueError):
    """A command line that cannot be: which, why, and what would."""


class NoScore(ValueError):
    """What a scorer printed is no score."""


@dataclass(frozen=True)
class CommandLine:
    """A command line cut into words, its placeholders known by name."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, known: Sequence[str], setting: str) -> CommandLine:
        """Raises BadCommand for no word, an open quote, an unknown placeholder; `setting` names it."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise BadCommand(
                f"{setting} {text!r}: {error}; close the quote, or write \\ before it"
            ) from error
        if not words or not words[0]:
            raise BadCommand(f"{setting} is empty; a command line is needed")
        if "\0" in text:
            raise BadCommand(f"{setting} holds a NUL character, which no argument can")
        for word in words:
            for found in _PLACE.finditer(word):
                if found[2] and found[2] not in known:
                    raise BadCommand(
                        f"{setting}: unknown placeholder {found[0]}; known: "
                        f"{', '.join(f'{{{n}}}' for n in known)}; for the text itself write {{{found[0]}}}"
                    )
        return cls(words)

    def uses(self, name: str) -> bool:
        """Whether a placeholder stands in it."""
        return any(found[2] == name for word in self.words for found in _PLACE.finditer(word))

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """The arguments.  Values are not looked into.  Raises BadCommand for a NUL in one that is used."""
        return [fill(word, values) for word in self.words]


def fill(word: str, values: Mapping[str, str]) -> str:
    """One word, its placeholders replaced.  Raises BadCommand for a value with a NUL."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{found[1]}}}"
        text = values[found[2]]
        if "\0" in text:
            raise BadCommand(f"the value of {found[0]} holds a NUL character, which no argument can")
        return text

    return _PLACE.sub(value, word)


def check_environment(entries: Sequence[str]) -> None:
    """Raises BadCommand for an entry that is neither NAME nor NAME=VALUE, or an unknown placeholder."""
    for entry in entries:
        name, _, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadCommand(f"rollout.environment {entry!r}: write NAME=VALUE, or NAME to pass yours on")
        for found in _PLACE.finditer(value):
            if found[2] and found[2] not in HARNESS_NAMES:
                raise BadCommand(
                    f"rollout.environment {name}: unknown placeholder {found[0]}; known: "
                    f"{', '.join(HARNESS_NAMES)}; for the text itself write {{{found[0]}}}"
                )


def withheld(ours: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what is no harness's matter; loopback addresses go past any HTTP proxy."""
    kept = {n: v for n, v in ours.items() if not n.upper().startswith(WITHHELD)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, (kept.get(name, ""), LOOPBACK)))
    return kept


def harness_environment(
    ours: Mapping[str, str], values: Mapping[str, str], added: Sequence[str] = (), home: str = ""
) -> dict[str, str]:
    """The environment of a harness: base URL and key in the words of all three dialects.

    added  NAME=VALUE with placeholders, or NAME: passed on from `ours` whatever it is
    home   HOME, where it is another than ours
    """
    found = withheld(ours)
    if home:
        found = {n: v for n, v in found.items() if n not in WITHHELD_WITH_HOME} | {"HOME": home}
    found |= dialect_environment(values["base_url"], values["api_key"], values["model"])
    found |= {
        "HEADRACE_EXECUTION": values["execution"],
        "HEADRACE_TASK": values["task"],
        "HEADRACE_WORKSPACE": values["workspace"],
    }
    return found | _added(ours, values, added)


def dialect_environment(base_url: str, key: str, model: str) -> dict[str, str]:
    """Base URL, key and model in the words of all three dialects, and in ours."""
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_BASE": f"{base_url}/v1",  # litellm, aider
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": base_url,  # its clients append /v1/messages
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        "HEADRACE_BASE_URL": base_url,
        "HEADRACE_API_KEY": key,
        "HEADRACE_MODEL": model,
    }


def _added(ours: Mapping[str, str], values: Mapping[str, str], added: Sequence[str]) -> dict[str, str]:
    given = {}
    for entry in added:
        name, equals, value = entry.partition("=")
        if equals:
            given[name] = fill(value, values)
        elif name in ours:
            given[name] = ours[name]
    return given


def scorer_environment(
    ours: Mapping[str, str], values: Mapping[str, str], status: str, exit_code: int | None
) -> dict[str, str]:
    """The environment of a scorer: ours, and what it scores.

    No address and no key of the policy: the execution is closed when it is scored.
    """
    return {n: v for n, v in ours.items() if not n.startswith("HEADRACE_")} | {
        "HEADRACE_STATUS": status,
        "HEADRACE_EXIT_CODE": "" if exit_code is None else str(exit_code),
        "HEADRACE_EXECUTION": values["execution"],
        "HEADRACE_TASK": values["task"],
        "HEADRACE_WORKSPACE": values["workspace"],
        "HEADRACE_OUTPUT": values["output"],
    }


# ---------------------------------------------------------------------------------------- scores
class _Said(msgspec.Struct):
    """A scorer's last line as JSON."""

    score: float | None
    detail: Any = ""


def score_of(printed: str) -> tuple[float, str]:
    """Score and detail that the last line (blank ones apart) of a scorer's output gives.

    A number, or a JSON object with `score` (a number) and perhaps `detail` (text or any JSON).  Raises
    NoScore: nothing printed, no number, an infinite one, or `"score": null`, which says it is missing.
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    if not lines:
        raise NoScore("the scorer printed nothing; its last line must be the score")
    line = lines[-1].strip()
    if _NUMBER.fullmatch(line):
        return _finite(float(line), line), ""
    try:
        said = msgspec.json.decode(line, type=_Said)
    except msgspec.MsgspecError as error:
        raise NoScore(
            f"the scorer's last line is {line[:200]!r}; a number or a JSON object with `score` is needed"
        ) from error
    detail = said.detail if isinstance(said.detail, str) else msgspec.json.encode(said.detail).decode()
    if said.score is None:
        raise NoScore(f"the scorer gave no score: {detail or 'it does not say why'}")
    return _finite(said.score, line), detail


def _finite(value: float, line: str) -> float:
    if not math.isfinite(value):
        raise NoScore(f"the scorer's last line is {line[:200]!r}; a finite number is needed")
    return value


def last_lines(text: str, lines: int = 5, characters: int = 1000) -> str:
    """The end of what a program printed, for the detail of an event."""
    return "\n".join(text.strip().splitlines()[-lines:])[-characters:]
