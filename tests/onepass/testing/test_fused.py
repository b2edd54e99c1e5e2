"""assert_fused: the report where everything found is fused, else an AssertionError with reasons and places."""

import pytest
import torch

import onepass
from onepass.errors import OptionError
from onepass.testing import assert_fused

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 20, 16)


def attend(q, k, v, *, scale=1.0):
    return torch.softmax(q @ k.mT * scale, -1) @ v


def added_up(q, k, v):
    return attend(q, k, v) + torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v


def test_the_report_is_given():
    report = assert_fused(attend, X, X, X, scale=0.5, options={"executor": "tiled"})
    assert report.fused == 1 and report.regions[0].executor == "tiled" and onepass.reports() == ()


def test_what_is_left_is_named():
    with pytest.raises(AssertionError, match="1 fused, 1 not") as raised:
        assert_fused(added_up, X, X, X)
    assert f"{__file__}:{added_up.__code__.co_firstlineno + 1}: cumsum stands" in str(raised.value)


def test_nothing_found_is_no_success():
    with pytest.raises(AssertionError, match="nothing was found to fuse"):
        assert_fused(torch.relu, X)


def test_bad_options_are_no_failed_assertion():
    with pytest.raises(OptionError):
        assert_fused(attend, X, X, X, options={"executor": "cuda"})
