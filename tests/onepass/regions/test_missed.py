"""Chains of contractions that something unknown breaks: named with the user's line, and no word of ordinary
networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.onepass.regions.test_find import aten_regions_of, one, regions_of, tensors
from tests.support import spellings


def sorted_scores(q, k, v):
    return torch.softmax((q @ k.mT).sort(-1)[0], -1) @ v


def summed_weights(q, k, v):
    return torch.softmax(q @ k.mT, -1).cumsum(-1) @ v


def largest_scores(q, k, v):
    return torch.softmax((q @ k.mT).topk(4)[0], -1) @ v[..., :4, :]


def multiplied_scores(q, k, v):
    return torch.softmax((q @ k.mT).cumprod(-1), -1) @ v


def by_hand(q, k, v):
    scores = (q @ k.mT).cumsum(-1)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights @ v) / weights.sum(-1, keepdim=True)


def unknown_softmax(q, k, v):
    return F.gumbel_softmax(q @ k.mT, dim=-1) @ v


def checkpointed_softmax(q, k, v):
    return checkpoint(lambda s: torch.softmax(s, -1), q @ k.mT, use_reentrant=False) @ v


BROKEN = [
    (sorted_scores, "sort", 1),
    (summed_weights, "cumsum", 1),
    (largest_scores, "topk", 1),
    (multiplied_scores, "cumprod", 1),
    (by_hand, "cumsum", 1),
    (unknown_softmax, "gumbel_softmax", 1),
    (checkpointed_softmax, "checkpoint", 1),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function, name, line", BROKEN)
def test_an_unknown_operation_between_contractions_is_named(function, name, line, dynamic):
    region, _ = one(regions_of(function, *tensors(), dynamic=dynamic))
    assert region.refusal.kind == "unknown operation" and name in region.refusal.reason
    assert region.refusal.where == f"{__file__}:{function.__code__.co_firstlineno + line}"


def test_an_unknown_operation_is_named_in_aten_graphs_too():
    region, _ = one(aten_regions_of(sorted_scores, *tensors()))
    assert region.refusal.kind == "unknown operation" and "sort" in region.refusal.reason
    assert region.refusal.where == f"{__file__}:{sorted_scores.__code__.co_firstlineno + 1}"


def test_a_refusal_does_not_hide_the_regions_around_it():
    found = regions_of(lambda q, k, v: spellings.attend(F.layer_norm(sorted_scores(q, k, v), (16,)), k, v), *tensors())
    assert [r.refusal is None for r, _ in found] == [False, True]


class Gate(nn.Module):
    """A softmax between layers: experts are chosen with topk, weights and inputs meet in contractions."""

    def __init__(self):
        super().__init__()
        self.gate, self.first = nn.Parameter(torch.randn(32, 4)), nn.Parameter(torch.randn(4, 32, 64))
        self.second = nn.Parameter(torch.randn(4, 64, 32))

    def forward(self, x):
        best, which = torch.softmax(x @ self.gate, -1).topk(2)
        share = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, best)
        hidden = F.silu(torch.einsum("bsd,edf->bsef", x, self.first))
        return (torch.einsum("bsef,efd->bsed", hidden, self.second) * share[..., None]).sum(-2)


def normal_networks():
    mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))
    first, second = (nn.Conv1d(8, 8, 3, padding=1) for _ in range(2))
    convolutions = nn.Sequential(first, nn.BatchNorm1d(8), nn.Softmax(-1), second, nn.Linear(32, 32))
    return {"mlp": mlp, "norm": nn.LayerNorm(32), "convolutions": convolutions, "gate": Gate()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("look", [regions_of, aten_regions_of])
@pytest.mark.parametrize("name", normal_networks())
def test_nothing_is_said_of_ordinary_networks(name, look):
    found = look(normal_networks()[name].requires_grad_(False), torch.randn(2, 8, 32))
    assert all(region.refusal is None for region, _ in found)
    assert found == [] or name == "gate"  # ATen does not tell experts' weights from other tensors


@pytest.mark.parametrize("between", [F.gelu, lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x.sort(-1)[0]])
def test_nothing_is_said_of_contractions_without_a_reduction_between(between):
    inputs = torch.randn(2, 8, 16), torch.randn(2, 16, 32), torch.randn(2, 32, 16)
    assert all(r.refusal is None for r, _ in regions_of(lambda x, a, b: between(x @ a) @ b, *inputs))


def test_blocks_with_rotated_positions_are_not_refused():
    def rotated(x, frequencies):
        angles = frequencies @ torch.arange(8.0)[None, None]  # a contraction, and no attention
        angles = torch.cat([angles, angles], 1).mT[:, None]
        return x * angles.cos() + torch.cat([-x[..., 8:], x[..., :8]], -1) * angles.sin()

    def attend(q, k, v, frequencies):
        return spellings.attend(rotated(q, frequencies), rotated(k, frequencies), v)

    region, _ = one(regions_of(attend, *tensors(), torch.randn(2, 8, 1)))
    assert region.refusal is None


def test_a_region_inside_of_a_higher_order_operation_is_said():
    def chosen(q, k, v):
        return torch.cond(q.sum() > 0, spellings.attend, lambda q, k, v: v.clone(), (q, k, v))

    region, _ = one(regions_of(chosen, *tensors()))
    assert region.refusal.kind == "higher-order" and "cond" in region.refusal.reason
    assert "spellings.py:" in region.refusal.where


@pytest.mark.slow
def test_the_region_of_a_checkpoint_is_one_of_its_own_graph():
    checkpointed = lambda q, k, v: checkpoint(spellings.attend, q, k, v, use_reentrant=False)
    assert regions_of(checkpointed, *tensors()) == []
    assert regions_of(lambda x: checkpoint(normal_networks()["norm"], x, use_reentrant=False), torch.randn(2, 32)) == []
