"""What the policy says, line by line, to whoever is speaking with it.

A client's parts (its main conversation, a sub-agent, a summariser, a title writer) are told apart by the
prompt's text, and each has lines of its own; the roles that the proxy found are held against that.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.scripted_engine import Say

TASK = "MAIN-TASK {flight}: do the thing."
"""What a client is asked to do; a sub-agent's prompt does not say MAIN-TASK."""
SUBTASK = "SUB-TASK: run a command and report."
LARGE = "12345678901234567890"
MALFORMED = '{"command": "echo bad", }'
UNKNOWN = ("no_such_tool", '{"x": 1.50, "large": ' + LARGE + "}")
THOUGHT = "First I think.\n\nSpaces  kept? "
TEXT = "  I look around.\n\n"


def odd_arguments(before: str = "", *, large: bool = True) -> str:
    """A shell call's arguments: white space, escapes that need none, and a large integer.

    The call takes a moment, so that a call beside it is done before.
    `before` is a member of the client's own.  Not `large` where the client refuses what it does not know.
    """
    echo = '"command":  "sleep 0.3; echo h\\u00e9llo \\u4f60 \\ud83d\\ude00 \\/tmp"'
    members = [before] * bool(before) + [echo] + [f'"large" : {LARGE}'] * large
    return "{\n  " + " ,\n  ".join(members) + "\n}"


@dataclass(frozen=True)
class Line:
    """One answer of the policy.

    `calls` are (name, arguments as they are written).  `cut`: it ends at the token limit.  `faults`: how
    the engine fails before it answers (see `Say.fault`), one try each.  `slow_s`: how long it samples.
    """

    label: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    faults: tuple[str, ...] = ()
    slow_s: float = 0.0

    @property
    def sampled(self) -> str:
        """What is sampled, in the Hermes form, without the stop token."""
        thought = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning else ""
        calls = "".join(
            f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in self.calls
        )
        return thought + self.text + calls

    @property
    def shown(self) -> str:
        """Its text as a client gets it: without a cut call, and without the line breaks around calls."""
        text = self.text.partition("\n<tool_call>")[0]
        return text.strip("\n") if self.calls else text

    def say(self, attempt: int) -> Say:
        """For the engine, at its `attempt`-th try."""
        fault = self.faults[attempt] if attempt < len(self.faults) else ""
        hold = None
        if self.slow_s:
            hold = asyncio.Event()
            asyncio.get_running_loop().call_later(self.slow_s, hold.set)
        return Say(self.sampled, stop=not self.cut, fault=fault, hold=hold)


DONE = Line("done", "All done. FINAL")


def conversation(
    tool: str,
    odd: str,
    second: str,
    *,
    malformed: str = MALFORMED,
    sub: Sequence[Line | Callable[[str], Line]] = (),
    long: Sequence[str] = (),
    more: str = "",
) -> list[Line | Callable[[str], Line]]:
    """The main part of a client with a shell `tool`; arguments are given as they are written.

    `sub`: the lines that start a sub-agent.  `long`: commands whose output brings a compaction on at the
    last, `more`: one for the time after it.
    """
    lines: list[Line | Callable[[str], Line]] = [
        Line("odd and parallel", TEXT, THOUGHT, ((tool, odd), (tool, second))),
        Line("malformed", "bad", calls=((tool, malformed),)),
        Line("unknown tool", "unknown", calls=(UNKNOWN,)),
    ]
    tail = [Line(f"long output {k}", calls=((tool, command),)) for k, command in enumerate(long, 1)]
    tail += [Line("more", "", "Go on.", ((tool, more),))] if long else []
    return [*lines, *sub, *tail, DONE]


EMPTY = (Line("empty"), DONE)
CUT = (
    Line("cut", 'A text.\n<tool_call>\n{"name": "bash", "arguments": {"command": "echo trunc', cut=True),
    DONE,
)
"""The token limit comes inside a call: clients get the text only, and none runs half a call."""
FAILING = (Line("answer", "ONE-GOOD-ANSWER", faults=("drop", "500")),)
"""The engine drops the connection, then fails, then answers."""


SLOW_S = float(os.environ.get("HEADRACE_SLOW_ENGINE_S", "0"))
"""How slow the engine of the runs `ten-minutes` is, for real; they are left out where it is 0."""
ANSWERED = (("main", "answer", "restarts"),)


def slow(seconds: float) -> tuple[Line]:
    """An answer that takes so long."""
    return (Line("answer", "ONE-GOOD-ANSWER", slow_s=seconds),)


def messages_of(prompt: str) -> list[tuple[str, str]]:
    """(role, text) of a prompt in ChatML, the open turn of the policy left out."""
    return [(r, t) for r, t in re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n|$)", prompt, re.S)][
        :-1
    ]


@dataclass
class Script:
    """Answers the prompts of one run; `said` has (role, line) of every one, in the order in which they came.

    `lines` by role; a part that goes on past its last line hears that again.  A line that depends on what
    was asked is a function of the prompt.  `who` finds the role.
    """

    who: Callable[[str], str]
    lines: Mapping[str, Sequence[Line | Callable[[str], Line]]]
    said: list[tuple[str, Line]] = field(default_factory=list)
    _next: dict[str, int] = field(default_factory=dict)
    _failing: dict[str, int] = field(default_factory=dict)

    def __call__(self, prompt: str) -> Say:
        role = self.who(prompt)
        attempt = self._failing.get(role, 0)
        lines = self.lines[role]
        next_ = lines[min(self._next.get(role, 0), len(lines) - 1)]
        line = next_ if isinstance(next_, Line) else next_(prompt)
        if attempt < len(line.faults):
            self._failing[role] = attempt + 1  # the same line again at the next try
        else:
            self._failing.pop(role, None)
            self._next[role] = self._next.get(role, 0) + 1
        self.said.append((role, line))
        return line.say(attempt)


def only_main(_: str) -> str:
    """For clients with one part."""
    return "main"


def by_words(
    *, sub: str = SUBTASK, summary: Sequence[str] = (), auxiliary: Sequence[str] = ()
) -> Callable[[str], str]:
    """`who` for a client whose parts show themselves in words.

    `summary`: words of its summariser, in the system prompt or the last message.  `auxiliary`: words of
    the system prompt of calls beside the task.  A sub-agent's first user message holds `sub`.
    """

    def who(prompt: str) -> str:
        messages = messages_of(prompt)
        ends = [*[t for r, t in messages if r == "system"][:1], messages[-1][1]]
        if any(w in ends[0] for w in auxiliary):
            return "auxiliary"
        users = " ".join(t for r, t in messages if r == "user")
        part = "sub-agent" if sub in users and "MAIN-TASK" not in users else "main"
        return f"{part}-summary" if any(w in e for e in ends for w in summary) else part

    return who
