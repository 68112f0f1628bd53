"""The embedded engine without HTTP: against a plain reference, in company, with and without prefixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ingest.engines.embedded.batch import Batch, Call
from ingest.engines.embedded.weights import WeightsError, read_eos, read_shape, read_weights
from tests.support.random_model import EOS, make_tiny_model
from tests.support.reference_decoder import reference_logits

TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["tied", "untied"])
def folder(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_tiny_model(folder, vocab=40, layers=3, tied=request.param == "tied", sharpness=4.0)


def make_batch(folder: Path, *, slots: int = 8, places: int = 128, calls_max: int = 4) -> Batch:
    weights = read_weights(folder, read_shape(folder))
    return Batch(weights, version=0, slots=slots, places=places, calls_max=calls_max)


def prompt(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 40, n).astype(np.int32)


def finish(batch: Batch, *calls: Call) -> list[Call]:
    """The calls, finished, in their order."""
    for call in calls:
        batch.add(call)
    done: dict[str, Call] = {}
    while len(done) < len(calls):
        done |= {c.rid: c for c in batch.step() if c.finish}
    return [done[c.rid] for c in calls]


def expected_logprobs(folder: Path, call: Call, temperature: float) -> np.ndarray:
    ids = [*call.prompt.tolist(), *call.output_ids.tolist()]
    n = len(call.output_ids)
    logp = (reference_logits(folder, ids)[-n - 1 : -1] / temperature).log_softmax(-1)
    return logp.gather(-1, torch.tensor(ids[-n:])[:, None])[:, 0].numpy()


def test_log_probabilities_equal_the_reference(folder):
    batch = make_batch(folder)
    calls = [
        Call(rid=f"{n}", prompt=prompt(n, n), new_tokens_max=20, temperature=t, seed=n)
        for n, t in ((1, 1.0), (2, 0.7), (17, 1.3), (90, 1.0), (33, 1.0), (60, 0.5))
    ]
    for call in finish(batch, *calls):
        assert len(call.output_ids) == 20
        expected = expected_logprobs(folder, call, call.temperature)
        np.testing.assert_allclose(call.output_logprobs, expected, atol=TOLERANCE)


def test_greedy_takes_the_likeliest_and_its_raw_log_probability(folder):
    (call,) = finish(make_batch(folder), Call(rid="a", prompt=prompt(9), new_tokens_max=25, temperature=0.0))
    ids = [*call.prompt.tolist(), *call.output_ids.tolist()]
    assert reference_logits(folder, ids)[8:-1].argmax(-1).tolist() == call.output_ids.tolist()
    np.testing.assert_allclose(call.output_logprobs, expected_logprobs(folder, call, 1.0), atol=TOLERANCE)


def test_a_long_prompt_in_several_steps_equals_the_reference(folder, monkeypatch):
    monkeypatch.setattr("ingest.engines.embedded.batch.STEP_TOKENS_MAX", 16)
    batch = make_batch(folder)
    calls = [Call(rid=str(n), prompt=prompt(n, n), new_tokens_max=8, seed=n) for n in (70, 3, 41)]
    for call in finish(batch, *calls):
        np.testing.assert_allclose(call.output_logprobs, expected_logprobs(folder, call, 1.0), atol=TOLERANCE)


def test_company_changes_nothing(folder):
    def call(rid: str) -> Call:
        return Call(rid=rid, prompt=prompt(30, 7), new_tokens_max=30, seed=11)

    (alone,) = finish(make_batch(folder), call("x"))
    others = [
        Call(rid=f"o{i}", prompt=prompt(5 + 9 * i, i), new_tokens_max=3 + 5 * i, seed=i) for i in range(6)
    ]
    crowded = finish(make_batch(folder), *others[:3], call("x"), *others[3:])[3]
    assert alone.output_ids.tolist() == crowded.output_ids.tolist()
    np.testing.assert_allclose(alone.output_logprobs, crowded.output_logprobs, atol=TOLERANCE)


def test_a_held_prefix_is_used_and_changes_nothing(folder):
    batch = make_batch(folder)
    first, second = prompt(40, 1), prompt(15, 2)
    (a,) = finish(batch, Call(rid="a", prompt=first, new_tokens_max=10, seed=1))
    longer = np.concatenate([first, a.output_ids, second])
    (b,) = finish(batch, Call(rid="b", prompt=longer, new_tokens_max=10, seed=2))
    assert a.cached == 0
    assert b.cached == 49  # the last sampled token was never fed
    (cold,) = finish(make_batch(folder), Call(rid="b", prompt=longer, new_tokens_max=10, seed=2))
    assert cold.output_ids.tolist() == b.output_ids.tolist()
    np.testing.assert_allclose(cold.output_logprobs, b.output_logprobs, atol=TOLERANCE)
    np.testing.assert_allclose(b.output_logprobs, expected_logprobs(folder, b, 1.0), atol=TOLERANCE)


def test_a_branch_copies_the_prefix_and_leaves_the_longer_one(folder):
    batch = make_batch(folder)
    stem, tail = prompt(40, 1), prompt(40, 2)
    long = np.concatenate([stem, tail])
    branch = np.concatenate([stem, prompt(30, 3)])
    finish(batch, Call(rid="a", prompt=long, new_tokens_max=1))
    (b,) = finish(batch, Call(rid="b", prompt=branch, new_tokens_max=5, seed=3))
    (again,) = finish(batch, Call(rid="c", prompt=long, new_tokens_max=5, seed=4))
    assert (b.cached, again.cached) == (40, 79)  # one prompt token is always computed
    for call in (b, again):
        np.testing.assert_allclose(call.output_logprobs, expected_logprobs(folder, call, 1.0), atol=TOLERANCE)


def test_a_prefix_is_copied_from_a_call_that_still_runs(folder):
    batch = make_batch(folder)
    stem = prompt(40, 1)
    batch.add(Call(rid="a", prompt=stem, new_tokens_max=60, seed=1))
    for _ in range(5):
        batch.step()
    batch.add(Call(rid="b", prompt=np.concatenate([stem, prompt(9, 5)]), new_tokens_max=5, seed=2))
    done = {}
    while len(done) < 2:
        done |= {c.rid: c for c in batch.step()}
    tail, output = done["b"].prompt[40:], done["a"].output_ids[:4]
    assert done["b"].cached == 40 + int((tail[:4] == output).cumprod().sum())
    for call in done.values():
        np.testing.assert_allclose(call.output_logprobs, expected_logprobs(folder, call, 1.0), atol=TOLERANCE)


def test_the_longest_unused_prefix_is_evicted(folder):
    batch = make_batch(folder, slots=3, calls_max=1)
    prompts = [prompt(20, i) for i in range(4)]
    for i, ids in enumerate(prompts):
        finish(batch, Call(rid=str(i), prompt=ids, new_tokens_max=1))
    cached = []
    for i in (3, 2, 1, 0):  # asked for in this order, 0 is the one that went
        (call,) = finish(batch, Call(rid=str(i), prompt=prompts[i], new_tokens_max=0))
        cached.append(call.cached)
    assert cached == [19, 19, 19, 0]


def test_prompt_log_probabilities(folder):
    batch = make_batch(folder)
    ids = prompt(30, 3)
    finish(batch, Call(rid="warm", prompt=ids, new_tokens_max=1))
    (call,) = finish(batch, Call(rid="a", prompt=ids, new_tokens_max=3, prompt_logprobs_start=10, seed=1))
    assert call.cached == 10  # what is asked for is computed
    logp = reference_logits(folder, ids.tolist()).log_softmax(-1)
    expected = logp[10:-1].gather(-1, torch.from_numpy(ids[11:].astype(np.int64))[:, None])[:, 0].numpy()
    np.testing.assert_allclose(call.prompt_logprobs, expected, atol=TOLERANCE)


def test_stop_ids_stay_in_the_output_and_min_tokens_hold_them_off(folder):
    def call(**how) -> Call:
        return Call(rid="a", prompt=prompt(9), new_tokens_max=25, temperature=0.0, **how)

    (free,) = finish(make_batch(folder), call())
    stop = int(free.output_ids[7])
    first = free.output_ids.tolist().index(stop)
    (cut,) = finish(make_batch(folder), call(stop_ids=(EOS, stop)))
    assert (cut.finish, cut.output_ids.tolist()) == ("stop", free.output_ids[: first + 1].tolist())
    (held,) = finish(make_batch(folder), call(stop_ids=(stop,), new_tokens_min=first + 2))
    assert stop not in held.output_ids[: first + 2].tolist()
    assert len(held.output_ids) >= first + 3 or held.finish == "length"
    assert free.finish == "length"


def test_no_new_tokens_computes_the_prompt_only(folder):
    batch = make_batch(folder)
    (call,) = finish(batch, Call(rid="a", prompt=prompt(20), new_tokens_max=0))
    assert (call.finish, len(call.output_ids)) == ("length", 0)
    (warm,) = finish(batch, Call(rid="b", prompt=prompt(20), new_tokens_max=1))
    assert warm.cached == 19


@pytest.mark.parametrize("flush", [True, False])
def test_an_update_in_between_shows_in_spans_and_values(folder, tmp_path, flush):
    other = make_tiny_model(
        tmp_path, seed=5, vocab=40, layers=3, tied=read_shape(folder).tie_word_embeddings, sharpness=4.0
    )
    batch = make_batch(folder)
    ids = prompt(20, 1)
    batch.add(Call(rid="a", prompt=ids, new_tokens_max=12, seed=1))
    for _ in range(5):
        assert batch.step() == []
    batch.replace(read_weights(other, read_shape(other)), 3, flush=flush)
    (call,) = [c for _ in range(7) for c in batch.step()]
    assert call.spans() == [(0, 0, 5), (3, 5, 12)]
    (after,) = finish(batch, Call(rid="b", prompt=ids, new_tokens_max=6, seed=2))
    assert after.spans() == [(3, 0, 6)]
    assert after.cached == (0 if flush else 19)
    same = np.allclose(after.output_logprobs, expected_logprobs(other, after, 1.0), atol=TOLERANCE)
    assert same == flush  # keys of the old weights serve a new call only where it was allowed


def test_retract_computes_anew_and_keeps_the_output(folder):
    def call() -> Call:
        return Call(rid="a", prompt=prompt(20, 1), new_tokens_max=12, seed=1)

    (straight,) = finish(make_batch(folder), call())
    batch = make_batch(folder)
    batch.add(call())
    for _ in range(5):
        batch.step()
    assert batch.retract() == 1
    assert (len(batch.running), batch.slots.held_tokens) == (0, 0)
    done: list[Call] = []
    while not done:
        done = batch.step()
    assert done[0].retractions == 1
    assert done[0].output_ids.tolist() == straight.output_ids.tolist()
    np.testing.assert_allclose(done[0].output_logprobs, straight.output_logprobs, atol=TOLERANCE)


def test_abort_takes_one_call_with_what_it_has(folder):
    batch = make_batch(folder, calls_max=2)
    for rid in ("a", "a1", "a2"):
        batch.add(Call(rid=rid, prompt=prompt(20, 1), new_tokens_max=30))
    for _ in range(4):
        batch.step()
    (running,) = batch.abort("a", "why")
    assert (running.finish, running.detail, len(running.output_ids)) == ("abort", "why", 4)
    (waiting,) = batch.abort("a2", "why")
    assert len(waiting.output_ids) == 0
    assert [c.rid for c in batch.abort(None, "all")] == ["a1"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "model.norm.weight",
            torch.full((64,), float("nan")),
            "model.norm.weight holds a value that is not finite",
        ),
        ("model.norm.weight", torch.ones(63), r"shape \(63,\), \(64,\) is needed"),
        ("model.norm.weight", None, "no tensor model.norm.weight"),
    ],
)
def test_weights_that_cannot_be_served_are_named(tmp_path, name, value, sentence):
    from safetensors.torch import load_file, save_file

    make_tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(name)
    if value is not None:
        tensors[name] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=sentence):
        read_weights(tmp_path, read_shape(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("Qwen3ForCausalLM", "LlamaForCausalLM", "not Qwen3ForCausalLM"),
        ('"attention_bias": false', '"attention_bias": true', "attention_bias is True"),
        ('"hidden_size": 64', '"hidden_size": "64"', "hidden_size"),
        ('"num_key_value_heads": 2', '"num_key_value_heads": 3', "a multiple"),
        ('"head_dim": 16', '"rope_scaling": {"rope_type": "yarn"}, "head_dim": 16', "rope_type is 'yarn'"),
    ],
)
def test_a_config_that_cannot_be_served_is_named(tmp_path, old, new, sentence):
    make_tiny_model(tmp_path)
    path = tmp_path / "config.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(WeightsError, match=sentence):
        read_shape(tmp_path)


def test_eos_ids_come_from_both_files(tmp_path):
    make_tiny_model(tmp_path)
    assert read_eos(tmp_path) == (EOS,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')
    assert read_eos(tmp_path) == (1, 7)
