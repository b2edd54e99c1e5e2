"""A product inside of what torch.cond calls failed inside of onepass where gradients are wanted, and was not refused.

Results of such a call are a tuple, which has no dtype. The program was right, as the original ran.
"""

import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products


def program(h, w):
    one = lambda h, w: F.linear(h, w)[:, :-1].logsumexp(-1)
    other = lambda h, w: F.linear(h, w * 2)[:, 1:].amax(-1)
    return torch.cond(h.sum() > 0, one, other, (h, w))


def test_it_is_refused_and_right(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    h, w = torch.randn(3, 7, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    run = torch.compile(program, backend=onepass.onepass_backend, options={"inner": "eager", "libraries": False})
    for sign in (1, -1):
        found, right = (function(h * sign, w) for function in (run, program))
        torch.testing.assert_close(found, right)
        for one, exact in zip(*(torch.autograd.grad(x.sum(), (h, w)) for x in (found, right)), strict=True):
            torch.testing.assert_close(one, exact)
    report = onepass.reports()[-1]
    assert not report.failures and {refusal.code for refusal in report.refusals} == {"OP203"}
