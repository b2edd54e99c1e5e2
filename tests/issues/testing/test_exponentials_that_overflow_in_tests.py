"""assert_equivalent called softmax and exp(s) / exp(s).sum() equal: no score beyond 185 was drawn.

float64's exp overflows beyond 709. Inside of attention the same difference was found in some runs and not in others.
"""

import pytest
import torch

from onepass.testing import Refuted, assert_equivalent

ATTENTION = ["i d", "j d", "j e"]


def softmax(s):
    return torch.softmax(s, -1)


def unshifted(s):
    return torch.exp(s) / torch.exp(s).sum(-1, keepdim=True)


def shifted(s):
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def attention(weights):
    return lambda q, k, v: weights(q @ k.mT / 8) @ v


CASES = pytest.mark.parametrize(
    "around, inputs", [(lambda f: f, ["i j"]), (attention, ATTENTION)], ids=["alone", "inside"]
)


@pytest.mark.slow
@CASES
def test_the_overflow_is_found_in_every_run_and_the_same_one(around, inputs):
    found = set()
    for _ in range(2):
        with pytest.raises(Refuted, match=r"finite.* is nan \(exp is the first call") as raised:
            assert_equivalent(around(softmax), around(unshifted), inputs)
        found.add(str(raised.value))
    assert len(found) == 1


@pytest.mark.sampled(1)
@CASES
def test_a_shift_is_no_difference(around, inputs):
    assert_equivalent(around(softmax), around(shifted), inputs)
