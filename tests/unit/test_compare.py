"""The comparison: ours and the trie find the same tree; what is not installed is said, without a number."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.bench import __main__ as bench
from tests.bench import bench_compare, compare_builders, page, traces


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("traces")
    shape = dataclasses.replace(traces.SMALL, group_size=2)
    for name, execution in (("small", 0), ("000", 0), ("001", 1)):
        np.savez(place / f"{name}.npz", **vars(traces.raw_calls(execution, shape)))
    return place


def test_ours_and_the_trie_find_the_same_tree(folder):
    trie, matcher, headrace = (compare_builders.measure(n, folder) for n in bench_compare.OURS)
    assert trie["tree"] == matcher["tree"] == headrace["tree"]
    assert headrace["samples"] == matcher["samples"] >= trie["samples"] > 2
    assert matcher["tokens"] == headrace["tokens"] >= trie["tokens"]
    assert min(found["seconds"] for found in (trie, matcher, headrace)) > 0


@pytest.mark.parametrize(
    ("place", "why"), [("", "COMPARE_VENV names no environment"), ("/none", "/none/bin")]
)
def test_what_cannot_be_had_has_a_reason_and_no_number(monkeypatch, folder, capsys, place, why):
    monkeypatch.setenv("COMPARE_VENV", place)
    builders = {"trie": "a dict a token"} | bench_compare.FRAMEWORKS
    rows = bench_compare.compare(folder, 10_000, builders)
    missing = [row for row in rows if row["id"] in ("compare.skyrl", "compare.verifiers")]
    assert len(missing) == 2
    assert all(row["value"] is None and why in row["what"] for row in missing)
    assert "compare.skyrl" in page.section("compare", rows, "Measured.")
    bench.show(rows)
    assert "compare.verifiers" in capsys.readouterr().out
