"""A parameter of a numbered module (`layers.0.slopes`) had a name that begins with a digit.

The entry of such a region in the disk cache was not taken: each process searched again."""

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.rand(2))

    def forward(self, q, k, v):
        at = torch.arange(q.shape[-2])
        return torch.softmax(q @ k.mT - self.slopes[:, None, None] * (at[:, None] - at).abs(), -1) @ v


def reported(model, executor, given):
    """The report of the first call of a newly compiled model, which is right."""
    torch._dynamo.reset()
    process_state.forget()
    options = {"inner": "eager", "strict": True, "executor": executor}
    run = torch.compile(lambda *x: model[0](*x), backend=onepass_backend, options=options)
    with torch.no_grad():
        found = run(*given)
        exact = torch.nn.Sequential(Layer()).double()
        exact.load_state_dict(model.state_dict())
        wanted = exact[0](*(x.double() for x in given))
    torch.testing.assert_close(found, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    return region


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_kernels_run_and_the_cache_takes_it(executor):
    model, given = torch.nn.Sequential(Layer()), [torch.randn(1, 2, 20, 16) for _ in range(3)]
    first = reported(model, executor, given)
    assert first.ran == executor and "x0_slopes" in first.captured
    assert "found on disk" in reported(model, executor, given).cache
