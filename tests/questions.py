"""The page of questions: each with its command, a real answer, and what to do with it.

python -m tests.questions runs/demo --write docs/questions.md        from a finished demo run

The texts are those of the SQL files' headers (lake.questions), the answers those of the command.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from click.testing import CliRunner

import headrace
from lake.models import Models
from lake.questions import Question, questions

ROWS, COLUMNS = 5, 110
EXAMPLES = {  # where the first rows are not the telling ones
    "lineage": ("--where", "execution_id = 'g-000000.0' and call_id = 3"),
    "longest_execution": ("--by", "share"),
    "mismatch_distribution": ("--where", "up_to = 0.02"),
    "staleness": ("--by", "d"),
    "throughput": ("--where", "calls > 0"),
    "time_to_ready": ("--where", "total_s > 10", "--by", "total_s"),
}
INTRODUCTION = """\
# Questions

What users ask of a run, each answered by one command, and by one SQL file of the same name under
`sql/reports/`. Written by a command from a finished demo run; nothing here is typed by hand:

    .venv/bin/python -m tests.questions runs/demo --write docs/questions.md

- `headrace report --list` shows all questions with a line each.
- `--where` takes any expression of SQL over the columns, `--by` a column whose largest come first, `--limit`
  a number of rows; `--as-of 15m` asks the lake as it stood, `--set` another derived set, and `--json` prints
  one document for machines.
- The same tables are there in SQL, `headrace sql runs/demo "from staleness_by_step"`, and in Python,
  `headrace.open("runs/demo").report("staleness-by-step")`.
- What is unknown is empty (null) and counted, never a number. Where there is no row the answer says why;
  every question can be asked of a lake of imported calls too.
- Durations are in seconds (`_s`) or milliseconds (`_ms`); "now" is the last event of the lake.

| question | |
|---|---|
"""


def arguments(asked: Question) -> list[str]:
    """What stands after `headrace report RUN` for this question's example."""
    return [asked.typed, *EXAMPLES.get(asked.name, ()), "--limit", str(ROWS)]


def answer(run: str, asked: Question) -> str:
    """What the command prints, without the texts that stand beside it on the page.

    Raises RuntimeError where the command fails.
    """
    done = CliRunner().invoke(headrace.cli, ["report", run, *arguments(asked)])
    if done.exit_code:
        raise RuntimeError(f"headrace report {run} {asked.typed}: {done.exception or done.output}")
    lines = [line.rstrip() for line in done.stdout.splitlines()[1:]]
    ends = [i for i, line in enumerate(lines) if asked.row.startswith(line) and len(line) > len("One row")]
    return "\n".join(lines[: ends[0]] if ends else lines).strip("\n")


def section(run: str, asked: Question) -> str:
    """One question of the page."""
    words = [f'"{word}"' if " " in word else word for word in arguments(asked)]
    said = f"```console\n$ headrace report runs/demo {' '.join(words)}\n{answer(run, asked)}\n```"
    before, after = f"**{asked.question}** {asked.row}", f"Then: {asked.then}"
    return f"## {asked.typed}\n\n{wrapped(before)}\n\n{said}\n\n{wrapped(after)}\n"


def wrapped(text: str) -> str:
    """A paragraph of the page."""
    return textwrap.fill(text, COLUMNS, break_on_hyphens=False)


def page(run: str) -> str:
    """The whole page, of a finished run."""
    asked = questions(Models.load())
    contents = "".join(f"| [{q.typed}](#{q.typed}) | {q.question} |\n" for q in asked)
    return "\n".join([INTRODUCTION + contents, *(section(run, q) for q in asked)])


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.questions", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="a finished demo run")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page there (default: print it)")
    asked = parser.parse_args(given)
    text = page(asked.run)
    if asked.write:
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
