"""Parts of a sequence hold each token once, in order, and have the same work."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onepass.distributed.positions import dealt, head_tail, shares
from onepass.errors import InputError


def causal_work(length):
    return torch.arange(length) + 1


def assert_partition(parts, length):
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(length))
    assert all((part.diff() > 0).all() for part in parts)


@given(ranks=st.integers(1, 9), length=st.integers(18, 500))
def test_a_front_piece_and_its_mirror_image(ranks, length):
    parts = head_tail(length, ranks)
    assert_partition(parts, length)
    if length % (2 * ranks) == 0:
        assert shares(causal_work(length), parts) == [1.0] * ranks


@given(work=st.lists(st.integers(0, 1000), min_size=90, max_size=200), ranks=st.integers(1, 9))
def test_any_work_is_dealt(work, ranks):
    work = torch.tensor(work)
    parts = dealt(work, ranks, piece=10)
    assert_partition(parts, len(work))
    sums = [int(work[part].sum()) for part in parts]
    assert max(sums) - min(sums) <= max(int(p.sum()) for p in work.split(10))


def test_contiguous_parts_of_a_causal_mask_are_uneven():
    assert head_tail(8, 2)[0].tolist() == [0, 1, 6, 7] and head_tail(8, 2)[1].tolist() == [2, 3, 4, 5]
    assert shares(causal_work(4096), torch.arange(4096).tensor_split(2)) == pytest.approx([0.5, 1.5], abs=1e-3)
    assert shares(torch.zeros(4), torch.arange(4).tensor_split(2)) == [1.0, 1.0]


def test_too_few_tokens_are_refused():
    with pytest.raises(InputError, match="7 tokens are less than two pieces for each of 4 ranks"):
        head_tail(7, 4)
    with pytest.raises(InputError, match="1 pieces of 128 tokens are not enough for 2 ranks"):
        dealt(torch.ones(100), 2)
