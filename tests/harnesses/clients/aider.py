"""aider: chat completions, streamed; whole files in its text and no tools; commit messages beside the task.

It sends the files as they are now with each request, so that its next turn is a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, started, told
from tests.harnesses.scenario import ANSWERED, CUT, EMPTY, FAILING, Line, Script, by_words

ROLLOUT = "aider --model openai/{model} --yes-always --message {prompt} a.py"
WHO = by_words(auxiliary=("Git commit messages",), summary=("*Briefly* summarize",))
BROKEN = Line("broken", "I begin.\n\na.py\n```\nx = (\n```\n", "First I think.")
MENDED = Line("mended", "a.py\n```\nx = 2\n```\n")
HISTORY = "".join(
    f"#### MAIN-TASK summary: question {k}: {'why? ' * 40}\n\nAnswer {k}: {'so. ' * 40}\n\n" for k in range(6)
)
LONG = {"switches": ("--restore-chat-history", "--max-chat-history-tokens", "200")}
SUMMARY = {"main-summary": [Line("summary", "SUMMARY")]}
MESSAGE = {"auxiliary": [Line("commit message", "feat: set x")]}


def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
    switches = ("--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-gitignore")
    words = started(ROLLOUT, place, str(place.installed / "bin" / "aider"))
    return [*words, *switches, *settings.get("switches", ())]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return told(place) | names | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AIDER_ANALYTICS": "false"}


def files(_: Place, __: Mapping[str, Any]) -> dict[str, str]:
    name = "[user]\n  name = a\n  email = a@b.c\n"
    return {"project/a.py": "x=1\n", ".gitconfig": name, "project/.aider.chat.history.md": HISTORY}


def script(*lines: Line) -> Callable[[], Script]:
    return lambda: Script(WHO, {"main": lines, **MESSAGE, **SUMMARY})


MAIN = (
    ("main", "broken", "restarts"),
    ("auxiliary", "commit message", "restarts"),
    ("auxiliary", "commit message", "branches"),
    ("main", "mended", "branches"),
    ("auxiliary", "commit message", "branches"),
)

SUMMARISED = (("main-summary", "summary", "restarts"), ("main", "answer", "restarts"))

CLIENT = Client(
    "aider",
    command,
    environment,
    {
        "main": Flight(script(BROKEN, MENDED), MAIN),
        "summary": Flight(script(Line("answer", "Nothing to do.")), SUMMARISED, settings=LONG),
        "empty": Flight(script(*EMPTY), (("main", "empty", "restarts"),)),
        "cut": Flight(script(*CUT), (("main", "cut", "restarts"),)),
        "failing": Flight(script(*FAILING), ANSWERED),
    },
    files,
    rollout=ROLLOUT,
)
