"""Reports about what engines were given and what they told: publications, routed experts; by hand."""

from __future__ import annotations

from lake import events as ev
from tests.support.recorder import Recorder, rows


def spans(*parts: tuple[int | None, int, int]) -> tuple[ev.VersionSpan, ...]:
    return tuple(ev.VersionSpan(*p) for p in parts)


def published(recorder: Recorder, version: int, **more: object) -> None:
    recorder.put(
        ev.PolicyPublished, policy_version=version, boundary=version // 2, weights="w", digest="d", **more
    )


def test_a_publication_has_its_way_its_time_and_the_calls_that_ran_over_it() -> None:
    recorder = Recorder()
    published(recorder, 0)
    published(recorder, 2, transport="disk", took_us=1_500_000, readback=0.0)
    published(recorder, 4, transport="group", took_us=250_000, readback=0.0078125)
    published(recorder, 6, transport="group", took_us=1)
    recorder.called("g", "e", 0, spans=spans((0, 0, 3)))
    recorder.called("g", "e", 1, spans=spans((0, 0, 1), (2, 1, 2), (4, 2, 3)))
    recorder.called("g", "f", 1, spans=spans((2, 0, 1), (4, 1, 3)))
    recorder.called("g", "f", 2, spans=spans((4, 0, 3)))
    recorder.called("g", "f", 3, spans=spans((None, 0, 1), (4, 1, 3)))
    recorder.called("g", "f", 4)
    found = [tuple(row.values()) for row in rows(recorder, "policy_updates")]
    assert found == [
        (0, 0, None, None, None, 2, 0),
        (2, 1, "disk", 1.5, 0.0, 2, 1),
        (4, 2, "group", 0.25, 0.0078125, 4, 2),
        (6, 3, "group", 1e-6, None, 0, 0),
    ]


def test_experts_are_counted_by_version_with_what_they_take() -> None:
    recorder = Recorder()
    kept = {"experts": f"{'ab' * 32}:400", "spans": spans((1, 0, 3))}
    recorder.called("g", "e", 0, n_context=5, **kept)
    recorder.called("g", "e", 1, at=(0, 8), n_context=9, **kept)
    recorder.called("g", "e", 2, at=(1, 20), spans=spans((0, 0, 1), (1, 1, 3)))
    recorder.called("g", "e", 3, role="auxiliary", spans=spans((1, 0, 3)))
    recorder.called("g", "e", 4)
    assert rows(recorder, "experts") == [
        {
            "version": 1, "calls": 4, "with_experts": 2, "without": 1, "auxiliary": 1,
            "tokens": 20, "bytes": 800, "bytes_per_token": 40.0,
        },
        {
            "version": None, "calls": 1, "with_experts": 0, "without": 1, "auxiliary": 0,
            "tokens": 0, "bytes": 0, "bytes_per_token": None,
        },
    ]  # fmt: skip
