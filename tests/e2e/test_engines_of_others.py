"""`headrace run` on engines that somebody else started: calls go to both, and so does every publication."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.config import override, read
from lake.engine_address import ENGINE_KEY
from lake.layout import Run
from schedulers.prepare import first_policy
from tests.support.command import check_whole, document
from tests.support.engines import embedded_engine
from trainer.publication.engine import Engine

pytestmark = pytest.mark.slow


def test_a_run_on_two_engines_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_KEY, "their-key")
    model = tmp_path / "policy"
    first_policy(Run(tmp_path), override(read("demo"), ["model.warmup_steps=20"]), print, model)
    asks = ("--api-key", "their-key")
    with embedded_engine(model, *asks) as one, embedded_engine(model, *asks) as two:
        settings = (
            *("steps=3", "group_size=4", f"model.weights={model}"),
            f"rollout.engines={one.url}#capacity=8, {two.url}",
        )
        said = [word for setting in settings for word in ("--set", setting)]
        document("run", "demo", "--run", "runs/demo", *said, folder=tmp_path)
        served = [Engine(e.url, 5.0).version() for e in (one, two)]
    assert served == ["3", "3"]
    check_whole(tmp_path, "runs/demo", steps=3)
    told = document(
        "sql", "runs/demo", "select engine, count(*) calls from calls group by engine order by engine",
        folder=tmp_path,
    )  # fmt: skip
    assert {row["engine"] for row in told} == {one.url, two.url}
    updates = document("report", "runs/demo", "policy-updates", folder=tmp_path)["rows"]
    assert [row["version"] for row in updates] == [0, 3]
    assert all(row["readback"] < 1e-3 for row in updates)
