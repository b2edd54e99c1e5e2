"""A recurrence that is written row by row reads the step before it at several places, and so each step multiplied the
form: DeltaNet's chunks of 8 rows took a minute to compile and their gradients did not end; those of 16 rows neither."""

import time

import pytest
import torch

import onepass
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.translate.translate import MOST_SUBTERMS, translate

pytestmark = pytest.mark.usefixtures("fresh")


def rows(x, count):
    """The inverse of a unit lower triangle, one row after another."""
    for row in range(1, count):
        new = x[..., row, :] + (x[..., row, :, None] * x).sum(-2)
        x = torch.cat((x[..., :row, :], new[..., None, :], x[..., row + 1 :, :]), -2)
    return x


def chunks(q, k, v):
    size = k.shape[-2]
    triangle = -(k @ k.mT).masked_fill(torch.ones(size, size, dtype=torch.bool).triu(), 0.0)
    return (q @ k.mT).tril() @ (rows(triangle, size) @ v + v)


@pytest.mark.parametrize("size", [8, 16, 48])
@pytest.mark.parametrize("gradients", [False, True])
def test_it_is_left_as_written_and_compiles_soon(size, gradients):
    given = [torch.randn(2, size, 8, requires_grad=gradients) * 0.1 for _ in range(3)]
    run = torch.compile(chunks, backend=onepass.onepass_backend, options={"inner": "eager"})
    start = time.perf_counter()
    result = run(*given)
    assert time.perf_counter() - start < 60
    exact = chunks(*(x.double() for x in given))
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)
    if gradients:
        for found, wanted in zip(*(torch.autograd.grad(y.sum(), given) for y in (result, exact)), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [16, 40])
def test_the_refusal_says_why(count):
    """Of 15 steps the form is made and counted; of 39 it is not made."""
    with pytest.raises(Refusal, match=f"more than {MOST_SUBTERMS} operations"):
        translate(program_of(lambda x: rows(x @ x.mT, count), torch.randn(48, 8)))


def test_a_few_steps_are_one_form():
    assert translate(program_of(lambda x: rows(x @ x.mT, 3), torch.randn(48, 8))).results
    assert MOST_SUBTERMS > 450, "what tests and models have has up to 450"
