"""`headrace engines`: a proxy with two engines, which a person takes away and brings back."""

from __future__ import annotations

import pytest

from tests.integration.test_outside import proxy_alone, scripted_engine
from tests.support.command import document, headrace, refused


def states(told):
    return [engine["state"] for engine in told["engines"]]


@pytest.mark.slow
def test_engines_leave_and_come_back(tmp_path) -> None:
    with scripted_engine(tmp_path / "0") as one, scripted_engine(tmp_path / "1") as two:
        arguments = ["--engine", f"{one}#capacity=3", "--model", str(tmp_path / "0" / "model")]
        with proxy_alone(tmp_path, *arguments):

            def engines(*words):
                return document("engines", "runs/mine", *words, folder=tmp_path)

            (only,) = engines()["engines"]
            assert (only["engine"], only["state"], only["capacity"]) == (one, "ready", 3)
            assert states(engines("--add", two)) == ["ready", "ready"]
            drained = engines("--drain", one, "--to", two, "--finish-s", "1")
            assert (drained["finished"], drained["moved"], drained["left"]) == (0, 0, 0)
            assert states(engines()) == ["leaving", "ready"]
            assert states(engines("--undrain", one)) == ["ready", "ready"]
            engines("--remove", one)
            said = headrace("engines", "runs/mine", folder=tmp_path).stdout
            assert two in said
            assert one not in said
            run = str(tmp_path / "runs" / "mine")
            for words, why in [
                (("--remove", two), "the only engine"),
                (("--add", two, "--drain", two), "one change at a time"),
                (("--add", two, "--to", two), "are for --drain and --remove"),
            ]:
                status, said = refused("engines", run, *words)
                assert (status, why in said) == (2, True), said
        away = headrace("engines", "runs/mine", folder=tmp_path, status=1)
        assert "see that the run's proxy is up" in away.stderr
