"""The training objective as pure functions: the loss of a batch's targets, and its statistics.

K targets, E executions.  Every function is a function of its arguments; all arithmetic is float64, for
the mean of half a million differences is compared with 0.005.

    s_i = exp( (1/n_i) * sum over the targets of execution i of (pi - old) )        over ALL its paths
    M_i = 0 where (A_i > 0 and s_i > 1 + clip_high) or (A_i < 0 and s_i < 1 - clip_low), else 1

    token   L = - sum_i (1/n_i) sum_t M_i * w_t * A_i * pi_t
                w_t = sg(min(exp(pi_t - mu_t), cap))
    gspo    L = - sum_i (1/n_i) sum_t w_t * min(r_t * A_i, clip(r_t) * A_i)
                w_t = sg(min(exp(old_t - mu_t), cap)),  r_t = sg(s_i) * exp(pi_t - sg(pi_t))

These are SUMS over a batch's executions: 1/E is applied once, to the gradients, when the batch closes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lake.config import Objective

Sums = dict[str, float]

LARGEST = ("gap_abs_max",)  # these do not add up: the larger one counts
GAP_LARGE = math.log(2)  # of |pi - mu|: the trainer finds the token twice, or half, as likely as the engine
GAP_EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, math.inf)
"""|pi - mu| is counted up to each of these, and above the one before."""
_COUNTED = tuple(f"gap_upto_{edge:g}" for edge in GAP_EDGES)  # the names of these counts


@dataclass(frozen=True)
class Targets:
    """What is known of K targets before the forward pass; tensors on the device of pi."""

    mu: Tensor  # (K,) float32
    execution: Tensor  # (K,) int64, index into advantage
    advantage: Tensor  # (E,) float64
    n: Tensor  # (E,) int64 or float64: targets of the whole execution, here or elsewhere


def log_ratio_sums(pi: Tensor, old: Tensor, targets: Targets) -> Tensor:
    """(E,) float64, detached: sum of pi - old over the given targets of each execution.

    Where an execution's targets are spread over several passes, the sums of the passes add up.
    """
    difference = pi.detach().double() - old.detach().double()
    return torch.zeros_like(targets.advantage).index_add_(0, targets.execution, difference)


def outward(log_s: Tensor, advantage: Tensor, config: Objective) -> Tensor:
    """(E,) bool: the executions whose ratio left the clip range in the direction of their advantage."""
    s = log_s.exp()
    too_high = (advantage > 0) & (s > 1 + config.clip_high)
    return too_high | ((advantage < 0) & (s < 1 - config.clip_low))


def loss_sum(
    pi: Tensor, old: Tensor, targets: Targets, config: Objective, log_ratio: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, summed and not yet times 1/E, and the sums of its statistics (scalars, detached).

    pi (K,) with its gradient; old (K,) without.  `log_ratio` (E,): log_ratio_sums over the whole executions,
    needed where these targets are a part of them; None computes it from these targets.  K is at least 1.
    """
    pi_wide, mu, old = pi.double(), targets.mu.double(), old.detach().double()
    now = pi_wide.detach()
    if log_ratio is None:
        log_ratio = log_ratio_sums(now, old, targets)
    log_s = log_ratio / targets.n
    masked = outward(log_s, targets.advantage, config)
    weight = (targets.advantage / targets.n)[targets.execution]  # A_i / n_i
    ratio = ((now if config.form == "token" else old) - mu).exp()
    weight = weight * ratio.clamp(max=config.cap)
    masked_K = masked[targets.execution]
    if config.form == "token":
        loss = -(torch.where(masked_K, 0.0, weight) * pi_wide).sum()
    else:
        r = log_s.exp()[targets.execution] * (pi_wide - now).exp()
        edge = r.detach().clamp(
            1 - config.clip_low, 1 + config.clip_high
        )  # where min() takes the clipped side
        loss = -(weight * torch.where(masked_K, edge, r)).sum()
    sums = _statistics(now - mu, ratio, log_s, masked, targets, cap=config.cap)
    return loss, {"loss": loss.detach()} | sums


def _statistics(
    gap: Tensor, ratio: Tensor, log_s: Tensor, masked: Tensor, targets: Targets, *, cap: float
) -> dict[str, Tensor]:
    """An execution spread over several calls counts once: its share of targets is its weight."""
    share = torch.zeros_like(log_s).index_add_(0, targets.execution, torch.ones_like(gap)) / targets.n
    up, down = share * (targets.advantage > 0), share * (targets.advantage < 0)
    capped = ratio > cap
    size = gap.abs()
    edges = torch.tensor(GAP_EDGES[:-1], dtype=size.dtype, device=size.device)
    counts = torch.bucketize(size, edges).bincount(minlength=len(GAP_EDGES))
    up_K, down_K = ((sign > 0)[targets.execution] for sign in (targets.advantage, -targets.advantage))
    return {
        "executions_up": up.sum(),
        "executions_down": down.sum(),
        "masked_up": (up * masked).sum(),
        "masked_down": (down * masked).sum(),
        "log_s_up": (up * log_s).sum(),
        "log_s_down": (down * log_s).sum(),
        "targets": torch.ones_like(gap).sum(),
        "targets_masked": masked[targets.execution].sum(),
        "targets_capped": capped.sum(),
        "targets_up": up_K.sum(),
        "targets_down": down_K.sum(),
        "capped_up": (capped & up_K).sum(),
        "capped_down": (capped & down_K).sum(),
        "gap": gap.sum(),
        "gap_abs": size.sum(),
        "gap_large": (size > GAP_LARGE).sum(),
        "kl3": (gap.exp() - 1 - gap).sum(),  # k3 estimate of KL(mu || pi)
        "gap_abs_max": size.max(),
        **dict(zip(_COUNTED, counts, strict=True)),
    }


def add_up(a: Sums, b: Sums) -> Sums:
    """The sums of two disjoint parts of a batch; {} is the sums of nothing."""
    total = {name: a.get(name, 0.0) + b.get(name, 0.0) for name in a | b}
    return total | {name: max(a.get(name, 0.0), b.get(name, 0.0)) for name in LARGEST if name in total}


def finish(sums: Sums) -> dict[str, float]:
    """Means from a batch's sums, over the executions and targets that were computed (advantage not 0).

    clip_rate (of executions), clip_rate_up, clip_rate_down; log_s_up, log_s_down (mean log s) by the sign
    of the advantage; masked_targets, cap_rate, cap_rate_up, cap_rate_down (of targets); gap (mean pi - mu),
    gap_abs, gap_abs_max, gap_large (share of targets with |pi - mu| above GAP_LARGE); kl3.
    A mean over nothing is left out.  The sum `loss` is not here: it is over E, which the batch knows.
    """
    if not sums:
        return {}
    up, down, targets = sums["executions_up"], sums["executions_down"], sums["targets"]
    means = {
        "clip_rate": (sums["masked_up"] + sums["masked_down"], up + down),
        "clip_rate_up": (sums["masked_up"], up),
        "clip_rate_down": (sums["masked_down"], down),
        "log_s_up": (sums["log_s_up"], up),
        "log_s_down": (sums["log_s_down"], down),
        "masked_targets": (sums["targets_masked"], targets),
        "cap_rate": (sums["targets_capped"], targets),
        "cap_rate_up": (sums["capped_up"], sums["targets_up"]),
        "cap_rate_down": (sums["capped_down"], sums["targets_down"]),
        "gap": (sums["gap"], targets),
        "gap_abs": (sums["gap_abs"], targets),
        "gap_large": (sums["gap_large"], targets),
        "kl3": (sums["kl3"], targets),
    }
    result = {name: total / count for name, (total, count) in means.items() if count}
    return result | {"gap_abs_max": sums["gap_abs_max"]}


def by_lag(parts: Iterable[tuple[int | None, Sums]]) -> list[dict[str, Any]]:
    """Mismatch of mu and pi by version lag: one entry a lag, ascending, of those unknown (None) last.

    parts: (lag, sums) of disjoint parts of a batch; those of nothing ({}) count for none.  An entry has
    lag, targets, the means gap, gap_abs, gap_large and kl3 and the maximum gap_abs_max of `finish` over these
    targets, and `gap_counts`: how many have |pi - mu| up to each of GAP_EDGES, {"0.001": n, ..., "inf": n}.
    """
    of_lag: dict[int | None, Sums] = {}
    for lag, sums in parts:
        if sums:
            of_lag[lag] = add_up(of_lag.get(lag, {}), sums)
    found = []
    for lag, sums in sorted(of_lag.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        means = finish(sums)
        named = {name: means[name] for name in ("gap", "gap_abs", "gap_large", "kl3", "gap_abs_max")}
        counts = {f"{edge:g}": int(sums[name]) for edge, name in zip(GAP_EDGES, _COUNTED, strict=True)}
        found.append({"lag": lag, "targets": int(sums["targets"])} | named | {"gap_counts": counts})
    return found
