"""AdamW as torch computes it (its functional form), with its moments in plain sight.

`torch.optim.AdamW(...)` loads torch's compiler, sympy and triton when it is made: seconds of every start.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class AdamW:
    """Moments for named parameters, zero at the start; `step` moves the parameters by their .grad."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        betas: tuple[float, float],
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = dict(parameters)
        self._betas, self._epsilon, self._weight_decay = betas, epsilon, weight_decay
        self.moments: dict[str, dict[str, Tensor]] = {
            "step": {name: torch.zeros((), dtype=torch.float32) for name in self.parameters},
            "exp_avg": {name: torch.zeros_like(p) for name, p in self.parameters.items()},
            "exp_avg_sq": {name: torch.zeros_like(p) for name, p in self.parameters.items()},
        }

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Every parameter must have its gradient."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        assert len(gradients) == len(self.parameters)
        adamw(
            list(self.parameters.values()),
            gradients,
            list(self.moments["exp_avg"].values()),
            list(self.moments["exp_avg_sq"].values()),
            [],
            list(self.moments["step"].values()),
            foreach=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """`MOMENT.NAME` -> the tensor itself."""
        return {f"{m}.{name}": self.moments[m][name] for m in MOMENTS for name in self.parameters}
