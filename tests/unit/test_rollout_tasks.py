"""The file of tasks: kept as it is, refused by its line before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingest.rollouts.tasks import BadTask, lay_out, parse_task, read_tasks

ODD = 'He said "it\'s {prompt} {{x}} ${HOME}";\n\n\ttail \\ \u2028 \x85 \u4f60 \U0001f600'


def write(folder: Path, *lines: object) -> Path:
    path = folder / "tasks.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_tasks_are_kept_with_all_they_hold(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    path = write(
        tmp_path,
        {"prompt": ODD, "answer": [1, {"a": None}]},
        "",
        {"id": 7, "prompt": "b", "template": "repo"},
    )
    first, second = map(json.loads, read_tasks(path))
    assert first == {"id": "1", "prompt": ODD, "answer": [1, {"a": None}]}
    assert second == {"id": "7", "prompt": "b", "template": str(tmp_path / "repo")}
    assert all("\n" not in text for text in read_tasks(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: "),
        ("[]", "line 2: .*object"),
        ({"id": "b"}, "line 2: .*prompt"),
        ({"prompt": " \n"}, "`prompt` is empty"),
        ({"prompt": 3}, "line 2: .*str"),
        ({"prompt": "a\0b"}, "NUL"),
        ({"prompt": "x", "id": ""}, "`id` is empty"),
        ({"prompt": "x", "id": 1.5}, "line 2: .*id"),
        ({"prompt": "x", "id": "1"}, "the id '1' is that of line 1 too"),
        ({"prompt": "x", "files": {"../a": ""}}, "relative path"),
        ({"prompt": "x", "files": {"/a": ""}}, "relative path"),
        ({"prompt": "x", "files": {"": ""}}, "relative path"),
        ({"prompt": "x", "files": {"a": 1}}, "line 2: .*str"),
        ({"prompt": "x", "template": "nowhere"}, "nowhere is no folder"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: object, said: str) -> None:
    with pytest.raises(BadTask, match=said) as refused:
        read_tasks(write(tmp_path, {"prompt": "good"}, line))
    assert "tasks.jsonl, line 2: " in str(refused.value)


def test_no_task_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="holds no task"):
        read_tasks(write(tmp_path, "", " "))
    with pytest.raises(BadTask, match="is no file"):
        read_tasks(tmp_path / "nothing")


def test_files_are_written_as_they_are_and_stay_inside(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    lay_out({"a/b.py": ODD + "\r\n", "c": ""}, work)
    assert (work / "a/b.py").read_bytes() == (ODD + "\r\n").encode()
    (work / "link").symlink_to(elsewhere)
    (work / "file").symlink_to(elsewhere / "f")
    for name in ("link/x/y", "file"):
        with pytest.raises(BadTask, match="out of the workspace"):
            lay_out({name: "x"}, work)
    assert list(elsewhere.iterdir()) == []
    assert parse_task('{"prompt": "x", "files": {"a": "b"}}').files == {"a": "b"}
