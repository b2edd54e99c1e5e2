"""`scores *= scale` and `scores.masked_fill_(...)` were refused as in-place, though nobody else reads the scores."""

import math

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.process_state import forget
from onepass.report.records import reports


def keep(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


def scaled(q, k, v):
    s = q @ k.mT
    s *= 0.25
    return torch.softmax(s, -1) @ v


def filled(q, k, v):
    s = q @ k.mT
    s.div_(4)
    s.masked_fill_(~keep(s), -math.inf)
    return s.softmax(-1) @ v


def chained(q, k, v):
    return (q @ k.mT).mul_(0.25).add_(1.0).softmax(-1) @ v


def by_the_shape_of_the_scores(q, k, v):
    s = q @ k.mT
    hidden = (~keep(s)[None, None]).expand_as(s)
    s.masked_fill_(hidden, -math.inf)
    return s.softmax(-1) @ v


def in_a_view_that_alone_is_read(q, k, v):
    s = (q @ k.mT).transpose(0, 1)[..., 1:]
    s += 1.0
    s *= 0.25
    return s.transpose(0, 1).softmax(-1) @ v[..., 1:, :]


def in_a_view_of_what_is_read(q, k, v):
    s = q @ k.mT
    left = s[..., :10]
    left += 1.0
    return s.softmax(-1) @ v


def through_a_view(q, k, v):
    s = q @ k.mT
    view = s.transpose(-1, -2)
    s *= 0.25
    return torch.softmax(view.transpose(-1, -2), -1) @ v


def into_a_wider_type(q, k, v):
    s = q.bfloat16() @ k.bfloat16().mT
    s += torch.ones(s.shape[-2:], dtype=torch.float32) / 3
    return torch.softmax(s.float(), -1) @ v


KEPT = [scaled, filled, chained, by_the_shape_of_the_scores, in_a_view_that_alone_is_read]


def run(function):
    forget("reports")
    inputs = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    result = torch.compile(function, backend=onepass_backend, options={"inner": "eager"})(*inputs)
    torch.testing.assert_close(result, function(*inputs), atol=2e-3, rtol=1e-3)
    return sum(region.count for report in reports() for region in report.regions)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", KEPT)
def test_changes_of_an_intermediate_are_part_of_the_region(function):
    assert run(function) == 1


@pytest.mark.parametrize("function", [through_a_view, into_a_wider_type, in_a_view_of_what_is_read])
def test_what_a_view_or_a_cast_can_see_is_left_as_written(function):
    assert run(function) == 0
