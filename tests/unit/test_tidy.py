"""The shape of the code: sizes, names, documented commands, one language of layers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import headrace

ROOT = Path(__file__).parents[2]
OURS = ("lake", "ingest", "trainer", "schedulers", "tests")
LINES_MAX, FUNCTION_LINES_MAX, COLUMNS_MAX = 500, 70, 110


def files(*suffixes: str) -> list[Path]:
    """The files that git knows or would take, of these kinds."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if name.endswith(suffixes) and (ROOT / name).is_file()]


def test_files_are_short_enough_to_read() -> None:
    long = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files(".py", ".sql", ".sh")}
    assert {name: n for name, n in long.items() if n > LINES_MAX} == {}


def test_functions_are_short_enough_to_read() -> None:
    long = {}
    for path in files(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n = (node.end_lineno or node.lineno) - node.lineno + 1
                if n > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = n
    assert long == {}


def test_lines_fit() -> None:
    wide = [
        f"{p.relative_to(ROOT)}:{i}"
        for p in files(".py", ".sql", ".sh")
        for i, line in enumerate(p.read_text().splitlines(), 1)
        if len(line.split("  # type: ignore")[0]) > COLUMNS_MAX + 10 * (p.suffix == ".sql")
    ]
    assert wide == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(p.relative_to(ROOT)) for p in files(".py") if not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert silent == []


def test_nothing_is_left_to_do() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    left = [
        str(p.relative_to(ROOT)) for p in files(".py", ".sql", ".sh", ".md") if words.search(p.read_text())
    ]
    assert [name for name in left if name != "tests/unit/test_tidy.py"] == []


def test_the_top_level_is_the_agreed_one() -> None:
    top = {p.relative_to(ROOT).parts[0] for p in files("")}
    agreed = {
        "pyproject.toml", "ingest", "lake", "trainer", "schedulers", "sql", "tests", "infra",
        "README.md", "CHANGELOG.md", "headrace.py", "Makefile", ".ci", ".gitignore", "docs",
    }  # fmt: skip
    assert top - {"docs"} == agreed - {"docs"}


def test_pins_carry_no_address() -> None:
    lines = (ROOT / "infra/requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z0-9,]+\])?==[0-9A-Za-z.+-]+", line) for line in lines)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted += [*project["optional-dependencies"]["kafka"], *project["optional-dependencies"]["s3"]]
    pinned = {
        re.split(r"[\[=]", line)[0].lower() for line in (ROOT / "infra/requirements.txt").read_text().split()
    }
    assert {re.split(r"[\[<>=; ]", w)[0].lower() for w in wanted} - pinned == set()


def commands(group: click.Group = headrace.cli, before: str = "") -> dict[str, click.Command]:
    """Every command, by the words after `headrace`."""
    found = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, f"{before}{name} ")
        else:
            found[before + name] = command
    return found


@pytest.mark.parametrize("name", commands())
def test_every_command_teaches_by_an_example(name: str) -> None:
    assert f"headrace {name}" in (commands()[name].help or "")


def test_documented_commands_exist() -> None:
    named = set()
    for path in files(".md", ".py"):
        said = r"(?:^|[`$ ])headrace ([a-z]+(?: [a-z]+)?) (?:runs/|RUN|demo|kafka:)"
        named |= set(re.findall(said, path.read_text(), re.M))
    assert named
    assert named - set(commands()) == set()


def test_another_module_of_our_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import headrace"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert str(tmp_path / "trainer.py") in done.stderr
    assert "rename that file" in done.stderr
