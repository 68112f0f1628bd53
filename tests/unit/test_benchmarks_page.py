"""docs/benchmarks.md: what it names exists, and writing some sections leaves the others alone."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks.md"
SECTIONS = page.sections(PAGE.read_text())
ROW = {
    "id": "x.y", "what": "a | b", "value": 12345.6, "unit": "events/s", "bound": 100.0, "holds": True,
    "command": "python -m tests.bench log",
}  # fmt: skip


def made_by(name: str) -> list[re.Pattern[str]]:
    """Patterns of the strings that a benchmark's source can make: its literals and f-strings."""
    tree = ast.parse((ROOT / f"tests/bench/bench_{name}.py").read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(v.value)) if isinstance(v, ast.Constant) else ".+" for v in node.values]
            found.append("".join(parts))
    return [re.compile(p) for p in found if re.match(r"[A-Za-z0-9]{2}", p)]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_of_a_benchmark_that_exists(name: str) -> None:
    assert name in bench.names()
    made = made_by(name)
    ids = re.findall(r"^\| `([^`]+)` \|", SECTIONS[name], re.M)
    assert ids
    assert len(set(ids)) == len(ids)
    for row_id in ids:
        assert any(p.fullmatch(row_id) for p in made), f"{row_id} is not made by bench_{name}.py"
    assert re.search(r"^Measured \d{4}-\d\d-\d\d: \d+ cores, .*Python 3\.\d+", SECTIONS[name], re.M)


def test_commands_of_the_page_run_what_exists() -> None:
    text = PAGE.read_text()
    assert text.startswith(page.INTRODUCTION)
    commands = re.findall(r"^    (\S.*)$", text, re.M) + re.findall(r"`(make [^`]*)`", text)
    assert commands
    for command in commands:
        words = command.split(" --write")[0].split()
        if words[0] == "make":
            assert words[1] == "bench"
            assert {w.removeprefix("BENCH=") for w in words[2:]} <= set(bench.names())
            continue
        words = [w for w in words if "=" not in w]  # variables before it
        module = words[words.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, command
        if module == "tests.bench":
            assert set(words[words.index("-m") + 2 :]) <= set(bench.names()), command


def test_some_sections_are_written_and_others_stay(tmp_path: Path) -> None:
    target = tmp_path / "docs/page.md"
    page.write(target, {"log": [ROW], "sql": [ROW]}, ["log", "sql"])
    first = page.sections(target.read_text())
    page.write(target, {"sql": [ROW | {"value": 7, "holds": False, "bound": None}]}, ["log", "sql"])
    second = page.sections(target.read_text())
    assert list(second) == ["log", "sql"]
    assert second["log"] == first["log"]
    assert "| `x.y` | a \\| b | 12,346 | events/s | 100 | yes |" in second["log"]
    assert "| `x.y` | a \\| b | 7 | events/s |  | **NO** |" in second["sql"]
    page.write(target, {}, ["log"])
    assert list(page.sections(target.read_text())) == ["log"]
    assert target.read_text().startswith(page.INTRODUCTION)


def test_an_unknown_benchmark_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["nothing"]) == 2
    assert "no benchmark nothing; there are" in capsys.readouterr().err
