"""The examples of the articles about QwenGyre: admission of one branched execution, a trace of its shape."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.recorder import Recorder, derive
from tests.support.reference import number, read

G, X = "g", "g/0"


def example() -> Recorder:
    """2 main leaves, 1 main-summary that shares the first main path's prefix, 3 sub-agents; one execution."""
    recorder = Recorder()
    recorder.dispatched(G, 1)
    recorder.launched(G, X, 0)
    recorder.called(G, X, 0, n_context=10, n_output=5)  # tokens 0..15
    recorder.called(G, X, 1, at=(0, 15), n_context=4, n_output=6)  # ..25, a main leaf
    recorder.called(G, X, 2, at=(0, 15), n_context=3, n_output=7, role="main-summary")
    recorder.called(G, X, 3, n_context=12, n_output=8)  # after the compaction: the other main leaf
    for call_id in (4, 5, 6):
        recorder.called(G, X, call_id, n_context=6, n_output=call_id, role="sub-agent")
    recorder.finished(G, X, 7)
    recorder.scored(G, X, 1.0)
    return recorder


@pytest.mark.parametrize("seed", range(5))
def test_the_articles_example(seed: int) -> None:
    recorder = example()
    four = derive(recorder, "admitted", j_max=4, seed=seed)["admitted"].to_pylist()
    assert [r["role"] for r in four] == ["main", "main", "main-summary", "sub-agent"]
    three = derive(recorder, "admitted", j_max=3, seed=seed)["admitted"].to_pylist()
    assert three == four[:3]
    assert sorted(r["new_targets"] for r in three[:2]) == [8, 11]  # both main paths, whole
    assert three[2]["new_targets"] == 7  # the summary's own tokens; its prefix is owned by a main path
    every = derive(recorder, "admitted", j_max=0, seed=seed)["admitted"].to_pylist()
    assert [r["role"] for r in every] == ["main"] * 2 + ["main-summary"] + ["sub-agent"] * 3
    assert sum(r["new_targets"] for r in every) == 5 + 6 + 7 + 8 + 4 + 5 + 6


def test_a_later_path_has_the_prefix_of_an_earlier_one_as_context() -> None:
    segments = derive(example(), "segments", j_max=3)["segments"].to_pylist()
    summary = [r for r in segments if r["path"] == 3]
    assert [(r["call_id"], r["sampled"], r["target"]) for r in summary] == [
        (0, False, False),
        (0, True, False),
        (2, False, False),
        (2, True, True),
    ]


# ------------------------------------------------------------------------ a trace of the paper's shape
REQUESTS, NODES, PATHS, OCCURRENCES = 636, 1347, 10, 1716
PROBES = NODES - 2 * REQUESTS  # 75
SHARED = OCCURRENCES - (2 * (REQUESTS - PROBES) + PROBES)  # 519 nodes lie on two paths
FIRST = (SHARED - PROBES) // 2  # calls of the first main path before the summary leaves it: 222
SUMMARY, LAST, SECOND = 1, 18, 160  # calls: the summary, the rest of the first path, the second one


def trace() -> Recorder:
    """One execution of 636 requests, 1,347 nodes, 10 paths and 1,716 occurrences of nodes on them.

    A node of ours is a range of one request (its context, or its output), where the paper counts messages:
    636 requests have 1,272 of them.  The other 75 come of probes (auxiliary calls: titles and the like), each
    of which leaves the first main path within an output of a call of its own, which is cut in two there.  A
    probe's own nodes are on no path; so 561 requests with 1,122 + 75 nodes lie on the ten paths, and 519 of
    these nodes on two of them: what the main-summary shares with the first main path.  There are two main
    leaves (the first conversation goes on after the summary was asked for; the second begins with it) and
    seven sub-agents, of random lengths from a fixed seed.
    """
    rng = random.Random(REQUESTS)
    recorder = Recorder()
    recorder.dispatched(G, 1)
    recorder.launched(G, X, 0)
    calls = 0

    def chain(length: int, role: str, at: tuple[int, int] | None = None, probed: int = 0) -> tuple[int, int]:
        """`length` calls, each going on with the one before, the first `probed` probed; where it ends."""
        nonlocal calls
        for place in range(length):
            context, output = rng.randint(1, 4), rng.randint(2, 5)
            recorder.called(G, X, calls, at=at, n_context=context, n_output=output, role=role)
            end = (at[1] if at else 0) + context + output
            mine, at = calls, (calls, end)
            calls += 1
            if place < probed:
                recorder.called(G, X, calls, at=(mine, end - 1), n_context=1, n_output=2, role="auxiliary")
                calls += 1
        assert at is not None
        return at

    trunk = chain(FIRST, "main", probed=PROBES)
    chain(SUMMARY, "main-summary", trunk)
    chain(LAST, "main", trunk)
    chain(SECOND, "main")
    left = REQUESTS - calls
    cuts = sorted(rng.sample(range(1, left), 6))
    for length in (b - a for a, b in zip([0, *cuts], [*cuts, left], strict=True)):
        chain(length, "sub-agent")
    recorder.finished(G, X, calls)
    recorder.scored(G, X, 1.0)
    return recorder


def test_a_trace_of_the_papers_shape() -> None:
    recorder = trace()
    outputs = ("calls", "nodes", "leaves", "admitted", "segments", "weights")
    derived = derive(recorder, *outputs, j_max=0)
    assert derived["calls"].num_rows == REQUESTS
    assert derived["nodes"].num_rows == NODES
    assert derived["leaves"].num_rows == derived["admitted"].num_rows == PATHS
    assert derived["segments"].num_rows == OCCURRENCES
    segments = derived["segments"].to_pylist()
    on_paths = Counter(row["node"] for row in segments)
    assert Counter(on_paths.values()) == {1: len(on_paths) - SHARED, 2: SHARED}
    owners = Counter(row["node"] for row in segments if row["target"])
    sampled = {row["node"] for row in segments if row["sampled"]}
    assert owners == dict.fromkeys(sampled, 1)  # a naive pipeline would train 297 outputs twice
    (weight,) = derived["weights"].to_pylist()
    assert weight["n_targets"] == sum(row["length"] for row in segments if row["target"])
    roles = [row["role"] for row in derived["admitted"].to_pylist()]
    assert roles == ["main"] * 2 + ["main-summary"] + ["sub-agent"] * 7


@pytest.mark.parametrize("j_max", [3, 4])
def test_the_cap_on_that_trace(j_max: int) -> None:
    """Both main paths, the summary, and with 4 one sub-agent; the summary brings only its own tokens."""
    recorder = trace()
    derived = derive(recorder, "admitted", "segments", j_max=j_max)
    admitted = derived["admitted"].to_pylist()
    assert [r["role"] for r in admitted] == ["main", "main", "main-summary", "sub-agent"][:j_max]
    (execution,) = read(recorder)
    own = [t for t in execution.tokens if execution.calls[t[0]].role == "main-summary"]
    assert admitted[2]["new_targets"] == sum(execution.sampled(t) for t in own)
    wanted = execution.admit(0, j_max)
    assert [(r["leaf"], r["new_targets"]) for r in admitted] == [
        (number(leaf), len(new)) for leaf, new, _ in wanted
    ]
