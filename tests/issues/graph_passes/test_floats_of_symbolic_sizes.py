"""`q.shape[-1] ** -0.5` and slopes of ALiBi with symbolic sizes left attention unfused, with a traceback in the log."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report.records import reports

pytestmark = pytest.mark.usefixtures("fresh")


def powered(q, k, v):
    return torch.softmax((q @ k.mT) * q.shape[-1] ** -0.5, -1) @ v


def sloped(q, k, v):
    heads = q.shape[1]
    slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))
    away = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    return torch.softmax(q @ k.mT / 4 + slopes[:, None, None] * away, -1) @ v


def chosen(q, k, v):
    """A length or a number: the product of the one and a literal is float32, of the other a literal."""
    first = torch.arange(q.shape[2])[:, None] <= 0
    return (
        torch.softmax(q @ k.mT / 4 + 0.1 * torch.where(first, 1 - q.shape[2], 1) * (torch.arange(k.shape[2]) - 3), -1)
        @ v
    )


def chosen_by_rows(q, k, v):
    return torch.softmax(q @ k.mT / 4 * (0.1 * torch.where(torch.arange(k.shape[2]) <= 0, 1 - k.shape[2], 1)), -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("function", [powered, sloped, chosen, chosen_by_rows])
def test_they_are_captured_and_right(function):
    run = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "strict": True}, dynamic=True)
    for heads, rows, columns, width in ((2, 7, 9, 16), (4, 33, 20, 8), (3, 64, 65, 24)):
        q, k, v = (torch.randn(2, heads, n, width) for n in (rows, columns, columns))
        expected = function(q.double(), k.double(), v.double())
        torch.testing.assert_close(run(q, k, v).double(), expected, atol=1e-5, rtol=0)
    found = reports()
    assert found and all(r.regions and not r.refusals and not r.failures for r in found)
