"""The embedded backend: plain PyTorch in one process, on CPU or one GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lake.config import Objective, Optimizer
from trainer import objective as objectives
from trainer import packing, weights
from trainer.backends import BackendError
from trainer.backends.adamw import AdamW
from trainer.backends.model import CausalLM
from trainer.backends.rows import Bucket, buckets
from trainer.objective import Sums, Targets
from trainer.packing import Packed


def deterministic(threads: int) -> None:
    """Equal calls give equal bits, here and in any process with as many threads (sets global switches)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which loads the compiler
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it


class TorchBackend:
    """Gradients and AdamW for one model.

    - Gradients add up over `accumulate`, in the order of calls; weights move in `step` alone.
    - Two processes on one machine with equal threads, weights and calls hold equal bits (CPU).
    - A state_dict taken between steps, loaded into a new backend, goes on with equal bits.
    """

    def __init__(
        self,
        source: Path | CausalLM,
        *,
        optimizer: Optimizer,
        objective: Objective,
        temperature: float = 1.0,
        threads: int = 1,
        tokens_max: int = 16384,
        precision: Literal["float32", "bfloat16"] = "float32",
        device: str = "cpu",
    ) -> None:
        """source: a Hugging Face folder, or a model (taken over, not copied).

        temperature: the one that the engine sampled with: its log-probabilities are of logits / temperature.
        tokens_max: rows of a single execution above this are computed in parts (two passes).
        precision: of the forward pass (CausalLM.compute_as); weights, gradients and moments are float32.
        """
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, above 0 is needed")
        deterministic(threads)
        model = source if isinstance(source, CausalLM) else weights.load(source)
        self.model = model.to(device)
        self.model.compute_as(torch.bfloat16 if precision == "bfloat16" else None)
        self._config, self._objective = optimizer, objective
        self._temperature, self._tokens_max, self._device = temperature, tokens_max, device
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = AdamW(
            self._parameters,
            betas=(optimizer.beta1, optimizer.beta2),
            epsilon=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        for p in self._parameters.values():  # there from the start: a resumed run adds up the same way
            p.grad = torch.zeros_like(p)

    def _tensor(self, array: np.ndarray) -> Tensor:
        own = array if array.flags.writeable else array.copy()  # Arrow's memory is not torch's to hold
        return torch.from_numpy(own).to(self._device)

    def _bucket_logprobs(self, bucket: Bucket) -> Tensor:
        """(k,) float32, in the bucket's order."""
        places = self._tensor(bucket.place)
        hidden = self.model.forward_hidden(self._tensor(bucket.ids_BT), places=places)
        logits = self.model.logits(hidden).float()
        if self._temperature != 1.0:
            logits = logits / self._temperature
        return -F.cross_entropy(logits, self._tensor(bucket.token), reduction="none")

    def _logprobs(self, packed: Packed) -> Tensor:
        """(K,) in the pack's order."""
        parts, order = [], []
        for bucket in buckets(packed):
            parts.append(self._bucket_logprobs(bucket))
            order.append(bucket.target)
        if not parts:
            return torch.zeros(0, device=self._device)
        back = np.empty(packed.targets, np.int64)
        back[np.concatenate(order)] = np.arange(packed.targets)
        return torch.cat(parts).index_select(0, self._tensor(back))

    @torch.no_grad()
    def logprobs(self, packed: Packed) -> Tensor:
        """(K,) float32 under the current weights: what `old` is when the reference is recomputed."""
        return self._logprobs(packed)

    @torch.no_grad()
    def score(self, ids: np.ndarray) -> np.ndarray:
        """(n - 1,) float32: log-probabilities of the ids (n,) after the first, at temperature 1."""
        tokens = self._tensor(ids.astype(np.int64))
        hidden = self.model.forward_hidden(tokens[None, :-1])[0]
        logp = -F.cross_entropy(self.model.logits(hidden).float(), tokens[1:], reduction="none")
        scores: np.ndarray = logp.cpu().numpy()
        return scores

    def accumulate(self, packed: Packed, old: Tensor | None = None) -> Sums:
        """Adds the gradient of the loss SUM of whole executions; 1/E comes in `step`.

        old: (K,) log-probabilities under the reference policy.  None: mu, or with `old = "recomputed"` the
        current weights, which are the batch's first ones as long as the batch is one step (as here).
        """
        if not packed.rows:
            return {}
        if packed.tokens <= self._tokens_max:
            return self._add(packed, old, None)
        log_ratio = self._log_ratio(packed, old)
        sums: Sums = {}
        for a, b in self._parts(packed):
            k0, k1 = np.searchsorted(packed.target_row, (a, b)).tolist()
            part = packing.rows(packed, a, b)
            sums = objectives.add_up(sums, self._add(part, None if old is None else old[k0:k1], log_ratio))
        return sums

    def _parts(self, packed: Packed) -> list[tuple[int, int]]:
        """Ranges of rows of at most tokens_max tokens (a longer row alone)."""
        edges = [0]
        while edges[-1] < packed.rows:  # once a part
            room = packed.row_start[edges[-1]] + self._tokens_max
            edges.append(max(int(np.searchsorted(packed.row_start, room, "right")) - 1, edges[-1] + 1))
        return list(pairwise(edges))

    def _targets(self, packed: Packed) -> Targets:
        return Targets(
            mu=self._tensor(packed.mu),
            execution=self._tensor(packed.target_execution.astype(np.int64)),
            advantage=self._tensor(packed.advantage),
            n=self._tensor(packed.n_targets),
        )

    def _old(self, pi: Tensor, old: Tensor | None, targets: Targets) -> Tensor:
        if old is not None:
            return old
        return targets.mu if self._objective.old == "mu" else pi.detach()

    def _log_ratio(self, packed: Packed, old: Tensor | None) -> Tensor:
        """The no-gradient pass: s spans all paths of an execution, and these do not fit together."""
        parts = []
        with torch.no_grad():
            for a, b in self._parts(packed):
                parts.append(self._logprobs(packing.rows(packed, a, b)))
        pi, targets = torch.cat(parts), self._targets(packed)
        return objectives.log_ratio_sums(pi, self._old(pi, old, targets), targets)

    def _add(self, packed: Packed, old: Tensor | None, log_ratio: Tensor | None) -> Sums:
        pi, targets = self._logprobs(packed), self._targets(packed)
        loss, statistics = objectives.loss_sum(
            pi, self._old(pi, old, targets), targets, self._objective, log_ratio
        )
        loss.backward()  # type: ignore[no-untyped-call]
        values = torch.stack([t.double() for t in statistics.values()]).tolist()
        return dict(zip(statistics, values, strict=True))

    def step(self, executions: int, learning_rate: float) -> float:
        """Gradients times 1/E once, clipped, AdamW, cleared; returns their norm before clipping.

        E = 0: nothing moves, weights and moments alike, and the norm is 0.0.  Raises BackendError, weights
        as before and gradients cleared, where the norm is not finite or E is below 0.
        """
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        try:
            if executions < 0:
                raise BackendError(f"a step of {executions} executions: at least 0 is needed")
            if executions == 0:
                return 0.0
            torch._foreach_mul_(gradients, 1.0 / executions)
            norm = float(
                torch.nn.utils.clip_grad_norm_(
                    self._parameters.values(), self._config.gradient_norm_max, foreach=True
                )
            )
            if not np.isfinite(norm):
                raise BackendError(
                    f"the gradient norm of {executions} executions is {norm}; the step is not taken"
                )
            self._optimizer.step(learning_rate)
            return norm
        finally:
            torch._foreach_zero_(gradients)

    def _state(self) -> dict[str, Tensor]:
        moments = self._optimizer.state()
        return dict(self.model.state_dict()) | {f"optimizer.{name}": t for name, t in moments.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Weights under Hugging Face's names, and `optimizer.exp_avg.NAME` and so on; copies, on the CPU."""
        return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes up what state_dict gave.

        Raises BackendError, having taken nothing, where names or shapes differ.
        """
        own = self._state()
        differing = sorted(own.keys() ^ state.keys()) or [n for n in own if own[n].shape != state[n].shape]
        if differing:
            raise BackendError(
                f"the state does not fit this model: {', '.join(differing[:3])} and "
                f"{max(0, len(differing) - 3)} more names are missing, unknown or of another shape"
            )
        with torch.no_grad():
            for name, t in own.items():
                t.copy_(state[name])

    def weights_digest(self) -> str:
        return weights.digest(self.model.state_dict())

    def save(self, folder: Path, *, extra_files_from: Path | None = None) -> None:
        weights.save(self.model, folder, extra_files_from=extra_files_from)
