"""Muon: momentum whose update is orthogonalised, for the matrices of a transformer (Jordan et al. 2024).

PyTorch's own iterates in bfloat16, which CPUs without matrix units emulate slowly; this one works in
float32 and on all matrices of a shape at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, as published
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum.

    Parameters
    ----------
    parameters : iterable of Parameter
        Matrices only.
    lr : float
        Learning rate; updates have the size of AdamW's (0.2 root mean square), so AdamW's rates fit.
    momentum : float
        Of Nesterov's kind.
    weight_decay : float
        Decoupled.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                directions = orthogonalise(torch.stack([self._direction(p, group) for p in parameters]))
                size = group["lr"] * 0.2 * max(rows, columns) ** 0.5
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=size)

    def _direction(self, parameter: nn.Parameter, group: dict[str, float]) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
        return torch.lerp(parameter.grad, state["momentum"], group["momentum"])


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices [n, rows, columns] near 1 by Newton-Schulz iteration."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrices.shape[1] > matrices.shape[2] else x
