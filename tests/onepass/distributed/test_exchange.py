"""Integers of other ranks are exchanged once, and again after any change on any rank."""

import torch

from onepass.distributed.exchange import MOST_TABLES, Remembered, Unchanged, is_remembered


def test_the_same_integers_have_the_same_number_and_copies():
    unchanged, one = Unchanged(), torch.arange(4)
    first, copies = unchanged.copies({2: one})
    for same in (one, torch.arange(4), torch.arange(8).view(4, 2)[:, 0] // 2):
        assert unchanged.copies({2: same}) == (first, copies)
    others = [{1: one}, {2: one.int()}, {2: one[:2]}, {2: one[None]}, {1: one, 2: one}, {2: one + 1}]
    assert len({first, *(unchanged.copies(other)[0] for other in others)}) == 1 + len(others)
    assert unchanged.copies({}) == (0, {})


def test_a_write_that_torch_does_not_count_is_seen_and_does_not_reach_the_copies():
    unchanged, given = Unchanged(), torch.arange(4)
    first, copies = unchanged.copies({0: given})
    given.numpy()[0] = 7
    assert unchanged.copies({0: given})[0] != first and copies[0].tolist() == [0, 1, 2, 3]
    given.data = torch.arange(4)
    assert unchanged.copies({0: given})[0] == first


def test_inference_mode_has_numbers_of_its_own_and_copies_that_can_be_saved():
    unchanged = Unchanged()
    with torch.inference_mode():
        first, copies = unchanged.copies({0: torch.arange(4)})
    again, _ = unchanged.copies({0: torch.arange(4)})
    assert first != again and not copies[0].is_inference()


def test_the_same_objects_have_the_same_number_until_torch_counts_a_write():
    unchanged, one = Unchanged(), torch.arange(4)
    number = unchanged.of_objects
    first = number({2: one})
    assert number({2: one}) == first == number({2: one.view(4)}), "a view of the same memory"
    others = [{1: one}, {2: torch.arange(4)}, {2: one[:2]}, {1: one, 2: one}]
    assert len({first, *map(number, others)}) == 1 + len(others) and number({}) == 0
    with torch.inference_mode():
        assert number({2: one}) != first
    assert number({2: one}) == first
    one[0] = 7
    assert number({2: one}) != first


def test_objects_that_torch_counts_no_writes_to_are_new_each_time():
    unchanged = Unchanged()
    with torch.inference_mode():
        inside = torch.arange(4)
    parameter = torch.nn.Parameter(torch.arange(4), requires_grad=False)
    for given in (inside, parameter):
        assert unchanged.of_objects({0: given}) != unchanged.of_objects({0: given})
    assert len({unchanged.of_objects({0: torch.arange(4)}) for _ in range(5)}) == 5, "at an address of one that is gone"


def test_few_tables_are_kept():
    unchanged = Unchanged()
    first = unchanged.remembered((0,))
    for number in range(1, MOST_TABLES):
        unchanged.remembered((number,))
    assert unchanged.remembered((0,)) is first
    unchanged.remembered((-1,))
    assert unchanged.remembered((0,)) is first and len(unchanged._tables) == MOST_TABLES


def test_integers_are_kept_and_other_tensors_are_not():
    given, place = {0: torch.ones(2, 3), 1: torch.arange(3), 2: torch.ones(2, 3, dtype=torch.bool)}, ("ring", 1)
    remembered = Remembered().of({1, 2})
    remembered.keep(place, given)
    assert dict(remembered.known(place)) == {1: given[1], 2: given[2]} and not remembered.known(("ring", 0))


def test_each_piece_keeps_its_part_of_what_has_heads_and_shares_the_rest():
    memory, place = Remembered(), ("ring", 1)
    positions, of_heads = torch.arange(3), [torch.arange(6).view(2, 3), torch.arange(6, 12).view(2, 3)]
    pieces = [memory.of({1, 2}, cut={2, 4}, piece=piece) for piece in range(2)]
    pieces[0].keep(place, {1: positions, 2: of_heads[0]})
    assert dict(pieces[1].known(place)) == {1: positions}
    pieces[1].keep(place, {1: positions, 2: of_heads[1]})
    assert [pieces[k].known(place)[2] is of_heads[k] for k in range(2)] == [True, True]


def test_all_ranks_say_the_same_of_parts_of_a_tensor():
    """Of any length, an empty one too."""
    for others, kept in ((64, True), (65, False)):
        for length in (0, 1, 1000):
            assert is_remembered(torch.empty(others, length, dtype=torch.int64), 1) == kept
    assert not is_remembered(torch.empty(5, dtype=torch.uint8), 0), "keys may be bytes"
