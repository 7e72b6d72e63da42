"""Attention to keys that lie ready: the kernel where it can run, PyTorch's with a gradient or a mask."""

import pytest
import torch
import torch.nn.functional as F
from support.ops import assert_accurate

from wavecore import ops


def tensors(slots, queries, keys, heads, size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(queries)
    shapes = [(slots, queries, heads, size), (slots, keys, heads, size), (slots, keys, heads, size)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def others(q, k, v, mask=None):
    parts = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 48, 16, 4, 48), (3, 7, 5, 2, 24), (2, 1, 300, 1, 128)])
def test_matches_exact_attention(backend, dtype, shape):
    q, k, v = tensors(*shape, dtype)
    ops.set_backend(backend)
    try:
        out = ops.attention(q, k, v)
    finally:
        ops.set_backend("auto")
    assert out.dtype == dtype
    assert_accurate(out, others(q.double(), k.double(), v.double()), others(q, k, v))


def test_with_a_gradient_or_a_mask_it_is_pytorchs():
    q, k, v = tensors(2, 6, 9, 2, 16)
    mask = torch.arange(9) <= torch.arange(6)[:, None] + 3
    assert torch.equal(ops.attention(q, k, v, mask), others(q, k, v, mask))
    leaves = [part.clone().requires_grad_() for part in (q, k, v)]
    expected = [part.clone().requires_grad_() for part in (q, k, v)]
    ops.attention(*leaves).square().sum().backward()
    others(*expected).square().sum().backward()
    for leaf, other in zip(leaves, expected, strict=True):
        assert torch.equal(leaf.grad, other.grad)


def test_keys_that_all_slots_share_are_attended_to_as_by_one(monkeypatch):
    q, k, v = tensors(3, 6, 9, 2, 16)
    k, v = (part[:1].expand(3, -1, -1, -1) for part in (k, v))
    expected, given = others(q, k.contiguous(), v.contiguous()), []
    attend = F.scaled_dot_product_attention

    def noted(*parts, **options):
        given.extend(parts)
        return attend(*parts, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    ops.set_backend("torch")
    try:
        torch.testing.assert_close(ops.attention(q, k, v), expected)
    finally:
        ops.set_backend("auto")
    assert [part.shape[0] for part in given] == [1, 1, 1]


def test_any_number_of_threads_gives_the_same_bits():
    q, k, v = tensors(5, 48, 16, 4, 48)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(ops.attention(q, k, v))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
