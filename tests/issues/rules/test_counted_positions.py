"""Decoders tell packed sequences by jumps in positions that they made themselves: a mask that hides nothing was data.

Differences and running sums of numbers are functions of coordinates; of anything else they stay in front.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

CAUSAL = "j < i + 1"


def _attention(q, k, v, keeps, bias=0.0):
    score = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return torch.softmax(score.masked_fill(~keeps, -math.inf), -1) @ v


def _packed(positions):
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    ids = jumps.cumsum(-1)
    return (ids[:, None, :, None] == ids[:, None, None, :]) & (
        positions[:, None, None, :] <= positions[:, None, :, None]
    )


def _one_sequence(q, k, v):
    return _attention(q, k, v, _packed(torch.arange(q.shape[2]).unsqueeze(0) + 3))


def _every_second(q, k, v):
    """Positions that jump each time: no two tokens belong to one sequence."""
    return _attention(q, k, v, _packed(torch.arange(q.shape[2]).unsqueeze(0) * 2))


def _given(q, k, v, positions):
    return _attention(q, k, v, _packed(positions))


def _two_sequences(q, k, v):
    """Not alike along the axis: computed in front, as written."""
    places = torch.arange(q.shape[2])
    return _attention(q, k, v, _packed(torch.where(places < 5, places, places - 5).unsqueeze(0)))


def _without_front(q, k, v):
    steps = torch.diff(torch.arange(q.shape[2] + 1) * 3)
    return _attention(q, k, v, torch.arange(k.shape[2]) * 3 < steps[:, None] * 4)


def _counted_bias(q, k, v):
    """As in BLOOM: places are a mask of ones, counted."""
    ones = torch.ones(1, k.shape[2])
    places = ((ones.long().cumsum(-1) - 1) * ones)[:, None, :]
    return _attention(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(), 0.1 * places)


def _narrow(q, k, v):
    """A running sum that comes round in its dtype: 100, 200, 44."""
    places = torch.full((k.shape[2],), 100, dtype=torch.uint8).cumsum(0, dtype=torch.uint8)
    return _attention(q, k, v, places > 90)


def _of_bools(q, k, v):
    """An integer in front makes integers of bools."""
    jumps = torch.diff(torch.arange(k.shape[2]) > 4, prepend=torch.ones(1, dtype=torch.long))
    return _attention(q, k, v, torch.arange(k.shape[2]) < 9, 0.5 * jumps)


def _of_a_number(q, k, v):
    return _attention(q, k, v, torch.arange(k.shape[2]) < 9, 0.1 * torch.tensor(3).cumsum(0))


def _along_rows(q, k, v):
    counted = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).cumsum(0)
    return _attention(q, k, v, counted > torch.arange(k.shape[2]))


# The loop's limits, where they are known without reading anything.
MASKS = {
    _one_sequence: CAUSAL,
    _every_second: None,
    _given: None,
    _two_sequences: None,
    _without_front: "j < 4",
    _counted_bias: CAUSAL,
    _narrow: None,
    _along_rows: CAUSAL,
    _of_bools: "j < 9",
    _of_a_number: "j < 9",
}


def _inputs(function):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 13, 8) for _ in range(3))
    positions = [torch.tensor([[*range(5), *range(8)], [*range(9), *range(4)]])] if function is _given else []
    return q, k, v, *positions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", MASKS)
def test_what_is_made_of_numbers_is_a_loops_limit(function):
    report = onepass.explain(function, *_inputs(function))
    (region,) = report.regions
    assert not report.refusals and not report.failures
    if MASKS[function] is not None:
        assert region.kernels[0].masks == (MASKS[function],)
    assert ("cumsum" in str(region.around)) == (function in (_every_second, _two_sequences, _of_a_number))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", MASKS)
def test_it_computes_the_same(function, dynamic):
    inputs = _inputs(function)
    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager"}
    fused = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    torch.testing.assert_close(fused(*inputs), function(*inputs))
    if function is not _given:
        shorter = [x[:, :, :7] for x in inputs]
        torch.testing.assert_close(fused(*shorter), function(*shorter))
