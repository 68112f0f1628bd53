"""`headrace report`: every question on a run, on a lake of calls alone and on an empty one; its options."""

from __future__ import annotations

import json
import random
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import headrace
from lake.models import ModelError, Models
from lake.query import Lake, QueryError, open_lake
from lake.questions import Question, UnknownQuestion, find, of_model, questions
from lake.report_command import answer
from tests import questions as page
from tests.support.asked import asked_lake, empty_lake, imported_lake, recorded
from tests.support.recorder import derive

MODELS = Models.load()
QUESTIONS = questions(MODELS)
NAMES = [q.name for q in QUESTIONS]
PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
RECORDED = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"

OF_A_RUN = {
    "cell_idle", "clip_by_sign", "longest_execution", "mismatch_by_lag", "mismatch_distribution", "progress",
    "queue_age", "refused", "score_by_step", "staleness", "staleness_by_step", "staleness_distribution",
    "staleness_identity", "throughput", "time_to_ready", "tool_latency", "trainer_idle",
    "policy_updates",
}  # fmt: skip
"""Questions that calls, executions and scores alone do not answer."""


def ask(*arguments: str) -> Result:
    """The command itself; what it does with an open lake is `answer`, which the other tests call."""
    return CliRunner().invoke(headrace.cli, ["report", *arguments])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(asked_lake(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def whole(root: str) -> Lake:
    return open_lake(root)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return open_lake(imported_lake(tmp_path_factory.mktemp("imported")))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return open_lake(empty_lake(tmp_path_factory.mktemp("empty")))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What an answer prints: a text, or a document with as_json."""

    def told(lake: Lake, name: str, **how: Any) -> Any:
        answer(lake, find(lake.models, name), **how)
        text = capsys.readouterr().out
        return json.loads(text) if how.get("as_json") else text

    return told


def test_there_are_twenty_and_more_and_each_is_one_sentence() -> None:
    assert len(QUESTIONS) >= 20
    assert len({q.question for q in QUESTIONS}) == len(QUESTIONS)
    for q in QUESTIONS:
        assert len(q.question) <= 100, q.name
        assert q.question.count("?") == 1
        assert q.row.endswith("."), q.name


@pytest.mark.parametrize("asked", QUESTIONS, ids=NAMES)
def test_every_question_has_an_answer_on_a_run(
    whole: Lake, said: Callable[..., Any], asked: Question
) -> None:
    table = whole.report(asked.name)
    assert table.num_rows > 0
    plain = (pa.types.is_integer, pa.types.is_float64, pa.types.is_string, pa.types.is_boolean)
    assert [f for f in table.schema if not any(kind(f.type) for kind in plain)] == []
    shown = said(whole, asked.typed)
    assert shown.startswith(f"{asked.question}\n")
    assert "No rows" not in shown
    assert f"{asked.row} Then: {asked.then}" in " ".join(shown.split())


@pytest.mark.parametrize("asked", QUESTIONS, ids=NAMES)
def test_an_empty_lake_has_the_columns_and_says_why_there_is_no_row(
    empty: Lake, said: Callable[..., Any], asked: Question
) -> None:
    table = empty.report(asked.name)
    assert table.num_rows == 0
    assert set(asked.key) <= set(table.column_names)
    document = said(empty, asked.name, as_json=True)
    assert (document["rows"], document["of"], document["empty"]) == ([], 0, asked.empty)
    assert " ".join(said(empty, asked.name).split()) == f"{asked.question} No rows: {asked.empty}"


def test_a_lake_of_calls_alone_answers_what_calls_can_answer(imported: Lake) -> None:
    assert {name for name in NAMES if imported.report(name).num_rows == 0} == OF_A_RUN
    assert imported.report("score_by_version")["version"].to_pylist() == [2, None]
    assert imported.report("drift")["cause"].to_pylist() == ["tokens differ", None, "new conversation"]
    assert imported.report("cache_hits")["calls_unknown"].to_pylist() == [12]
    fates = set(imported.report("lineage")["not_trained"].to_pylist())
    assert fates == {"its group is not consumed", "no log-probabilities"}


def test_a_recorded_run_answers(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    lake = open_lake(tmp_path / "lake")
    silent = {name for name in NAMES if lake.report(name).num_rows == 0}
    assert silent <= {"mismatch_by_lag", "mismatch_distribution", "refused", "zero_variance", "tool_latency"}


def test_filters_limits_and_what_they_say(whole: Lake, said: Callable[..., Any]) -> None:
    everything = said(whole, "lineage", as_json=True)
    assert everything["of"] == len(everything["rows"]) > 50
    one = said(whole, "lineage", where="execution_id = 'a/1' and call_id = 2 -- a remark", as_json=True)
    assert {(r["execution_id"], r["call_id"]) for r in one["rows"]} == {("a/1", 2)}
    assert 0 < one["of"] < everything["of"]
    few = said(whole, "lineage", limit=2, as_json=True)
    assert (few["rows"], few["of"]) == (everything["rows"][:2], everything["of"])
    assert f"The first 50 of {everything['of']} rows" in said(whole, "lineage")
    oldest = said(whole, "staleness", by="d", as_json=True)["rows"]
    assert [(r["d"], r["group_id"]) for r in oldest] == [(2, "flat"), (1, "b"), (0, "a")]
    none = said(whole, "lineage", where="call_id > 99")
    assert f"none of the {everything['of']} rows is one where call_id > 99" in none
    for wrong in ("nothing > 1", "d > 1; drop view calls", "d > 1)", "'a'"):
        with pytest.raises(QueryError):
            said(whole, "staleness", where=wrong)
    with pytest.raises(QueryError, match="nothing"):
        said(whole, "staleness", by="nothing")


def test_a_share_has_a_bar(whole: Lake, said: Callable[..., Any]) -> None:
    assert "█" in said(whole, "staleness_distribution")


def test_a_question_is_found_by_its_name_and_others_are_suggested() -> None:
    assert find(MODELS, "Queue-Age").name == "queue_age"
    for wrong, said in (
        ("stalness", "did you mean staleness"),
        ("age", "queue-age"),
        ("xyzzy", "there are cache-"),
    ):
        with pytest.raises(UnknownQuestion, match=f"no question '{wrong}'; .*{said}.*--list"):
            find(MODELS, wrong)
    with pytest.raises(UnknownQuestion):
        find(MODELS, "calls")  # a model, but no question


def test_the_command_answers_with_its_options(root: str) -> None:
    done = ask(root, "waiting-for", "--limit", "1", "--where", "state = 'READY'", "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["name"], document["of"], document["empty"]) == ("waiting_for", 1, None)
    first = ask(root, "staleness", "--as-of", "events/groups@0", "--set", "none")
    assert first.exit_code == 0
    assert isinstance(ask(root, "stalness").exception, UnknownQuestion)
    for arguments in ([], [root, "--limit", "3"], [root, "staleness", "--limit", "0"]):
        assert ask(*arguments).exit_code == 2


def test_the_list_has_a_line_each_with_or_without_a_run(root: str) -> None:
    for arguments in (["--list"], [root, "--list"]):
        shown = ask(*arguments).stdout
        for q in QUESTIONS:
            assert any(q.typed in line and q.question in line for line in shown.splitlines()), q.name
    listed = json.loads(ask("--list", "--json").stdout)
    assert listed == [{"name": q.typed, "question": q.question} for q in QUESTIONS]


def sections() -> dict[str, str]:
    """The page's sections by their names."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_has_exactly_the_questions_there_are() -> None:
    assert list(sections()) == [q.typed for q in QUESTIONS]
    assert PAGE.read_text().startswith(page.INTRODUCTION)
    for q in QUESTIONS:
        assert f"| [{q.typed}](#{q.typed}) | {q.question} |" in PAGE.read_text()


@pytest.mark.parametrize("asked", QUESTIONS, ids=NAMES)
def test_a_section_of_the_page_is_what_the_command_says(
    whole: Lake, said: Callable[..., Any], asked: Question
) -> None:
    text = sections()[asked.typed]
    assert f"**{asked.question}** {asked.row}" in " ".join(text.split())
    assert f"Then: {asked.then}" in " ".join(text.split())
    (block,) = re.findall(r"```console\n\$ headrace report (.+?)\n(.+?)```", text, re.S)
    assert shlex.split(block[0]) == ["runs/demo", *page.arguments(asked)]
    command = headrace.cli.commands["report"]
    options = command.make_context("report", shlex.split(block[0])).params
    shown = said(whole, options["question"], **{n: options[n] for n in ("where", "by", "limit")})
    assert shown
    if not block[1].startswith("No rows: "):
        columns = block[1].splitlines()[0].split()
        assert columns == whole.report(asked.name).column_names


@pytest.mark.parametrize("seed", range(3))
def test_answers_depend_on_neither_order_nor_repeats_nor_threads(seed: int) -> None:
    recorder, rng = recorded(), random.Random(seed)
    wanted = derive(recorder, *NAMES)
    for rows in recorder.rows.values():
        for record, event in rng.sample(rows, len(rows) // 3):  # appended again
            rows.append((msgspec.structs.replace(record, offset=len(rows)), event))
        rng.shuffle(rows)
    found = derive(recorder, *NAMES, threads=4)
    assert {name: table.equals(wanted[name]) for name, table in found.items()} == dict.fromkeys(NAMES, True)


def test_a_header_that_lacks_something_is_refused() -> None:
    with pytest.raises(ModelError, match=r"staging/calls\.sql: the header of a report has"):
        of_model(MODELS.by_name["calls"])
