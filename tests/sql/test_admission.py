"""Which paths are admitted: the articles' example, the order of roles, and draws in proportion."""

from __future__ import annotations

import pytest

from tests.support.recorder import Recorder, derive


def article() -> Recorder:
    """2 main leaves, 1 main-summary that shares the first main path's prefix, 3 sub-agents; one execution."""
    recorder = Recorder()
    recorder.dispatched("g", 1)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, n_context=10, n_output=5)  # tokens 0..15
    recorder.called("g", "g/0", 1, at=(0, 15), n_context=4, n_output=6)  # ..25, a main leaf
    recorder.called("g", "g/0", 2, at=(0, 15), n_context=3, n_output=7, role="main-summary")
    recorder.called("g", "g/0", 3, n_context=12, n_output=8)  # after the compaction: the other main leaf
    for call_id in (4, 5, 6):
        recorder.called("g", "g/0", call_id, n_context=6, n_output=call_id, role="sub-agent")
    recorder.finished("g", "g/0", 7)
    recorder.scored("g", "g/0", 1.0)
    return recorder


@pytest.mark.parametrize("seed", range(5))
def test_the_articles_example(seed):
    recorder = article()
    four = derive(recorder, "admitted", j_max=4, seed=seed)["admitted"].to_pylist()
    assert [r["role"] for r in four] == ["main", "main", "main-summary", "sub-agent"]
    three = derive(recorder, "admitted", j_max=3, seed=seed)["admitted"].to_pylist()
    assert three == four[:3]
    assert sorted(r["new_targets"] for r in three[:2]) == [8, 11]  # both main paths, whole
    assert three[2]["new_targets"] == 7  # the summary's own tokens; its prefix is owned by a main path
    every = derive(recorder, "admitted", j_max=0, seed=seed)["admitted"].to_pylist()
    assert [r["role"] for r in every] == ["main"] * 2 + ["main-summary"] + ["sub-agent"] * 3
    assert sum(r["new_targets"] for r in every) == 5 + 6 + 7 + 8 + 4 + 5 + 6


def test_a_later_path_has_the_prefix_of_an_earlier_one_as_context():
    segments = derive(article(), "segments", j_max=3)["segments"].to_pylist()
    summary = [r for r in segments if r["path"] == 3]
    assert [(r["call_id"], r["sampled"], r["target"]) for r in summary] == [
        (0, False, False),
        (0, True, False),
        (2, False, False),
        (2, True, True),
    ]


def test_an_auxiliary_call_neither_trains_nor_hides_what_it_continues():
    recorder = Recorder()
    recorder.dispatched("g", 1)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, n_context=2, n_output=4)
    recorder.called("g", "g/0", 1, at=(0, 6), n_context=1, n_output=9, role="auxiliary")
    recorder.called("g", "g/0", 2, n_context=1, n_output=9, role="auxiliary")
    recorder.finished("g", "g/0", 3)
    recorder.scored("g", "g/0", 1.0)
    (path,) = derive(recorder, "admitted", j_max=0)["admitted"].to_pylist()
    assert (path["role"], path["new_targets"], path["leaf"]) == ("main", 4, 2)


# --------------------------------------------------------------------------------- in proportion
LENGTHS = (10, 20, 30, 60)  # what each leaf holds alone; the first two share 40 more
SHARED = 40


def forest(executions: int) -> Recorder:
    recorder = Recorder()
    recorder.dispatched("g", executions)
    for i in range(executions):
        name = f"g/{i}"
        recorder.launched("g", name, i)
        recorder.called("g", name, 0, n_context=1, n_output=SHARED)
        for call_id, length in enumerate(LENGTHS, 1):
            at = (0, SHARED + 1) if call_id <= 2 else None
            recorder.called("g", name, call_id, at=at, n_context=1, n_output=length)
        recorder.finished("g", name, len(LENGTHS) + 1)
        recorder.scored("g", name, 1.0)
    return recorder


def chi_square(counts: dict[int, int], weights: dict[int, int]) -> float:
    n, total = sum(counts.values()), sum(weights.values())
    assert set(counts) <= set(weights)
    return sum((counts.get(k, 0) - n * w / total) ** 2 / (n * w / total) for k, w in weights.items())


def test_leaves_are_drawn_in_proportion_to_their_unmasked_targets():
    tables = forest(200).tables()
    first: dict[int, int] = {}
    second: dict[int, int] = {}  # where leaf 4 went first
    after_shared: dict[int, int] = {}  # where leaf 1 went first: leaf 2 has lost the shared tokens
    for seed in range(10):
        rows = derive(tables, "admitted", j_max=2, seed=seed)["admitted"].to_pylist()
        leaf = {(r["execution_id"], r["path"]): r["leaf"] >> 32 for r in rows}
        assert len(leaf) == 400
        for i in range(200):
            one, two = leaf[f"g/{i}", 1], leaf[f"g/{i}", 2]
            first[one] = first.get(one, 0) + 1
            if one == 4:
                second[two] = second.get(two, 0) + 1
            if one == 1:
                after_shared[two] = after_shared.get(two, 0) + 1
    # 0.9999 quantiles: 21.1 at 3 degrees of freedom, 18.4 at 2
    assert chi_square(first, {1: 50, 2: 60, 3: 30, 4: 60}) < 21.1
    assert chi_square(second, {1: 50, 2: 60, 3: 30}) < 18.4
    assert chi_square(after_shared, {2: 20, 3: 30, 4: 60}) < 18.4
    assert chi_square(first, {1: 50, 2: 50, 3: 50, 4: 50}) > 21.1  # the measure tells them apart
    assert chi_square(after_shared, {2: 60, 3: 30, 4: 60}) > 18.4
