"""The first policy of the demo: a tiny model and a short supervised warm-up.

    python -m trainer.warmup --demonstrations FILE.parquet --tokenizer DIR --out DIR --seed 0

The demonstrations teach a format.  Their columns: execution (the sequences of one stand together),
token_ids list<int32>, targets list<bool> (the tokens to learn).  Out comes a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from trainer.backends.model import CausalLM

RATE_UP_STEPS = 10
PADDING_RATIO = 2.0  # a step has a handful of rows: fewer, wider rectangles are faster than exact ones


class WarmupError(ValueError):
    """The demonstrations or the tokenizer cannot be used: what, and what is needed."""


@dataclass(frozen=True)
class Demonstrations:
    """All sequences end to end; execution e owns rows[e] to rows[e + 1]."""

    rows: npt.NDArray[np.int64]  # (executions + 1,)
    row_start: npt.NDArray[np.int64]  # (rows + 1,)
    ids: npt.NDArray[np.int32]
    learn: npt.NDArray[np.bool_]

    @property
    def executions(self) -> int:
        return len(self.rows) - 1


@dataclass(frozen=True)
class Batch:
    """The rows of one step, as trainer.backends.rows takes them."""

    row_start: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    target_row: npt.NDArray[np.int64]
    target_column: npt.NDArray[np.int64]


def demonstrations(table: pa.Table, vocab_size: int, length_max: int) -> Demonstrations:
    """Raises WarmupError for an empty table, an id outside the vocabulary, a row that is too long."""
    missing = {"execution", "token_ids", "targets"} - set(table.column_names)
    if missing or not table.num_rows:
        raise WarmupError(
            f"the demonstrations have {table.num_rows} rows and lack {sorted(missing) or 'nothing'}"
        )
    execution = np.asarray(table["execution"])
    tokens, targets = (table[name].combine_chunks() for name in ("token_ids", "targets"))
    start = np.asarray(tokens.offsets).astype(np.int64)
    ids = np.asarray(tokens.flatten()).astype(np.int32)
    learn = np.asarray(targets.flatten().to_numpy(zero_copy_only=False)).astype(bool)
    start -= start[0]
    if not np.array_equal(start, np.asarray(targets.offsets) - targets.offsets[0].as_py()):
        raise WarmupError("token_ids and targets of the demonstrations differ in length")
    lengths = np.diff(start)
    if lengths.min() < 2 or lengths.max() > length_max:
        raise WarmupError(
            f"the demonstrations have rows of {lengths.min()} to {lengths.max()} tokens; "
            f"2 to {length_max} are taken"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise WarmupError(
            f"the demonstrations hold id {ids.max()}, the tokenizer's vocabulary ends at {vocab_size}"
        )
    learn[start[:-1]] = False  # nothing stands before a first token to predict it
    edges = np.flatnonzero(np.r_[True, execution[1:] != execution[:-1], True])
    return Demonstrations(edges.astype(np.int64), start, ids, learn)


def batch(shown: Demonstrations, step: int, per_step: int) -> Batch:
    """The executions of a step, in order and round again at the end."""
    picked = np.arange(step * per_step, (step + 1) * per_step) % shown.executions
    rows = np.concatenate([np.arange(shown.rows[e], shown.rows[e + 1]) for e in picked.tolist()])
    length = shown.row_start[rows + 1] - shown.row_start[rows]
    start = np.r_[0, np.cumsum(length)]
    at = np.repeat(shown.row_start[rows] - start[:-1], length) + np.arange(start[-1])
    target = np.flatnonzero(shown.learn[at])
    row = np.searchsorted(start, target, "right") - 1
    return Batch(start, shown.ids[at], row, target - start[row])


def rate(step: int, steps: int, top: float) -> float:
    """Up over ten steps, then constant, then linear down to a tenth over the second half."""
    return top * min(1.0, (step + 1) / RATE_UP_STEPS, 0.1 + (steps - step) / (0.5 * steps))


def mean_loss(model: CausalLM, rows: Batch) -> Tensor:
    """Mean negative log-probability of the targets (nats a token)."""
    import torch
    import torch.nn.functional as F

    from trainer.backends.rows import buckets

    losses = []
    for bucket in buckets(rows, PADDING_RATIO):
        hidden = model.forward_hidden(torch.from_numpy(bucket.ids_BT), places=torch.from_numpy(bucket.place))
        losses.append(F.cross_entropy(model.logits(hidden), torch.from_numpy(bucket.token), reduction="sum"))
    return torch.stack(losses).sum() / len(rows.target_row)


def warm_up(
    model: CausalLM,
    shown: Demonstrations,
    *,
    steps: int,
    executions_per_step: int,
    learning_rate: float,
    threads: int,
    progress: Callable[[int, float], None],
) -> float:
    """Supervised steps on the model in place; returns the last loss.  `progress(step, loss)` after each."""
    import torch

    from trainer.backends.adamw import AdamW
    from trainer.backends.torch_backend import deterministic

    deterministic(threads)
    optimizer = AdamW(dict(model.named_parameters()), betas=(0.9, 0.95))
    value = float("nan")
    for step in range(steps):
        rows = batch(shown, step, executions_per_step)
        if not len(rows.target_row):
            raise WarmupError(f"the executions of warm-up step {step} have no token to learn")
        model.zero_grad(set_to_none=True)
        loss = mean_loss(model, rows)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(rate(step, steps, learning_rate))
        value = loss.item()
        progress(step, value)
    return value


def tokenizer_ends(folder: Path) -> tuple[int, tuple[int, ...]]:
    """The size of the vocabulary, and the ids that end an answer, of a folder with a tokenizer.json."""
    from tokenizers import Tokenizer

    if not (folder / "tokenizer.json").is_file():
        raise WarmupError(f"{folder} has no tokenizer.json; `python -m ingest.courier prepare` writes one")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = folder / "tokenizer_config.json"
    end = json.loads(config.read_text()).get("eos_token") if config.is_file() else None
    end = end["content"] if isinstance(end, dict) else end
    number = None if end is None else tokenizer.token_to_id(end)
    if number is None:
        raise WarmupError(f"{config} names no eos_token of the vocabulary (it has {end!r})")
    return tokenizer.get_vocab_size(), (number,)


def _lines(steps: int) -> Callable[[int, float], None]:
    def say(step: int, loss: float) -> None:
        if step % 50 == 0 or step == steps - 1:
            print(f"warm-up step {step + 1} of {steps}: loss {loss:.3f}", file=sys.stderr, flush=True)

    return say


def _run(given: argparse.Namespace, progress: Callable[[int, float], None]) -> None:
    import pyarrow.parquet as pq

    from trainer import weights
    from trainer.backends.model import Shape
    from trainer.courier_start import fresh

    vocab_size, ends = tokenizer_ends(given.tokenizer)
    shape = Shape(vocab_size=vocab_size, eos_token_ids=ends)
    shown = demonstrations(pq.read_table(given.demonstrations), vocab_size, shape.max_position_embeddings)
    model = fresh(shape, given.seed)
    loss = warm_up(
        model,
        shown,
        steps=given.steps,
        executions_per_step=given.executions_per_step,
        learning_rate=given.learning_rate,
        threads=given.threads,
        progress=progress,
    )
    weights.save(model, given.out, extra_files_from=given.tokenizer)
    print(json.dumps({"folder": str(given.out), "loss": loss, "digest": weights.digest(model.state_dict())}))


def _show(given: argparse.Namespace) -> None:
    """Runs under a progress bar on a terminal, else with a line now and then."""
    if not sys.stderr.isatty():
        _run(given, _lines(given.steps))
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bars:
        bar = bars.add_task("warm-up", total=given.steps)
        _run(
            given,
            lambda step, loss: bars.update(bar, completed=step + 1, description=f"warm-up, loss {loss:.3f}"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.warmup", description=__doc__)
    parser.add_argument("--demonstrations", type=Path, required=True, help="demonstrations.parquet")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--executions-per-step", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    try:
        _show(given)
    except WarmupError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
