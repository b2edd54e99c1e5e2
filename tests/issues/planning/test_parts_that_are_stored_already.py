"""A part that cost had stored was cut once more, behind a sum over other names of dims: its store read itself.

The check after the stage raised WrongPlanning, and the region was left as written.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def shifted_by_its_mean(q, k, v, bias):
    s = q @ k.mT + bias
    s = s + s.mean(-1, keepdim=True)
    e = (s - s.max(-1, keepdim=True).values).exp()
    return (e / e.sum(-1, keepdim=True)) @ v, torch.logsumexp(s, -1)


def test_it_has_a_plan_and_computes_the_right_thing():
    torch.manual_seed(0)
    inputs = [*(torch.randn(2, 1, 417, n) for n in (5, 5, 24)), torch.randn(417)]
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    found = torch.compile(shifted_by_its_mean, backend=onepass.onepass_backend, options=options)(*inputs)
    (report,) = onepass.reports()
    assert report.regions and not report.refusals and not report.failures
    for mine, wanted in zip(found, shifted_by_its_mean(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-4)


def scaled_by_one_number(q, k, v, z, slope):
    """The gradient of z is a sum that is cut twice: its second half was stored behind its reader."""
    p = torch.sigmoid(q @ k.mT * z.exp() * 0.3 + slope[:, None, None])
    return (p @ v).transpose(1, 2).flatten(2)


def test_a_half_of_a_half_is_stored_before_it():
    torch.manual_seed(0)
    inputs = [*(torch.randn(1, 2, 18, 8) for _ in range(3)), torch.randn(()), torch.randn(2)]
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    run = torch.compile(scaled_by_one_number, backend=onepass.onepass_backend, options=options)
    mine = [x.clone().requires_grad_() for x in inputs]
    exact = [x.double().requires_grad_() for x in inputs]
    run(*mine).sin().sum().backward()
    scaled_by_one_number(*exact).sin().sum().backward()
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")
    for x, y in zip(mine, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-4)


def mixed(q, k, v, before, after):
    """With one head, a group of results would have a dim that one of them sums over."""
    s = torch.einsum("bhij,gh->bgij", q @ k.mT * 0.3, before)
    p = torch.einsum("bhij,gh->bgij", s.softmax(-1), after)
    return p @ v, p


def test_results_share_no_kernel_over_what_one_of_them_sums():
    torch.manual_seed(0)
    inputs = [*(torch.randn(2, 1, 28, 8) for _ in range(3)), torch.randn(1, 1), torch.randn(1, 1)]
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    found = torch.compile(mixed, backend=onepass.onepass_backend, dynamic=True, options=options)(*inputs)
    assert onepass.reports()[-1].regions
    for mine, wanted in zip(found, mixed(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-4)
