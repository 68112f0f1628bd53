"""python -m ingest.courier: tasks as JSON lines, and the files that the first policy is made from."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ingest.courier", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tasks = commands.add_parser("tasks", aliases=["task"], help="print tasks, one a line")
    tasks.add_argument("--seed", type=int, required=True)
    tasks.add_argument("--number", type=int, default=0, help="the first task (default 0)")
    tasks.add_argument("--count", type=int, default=1, help="how many (default 1)")
    prepare = commands.add_parser("prepare", help="write the tokenizer and demonstrations for the warm-up")
    prepare.add_argument("--folder", type=Path, required=True)
    prepare.add_argument("--seed", type=int, required=True)
    prepare.add_argument("--executions", type=int, default=800, help="demonstrations (default 800)")
    prepare.add_argument("--per-batch", type=int, default=2, help="executions a warm-up step (default 2)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.command in ("tasks", "task"):
        if given.number < 0 or given.count < 1:
            print(f"--number {given.number} --count {given.count}: at least 0 and 1", file=sys.stderr)
            return 2
        from ingest.courier.task import make_task

        for number in range(given.number, given.number + given.count):
            print(make_task(given.seed, number))
        return 0
    from ingest.courier.demonstrations import write_demonstrations
    from ingest.courier.tokenizer import save

    save(given.folder)
    try:
        mean = write_demonstrations(given.folder, given.seed, given.executions, given.per_batch)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"folder": str(given.folder), "executions": given.executions, "mean_score": mean}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
