"""Rows all of whose scores are a mask's number, such as -1e9: their results were as many times too large as there were
parts, and gradients as there were keys, as a logarithm of -1e9 does not hold the number of keys.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

import onepass
from onepass.distributed.laws.attention_cut import LEAST_SCORE, traced
from tests.support.processes import as_rank, together

RANKS, LENGTH = 3, 13
FINFO = torch.finfo(torch.float32).min
CUTS = [2, 7, 4]  # keys of the ranks
SIDES = {"queries": {"q": -2}, "keys": {"k": -2, "v": -2, "kept": -1}}


def filled(q, k, v, kept):
    return torch.softmax((q @ k.mT / 3).masked_fill(~kept[:, None, None], -1e9), -1) @ v


def by_millions(q, k, v, kept):
    """A logarithm in float32 holds the number of keys beside it in part. Keys of no rank are -inf."""
    scores = torch.where(kept[:, None, None], q @ k.mT / 3, -1e6 * q.shape[-1])
    return torch.softmax(scores.masked_fill(v[..., None, :, 0] > 1, -float("inf")), -1) @ v


def added(q, k, v, kept):
    mask = torch.zeros_like(kept, dtype=q.dtype).masked_fill(~kept, torch.finfo(q.dtype).min)
    return torch.softmax(q @ k.mT / 3 + mask[:, None, None], -1) @ v


def given(q, k, v, kept):
    """The mask comes as numbers."""
    return torch.softmax(q @ k.mT / 3 + kept[:, None, None], -1) @ v


def whole(function):
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(3, 2, LENGTH, 8, generator=generator) for _ in range(4))
    kept = torch.rand(3, LENGTH, generator=generator) < 0.5
    kept[0], kept[1, :9] = False, False  # no key at all; none on two of the ranks
    return [q, k, v, torch.where(kept, 0.0, -1e30) if function is given else kept], grad


FUNCTIONS, SCHEDULES = (filled, by_millions, added, given), ("ring", "all-gather")


def stepped(call, tensors, grad):
    tensors = [x.clone().requires_grad_(n < 3) for n, x in enumerate(tensors)]
    result = call(*tensors)
    return [result.detach(), *torch.autograd.grad(result, tensors[:3], grad)]


def work(rank, folder):
    with as_rank(rank, RANKS, folder):
        mesh = init_device_mesh("cpu", (RANKS,))
        for function in FUNCTIONS:
            tensors, grad = whole(function)
            own = [x.split(CUTS, axis)[rank] for x, axis in zip(tensors, (-2, -2, -2, -1), strict=True)]
            for schedule in SCHEDULES:
                call = onepass.context_parallel(function, mesh, schedule=schedule, **SIDES)
                found = stepped(call, own, grad.split(CUTS, -2)[rank])
                torch.save(found, folder / f"{function.__name__} {schedule} {rank}")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_numbers_that_stand_in_for_scores_are_bounded(function):
    """One that is added hides the scores it is added to, as eager's does, and stays."""
    mode = FakeTensorMode()
    found = traced(function, [mode.from_tensor(x) for x in whole(function)[0]])
    numbers = {x for node in found.graph.nodes for x in node.args if isinstance(x, float) and -float("inf") < x < -1e3}
    assert numbers == {filled: {LEAST_SCORE}, by_millions: {LEAST_SCORE}, added: {FINFO}, given: set()}[function]


@pytest.mark.slow
def test_they_have_equal_weights_for_all_keys(tmp_path):
    together(work, folder=tmp_path, ranks=RANKS)
    for function in FUNCTIONS:
        tensors, grad = whole(function)
        right = stepped(function, [x.double() if x.is_floating_point() else x for x in tensors], grad.double())
        for schedule in SCHEDULES:
            each = [torch.load(tmp_path / f"{function.__name__} {schedule} {rank}") for rank in range(RANKS)]
            for parts, expected in zip(zip(*each, strict=True), right, strict=True):
                torch.testing.assert_close(torch.cat(parts, -2), expected.float(), rtol=5e-3, atol=3e-3)
