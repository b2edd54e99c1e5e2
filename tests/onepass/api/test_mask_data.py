"""What masks read in the call of `explain`: inputs and what is computed from them, and nothing that would not be it."""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 24, 16)


def masked(q, k, v, keep):
    return torch.softmax((q @ k.mT).masked_fill(~keep, float("-inf")), -1) @ v


def found(function, *inputs) -> list[torch.Tensor]:
    (region,) = onepass.explain(function, X, X.clone(), X.clone(), *inputs).regions
    assert {*region.data.tensors} <= {*region.data.inputs}
    return [*region.data.tensors.values()]


def test_an_input_is_taken_as_it_is():
    keep = torch.rand(24, 24) > 0.5
    (value,) = found(masked, keep)
    assert value.data_ptr() == keep.data_ptr()


def test_what_is_computed_from_inputs_is_computed():
    def packed(q, k, v, lengths):
        documents = torch.repeat_interleave(torch.arange(3), lengths, output_size=24).cumsum(0)
        return masked(q, k, v, documents[:, None] == documents[None])

    values = found(packed, torch.tensor([4, 8, 12]))
    expected = torch.repeat_interleave(torch.arange(3), torch.tensor([4, 8, 12])).cumsum(0)
    assert any(torch.equal(value, expected) for value in values)


def test_random_numbers_are_not_drawn_again():
    def random(q, k, v):
        return masked(q, k, v, torch.rand(24, 24).argsort(-1) > 12)

    torch.manual_seed(0)
    onepass.explain(random, X, X, X)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    random(X, X, X)
    assert torch.equal(after, torch.get_rng_state())


def test_what_the_graph_writes_is_not_taken():
    def writes(q, k, v, keep):
        keep.logical_not_()
        return masked(q, k, v, keep.clone())

    keep = torch.ones(24, 24, dtype=torch.bool).tril()
    values = found(writes, keep.clone())
    assert all(torch.equal(value, ~keep) for value in values)


def test_the_function_runs_once_and_its_error_is_its_own():
    calls = []

    def watched(q, k, v, keep):
        calls.append(1)
        return masked(q, k, v, keep)

    onepass.explain(watched, X, X, X, torch.ones(24, 24, dtype=torch.bool))
    assert len(calls) <= 1  # Dynamo traces it once

    def wrong(q, k, v, keep):
        return masked(q, k, v, keep[keep.long().sum(1)] > 0)

    with pytest.raises(IndexError):
        onepass.explain(wrong, X, X, X, torch.ones(24, 24, dtype=torch.bool).cumsum(-1) > 0)


def test_a_region_without_a_mask_of_data_takes_nothing():
    (region,) = onepass.explain(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, X, X, X).regions
    assert region.data.inputs == {} and region.data.tensors == {}
