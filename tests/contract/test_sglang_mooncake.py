"""Weights written by Mooncake's Transfer Engine into a real SGLang, over TCP.

The server must have registered its tensors: started with MOONCAKE_PROTOCOL=tcp in its environment and
`--remote-instance-weight-loader-start-seed-via-transfer-engine`, on a CPU with one edit: SGLang 0.5.23 asks
CUDA alone where tensors lie (`register_memory_region` of srt/model_loader takes its version 1 then).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.publishing import Stage
from trainer.publication import PublishError
from trainer.publication.engine import Engine, EngineRefused
from trainer.publication.mooncake import Mooncake

pytestmark = pytest.mark.sglang


@pytest.fixture
def stage(sglang_server, tmp_path) -> Iterator[Stage]:
    """Leaves the engine as it found it."""
    engine = Engine(sglang_server.url, 60.0)
    try:
        engine.get("/get_remote_instance_transfer_engine_info?rank=0")
    except EngineRefused:
        assert sglang_server.environment is None, "our own server has a Transfer Engine"
        pytest.skip("this server was started without a Transfer Engine")
    models = (sglang_server.model, sglang_server.model_2)
    stage = Stage(tmp_path / "run", models, [sglang_server.url])
    shutil.copytree(sglang_server.model, stage.run.weights(stage.start))
    yield stage
    stage.put_back(sglang_server.model)
    stage.close()


@pytest.mark.parametrize("pause", ["retract", "in_place"])
def test_three_publications_show_in_the_spans_of_a_call(stage, pause):
    versions, answer = stage.publish_in_flight(stage.publisher("mooncake", pause=pause))
    spans = answer["meta_info"]["weight_versions"]
    assert [s["version"] for s in spans] == list(map(str, versions))
    assert [s["start"] for s in spans] == [0, *(s["end"] for s in spans[:-1])]
    assert spans[-1]["end"] == len(answer["output_ids"])
    published = [(v, "mooncake") for v in range(stage.start + 1, versions[-1] + 1)]
    assert [(e.policy_version, e.transport) for e in stage.published()] == published


class Breaking(Mooncake):
    """Loses its connection after some tensors."""

    left = 5

    def _write(self, url, remote, name, data):
        self.left -= 1
        if not self.left:
            remote.session = "127.0.0.1:1"
        super()._write(url, remote, name, data)


def test_a_transfer_that_breaks_half_way_is_taken_back(stage):
    before, version = stage.engines[0].checksums(), stage.engines[0].version()
    with pytest.raises(PublishError, match=rf"did not reach 127\.0\.0\.1:1.*serves version {version} again"):
        stage.publish(stage.publisher(own=Breaking()), stage.start + 1)
    assert stage.engines[0].checksums() == before
    assert stage.engines[0].version() == version
    assert not stage.engines[0].paused()
    stage.publish(stage.publisher("mooncake"), stage.start + 1)
