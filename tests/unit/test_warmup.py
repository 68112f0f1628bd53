"""The warm-up: what it reads, that it learns, and that a seed fixes its bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models

from trainer import warmup, weights
from trainer.backends.model import Shape
from trainer.courier_start import fresh
from trainer.warmup import WarmupError


def table(executions=8, seed=0, vocab=20):
    """Sequences that end in a copy of their own beginning; the copy is to be learned."""
    rng = np.random.default_rng(seed)
    rows = []
    for execution in range(executions):
        for _ in range(int(rng.integers(1, 4))):
            head = rng.integers(4, vocab, int(rng.integers(3, 9))).tolist()
            ids = [*head, 1, *head, 2]
            learn = [False] * (len(head) + 1) + [True] * (len(head) + 1)
            rows.append({"execution": execution, "token_ids": ids, "targets": learn})
    schema = pa.schema(
        [("execution", pa.int32()), ("token_ids", pa.list_(pa.int32())), ("targets", pa.list_(pa.bool_()))]
    )
    return pa.Table.from_pylist(rows, schema)


@pytest.fixture
def folder(tmp_path):
    words = {f"w{i}": i for i in range(20)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w2"}))
    pq.write_table(table(), tmp_path / "demonstrations.parquet")
    return tmp_path


def command(folder, out, seed=0, steps=4):
    return [
        sys.executable, "-m", "trainer.warmup", "--demonstrations", str(folder / "demonstrations.parquet"),
        "--tokenizer", str(folder), "--out", str(out), "--seed", str(seed), "--steps", str(steps),
    ]  # fmt: skip


def test_a_batch_holds_the_executions_in_order_and_goes_round():
    t = table()
    shown = warmup.demonstrations(t, 20, 100)
    rows = t.to_pylist()
    for step, wanted in ((0, [0, 1, 2]), (2, [6, 7, 0])):
        b = warmup.batch(shown, step, 3)
        mine = [r for e in wanted for r in rows if r["execution"] == e]
        assert [b.ids[x:y].tolist() for x, y in zip(b.row_start[:-1], b.row_start[1:], strict=True)] == [
            r["token_ids"] for r in mine
        ]
        at = [(i, c) for i, r in enumerate(mine) for c, learn in enumerate(r["targets"]) if learn]
        assert list(zip(b.target_row.tolist(), b.target_column.tolist(), strict=True)) == at


def test_the_loss_is_the_mean_over_the_targets():
    shown = warmup.demonstrations(table(), 20, 100)
    b = warmup.batch(shown, 0, 4)
    model = fresh(Shape(vocab_size=20), 0)
    logp = []
    for r, column in zip(b.target_row, b.target_column, strict=True):
        ids = torch.tensor(b.ids[b.row_start[r] : b.row_start[r + 1]]).long()
        logits = model.logits(model.forward_hidden(ids[None]))[0]
        logp.append(logits[column - 1].log_softmax(-1)[ids[column]].item())
    assert warmup.mean_loss(model, b).item() == pytest.approx(-np.mean(logp), rel=1e-5)


def test_the_rate_goes_up_stays_and_comes_down():
    rates = [warmup.rate(step, 400, 1.0) for step in range(400)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:220] == [1.0] * 211
    assert rates[-1] == pytest.approx(0.105)


def test_it_learns_to_copy():
    model, losses = fresh(Shape(vocab_size=20), 0), []
    warmup.warm_up(
        model, warmup.demonstrations(table(40), 20, 100), steps=60, executions_per_step=4, learning_rate=3e-3,
        threads=1, progress=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    assert losses[0] > 2.5
    assert np.mean(losses[-5:]) < 0.7  # without copying: ln 16, about 2.8 a token


def test_two_processes_write_equal_weights(folder):
    for name, seed, hash_seed in (("a", 0, "1"), ("b", 0, "2"), ("c", 1, "1")):
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command(folder, folder / name, seed), env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["digest"] == weights.digest(weights.load(folder / name).state_dict())
        assert "warm-up step 4 of 4: loss " in done.stderr
    one, two, other = (weights.digest(weights.load(folder / n).state_dict()) for n in "abc")
    assert one == two != other
    assert (folder / "a/tokenizer.json").is_file()
    assert json.loads((folder / "a/generation_config.json").read_text()) == {"eos_token_id": [2]}
    assert weights.load(folder / "a").shape == Shape(vocab_size=20, eos_token_ids=(2,))


def test_what_cannot_be_used_is_refused(folder):
    good = table()
    with pytest.raises(WarmupError, match="vocabulary ends at 10"):
        warmup.demonstrations(good, 10, 100)
    with pytest.raises(WarmupError, match="2 to 5 are taken"):
        warmup.demonstrations(good, 20, 5)
    with pytest.raises(WarmupError, match="0 rows"):
        warmup.demonstrations(good.slice(0, 0), 20, 100)
    with pytest.raises(WarmupError, match="'targets'"):
        warmup.demonstrations(good.drop_columns("targets"), 20, 100)
    short = good.set_column(2, "targets", pa.array([[True]] * good.num_rows))
    with pytest.raises(WarmupError, match="differ in length"):
        warmup.demonstrations(short, 20, 100)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(WarmupError, match="no eos_token"):
        warmup.tokenizer_ends(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(WarmupError, match=r"no tokenizer\.json"):
        warmup.tokenizer_ends(folder)
