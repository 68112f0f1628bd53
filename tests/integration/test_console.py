"""The console as a user meets it: in a terminal, by keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from lake.console import HISTORY_BYTES_MAX, finished, history_file, open_history
from lake.console_commands import COMMANDS, Commands
from lake.console_completion import SqlCompleter
from lake.output import Answers
from lake.query import Lake, QueryError, open_lake
from lake.stopping import Runner
from lake.terminal import PIPED_COLUMNS
from tests.support import small_lake
from tests.support.command import HEADRACE
from tests.support.terminal import Terminal, terminal

ENDLESS = "select count(*) from range(1000000) a(x), range(1000000) b(y) where x + y = 3;"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_lake.make(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def lake(root: str) -> Lake:
    return open_lake(root)


@contextmanager
def console(root: str, folder: Path, *options: str) -> Iterator[Terminal]:
    state = {"XDG_STATE_HOME": str(folder / "state")}
    with terminal([str(HEADRACE), "sql", root, *options], folder, state) as seen:
        seen.until("lake>")
        yield seen


def answered(seen: Terminal, keys: str, wanted: str = "1 row in ") -> str:
    """Type a statement, wait for its answer and then for the prompt: before it keys go elsewhere."""
    said = seen.ask(keys + "\r", wanted)
    seen.until("lake>", seen.text.rindex(wanted))
    return said


def until_it_computes(seen: Terminal) -> None:
    process = psutil.Process(seen.process.pid)
    before = process.cpu_times().user
    while process.cpu_times().user < before + 0.5:
        time.sleep(0.02)


def test_a_session(root: str, tmp_path: Path) -> None:
    with console(root, tmp_path) as seen:
        assert "42" in answered(seen, "select 40 + 2 as answer;")
        assert "close: weights" in answered(seen, "from wieghts;", "(line 1, column 6: wieghts)")
        seen.ask("select 'over two\r", "two\n    >")  # no semicolon: a new line of the same statement
        assert "over two" in answered(seen, "lines' as text;")
        answered(seen, ".tables calls", "what it is")
        seen.type(ENDLESS + "\r")
        until_it_computes(seen)
        answered(seen, "\x03", "interrupted")
        assert "43" in answered(seen, "select 41 + 2 as answer;")
        seen.ask("select no, I was wrong", "wrong")
        seen.ask("\x03", "lake>")  # at the prompt it clears the line
        answered(seen, ".quitt", "close: .quit")
        seen.type(".quit\r")
        assert seen.end() == 0


def test_names_appear_while_typing_and_tab_takes_one(root: str, tmp_path: Path) -> None:
    with console(root, tmp_path) as seen:
        assert "weights: One row the current execution" in seen.ask("from weigh", "weights_do_not_sum")
        seen.ask("\t", "weights")
        answered(seen, " limit 1;")
        seen.type("\x04")  # Ctrl-D on an empty line
        assert seen.end() == 0


def test_the_history_is_there_after_another_start(root: str, tmp_path: Path) -> None:
    with console(root, tmp_path) as seen:
        answered(seen, "select 'a line to find' as text;")
        seen.type(".quit\r")
        assert seen.end() == 0
    with console(root, tmp_path) as seen:
        seen.ask("\x1b[A\x1b[A", "select 'a line to find' as text;")  # the up arrow, past `.quit`
        assert "a line to find" in answered(seen, "")
    held = tmp_path / "state" / "headrace" / "sql_history"
    assert held.stat().st_mode & 0o777 == 0o600


def test_a_format_of_the_console_is_that_of_its_answers(root: str, tmp_path: Path) -> None:
    with console(root, tmp_path, "--format", "json") as seen:
        assert '[{"a":1}]' in answered(seen, "select 1 as a;")
        answered(seen, ".format csv", "format csv\n")
        answered(seen, ".timing off", "timing off\n")
        assert answered(seen, "select 2 as a;", '"a"\n2\n')


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", True),
        ("select 1", False),
        ("select 1;", True),
        ("select ';", False),
        (".tables", True),
        ("a;b", False),
    ],
)
def test_enter_ends_what_is_finished(text: str, ends: bool) -> None:
    assert finished(text) == ends


def offered(lake: Lake, text: str, asked: bool = True) -> list[str]:
    event = CompleteEvent(completion_requested=asked, text_inserted=not asked)
    return [c.display_text for c in SqlCompleter(lake).get_completions(Document(text), event)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("from ca", ["calls", "cache_hits"]),
        ("select * from calls join wei", ["weights"]),
        ("from calls c, event_to", ["event_tools"]),
        ("from calls where n_out", ["n_output"]),
        ("from calls c where c.finish", ["finish_reason", "finished_us"]),
        ("from calls a join weights b using (execution_id) where b.adv", ["advantage"]),
        ("with mine as (from calls) from mi", ["mine"]),
        ("from calls where length(role) > 3 and approx_quan", ["approx_quantile"]),
        ("describe wei", ["weights"]),
        ("SELE", ["select"]),
        (".sch", [".schema"]),
        (".schema weig", ["weights"]),
        (".format j", ["json"]),
        (".timing o", ["on", "off"]),
        ("select 1; from ca", ["calls"]),
    ],
)
def test_completion(lake: Lake, text: str, first: list[str]) -> None:
    found = offered(lake, text)
    assert found[: len(first)] == first or set(first) <= set(found[: len(first) + 1]), found


def test_completion_offers_columns_unasked_only_for_what_has_begun(lake: Lake) -> None:
    assert offered(lake, "from weights where ", asked=False) == []
    columns = [name for name, _ in lake.columns("weights")]
    assert offered(lake, "from weights where ") == columns
    assert "read_text" not in offered(lake, "select read_")
    assert offered(lake, "from no_such where no_such.", asked=True) == []


def told(lake: Lake, *lines: str) -> None:
    runner = Runner(lake)
    commands = Commands(Answers(lake, runner))
    for line in lines:
        assert commands.run(line)
    runner.close()


def test_what_a_table_and_a_model_are(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    told(lake, ".schema weights", ".schema event_calls", ".model calls", ".tables event_*", ".tables zero")
    shown = capsys.readouterr().out
    for part in (
        "weights (weights)", "Key: group_id, execution_id", "advantage", "DOUBLE", "event_calls (events)",
        "Key: event_id", "INTEGER[]", "staging/calls.sql: computed when asked for; reads event_calls",
        "One row an event of these types: model.called.", "Which groups teach nothing",
    ):  # fmt: skip
        assert part in shown, part


def test_a_query_is_explained_in_any_format(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    told(lake, ".format csv", ".explain from weights", ".explain analyze from weights", ".help")
    shown = capsys.readouterr().out
    assert "READ_PARQUET" in shown
    assert "~" in shown  # estimated rows, then measured ones
    assert re.search(r"READ_PARQUET +12 rows +\d\.\d{3} s", shown)
    assert "MB read" in shown
    assert max(map(len, shown.splitlines())) <= PIPED_COLUMNS
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (".tabels", "close: .tables"),
        (".schema", "wants a table or model"),
        (".schema nothing_like_it", "no table or model 'nothing_like_it'"),
        (".model event_calls", "event_calls is none"),
        (".format xml", "no format 'xml'"),
        (".limit 0", "1 or more"),
        (".timing maybe", "on or off"),
        (".explain", "want a query"),
        (".explain copy (select 1) to 'x'", "read-only"),
    ],
)
def test_a_command_that_is_wrong_is_said(lake: Lake, line: str, said: str) -> None:
    with pytest.raises(QueryError, match=said.replace("(", r"\(")):
        told(lake, line)


def test_a_long_history_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sql_history"
    path.parent.mkdir()
    entry = "\n# 2026-01-01 00:00:00.000000\n+select {} as a;\n"
    number = HISTORY_BYTES_MAX // len(entry) + 10
    path.write_text("".join(entry.format(n) for n in range(number)))
    kept = list(open_history(path).load_history_strings())
    assert kept[0] == f"select {number - 1} as a;"
    assert number // 3 < len(kept) < number * 2 // 3


def test_where_the_history_cannot_be_kept_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "headrace").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert list(open_history(history_file()).load_history_strings()) == []
    assert "the history is not kept" in capsys.readouterr().err
