"""Where eager raises, as a fill of -1e9 in half precision does, the compiled program gave a result, or not a number."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

BEYOND = {
    "filled": lambda q, k, v, m, x: torch.softmax((q @ k.mT).masked_fill(~m, x), -1) @ v,
    "filled in place": lambda q, k, v, m, x: torch.softmax((q @ k.mT).masked_fill_(~m, x), -1) @ v,
    "made": lambda q, k, v, m, x: torch.softmax(q @ k.mT + torch.full((16, 16), x, dtype=q.dtype).triu(1), -1) @ v,
    "clamped": lambda q, k, v, m, x: torch.softmax((q @ k.mT).clamp(x, -x), -1) @ v,
    "keys": lambda q, k, v, m, x: torch.softmax(q @ k.masked_fill(~m.mT, x).mT, -1) @ v,
    "padded": lambda q, k, v, m, x: (
        torch.softmax(q @ F.pad(k, (0, 0, 0, 2), value=x).mT, -1) @ F.pad(v, (0, 0, 0, 2), value=1.0)
    ),
}


def inputs(dtype):
    torch.manual_seed(0)
    mask = torch.rand(2, 1, 1, 16) > 0.3
    mask[..., 0] = True
    return [*torch.randn(3, 2, 2, 16, 8).to(dtype).unbind(0), mask]


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("dtype, number", [(torch.float16, -1e9), (torch.bfloat16, -1e39), (torch.float32, -1e39)])
def test_eagers_error_stays_an_error(name, dtype, number):
    given = (*inputs(dtype), number)
    with pytest.raises(RuntimeError, match="without overflow"):
        BEYOND[name](*given)
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(BEYOND[name])(*given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["filled", "filled in place", "made", "clamped"])
@pytest.mark.parametrize("number", [-6e4, -1e4])
def test_numbers_within_are_fused(name, number, fresh):
    given = (*inputs(torch.float16), number)
    result, exact = compiled(BEYOND[name])(*given), BEYOND[name](*given)
    torch.testing.assert_close(result, exact, atol=4e-3, rtol=4e-3)
    assert [len(report.regions) for report in onepass.reports()] == [1]
