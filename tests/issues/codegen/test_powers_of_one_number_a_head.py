"""A power whose base is one number a head failed in Triton's interpreter: the kernel compared the number, and joined
that to a tile of comparisons."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.lowering.codegen.ops import HELPERS
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")
BASES = [0.7, -0.9, 1.0, -1.0, 0.0, 1.2, -1.1, 0.3]


def decayed(q, k, v, base):
    """Retention: what is i - j places away counts base^(i - j)."""
    i = torch.arange(q.shape[-2]).to(q.dtype)
    decay = torch.tril(torch.pow(base[:, None, None], (i[:, None] - i[None]).abs()))
    return (q @ k.mT * decay) @ v


def halves(q, k, v, base):
    """Fractions as exponents, which no negative base has."""
    i = torch.arange(q.shape[-2]).to(q.dtype)
    return (q @ k.mT * torch.pow(base[:, None, None], i[None, :] / 2)) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function, bases", [(decayed, BASES), (halves, [abs(b) for b in BASES])])
def test_the_kernel_runs_in_the_interpreter_and_is_right(function, bases):
    q, k, v = (torch.randn(1, len(bases), 16, 8) for _ in range(3))
    options = {"inner": "eager", "executor": "triton", "strict": True}
    result = torch.compile(function, backend=onepass_backend, options=options)(q, k, v, torch.tensor(bases))
    wanted = function(q.double(), k.double(), v.double(), torch.tensor(bases, dtype=torch.float64))
    torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4)
    (region,) = records.reports()[-1].regions
    assert region.ran == "triton" and not region.notes


def test_no_comparison_of_the_base_is_joined_to_one_of_the_exponent():
    joined = [line for line in HELPERS["power"].splitlines() if " & " in line or " | " in line]
    assert all("{x}" not in line for line in joined)
