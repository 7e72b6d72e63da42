"""Muon against its definition and against PyTorch's own."""

import pytest
import torch
from torch import nn

from wavecore.train.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 20), (2, 20, 6), (1, 1, 5)])
def test_singular_values_come_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_batch_equals_single_matrices():
    torch.manual_seed(0)
    matrices = torch.randn(3, 6, 10)
    for matrix, together in zip(matrices, orthogonalise(matrices), strict=True):
        torch.testing.assert_close(orthogonalise(matrix[None])[0], together, atol=1e-5, rtol=1e-4)


def test_steps_are_those_of_pytorchs_muon():
    torch.manual_seed(0)
    start = torch.randn(6, 10)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a = Muon([ours], lr=0.02)
    b = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for seed in range(5):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(seed))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        a.step()
        b.step()
    # PyTorch iterates in bfloat16.
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)
    assert (ours - start).abs().max() > 0.02


def test_a_parameter_without_gradient_stays():
    weight = nn.Parameter(torch.ones(2, 2))
    Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(2, 2))
