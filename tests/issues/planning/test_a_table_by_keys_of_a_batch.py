"""A table that each key of each batch reads: its gradient sums over the batch inside of a sum over keys, and the index
was tabulated outside of the inner sum that binds its batch (WrongPlanning, unknown sizes)."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def by_keys(q, k, v, table, kind):
    s = q @ k.mT + table[kind].permute(0, 2, 1)[:, :, None]
    return torch.sigmoid(s) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_the_table(dynamic):
    torch.manual_seed(0)
    given = [torch.randn(*shape, dtype=torch.float64, requires_grad=True)
             for shape in ((2, 3, 16, 8), (2, 3, 17, 8), (2, 3, 17, 8), (9, 3))]  # fmt: skip
    kind = torch.randint(0, 9, (2, 17))
    run = torch.compile(by_keys, backend=onepass_backend, dynamic=dynamic, options={"inner": "eager", "strict": True})
    result, right = run(*given, kind), by_keys(*given, kind)
    cotangent = torch.randn_like(right)
    for mine, own in zip(*(torch.autograd.grad(x, given, cotangent) for x in (result, right)), strict=True):
        torch.testing.assert_close(mine, own)
    (region,) = records.reports()[-1].regions
    assert region.backward.startswith("derived")
