"""How the agents on SDKs are started: one script each, in the client's own environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, started, told
from tests.harnesses.scenario import (
    CUT,
    DONE,
    EMPTY,
    FAILING,
    Line,
    Script,
    conversation,
    odd_arguments,
    only_main,
)

SCRIPTS = Path(__file__).parents[1] / "scripts"
Expected = tuple[tuple[str, str, str], ...]


def script(*lines: Any) -> Callable[[], Script]:
    """A fresh script of one part."""
    return lambda: Script(only_main, {"main": lines})


def story(*labels: str) -> Expected:
    """`expected` of one part in which each call goes on after the one before it."""
    return tuple(("main", label, "extends" if k else "restarts") for k, label in enumerate(labels))


def flight(how: str, *labels: str, dies: bool = False, ends: bool = False) -> Flight:
    """A run of a script called `how`, in which these lines of the conversation are said.

    `dies`: the client ends with an error after the last, `ends`: it takes that for the end; otherwise the
    policy says that it is done.
    """
    said = conversation("bash", odd_arguments(), '{"command":"echo second; ls -la"}')
    lines = [line for label in labels for line in said if isinstance(line, Line) and line.label == label]
    told_ = labels if dies or ends else (*labels, DONE.label)
    return Flight(script(*lines, DONE), story(*told_), exit=int(dies), settings={"how": how})


ODD, MALFORMED, UNKNOWN = "odd and parallel", "malformed", "unknown tool"
WHOLE = (ODD, MALFORMED, UNKNOWN)


def short(how: str, *, cut_dies: bool = False) -> dict[str, Flight]:
    """An empty reply, one that the token limit cuts, an engine that fails before it answers."""
    settings = {"how": how}
    return {
        "empty": Flight(script(*EMPTY), story("empty"), settings=settings),
        "cut": Flight(script(*CUT), story("cut"), exit=int(cut_dies), settings=settings),
        "failing": Flight(script(*FAILING), story("answer"), settings=settings),
    }


def agent(name: str, file: str, flights: Mapping[str, Flight], **environment: str) -> Client:
    """A client whose flights say in `settings` how its script is called (`how`)."""

    def line(how: str) -> str:
        return f"python {{here}}/{file} {how} {{prompt}}"

    def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
        python = str(place.installed / "bin" / "python")
        return started(f"python {settings['how']} {{prompt}}", place, python, str(SCRIPTS / file))

    def variables(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
        return told(place) | environment

    first = next(iter(flights.values()))
    rollout = line(first.settings["how"])
    return Client(name, command, variables, flights, rollout=rollout)
