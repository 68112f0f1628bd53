"""Commands of the README that no test can run as they stand (Docker, three brokers) are at least well formed.

The others, `$ headrace ...` on runs/demo, are run by tests/e2e/test_demo.py.
"""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path

import click
import pytest

import headrace
from lake.layout import Run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if line.strip()
]


def parsed(words: list[str]) -> click.Context:
    """A command with its arguments, as click takes them; it is not run.  Raises click.UsageError."""
    context = click.Context(headrace.cli, info_name="headrace")
    command: click.Command = headrace.cli
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, context, name)
    return command.make_context(command.name, words, parent=context)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the files lie that the commands name."""
    (tmp_path / "models" / "qwen3").mkdir(parents=True)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "p"}\n')
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", LINES)
def test_a_command_is_well_formed(line: str) -> None:
    words = [w for w in shlex.split(line.partition(" < ")[0]) if not re.match(r"[A-Z_]+=", w)]
    if words[0] == "headrace":
        assert parsed(words[1:]).params
    elif words[0].endswith(".sh"):
        usage = (ROOT / words[0]).read_text()
        assert words[1] == "--help" or re.search(rf"^#   {Path(words[0]).name} {words[1]}\b", usage, re.M)
        for option in (w for w in words[2:] if w.startswith("--")):
            assert option in usage
    else:
        assert words[:3] == ["docker", "compose", "-f"]
        services = set(re.findall(r"^  ([a-z]+):$", (ROOT / words[3]).read_text(), re.M))
        assert words[4:6] == ["up", "-d"]
        assert set(words[6:]) <= services


def test_there_are_such_lines_and_an_unknown_option_would_be_found() -> None:
    assert len(LINES) >= 8
    with pytest.raises(click.NoSuchOption):
        parsed(["lake", "stats", "runs/demo", "--nothing"])


def test_links_and_folders_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"`((?:lake|ingest|infra|docs|sql|trainer|schedulers|tests)/[\w./-]*)`", README):
        assert (ROOT / name).exists(), name


def test_what_to_run_next_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `headrace run` says at its end: its own name where the shell finds it, else its path."""
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/headrace"])
    assert headrace._command() == "/somewhere/bin/headrace"


@pytest.mark.usefixtures("folder")
def test_the_capture_of_own_rollouts_runs_as_it_stands() -> None:
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", README, re.S) if "headrace.capture" in c)
    own = {"input_ids": [1, 2], "output_ids": [3], "output_logprobs": [-0.5]}
    exec(code, {"headrace": headrace, **own, "arguments": "{}", "result": "done"})
    with closing(Run(Path("runs/mine")).open_log()) as log:
        assert {t: sum(log.end_offsets(t).values()) for t in ("calls", "tools", "scores")} == {
            "calls": 1, "tools": 1, "scores": 1,
        }  # fmt: skip
