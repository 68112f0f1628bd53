"""Which paths are admitted: the order of roles, and draws in proportion."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from tests.support.recorder import Recorder, derive


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


def chance(counts: dict[int, int], weights: dict[int, int]) -> float:
    """The probability of counts that are as far from these proportions by chance (upper tail, exact).

    Of a chi-square distribution with 2 degrees of freedom it is exp(-x / 2), with 3
    erfc(sqrt(x / 2)) + sqrt(2 x / pi) exp(-x / 2).
    """
    n, total = sum(counts.values()), sum(weights.values())
    assert set(counts) <= set(weights)
    x = sum((counts.get(k, 0) - n * w / total) ** 2 / (n * w / total) for k, w in weights.items())
    if len(weights) == 3:
        return math.exp(-x / 2)
    assert len(weights) == 4
    return math.erfc(math.sqrt(x / 2)) + math.sqrt(2 * x / math.pi) * math.exp(-x / 2)


LEAST = 1e-3
"""Draws are a hash of fixed seeds: a test of them holds always or never."""


def test_leaves_are_drawn_in_proportion_to_their_unmasked_targets() -> None:
    tables = forest(200).tables()
    first: Counter[int] = Counter()
    second: dict[int, Counter[int]] = {leaf: Counter() for leaf in range(1, 5)}  # after that leaf
    for seed in range(20):
        rows = derive(tables, "admitted", j_max=2, seed=seed)["admitted"].to_pylist()
        leaf = {(r["execution_id"], r["path"]): r["leaf"] >> 32 for r in rows}
        assert len(leaf) == 400
        for i in range(200):
            one, two = leaf[f"g/{i}", 1], leaf[f"g/{i}", 2]
            first[one] += 1
            second[one][two] += 1
    assert chance(first, {1: 50, 2: 60, 3: 30, 4: 60}) > LEAST
    assert chance(second[4], {1: 50, 2: 60, 3: 30}) > LEAST
    assert chance(second[1], {2: 20, 3: 30, 4: 60}) > LEAST  # leaf 2 has lost the shared tokens
    assert chance(second[2], {1: 10, 3: 30, 4: 60}) > LEAST
    assert chance(second[3], {1: 50, 2: 60, 4: 60}) > LEAST
    # the measure tells them apart
    assert chance(first, {1: 50, 2: 50, 3: 50, 4: 50}) < 1e-9
    assert chance(second[1], {2: 60, 3: 30, 4: 60}) < 1e-9


def test_draws_of_two_seeds_two_rounds_and_two_executions_are_independent() -> None:
    """A second draw with another seed says nothing of the first: counts of pairs are products."""
    tables = forest(400).tables()
    leaves = [
        {
            r["execution_id"]: r["leaf"] >> 32
            for r in derive(tables, "admitted", j_max=1, seed=s)["admitted"].to_pylist()
        }
        for s in range(8)
    ]
    weights = {1: 50, 2: 60, 3: 30, 4: 60}
    for given in weights:
        after = Counter(
            b[name] for a, b in itertools.pairwise(leaves) for name, leaf in a.items() if leaf == given
        )
        assert chance(after, weights) > LEAST
