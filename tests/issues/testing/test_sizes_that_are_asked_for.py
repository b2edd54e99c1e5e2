"""assert_equivalent takes the sizes of letters: functions that differ at long lengths only were called equal.

A text had one size for a letter, so that several lengths took several calls.
"""

import pytest
import torch

from onepass.errors import InputError
from onepass.testing import Refuted, assert_equivalent


def window(x):
    return x[..., -64:].sum(-1)


def whole(x):
    return x.sum(-1)


def test_a_difference_at_one_of_several_sizes_is_found():
    assert_equivalent(window, whole, ["b i"], examples=20)
    assert_equivalent(window, whole, ["b i"], examples=20, sizes={"i": (1, 64)})
    with pytest.raises(Refuted) as found:
        assert_equivalent(window, whole, ["b i"], examples=20, sizes={"i": (1, 64, 70)})
    (x,) = found.value.arguments
    assert x.shape[-1] == 70 and 1 <= x.shape[0] <= 4


def test_all_sizes_are_swept_and_drawn_and_equal_letters_agree():
    seen = set()

    def product(q, k):
        seen.add((*q.shape, *k.shape))
        return q @ k.mT

    assert_equivalent(product, lambda q, k: q @ k.mT, ["i d", "j d"], 20, finite=True, sizes={"i": [5, 30], "d": 16})
    assert {n for n, *_ in seen} == {5, 30} and all(a == b == 16 for _, a, _, b in seen)
    assert {j for _, _, j, _ in seen} >= {1, 2, 3}


def test_a_function_of_one_size_alone_is_run_for_its_numbers():
    limit = lambda x: x.reshape(-1, 300).clamp(max=123.0)  # the sample on which numbers are looked for must fit
    with pytest.raises(Refuted):
        assert_equivalent(limit, lambda x: x.reshape(-1, 300), ["i"], finite=True, largest=150.0, sizes={"i": 300})


@pytest.mark.parametrize(
    "sizes, said",
    [
        (3, r'such as \{"i": \[1, 64, 300\], "d": 16\}, not 3'),
        ({"k": 3}, "sizes names 'k', and inputs has i, j"),
        ({"i": "12"}, "of 'i' it has '12'"),
        ({"i": []}, "of 'i' it has"),
        ({"i": [2, -1]}, "of 'i' it has"),
        ({"i": True}, "of 'i' it has True"),
    ],
)
def test_what_is_no_size_is_said(sizes, said):
    with pytest.raises(InputError, match=said):
        assert_equivalent(whole, whole, ["i j"], sizes=sizes)


def test_tensors_have_their_own_sizes():
    with pytest.raises(InputError, match="inputs has no letters"):
        assert_equivalent(whole, whole, [torch.ones(3)], sizes={"i": 3})
