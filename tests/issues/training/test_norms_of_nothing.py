"""The gradient of a norm of zeros was NaN where torch gives 0: of the distance of a row from itself, or an empty row.

torch divides by the norm and writes 0 where it is 0. A root that the program writes itself keeps its NaN, as in eager.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
SCORES = {
    "vector_norm": lambda x, y: torch.linalg.vector_norm(x[:, :, None] - y[:, None], dim=-1),
    "norm": lambda x, y: (x[:, :, None] - y[:, None]).norm(dim=-1),
    "norm of rows": lambda x, y: x @ y.mT / 3 + torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "root": lambda x, y: (x[:, :, None] - y[:, None]).square().sum(-1).sqrt(),
}


def results(function, inputs, dtype):
    given = [x.to(dtype).requires_grad_() for x in inputs]
    out = function(*given)
    weights = torch.sin(torch.arange(out.numel(), dtype=dtype)).view_as(out)
    return [out.detach().double(), *(g.double() for g in torch.autograd.grad((out * weights).sum(), given))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("score", SCORES)
def test_the_gradient_of_no_distance_is_torchs(score, executor):
    def attend(x, y, v):
        return torch.softmax(-SCORES[score](x, y), -1) @ v

    x, y, v = torch.randn(2, 20, 8), torch.randn(2, 24, 8), torch.randn(2, 24, 8)
    y[:, 3], y[:, 7] = x[:, 5], x[:, 2]
    x[:, 9] = 0
    options = {"inner": "eager", "executor": executor, "libraries": False}
    found = results(torch.compile(attend, backend=onepass_backend, options=options), (x, y, v), torch.float32)
    wanted = results(attend, (x, y, v), torch.float64)
    assert any(w.isnan().any() for w in wanted) is (score == "root")
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, equal_nan=True)
    (region,) = onepass.reports()[-1].regions
    assert region.ran == executor and "derived" in str(onepass.reports()[-1])
