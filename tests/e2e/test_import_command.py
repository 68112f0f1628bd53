"""`headrace import calls` as a user runs it; with the demo's calls: `test_demo`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.command import document, headrace
from tests.support.raw_calls import call, check_as_matched, group, write_lines, write_parquet

ROWS = group("a", 3) + group("b", 2)
SCORES = [{"execution_id": f"{g}/{e}", "score": e} for g, n in (("a", 3), ("b", 2)) for e in range(n)]


def test_from_files_to_weights(tmp_path: Path) -> None:
    write_lines(tmp_path / "calls.jsonl.zst", ROWS[:12], "zstd")
    write_parquet(tmp_path / "calls.parquet", ROWS[12:])
    write_lines(tmp_path / "scores.jsonl", SCORES)
    arguments = ("import", "calls", "calls.jsonl.zst", "calls.parquet", "--into", "traces", "--scores")
    said = document(*arguments, "scores.jsonl", folder=tmp_path)
    tokens = sum(len(r["input_ids"]) + len(r["output_ids"]) for r in ROWS)
    assert said | {"seconds": 0} == {
        "lake": "traces", "rows": 20, "rows_refused": 0, "groups": 2, "executions": 5,
        "executions_skipped": 0, "executions_refused": 0, "calls": 20, "scores": 5, "raw_tokens": tokens,
        "own_tokens": said["own_tokens"], "seconds": 0, "first_refused": [], "refused": {},
    }  # fmt: skip
    check_as_matched(tmp_path / "traces", ROWS)
    weights = document(
        "sql", "traces", "select execution_id, advantage from weights order by 1", folder=tmp_path
    )
    assert [w["advantage"] for w in weights if w["execution_id"].startswith("a")] == [-1.0, 0.0, 1.0]
    violations = document("audit", "traces", folder=tmp_path)["violations"]
    assert {name: n for name, n in violations.items() if n} == {}
    shown = headrace(*arguments, "scores.jsonl", folder=tmp_path)
    assert "executions_skipped" in shown.stdout
    assert "writing" in shown.stderr


def test_what_is_refused_is_named_and_the_status_is_1(tmp_path: Path) -> None:
    bad = call("a/0", 9, [1, -1], [2])
    write_lines(tmp_path / "calls.jsonl", [*ROWS, b"no json", bad])
    arguments = ("import", "calls", "calls.jsonl", "--into", "traces")
    done = headrace(*arguments, folder=tmp_path, status=1)
    assert "refused calls.jsonl:21: no JSON object of a call" in done.stderr
    assert "refused calls.jsonl:22: input_ids: item 1 is negative" in done.stderr
    letters = document(
        "sql", "traces", "select reason from dead_letters order by log_offset", folder=tmp_path
    )
    assert [row["reason"].split(": ")[0] for row in letters] == ["calls.jsonl:21", "calls.jsonl:22"]
    check_as_matched(tmp_path / "traces", ROWS)
    other = [row | {"output_ids": [8, 8]} if row["execution_id"] == "b/1" else row for row in ROWS]
    write_lines(tmp_path / "calls.jsonl", other)
    said = document(*arguments, folder=tmp_path, status=1)
    assert (said["executions_skipped"], list(said["refused"])) == (4, ["b/1"])


def test_wrong_use_is_status_2_with_a_sentence(tmp_path: Path) -> None:
    write_lines(tmp_path / "calls.jsonl", ROWS)
    for arguments, sentence in (
        (("nowhere.jsonl", "--into", "traces"), "nowhere.jsonl is no file"),
        (("calls.jsonl", "--into", "calls.jsonl"), "calls.jsonl is a file"),
        (("calls.jsonl",), "Missing option '--into'"),
        (("calls.jsonl", "--into", "traces", "--memory", "much"), "'much' is no size"),
    ):
        done = headrace("import", "calls", *arguments, folder=tmp_path, status=2)
        assert sentence in done.stderr
    assert not (tmp_path / "traces").exists()


def test_help_compiles_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, headrace\n"
        "try: headrace.main()\n"
        "finally: print(sorted({'numba', 'pyarrow', 'numpy', 'duckdb'} & set(sys.modules)), file=sys.stderr)"
    )
    for words in (["--help"], ["import", "calls", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], check=True, capture_output=True, text=True
        )
        assert done.stderr.strip() == "[]"
