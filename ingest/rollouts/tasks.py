"""The tasks of a rollout: JSON lines, each an object with a `prompt`.

    {"id": "fix-7", "prompt": "Fix it", "files": {"a.py": "x = 1\\n"}, "template": "repos/a", "answer": 42}

id        text or a whole number, unique in the file; without one the number of the line
files     written into the workspace: a relative path and its text
template  a folder that the workspace begins as a copy of (relative to the file of the tasks)

Whatever else there is stays with the task: the scorer finds it in the file {task}, SQL in `groups.task`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

TASK_BYTES_MAX = 8 << 20
TASKS_MAX = 1_000_000


class BadTask(ValueError):
    """A line that is no task: the file, the line, why."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What of a task matters here; `id` is text once it was read by `read_tasks`."""

    prompt: str
    id: str | int | None = None
    files: dict[str, str] = {}
    template: str = ""


def parse_task(text: str | bytes) -> Task:
    """The task of a line.  Raises BadTask, without the line's number."""
    try:
        task = msgspec.json.decode(text, type=Task)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTask(str(error)) from error
    if not task.prompt.strip():
        raise BadTask("`prompt` is empty; a text is needed")
    if "\0" in task.prompt:
        raise BadTask("`prompt` holds a NUL character, which no argument of a program can")
    if task.id is not None and not str(task.id).strip():
        raise BadTask("`id` is empty; leave it out, or give a text or a whole number")
    for name in task.files:
        path = PurePosixPath(name)
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts or not path.parts:
            raise BadTask(f"`files` names {name!r}; a relative path inside the workspace is needed")
    return task


def _normal(line: bytes, number: int, folder: Path) -> tuple[str, str]:
    """Id and text of a line as it is kept: with its id, and its template as an absolute path."""
    if len(line) > TASK_BYTES_MAX:
        raise BadTask(f"{len(line)} bytes, {TASK_BYTES_MAX} at most; put what is large into `template`")
    task = parse_task(line)
    data: dict[str, Any] = msgspec.json.decode(line)
    data["id"] = str(number if task.id is None else task.id).strip()
    if task.template:
        template = (folder / task.template).absolute()
        if not template.is_dir():
            raise BadTask(f"`template` {task.template!r}: {template} is no folder")
        data["template"] = str(template)
    return data["id"], msgspec.json.encode(data).decode()


def read_tasks(path: Path) -> list[str]:
    """The tasks of a file as JSON text, one a group, blank lines left out.

    Raises BadTask for the first line that is none, by its number: nothing has been started then.
    """
    if not path.is_file():
        raise BadTask(f"{path} is no file; tasks are JSON lines, each an object with a `prompt`")
    lines: dict[str, int] = {}
    tasks: list[str] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                name, text = _normal(line.strip().removeprefix(b"\xef\xbb\xbf"), number, path.parent)
            except BadTask as error:
                raise BadTask(f"{path}, line {number}: {error}") from error
            if name in lines:
                raise BadTask(f"{path}, line {number}: the id {name!r} is that of line {lines[name]} too")
            if len(tasks) == TASKS_MAX:
                raise BadTask(f"{path} has more than {TASKS_MAX} tasks; make several runs of it")
            lines[name] = number
            tasks.append(text)
    if not tasks:
        raise BadTask(f"{path} holds no task; each line is an object with a `prompt`")
    return tasks


def lay_out(files: Mapping[str, str], workspace: Path) -> None:
    """Write a task's files.  Raises OSError; BadTask where a path leads out through a link."""
    root = workspace.resolve()
    for name, text in files.items():
        path = root / name
        if not path.resolve().is_relative_to(root):
            raise BadTask(f"`files` names {name!r}, which a link of the template leads out of the workspace")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":  # python -m ingest.rollouts.tasks FILE: the tasks as a run keeps them
    try:
        sys.stdout.buffer.writelines(f"{task}\n".encode() for task in read_tasks(Path(sys.argv[1])))
    except BadTask as error:
        sys.exit(str(error))
