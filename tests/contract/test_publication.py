"""What a publication must do, on the embedded engine and on SGLang alike: tests/contract/conftest.py.

SGLang's part of a process group is its own code; here are the trainer's half, and the embedded engine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.contract_engine import own as of_embedded
from tests.support.engines import embedded_engine, free_port
from tests.support.publishing import BUCKET_BYTES, Stage, long_call
from tests.support.random_model import make_tiny_model
from trainer.publication import PublishError
from trainer.publication.disk import Disk
from trainer.publication.engine import Engine
from trainer.publication.folder import Folder
from trainer.publication.group import Group
from trainer.publication.store import fetch

TOLERANCE = {"embedded": 1e-3, "sglang": 0.1}
LARGEST = {
    "embedded": 1e-3,
    "sglang": 0.5,
}  # of one token, which may be an unlikely one; others are apart by 5


@pytest.fixture
def stage(engine, tmp_path) -> Iterator[Stage]:
    """Leaves the engine as it found it."""
    stage = Stage(tmp_path / "run", (engine.model, engine.model_2), [engine.url])
    shutil.copytree(engine.model, stage.run.weights(stage.start))
    yield stage
    stage.put_back(engine.model)
    stage.close()


def untouched(stage: Stage, before: dict[str, str], version: str) -> None:
    """The engine serves what it did, and computes."""
    engine = stage.engines[0]
    assert engine.checksums() == before
    assert engine.version() == version
    assert not engine.paused()
    assert not (stage.run.path / "publishing.json").exists()
    assert stage.published() == []


@pytest.mark.parametrize("pause", ["retract", "in_place"])
@pytest.mark.parametrize("transport", ["disk", "group"])
def test_three_publications_show_in_the_spans_of_a_call(engine, stage, transport, pause):
    publisher = stage.publisher(transport, pause=pause, tolerance=TOLERANCE[engine.kind])

    def check(version: int) -> None:
        assert stage.engines[0].version() == str(version)
        assert not stage.engines[0].paused()

    versions, answer = stage.publish_in_flight(publisher, check)
    meta = answer["meta_info"]
    spans = [(s["version"], s["start"], s["end"]) for s in meta["weight_versions"]]
    assert [v for v, _, _ in spans] == [str(v) for v in versions]
    assert [a for _, a, _ in spans] == [0, *(b for _, _, b in spans[:-1])]
    assert spans[-1][2] == len(answer["output_ids"]) == len(meta["output_token_logprobs"])
    events = stage.published()
    assert [e.policy_version for e in events] == list(range(stage.start + 1, versions[-1] + 1))
    assert [e.digest for e in events] == [Folder(stage.weights(e.policy_version)).digest() for e in events]
    for event in events:
        assert event.transport == transport
        assert event.took_us > 0
        assert 0 <= event.readback <= LARGEST[engine.kind]


def test_publishing_a_version_twice_changes_nothing(stage):
    publisher, version = stage.publisher(), stage.start + 1
    with long_call(stage.engines[0]) as answer:
        stage.publish(publisher, version)
        sums = stage.engines[0].checksums()
        stage.publish(publisher, version)
        assert stage.engines[0].checksums() == sums
    assert len(answer["meta_info"]["weight_versions"]) == 2


class Forgetful(Group):
    """Leaves one bucket out."""

    def send(self, engine, weights, version, *, flush):
        class Less(Folder):
            def buckets(self, size_max, dtype):
                return (b for i, b in enumerate(super().buckets(size_max, dtype)) if i != 2)

        super().send(engine, Less(weights.path), version, flush=flush)


class Stale(Disk):
    """Loads what is served already, under the new name."""

    def __init__(self, old: Path) -> None:
        self._old = old

    def send(self, engine, weights, version, *, flush):
        super().send(engine, Folder(self._old), version, flush=flush)


@pytest.mark.parametrize("fault", ["a bucket is left out", "the old version is served"])
def test_what_did_not_follow_is_noticed_and_taken_back(stage, fault):
    before, version = stage.engines[0].checksums(), stage.engines[0].version()
    old = stage.run.weights(stage.start)
    own = Forgetful(60.0, BUCKET_BYTES) if fault == "a bucket is left out" else Stale(old)
    with (
        pytest.raises(
            PublishError, match=rf"tensors kept their old values, 0 .*serves version {version} again"
        ),
        long_call(stage.engines[0]) as answer,
    ):
        stage.publish(stage.publisher(own=own), stage.start + 1)
    untouched(stage, before, version)
    stage.publish(stage.publisher(), stage.start + 1)
    assert stage.engines[0].version() == str(stage.start + 1)
    assert answer == {} or answer["meta_info"]


def test_the_smallest_difference_is_noticed(stage):
    """Versions that differ in one tensor by what no log-probability shows."""
    version = stage.start + 1
    folder = stage.weights(version)
    tensors = load_file(stage.run.weights(stage.start) / "model.safetensors")
    name = "model.layers.1.input_layernorm.weight"
    tensors[name][3] *= 1.01
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    before, served = stage.engines[0].checksums(), stage.engines[0].version()
    with pytest.raises(PublishError, match=f"1 of 1 tensors kept their old values.*{name}"):
        stage.publish(stage.publisher(own=Stale(stage.run.weights(stage.start))), version)
    untouched(stage, before, served)
    stage.publish(stage.publisher(), version)


class Wrong(Disk):
    """Every tensor changes, into other values than the trainer's; checksums are of no help (as on a GPU)."""

    def __init__(self, monkeypatch) -> None:
        monkeypatch.setattr(Engine, "checksums", lambda _: {})

    def send(self, engine, weights, version, *, flush):
        wrong = weights.path.parent / f"wrong-{version}"
        shutil.copytree(weights.path, wrong, dirs_exist_ok=True)
        draw = torch.Generator().manual_seed(version)
        tensors = {n: t * (1 + torch.rand(t.shape, generator=draw)) for n, t in weights.items()}
        save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
        super().send(engine, Folder(wrong), version, flush=flush)


def test_wrong_values_are_noticed_by_log_probabilities_and_taken_back(stage, monkeypatch):
    before, version = stage.engines[0].checksums(), stage.engines[0].version()
    with monkeypatch.context() as patch:
        publisher = stage.publisher(own=Wrong(patch))
        with pytest.raises(PublishError, match=r"away from the trainer.*tolerance is 0\.1;.* again"):
            stage.publish(publisher, stage.start + 1)
    untouched(stage, before, version)
    stage.publish(stage.publisher(), stage.start + 1)


@pytest.mark.parametrize("fault", ["wrong digest", "no file", "torn file", "other shape"])
@pytest.mark.parametrize("transport", ["disk", "group"])
def test_no_engine_is_told_of_a_folder_that_is_not_sound(stage, transport, fault):
    """Told of a torn file SGLang 0.5.23 dies."""
    before, version = stage.engines[0].checksums(), stage.engines[0].version()
    folder = stage.weights(stage.start + 1)
    digest, file = Folder(folder).digest(), folder / "model.safetensors"
    if fault == "wrong digest":
        digest = "0" * 64
    elif fault == "no file":
        file.unlink()
    elif fault == "torn file":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        make_tiny_model(folder, layers=1)
        digest = Folder(folder).digest()
    with pytest.raises(PublishError, match=r"no engine was told|none was told"):
        stage.publish(stage.publisher(transport), stage.start + 1, digest=digest)
    untouched(stage, before, version)


@pytest.mark.parametrize("transport", ["disk", "group"])
def test_an_engine_that_somebody_else_paused_stays_paused(stage, transport):
    engine = stage.engines[0]
    engine.pause("retract")
    stage.publish(stage.publisher(transport), stage.start + 1)
    assert engine.paused()
    assert engine.version() == str(stage.start + 1)
    assert [e.readback for e in stage.published()] == [None]
    engine.resume()
    stage.publish(stage.publisher(transport), stage.start + 2)
    assert stage.published()[-1].readback <= 0.5


def test_a_trainer_that_was_killed_in_the_middle_is_taken_over_from(stage):
    """Paused, an update begun, a part of it sent: so `kill -9` leaves an engine."""
    engine = stage.engines[0]
    engine.pause("retract")
    engine.post("/begin_weight_update", {"selector": "target"})
    (stage.run.path / "publishing.json").write_text(
        json.dumps({"paused": [engine.url], "torn": [engine.url]})
    )
    publisher = stage.publisher()
    stage.publish(publisher, stage.start + 1)
    assert not engine.paused()
    stage.publish(publisher, stage.start + 2)
    assert [e.policy_version for e in stage.published()] == [stage.start + 1, stage.start + 2]
    assert not (stage.run.path / "publishing.json").exists()


def test_what_cannot_be_taken_back_stays_paused_and_is_loaded_whole_next(stage):
    old, engine = stage.run.weights(stage.start), stage.engines[0]

    class Breaking(Forgetful):
        def send(self, engine, weights, version, *, flush):
            super().send(engine, weights, version, flush=flush)
            shutil.rmtree(old)
            os.symlink("/dev/null", old)

    publisher = stage.publisher(own=Breaking(60.0, BUCKET_BYTES))
    engine.load(old, str(stage.start), flush=True)  # its own label, so that this folder is the way back
    with pytest.raises(PublishError, match="nobody knows what it holds: it stays paused"):
        stage.publish(publisher, stage.start + 1)
    assert engine.paused()
    old.unlink()
    stage.publish(stage.publisher(), stage.start + 1)
    assert not engine.paused()
    assert engine.version() == str(stage.start + 1)


# --------------------------------------------------------------------------- processes of their own
class Killing(Group):
    """Kills a process after some buckets."""

    def __init__(self, pid: int, url: str) -> None:
        super().__init__(60.0, BUCKET_BYTES)
        self._left, self._pid, self._url = 2, pid, url

    def _bucket(self, engine, joined, bucket, more):
        super()._bucket(engine, joined, bucket, more)
        if engine.url == self._url:
            self._left -= 1
            if not self._left:
                os.kill(self._pid, signal.SIGKILL)


def start(model: Path, port: int, version: int = 0):
    options = ["--context-tokens", "2048", "--concurrent-calls", "4", "--weight-version", str(version)]
    return embedded_engine(model, *options, port=port)


@pytest.fixture
def models(tmp_path):
    return [make_tiny_model(tmp_path / f"m{s}", seed=s, sharpness=4.0) for s in (0, 1)]


def test_an_engine_that_dies_half_way_takes_nobody_with_it(models, tmp_path):
    ports = [free_port(), free_port()]
    with start(models[0], ports[0]) as first:
        with start(models[0], ports[1]) as second:
            stage = Stage(tmp_path / "run", models, [first.url, second.url])
            stage.weights(0)
            before = stage.engines[0].checksums()
            publisher = stage.publisher(own=Killing(second.pid, second.url))
            words = (
                rf"{second.url}.*{first.url} serves version 0 again; engine {second.url} is not to be used"
            )
            with pytest.raises(PublishError, match=words), long_call(stage.engines[0]) as answer:
                stage.publish(publisher, 1)
            assert stage.engines[0].checksums() == before
            assert stage.engines[0].version() == "0"
            assert not stage.engines[0].paused()
            assert stage.published() == []
            assert answer == {} or answer["meta_info"]["weight_versions"][-1]["version"] == "0"
        with start(models[0], ports[1]):
            stage.publish(publisher, 1)
            stage.publish(publisher, 2)
            assert [e.version() for e in stage.engines] == ["2", "2"]
            assert stage.engines[0].checksums() == stage.engines[1].checksums()
            assert [e.policy_version for e in stage.published()] == [1, 2]
            stage.close()


def test_an_engine_that_was_started_anew_joins_anew(models, tmp_path):
    port = free_port()
    with start(models[0], port) as running:
        stage = Stage(tmp_path / "run", models, [running.url])
        stage.weights(0)
        publisher = stage.publisher()
        stage.publish(publisher, 1)
    with start(models[1], port, version=1):
        stage.publish(publisher, 2)
        assert stage.engines[0].version() == "2"
    stage.close()


def test_an_engine_that_never_comes_back_is_named(tmp_path, models, monkeypatch):
    monkeypatch.setattr("trainer.publication.engine.TRIES_S_MAX", 0.1)
    with start(models[0], free_port()) as running:
        stage = Stage(tmp_path / "run", models, [running.url])
    with pytest.raises(PublishError, match=rf"{running.url}/model_info does not answer.*for 0\.1 s"):
        stage.publish(stage.publisher(), 1)
    assert stage.published() == []
    stage.close()


@of_embedded
def test_a_version_goes_to_the_store_as_well(stage, tmp_path):
    version = stage.start + 1
    stage.publish(stage.publisher("disk", store=str(tmp_path / "store")), version)
    found = fetch(str(tmp_path / "store"), version, tmp_path / "here")
    assert found.digest == Folder(tmp_path / "here").digest() == stage.published()[0].digest


@of_embedded
def test_an_engine_that_mooncake_cannot_write_into_is_refused_by_name(stage):
    before, version = stage.engines[0].checksums(), stage.engines[0].version()
    with pytest.raises(PublishError, match=r"does not say where its tensors lie|package does not load"):
        stage.publish(stage.publisher("mooncake"), stage.start + 1)
    untouched(stage, before, version)


@of_embedded
def test_what_no_group_can_bring_is_refused_by_name(engine):
    e = Engine(engine.url, 30.0)
    for path, body, words in (
        ("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}, "must run between"),
        ("/end_weight_update", {}, "no weight-update session"),
        ("/destroy_weights_update_group", {"group_name": "none"}, "no group 'none'"),
        ("/weights_checker", {"action": "snapshot"}, "checksum only"),
        ("/init_weights_update_group", {"master_port": 1}, "master_address"),
    ):
        with pytest.raises(PublishError, match=words):
            e.post(path, body)
    e.post("/begin_weight_update", {})
    with pytest.raises(PublishError, match="already open"):
        e.post("/begin_weight_update", {})
    bucket = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[3]]}
    with pytest.raises(PublishError, match=r"shape \(3,\)"):
        e.post("/update_weights_from_distributed", bucket)
    e.post("/end_weight_update")
