"""Nyström's attention failed: a product behind a region's result was taken in, and read what a later region gives.

Calls were put in from the last to the first, so that value was gone by then.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def nystrom(q, k, v):
    """Softmax attention through landmarks: means of 6 rows each, and an inverse by iteration."""
    scores = lambda a, b: torch.softmax(a @ b.mT / 4, -1)
    few_q, few_k = (x.unflatten(1, (8, 6)).mean(2) for x in (q, k))
    middle = scores(few_q, few_k)
    inverse, eye = middle.mT / (middle.sum(-2).amax() * middle.sum(-1).amax()), torch.eye(8, dtype=q.dtype)
    for _ in range(3):
        both = middle @ inverse
        inverse = 0.25 * inverse @ (13 * eye - both @ (15 * eye - both @ (7 * eye - both)))
    return (scores(q, few_k) @ inverse) @ (scores(few_q, k) @ v)


@pytest.mark.slow
def test_it_is_fused_and_right():
    inputs = [torch.randn(2, 48, 16) for _ in range(3)]
    run = torch.compile(nystrom, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    exact = nystrom(*(x.double() for x in inputs))
    torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=1e-5, rtol=1e-4)
    (said,) = records.reports()
    assert sum(r.passes == (3, 1) for r in said.regions) == 2 and not said.failures
