"""A graph was run that is not the function: of a module whose attribute had changed, of an `if` of a length, with casts
that autocast inside of the function had taken away, and with sinks that the function divides out."""

import pytest
import torch
from torch.nn.functional import dropout, pad

import onepass
from onepass.errors import Refusal

Q, K, V = (torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))


class Scaled(torch.nn.Module):
    scale = 1.0

    def forward(self, q, k, v):
        return dropout(torch.softmax(q @ k.mT * self.scale, -1), 0.5, self.training) @ v


def test_a_module_is_read_as_it_is_in_each_call(mesh):
    module = Scaled().eval()
    shared = onepass.context_parallel(module, mesh, "cp")
    for scale in (1.0, 2.0, 1.0):
        module.scale = scale
        right = module(Q.double(), K.double(), V.double()).float()
        torch.testing.assert_close(shared(Q, K, V), right, rtol=1e-5, atol=1e-5)
    module.train()
    with pytest.raises(Refusal, match="random"):
        shared(Q, K, V)


class Counting(Scaled):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, q, k, v):
        self.calls += 1
        return super().forward(q, k, v)


def test_a_module_that_counts_its_calls_has_one_graph(mesh):
    shared = onepass.context_parallel(Counting().eval(), mesh, "cp")
    for _ in range(3):
        shared(Q, K, V)
        assert len(shared.reports) == 1


SHORT = {
    "a short sequence": lambda q, k, v: torch.softmax(q @ k.mT * (2 if k.shape[-2] < 100 else 1), -1) @ v,
    "an even number of queries": lambda q, k, v: torch.softmax(q @ k.mT * (2 - q.shape[-2] % 2), -1) @ v,
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("pieces", [1, 2])
def test_another_function_of_a_short_part_is_refused(name, pieces, mesh):
    with pytest.raises(Refusal, match="another function for another number of queries or keys"):
        onepass.context_parallel(SHORT[name], mesh, "cp", pieces=pieces)(Q, K, V)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (2, 4), (3, 1), (6, 6)])
def test_lengths_that_are_other_sizes_too_are_no_other_function(lengths, pieces, mesh):
    """Those of heads, of sinks, of columns, and one."""
    queries, keys = lengths
    joined = lambda q, k, v: torch.softmax(pad(q @ k.mT / 3, (0, 2)), -1)[..., :-2] @ v
    given = Q[:, :, :queries], K[:, :, :keys], V[:, :, :keys]
    found = onepass.context_parallel(joined, mesh, "cp", pieces=pieces)(*given)
    torch.testing.assert_close(found, joined(*(x.double() for x in given)).float(), rtol=1e-5, atol=1e-5)


def test_autocast_inside_of_the_function_is_as_written(mesh):
    weights = torch.eye(8)

    def projected(q, k, v, weights):
        attended = torch.softmax(q @ k.mT / 3, -1) @ v
        with torch.autocast("cpu", enabled=False):
            return attended.float() @ weights

    with torch.autocast("cpu", torch.bfloat16):
        found, right = onepass.context_parallel(projected, mesh, "cp")(Q, K, V, weights), projected(Q, K, V, weights)
    assert found.dtype == right.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=3e-2, atol=3e-2)


def test_sinks_that_are_divided_out_are_no_state(mesh):
    def without(q, k, v):
        weights = torch.softmax(pad(q @ k.mT / 3, (0, 1), value=2.0), -1)[..., :-1]
        return weights / weights.sum(-1, keepdim=True) @ v

    with pytest.raises(Refusal, match="no sum of them, each times a value"):
        onepass.context_parallel(without, mesh, "cp")(Q, K, V)
