"""A Python int in a rule's body was an integer term: a false law with one passed its check, and no chain was found."""

import pytest
import torch

import onepass
from onepass.errors import RuleRefuted


@onepass.rule
def two_times(s: "j"):
    """s · 2 = s + s"""
    return s * 2, s + s


@onepass.rule(trust=True)
def two_times_is_once(s: "j"):
    """s · 2 = s (wrong)"""
    return s * 2, s


def attend(q, k, v):
    return torch.softmax(2 * torch.tanh(q @ k.mT), -1) @ v


INPUTS = [torch.randn(1, 2, 40, 16) for _ in range(3)]


def test_an_int_beside_a_value_is_the_float_that_capture_writes():
    assert two_times.left.args[1].attrs == (2.0,) and type(two_times.left.args[1].attrs[0]) is float
    assert onepass.check(two_times).status == "proved"
    (region,) = onepass.explain(attend, *INPUTS, rules=[two_times]).regions
    assert region.derivation


def test_a_false_law_with_an_int_is_refuted():
    with pytest.raises(RuleRefuted, match="two_times_is_once"):
        onepass.explain(attend, *INPUTS, rules=[two_times_is_once])
