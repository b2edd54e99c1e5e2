"""A clone of a cache whose slot was then written: the region made the clone again, without what had been written.

So for whatever copies (repeat_interleave, contiguous, a list as index) and is followed by a write into either side. And
two regions that would have become one around a write stay two.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def slot_written(q, k, v, new):
    k = k.clone()
    k[:, :, 0] = new
    return attend(q, k, v)


def part_copied_into(q, k, v, new):
    k = k.contiguous().clone(memory_format=torch.contiguous_format)
    k[:, :, 0].copy_(new)
    return attend(q, k, v)


def repeated_then_zeroed(q, k, v, new):
    repeated = k.repeat_interleave(2, 1)
    k.zero_()
    return attend(q.repeat(1, 2, 1, 1), repeated, v.repeat(1, 2, 1, 1))


def laid_out_then_zeroed(q, k, v, new):
    other = k.transpose(1, 2).contiguous().transpose(1, 2)
    k.zero_()
    return attend(q, other, v)


def flattened_then_zeroed(q, k, v, new):
    flat = k.transpose(1, 2).reshape(2, 9, -1)
    k.zero_()
    return attend(q.transpose(1, 2).flatten(2), flat, v.transpose(1, 2).flatten(2))


def picked_then_zeroed(q, k, v, new):
    some = k[:, :, [0, 2, 3]]
    k.zero_()
    return attend(q, some, v[:, :, :3])


def seen_then_zeroed(q, k, v, new):
    same = k.transpose(1, 2)
    k.zero_()
    return attend(q, same.transpose(1, 2), v)


def changed_between_two(q, k, v, new):
    first = attend(q, k, v)
    q.add_(1)
    return first + attend(q, k, v)


CASES = [slot_written, part_copied_into, repeated_then_zeroed, laid_out_then_zeroed, flattened_then_zeroed]
CASES += [picked_then_zeroed, seen_then_zeroed, changed_between_two]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", CASES)
def test_the_values_are_those_of_the_time_of_the_copy(function):
    inputs = [torch.randn(2, 3, 9, 8) for _ in range(3)] + [torch.randn(2, 3, 8)]
    given = [t.clone() for t in inputs]
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*given), function(*inputs), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given, inputs)
    assert sum(region.count for r in records.reports() for region in r.regions) == 1 + (function is changed_between_two)
