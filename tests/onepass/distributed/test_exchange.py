"""Integers of other ranks are exchanged once, and again after any change on any rank."""

import torch

from onepass.distributed.exchange import MOST_TABLES, Remembered, Unchanged, is_remembered


def test_the_same_tensors_have_the_same_number():
    unchanged, one, other = Unchanged(), torch.arange(4), torch.arange(4)
    first = unchanged.number([one])
    assert unchanged.number([one]) == first == unchanged.number([one.view(4)]), "a view of the same memory"
    assert len({first, unchanged.number([other]), unchanged.number([one, other]), unchanged.number([one[:2]])}) == 4
    assert unchanged.number([one]) == first
    one[0] = 7
    assert unchanged.number([one]) != first
    assert unchanged.number([]) == 0


def test_what_torch_does_not_count_writes_to_is_new_each_time():
    unchanged = Unchanged()
    with torch.inference_mode():
        inside = torch.arange(4)
    parameter = torch.nn.Parameter(torch.arange(4), requires_grad=False)
    for given in (inside, parameter):
        assert unchanged.number([given]) != unchanged.number([given])


def test_a_tensor_at_an_address_of_one_that_is_gone_is_new():
    unchanged, seen = Unchanged(), set()
    for _ in range(5):
        seen.add(unchanged.number([torch.arange(4)]))
    assert len(seen) == 5


def test_few_tables_are_kept():
    unchanged = Unchanged()
    first = unchanged.remembered((0,))
    for number in range(1, MOST_TABLES):
        unchanged.remembered((number,))
    assert unchanged.remembered((0,)) is first
    unchanged.remembered((-1,))
    assert unchanged.remembered((0,)) is first and len(unchanged._tables) == MOST_TABLES


def test_integers_are_kept_and_other_tensors_are_not():
    given = {0: torch.ones(2, 3), 1: torch.arange(3), 2: torch.ones(2, 3, dtype=torch.bool)}
    axes, remembered = {0: 1, 1: 0, 2: 1}, Remembered()
    remembered.keep(("ring", 1), given, axes)
    assert dict(remembered.known(("ring", 1))) == {1: given[1], 2: given[2]} and not remembered.known(("ring", 0))


def test_all_ranks_say_the_same_of_parts_of_a_tensor():
    """Of any length, an empty one too."""
    for others, kept in ((64, True), (65, False)):
        for length in (0, 1, 1000):
            assert is_remembered(torch.empty(others, length, dtype=torch.int64), 1) == kept
    assert not is_remembered(torch.empty(5, dtype=torch.uint8), 0), "keys may be bytes"
