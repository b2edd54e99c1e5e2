"""An assignment to a part of the scores, s[..., :5] = -inf, kept its region as written: it is a choice by a mask."""

import pytest
import torch

import onepass

LENGTH = 70
FILL = -1e4


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, LENGTH, 16, generator=generator) for _ in range(3)]


def upper():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def assigned(*indices, value=FILL):
    def change(s):
        for index in indices:
            s[index] = value

    return change


def masked(s):
    s[..., upper()] = FILL


def masked_heads(s):
    s[:, torch.tensor([True, False, True, False])] = FILL


def by_rank(s):
    s[:, :, upper()] = FILL


def added(s):
    s[:, 0] += 1.5
    s[..., 3:9] *= 0.5


def both(s):
    s[..., 0] = FILL
    s[..., 5:] -= 2
    s[:, 1, :10, 20:30:3] = FILL


CASES = {
    "first columns": assigned((..., slice(None, 5))),
    "one column": assigned((slice(None), slice(None), slice(None), 0)),
    "last rows and columns": assigned((..., slice(-9, None), slice(-3, None))),
    "every third": assigned((..., slice(1, None, 3)), (0,)),
    "empty": assigned((..., slice(5, 5))),
    "infinite": assigned((..., slice(None, 5)), value=-torch.inf),
    "mask": masked,
    "mask of heads": masked_heads,
    "mask by rank": by_rank,
    "added": added,
    "both": both,
}


def attend(change):
    def function(q, k, v):
        s = q @ k.mT
        change(s)
        return s.softmax(-1) @ v

    return function


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_it_is_fused_and_computes_the_same(name):
    torch._dynamo.reset()
    function = attend(CASES[name])
    compiled = torch.compile(function, backend="onepass", options={"executor": "tiled", "strict": True})
    exact = function(*(x.double() for x in inputs()))
    torch.testing.assert_close(compiled(*inputs()).double(), exact, atol=1e-5, rtol=1e-5)
    found = onepass.reports()[-1]
    assert len(found.regions) == 1 and not found.refusals


@pytest.mark.slow
def test_of_any_length():
    torch._dynamo.reset()
    function = attend(CASES["both"])
    options = {"executor": "tiled", "strict": True}
    compiled = torch.compile(function, backend="onepass", dynamic=True, options=options)
    for length in (LENGTH, 41):
        operands = [x[:, :, :length] for x in inputs()]
        exact = function(*(x.double() for x in operands))
        torch.testing.assert_close(compiled(*operands).double(), exact, atol=1e-5, rtol=1e-5)
    assert len(onepass.reports()[-1].regions) == 1


def seen_later(q, k, v):
    """A view from before the write is read behind it."""
    s = q @ k.mT
    view = s[..., :8]
    s[..., :5] = FILL
    return s.softmax(-1) @ v, view * 2


def seen_before(q, k, v):
    """What was read before the write keeps its values."""
    s = q @ k.mT
    before = s.softmax(-1) @ v
    s[..., :5] = FILL
    return s.softmax(-1) @ v, before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [seen_later, seen_before])
def test_who_else_reads_the_scores_reads_the_right_ones(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onepass", options={"executor": "tiled", "strict": True})
    for found, exact in zip(compiled(*inputs()), function(*(x.double() for x in inputs())), strict=True):
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


def test_an_input_that_is_written_keeps_what_was_written():
    def function(q, k, v, bias):
        bias[..., :5] = FILL
        return (q @ k.mT + bias).softmax(-1) @ v

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onepass", options={"executor": "tiled", "strict": True})
    mine, theirs = torch.zeros(LENGTH, LENGTH), torch.zeros(LENGTH, LENGTH)
    torch.testing.assert_close(compiled(*inputs(), mine), function(*inputs(), theirs), atol=1e-5, rtol=1e-5)
    assert torch.equal(mine, theirs) and mine[0, 0] == FILL


def test_what_is_no_choice_yet_says_what_would_be():
    def change(s):
        s.diagonal(dim1=-2, dim2=-1).fill_(FILL)

    found = onepass.explain(attend(change), *inputs())
    assert not found.regions and "masked_fill" in found.refusals[0].reason
