"""Sampled text to content, reasoning and tool calls, in the form of the model's family.

    <think>
    reasoning
    </think>

    content
    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>

Arguments leave as the model wrote them, byte for byte.  A malformed call whose name can be told leaves
with its raw arguments, one whose name cannot stays text, and a call that the token limit cut is neither.

    hermes    Hermes, Qwen2.5, Qwen3         xml       Qwen3-Coder, Qwen3.5 and later
    glm       GLM-4.5 and later              kimi      Kimi K2
    deepseek  DeepSeek V3, V3.1              mistral   Mistral, old and new
    llama     Llama 3                        none      no calls: all is text
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ingest.proxy.call_forms import DEEPSEEK, KIMI, Call, Form, Hermes, Llama, Mistral, Schemas
from ingest.proxy.tagged_forms import GLM, XML

THINK, END_THINK = "<think>", "</think>"
_SPACE = re.compile(r"\s*")
_NEVER = re.compile(r"(?!)")


class _NoCalls:
    """A model without a form that is known: all is text, but for the reasoning."""

    name = "none"
    think = (THINK, END_THINK)
    typed = False
    opening = begun = _NEVER
    around: re.Pattern[str] | None = None

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """Never asked: no call begins."""
        return [], len(text)


HERMES: Form = Hermes()
_ALL: tuple[Form, ...] = (HERMES, XML, GLM, KIMI, DEEPSEEK, Mistral(), Llama(), _NoCalls())
FORMS = {form.name: form for form in _ALL}
# As SGLang and the models' own pages call them.
_ALSO = {
    "qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "qwen3-coder": "xml", "qwen3_coder": "xml",
    "glm45": "glm", "glm47": "glm", "kimi_k2": "kimi", "deepseekv3": "deepseek", "deepseekv31": "deepseek",
    "llama3": "llama",
}  # fmt: skip
# What a chat template says of its form; the first that it holds counts.
_SIGNS = (
    (re.compile(r"<function=[\s\S]*<parameter=|<parameter=[\s\S]*<function="), "xml"),
    (re.compile("<arg_key>"), "glm"),
    (re.compile("<tool_call>"), "hermes"),
    (re.compile(r"<\|tool_call_begin\|>"), "kimi"),
    (re.compile("tool▁call▁begin"), "deepseek"),
    (re.compile(r"\[TOOL_CALLS\]"), "mistral"),
    (re.compile(r'<\|python_tag\|>|\{"name": function name, "parameters":'), "llama"),
)


@dataclass(frozen=True)
class Parsed:
    """`calls`: (name, arguments as the model wrote them) of each call, in order."""

    text: str
    reasoning: str | None
    calls: tuple[Call, ...]


def form_of(template: str) -> Form:
    """The form that a chat template writes earlier calls in; `none` where it shows none that is known."""
    return FORMS[next((name for sign, name in _SIGNS if sign.search(template)), "none")]


def form_named(name: str) -> Form:
    """The form of this name (a few others' names are known too).  Raises ValueError."""
    if name not in FORMS and name not in _ALSO:
        raise ValueError(f"proxy.parser is {name}; one of {', '.join(FORMS)} is needed")
    return FORMS[_ALSO.get(name, name)]


def _split_reasoning(text: str, thinking: bool, cut: bool, form: Form) -> tuple[str | None, str]:
    """(reasoning, rest).  `thinking`: the prompt opened the block already.

    A call at a line's start ends a block that nothing else ends (Qwen3.5 forgets its tag now and then).
    """
    think, end_think = form.think
    start = _SPACE.match(text).end()  # type: ignore[union-attr]  # an empty match is a match
    if text.startswith(think, start):
        inside = text[start + len(think) :]
    elif thinking:
        inside = text
    else:
        return None, text
    reasoning, ended, rest = inside.partition(end_think)
    if not ended and not cut:
        for opening in form.opening.finditer(inside):
            at = opening.start()
            if not inside[inside.rfind("\n", 0, at) + 1 : at].strip():
                reasoning, rest = inside[:at], inside[at:]
                break
    return reasoning.strip("\n"), rest.lstrip("\n")


def _schemas(tools: Sequence[Any]) -> Schemas:
    functions = (tool.get("function") for tool in tools if isinstance(tool, dict))
    return {
        f["name"]: f["parameters"]
        for f in functions
        if isinstance(f, dict) and isinstance(f.get("name"), str) and isinstance(f.get("parameters"), dict)
    }


def parse(
    text: str, *, tools: Sequence[Any] = (), cut: bool, thinking: bool = False, form: Form = HERMES
) -> Parsed:
    """Take a sampled text (without its stop token) apart.

    `tools` as in chat completions: their schemas type the values of the tagged forms.  `cut`: the text
    ended at the token limit.  `thinking`: the prompt ended inside a think block.
    """
    reasoning, rest = _split_reasoning(text, thinking, cut, form)
    calls: list[Call] = []
    said: list[str] = []
    at = 0
    schemas = _schemas(tools) if form.opening.search(rest) else {}
    while (opening := form.opening.search(rest, at)) is not None:
        said.append(rest[at : opening.start()])
        read = form.read(rest, opening, schemas, cut)
        if read is None:  # half a call
            at = len(rest)
            break
        found, at = read
        calls += found
        if not found:
            said.append(rest[opening.start() : at])
    tail = rest[at:]
    half = form.begun.search(tail) if cut else None
    said.append(tail[: half.start()] if half else tail)
    if form.around is not None:
        said = [form.around.sub("", part) for part in said]
    if not calls:
        return Parsed("".join(said), reasoning, ())
    # What stood between calls only to part them is no text.
    return Parsed("".join(part for part in said if part.strip()).strip("\n"), reasoning, tuple(calls))
