"""A literal -0.0 (the negative of torch.eye) came back from the search as 0.0, and no derivation led there.

egglog's numbers do not tell the two apart; their quotients differ.
"""

import math

import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.egraph.search.engine import saturate
from onepass.egraph.terms.ops import const


def attend(q, k, v, mask):
    hidden = (mask.float() + -torch.eye(19) > 0).float()
    return torch.softmax(q @ k.mT - 1e30 * hidden, -1) @ v


def inputs():
    return [*(torch.randn(2, 19, 8) for _ in range(3)), torch.rand(19, 19) > 0.7]


def test_the_zeros_are_two():
    minus, plus = const(-0.0), const(0.0)
    assert minus is not plus
    graph = saturate((minus, plus), {})
    assert graph.roots[0] != graph.roots[1]


def test_it_is_fused_and_right():
    given = inputs()
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
    assert onepass.explain(attend, *given).passes == (3, 1)


def test_a_quotient_by_it_keeps_its_sign():
    def divided(q, k, v):
        return torch.softmax(q @ k.mT + (torch.ones(19, 19) / -torch.eye(19)).clamp(-2, 2), -1) @ v

    given = inputs()[:3]
    run = torch.compile(divided, backend=onepass_backend, options={"inner": "eager"})
    assert math.isfinite(run(*given).sum())
    torch.testing.assert_close(run(*given), divided(*given), rtol=1e-5, atol=1e-5)
