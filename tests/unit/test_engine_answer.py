"""Answers of engines, right and wrong, as public reports describe them (the numbers are the cases')."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from ingest.engines.answer import Routing
from ingest.engines.client import EngineClient, EngineRefused, new_rid, read_answer
from ingest.engines.model import Experts, ModelFacts, model_facts
from lake.events import VersionSpan


def answer(**meta) -> bytes:
    meta = {
        "finish_reason": {"type": "stop", "matched": 9},
        "output_token_logprobs": [[-0.5, 4, None], [-1.5, 7, None], [-0.1, 9, None]],
        "weight_version": "3",
        "weight_versions": [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 3}],
        "cached_tokens": 11,
    } | meta
    meta = {k: v for k, v in meta.items() if v != "absent"}
    return json.dumps({"text": "x", "output_ids": [4, 7, 9], "meta_info": meta}).encode()


def test_a_whole_answer():
    g = read_answer(answer(), vocab_size=10)
    assert g.output_ids.tolist() == [4, 7, 9]  # 24: the stop token is the last id
    assert (g.output_ids.dtype, g.output_logprobs.dtype) == (np.int32, np.float32)
    assert g.spans == (VersionSpan(2, 0, 1), VersionSpan(3, 1, 3))  # 27
    assert (g.finish_reason, g.cached_tokens, g.weight_version) == ("stop", 11, 3)


@pytest.mark.parametrize("version", ["absent", "default", None])
def test_28_no_version_is_unknown(version):
    g = read_answer(answer(weight_version=version, weight_versions="absent"), vocab_size=None)
    assert (g.spans, g.weight_version) == ((), None)


def test_28_a_span_of_unknown_version():
    g = read_answer(answer(weight_versions=[{"version": "default", "start": 0, "end": 3}]), vocab_size=None)
    assert g.spans == (VersionSpan(None, 0, 3),)


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        # 31
        ({"output_token_logprobs": [[-0.5, 4, None], [None, 7, None], [-0.1, 9, None]]}, r"token 1 \(id 7\)"),
        ({"output_token_logprobs": "absent"}, "missing for 3 output ids"),
        ({"output_token_logprobs": None}, "missing for 3 output ids"),
        ({"output_token_logprobs": [[-0.5, 4, None], [-0.1, 9, None]]}, "2 entries for 3"),
        # 32
        ({"output_token_logprobs": [[-0.5, 4, None], [-1.0, None, None], [-0.1, 9, None]]}, "is of id None"),
        ({"output_token_logprobs": [[-0.5, 4, None], [-1.0, 8, None], [-0.1, 9, None]]}, "is of id 8"),
        ({"weight_versions": [{"version": "2", "start": 0, "end": 2}]}, "covers 2 of 3"),
        ({"weight_versions": [{"version": "2", "start": 1, "end": 3}]}, "after token 0"),
        ({"finish_reason": {"type": "exploded"}}, "does not decode"),
        ({"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "no number"),
        ({"finish_reason": "absent"}, "does not decode"),
    ],
)
def test_what_cannot_be_trusted_is_refused_by_name(meta, sentence):
    with pytest.raises(EngineRefused, match=sentence):
        read_answer(answer(**meta), vocab_size=None)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(EngineRefused, match="0 to 8 is possible"):
        read_answer(answer(), vocab_size=9)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"output_ids": [1]}'])
def test_what_is_no_answer_is_refused(body):
    with pytest.raises(EngineRefused, match="does not decode"):
        read_answer(body, vocab_size=None)


@pytest.mark.parametrize(
    "ids", [np.empty(0, np.int32), np.ones(1, np.int64), np.ones((1, 1), np.int32), np.full(1, 10, np.int32)]
)
async def test_ids_are_checked_before_they_are_sent(ids):
    client = EngineClient("http://127.0.0.1:9", vocab_size=10)
    with pytest.raises(EngineRefused):
        await client.generate(ids, rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=1)


def test_ids_have_one_length():
    rids = {new_rid() for _ in range(100)}
    assert {len(r) for r in rids} == {32}
    assert len(rids) == 100


ROUTING = Routing(Experts(layers=2, top_k=2, count=8), prompt=4, start=1)  # 5 rows after an answer of 3


def experts(n=5 * 2 * 2, most=7):
    return base64.b64encode((np.arange(n, dtype=np.int32) % (most + 1)).tobytes()).decode()


def test_routed_experts_are_rows_of_layers():
    g = read_answer(answer(routed_experts=experts()), vocab_size=10, routing=ROUTING)
    assert (g.experts.shape, g.experts.dtype, g.experts_start) == ((5, 2, 2), np.int16, 1)
    assert g.experts.ravel().tolist() == [i % 8 for i in range(20)]
    assert read_answer(answer(routed_experts=experts()), vocab_size=10).experts is None  # not asked for
    ended = answer(finish_reason={"type": "abort"})
    assert read_answer(ended, vocab_size=10, routing=ROUTING).experts is None  # before there were any


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("absent", "--enable-return-routed-experts"),
        (experts(n=16), "64 bytes; 5 rows of 2 layers by 2 experts are 80"),
        (experts(most=8), "from 0 to 8; the model has 8"),
        ("AAA", "does not decode"),
    ],
)
def test_experts_that_cannot_be_trusted(said, sentence):
    with pytest.raises(EngineRefused, match=sentence):
        read_answer(answer(routed_experts=said), vocab_size=10, routing=ROUTING)


async def test_experts_need_a_shape():
    ids, asked = np.ones(3, np.int32), {"new_tokens_max": 1, "temperature": 1.0, "timeout_s": 1}
    async with EngineClient("http://127.0.0.1:9") as client:
        with pytest.raises(EngineRefused, match=r"config\.json"):
            await client.generate(ids, rid=new_rid(), routed_experts=True, **asked)
        client.experts = ROUTING.experts
        with pytest.raises(EngineRefused, match="experts_start is 4; 0 to the prompt's 3"):
            await client.generate(ids, rid=new_rid(), routed_experts=True, experts_start=4, **asked)


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"vocab_size": 9, "num_hidden_layers": 2}, ModelFacts(9)),
        (
            {"num_hidden_layers": 2, "num_experts_per_tok": 2, "num_experts": 8},
            ModelFacts(None, Experts(2, 2, 8)),
        ),
        (
            {"text_config": {"vocab_size": 7, "num_hidden_layers": 3, "num_experts_per_tok": 1}
             | {"n_routed_experts": 4}},
            ModelFacts(7, Experts(3, 1, 4)),
        ),
        ({"num_hidden_layers": 2, "num_experts_per_tok": 9, "num_local_experts": 8}, ModelFacts()),
        ({"vocab_size": "9"}, ModelFacts()),
        ([], ModelFacts()),
        (None, ModelFacts()),
    ],
)  # fmt: skip
def test_what_a_folder_says_of_its_model(tmp_path, config, facts):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_facts(tmp_path) == facts
