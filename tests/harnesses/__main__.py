"""Run the clients and make the table.

Without names: all clients.  With --write the page is made of the run; clients that did not run keep their
rows.  With HEADRACE_SLOW_ENGINE_S=650 there are runs with an engine that is silent for so long.

    python -m tests.harnesses --write docs/harnesses.md
    HEADRACE_SLOW_ENGINE_S=650 python -m tests.harnesses codex claude-code --write docs/harnesses.md
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.harnesses.checking import check
from tests.harnesses.clients import NAMES, conform, load
from tests.harnesses.table import page


def main() -> None:
    """Exit status 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to make of the runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    done, bad = {}, 0
    for name in arguments.names or NAMES:
        began = time.monotonic()
        client = load(name)
        with tempfile.TemporaryDirectory(prefix="headrace-harness-") as folder:
            runs = asyncio.run(conform(client, Path(folder)))
            faults = [f"{run}: {fault}" for run, seen in runs.items() for fault in check(seen)]
        calls = sum(len(seen.turns) for seen in runs.values())
        print(f"{name}: {len(runs)} runs, {calls} calls, {time.monotonic() - began:.0f} s", flush=True)
        for fault in faults:
            print(f"  {fault}", flush=True)
        bad += len(faults)
        done[name] = (client, runs)
    if arguments.write:
        before = arguments.write.read_text() if arguments.write.is_file() else ""
        arguments.write.write_text(page(done, before))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
