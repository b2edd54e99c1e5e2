"""A bias by distance that nn.Embedding looks up was made outside, rows times columns, and nothing said why.

It is the same lookup as table[index], and belongs to the region where its places can be made anew.
"""

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.api.backend import onepass_backend


def places(q):
    at = torch.arange(q.shape[-2])
    return (at - at[:, None]).clamp(-16, 15) + 16


class Biased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Embedding(32, 2)

    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT + self.bias(places(q)).permute(2, 0, 1), -1) @ v


def by_function(q, k, v, table):
    bias = functional.embedding(weight=table, input=places(q)).permute(2, 0, 1)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def renewed(q, k, v, table):
    bias = functional.embedding(places(q), table, max_norm=1.0).permute(2, 0, 1)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def inputs(*more):
    torch.manual_seed(0)
    return [*(torch.randn(2, 2, 60, 16) for _ in range(3)), *more]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "read"), [(Biased, "weight["), (lambda: by_function, "table["), (lambda: renewed, "embedding[i, j, h]")]
)
def test_the_table_is_read_in_the_kernel_unless_reading_changes_it(make, read):
    function = make()
    given = inputs(*([] if make is Biased else [torch.randn(32, 2)]))
    (region,) = onepass.explain(function, *given).regions
    assert read in region.captured and (read != "weight[" or "embedding" not in region.captured)


def test_results_and_gradients_are_eagers():
    model, given = Biased(), inputs()
    run = torch.compile(model, backend=onepass_backend, options={"inner": "eager", "strict": True})
    found = []
    for call in (run, model):
        model.zero_grad()
        result = call(*given)
        result.square().sum().backward()
        found.append((result.detach(), model.bias.weight.grad.clone()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
