"""A batch axis taken out of an einsum with symbolic sizes had the size s**2 // s, which no launch could know."""

import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v):
    weights = torch.einsum("bhid,bhjd->jbhi", q, k).softmax(0)
    return torch.einsum("jbhi,bhje->bhie", weights, v)


def test_it_is_fused_without_a_note_and_right():
    given = [torch.randn(2, 2, 20, 8) for _ in range(3)]
    options = {"inner": "eager", "executor": "triton"}
    run = torch.compile(attend, backend=onepass_backend, options=options, dynamic=True)
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert not region.notes
