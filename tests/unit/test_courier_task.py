"""Courier's tasks: the same everywhere, no field right by accident, no way round the checks."""

import hashlib
import json
import subprocess
import sys

import pytest

from ingest.courier import task as world
from ingest.courier.accidents import NONE, Accidents
from ingest.courier.chat import Function, Message, ToolCall, only_call
from ingest.courier.harness import Outcome, conversation
from ingest.courier.task import CHECKS, TaskError, Workspace, checks, make_task, parse_task, score
from tests.support.courier_agents import parsed, perfect


def play(task, agent, calls_max=12):
    outcome = Outcome()
    talk = conversation(task, outcome, calls_max)
    asked = []
    try:
        request = next(talk)
        while True:
            asked.append(request)
            request = talk.send(agent(request))
    except StopIteration:
        return outcome, asked


def test_a_task_is_a_function_of_seed_and_number():
    here = "\n".join(make_task(7, n) for n in range(50))
    command = [sys.executable, "-m", "ingest.courier", "tasks", "--seed", "7", "--count", "50"]
    there = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "1"})
    assert there.stdout.rstrip("\n") == here
    # Pinned: a run's tasks stay what they were, whatever the version of Python.
    assert hashlib.sha256(here.encode()).hexdigest()[:16] == "4b8c0f3abc0ea1e6"
    assert make_task(7, 3) != make_task(8, 3) != make_task(7, 4)


def test_no_wrong_field_is_right_by_accident():
    for number in range(200):
        task = parse_task(make_task(0, number))
        places = [n for place in task.place.values() for n in place.values()]
        assert len(set(places)) == 9
        for thing in (*task.label.values(), *task.entry.values()):
            assert len(set(thing.values())) == 3
        assert len(set(task.order.values())) == 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        make_task(0, 0).replace('"courier"', '"other"'),
        make_task(0, 0).replace("shelf", "shelv"),
    ],
)
def test_another_text_is_refused(text):
    with pytest.raises(TaskError, match="courier task"):
        parse_task(text)


def test_a_perfect_execution_holds_all_checks():
    for number in range(20):
        task = parse_task(make_task(1, number))
        outcome, asked = play(task, perfect)
        assert outcome.status == "completed"
        assert checks(task, outcome.workspace) == dict.fromkeys(CHECKS, True)
        assert score(task, outcome.workspace) == 1.0
        assert [r.role for r in asked] == [
            "main", "main", "main", "sub-agent", "sub-agent", "main-summary", "main", "main",
        ]  # fmt: skip


def test_an_idle_execution_holds_none():
    task = parse_task(make_task(1, 0))
    assert score(task, Workspace()) == 0.0
    outcome, asked = play(task, lambda _: Message(role="assistant", content=""))
    assert score(task, outcome.workspace) == 0.0
    assert outcome.status == "completed"
    assert len(asked) == 5  # three turns, the summary, and an end at once


def test_a_wrong_item_well_labelled_loses_one_check():
    task = parse_task(make_task(2, 0))
    wrong = task.order["wrap"]

    def agent(request):
        answer = perfect(request)
        call = only_call(answer)
        return parsed_call("find", {"wrap": wrong}) if call and call[0] == "find" else answer

    outcome, _ = play(task, agent)
    assert checks(task, outcome.workspace) == dict.fromkeys(CHECKS, True) | {"found": False}


def parsed_call(name, arguments):
    text = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
    return parsed(f"<tool_call>\n{text}\n</tool_call>")


def message(*arguments: str, content=None):
    made = tuple(ToolCall(id=f"c{i}", function=Function("deliver", a)) for i, a in enumerate(arguments))
    return Message(role="assistant", content=content, tool_calls=made)


@pytest.mark.parametrize(
    "malformed",
    [
        message('{"door":24,"door":24}'),  # two tries at one field, as a policy once learned to write
        message('{"tag":1,"more":{"door":24,"door":24}}'),
        message('{"tag":1}', '{"tag":2}'),
        message('{"tag":1}', content="and so on"),
        message("[1]"),
        message('"tag"'),
        message('{"tag":'),
        message("[" * 100_000),
        message(),
        Message(role="assistant", content='<tool_call>\n{"name":"deliver"}\n</tool_call>'),
    ],
)
def test_a_malformed_call_is_none(malformed):
    assert only_call(malformed) is None
    task = parse_task(make_task(2, 1))

    def agent(request):
        return malformed if request.messages[-1].text.startswith("Order") else perfect_after(request)

    def perfect_after(request):
        return Message(role="assistant", content="")

    outcome, asked = play(task, agent)
    told = [m for m in asked[1].messages if m.role in ("tool", "user")][1:]
    assert [m.content for m in told] == ["error"] * max(1, len(malformed.calls))
    assert [m.tool_call_id for m in told if m.role == "tool"] == [c.id for c in malformed.calls]
    assert outcome.workspace == Workspace()


def test_tools_take_one_argument_of_the_right_kind():
    task, w = parse_task(make_task(3, 0)), Workspace()
    item, person = task.order["item"], task.order["to"]
    shelf = task.place[item]["shelf"]
    for arguments in ({}, {"item": item, "wrap": item}, {"to": item}, {"item": [item]}, {"item": "x"}):
        assert world.find(task, w, arguments) is None
    assert w == Workspace()
    assert world.take(task, w, {"shelf": shelf}) == task.label[item]
    assert world.take(task, w, {"box": shelf}) is None
    assert w.held is None  # whoever reaches for nothing holds nothing
    assert not world.ask(task, w, {"to": person, "from": person})
    assert world.look(task, {"street": person}) is None
    assert world.look(task, {"copy": person}) == task.entry[person]


def test_the_workspace_is_scored_when_time_is_up():
    task = parse_task(make_task(4, 0))
    outcome, asked = play(task, perfect, calls_max=3)
    assert outcome.status == "harness_timeout"
    assert len(asked) == 3
    assert score(task, outcome.workspace) == pytest.approx(3 / 6)  # found, held, asked


def test_accidents_are_a_function_of_seed_group_and_index():
    drawn = [Accidents.drawn(0, f"g{n // 8}", n % 8) for n in range(8000)]
    assert drawn == [Accidents.drawn(0, f"g{n // 8}", n % 8) for n in range(8000)]
    stopped = [a.stop_after for a in drawn if a.stop_after is not None]
    assert 0.02 < len(stopped) / 8000 < 0.04
    assert set(stopped) == {2, 3, 4, 5, 6}
    assert 0.013 < sum(a.evaluator_crashes for a in drawn) / 8000 < 0.027
    patience = [a.hangs_up_after_s(call) for a in drawn for call in range(8)]
    given = [p for p in patience if p is not None]
    assert 0.018 < len(given) / len(patience) < 0.022
    assert 0.002 <= min(given) < max(given) < 0.02
    assert [NONE.hangs_up_after_s(call) for call in range(1000)] == [None] * 1000
    other = [Accidents.drawn(1, f"g{n // 8}", n % 8).stop_after for n in range(8000)]
    assert other != [a.stop_after for a in drawn]
