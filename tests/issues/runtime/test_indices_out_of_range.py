"""An index out of range gave numbers where eager raises, and a warning that the original calls are not used again.

A plan reads the nearest row instead, as kernels have to, and so may a first call, or a second one in training. Where
the original calls run, they raise what the program raises.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.runtime import executors

pytestmark = pytest.mark.usefixtures("fresh")


def biased(q, k, table, places):
    return torch.softmax(q @ k.mT / 4 + F.embedding(places, table)[..., 0], -1) @ k


def inputs(requires_grad=False):
    torch.manual_seed(0)
    q, k, table = torch.randn(1, 2, 64, 16), torch.randn(1, 2, 64, 16), torch.randn(32, 1)
    return [q.requires_grad_(requires_grad), k, table.requires_grad_(requires_grad), torch.randint(0, 32, (64, 64))]


def beyond(places):
    found = places.clone()
    found[3, 4] = 32
    return found


@pytest.mark.parametrize("calls, requires_grad", [(1, False), (4, False), (4, True)])
def test_the_error_of_the_program_is_raised_and_the_original_calls_stay(calls, requires_grad):
    *given, places = inputs(requires_grad)
    compiled = torch.compile(biased, backend="onepass", options={"inner": "eager"})
    for _ in range(calls):
        result = compiled(*given, places)
        if requires_grad:
            result.sum().backward()
    with pytest.raises(IndexError, match="out of range"):
        compiled(*given, beyond(places))
    torch.testing.assert_close(compiled(*given, places), biased(*given, places))
    (region,) = onepass.reports()[-1].regions
    assert not any("not used again" in note for note in region.notes)
    if not requires_grad and calls > 1:
        assert region.ran.startswith(executors.ORIGINAL)
