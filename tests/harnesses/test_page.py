"""docs/harnesses.md is of the clients and versions that are run, and its command lines are well formed."""

from __future__ import annotations

import re

import pytest

from ingest.rollouts.command_line import HARNESS_NAMES, CommandLine
from tests.harnesses.clients import NAMES, load
from tests.harnesses.install import PACKAGES, ROOT
from tests.harnesses.table import MARKER, page

PAGE = (ROOT / "docs/harnesses.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_every_client_in_its_version(name):
    assert PAGE.count(f"| {name} {PACKAGES[name].version} |") == 3
    client = load(name)
    if client.rollout:
        assert f"### {name}\n\n```\n{client.rollout}\n```\n" in PAGE
        assert CommandLine.parse(client.rollout, HARNESS_NAMES, "rollout").uses("prompt")
    for path, text in client.home.items():
        assert f"`{path}`:\n\n```\n{text.rstrip()}\n```" in PAGE


def test_the_ten_minutes_are_measured():
    rows = [r for r in PAGE.splitlines() if re.match(r"\| (codex|claude-code) ", r)]
    assert sum(bool(re.search(r"1 request, 1 answer in 6\d\d s, exit status 0 \|$", r)) for r in rows) == 2


def test_a_page_of_runs_that_had_nothing_to_show():
    """A client whose runs have none of the lines: columns stay empty, nothing fails."""
    client = load("pi")
    text = page({"pi": (client, {})})
    assert "| pi " in text
    assert MARKER.decode() not in text
