"""The option invariant from torch.compile on: equal bits, what a report says, what is refused, that it is needed."""

from random import Random

import pytest
import torch

import onepass
from onepass.errors import NotFused
from onepass.lowering.executors import order
from onepass.runtime import library_choice, operator
from onepass.runtime.runner import ExecutorError, Runner
from tests.fuzz import invariance

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def inputs(count=4, rows=20, length=600):
    torch.manual_seed(0)
    return [torch.randn(count, 2, n, 16) for n in (rows, length, length)]


def compiled(function=attention, **options):
    given = {"inner": "eager", "executor": "tiled", "invariant": True, **options}
    return torch.compile(function, backend="onepass", options=given)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "count"), [("tiled", 20), ("triton", 4)])
def test_random_batches_have_equal_bits(executor, count):
    assert invariance.run(count, 0, executor) == []


@pytest.mark.slow
@torch.no_grad()
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch_and_without_the_option_it_has_not():
    q, k, v = inputs(rows=300, length=900)
    apart = lambda run: torch.cat([run(q[:, :, a:b], k, v) for a, b in ((0, 1), (1, 20), (20, 300))], 2)
    alone = lambda run: torch.cat([run(*(x[n : n + 1] for x in (q, k, v))) for n in range(4)])
    run, free = compiled(), compiled(invariant=False)
    assert torch.equal(run(q, k, v), apart(run)) and torch.equal(run(q, k, v), alone(run))
    assert not (torch.equal(free(q, k, v), apart(free)) and torch.equal(free(q, k, v), alone(free)))
    torch.testing.assert_close(run(q, k, v), attention(q, k, v), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_report_says_what_is_fixed_and_a_plan_without_the_option_is_not_taken():
    plain, fixed = (
        onepass.explain(attention, *inputs(), options={"invariant": wanted}).regions[0] for wanted in (False, True)
    )
    assert "invariant   pieces of 1024 keys from key 0" in str(fixed) and not plain.invariant
    assert plain.key != fixed.key
    assert onepass.GraphPass().uuid() != onepass.GraphPass(invariant=True).uuid()


def test_what_cannot_be_held_is_refused():
    with pytest.raises(NotFused, match=r"invariant=True does not hold(.|\n)*no gradients"):
        onepass.explain(attention, *(x.requires_grad_() for x in inputs()), gradients=True, options={"invariant": True})
    with pytest.raises(NotFused, match="random numbers go by the place"), torch.no_grad():
        dropped = lambda q, k, v: torch.dropout(torch.softmax(q @ k.mT, -1), 0.5, True) @ v
        onepass.explain(dropped, *inputs(), options={"invariant": True})


@torch.no_grad()
def test_nobody_else_runs_a_region(monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: pytest.fail("measured"))
    with operator.recorded() as calls:
        run = compiled(executor="auto")
        results = [run(*inputs()) for _ in range(3)]
    assert torch.equal(results[0], results[2])
    ((text, (tensors, numbers)),) = calls.items()
    runner = Runner(operator.compiled_region.read(text))
    assert order("triton", runner.found.plan, torch.device("cuda")) == ("triton",)
    runner.broken.add("tiled")
    with pytest.raises(ExecutorError, match="the original calls have other bits"):
        runner(tensors, numbers)


def test_a_wrong_answer_is_seen():
    form = invariance.Form("plain", 1, 1, 16, torch.float32)
    batch = invariance.draw(Random(0), form, 100)
    called = iter(range(1000))
    assert invariance.differs(form, lambda q, *_: q + next(called), batch, Random(0)) == "again"
    assert invariance.differs(form, lambda q, *_: q * len(q), batch, Random(0)) in ("", "one by one")
