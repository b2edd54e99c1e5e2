"""Weights with a one at the position of the largest one of each row, by one_hot or scatter: the region keeps the
positions, and stores neither scores nor ones. Before, what is made of a position was computed outside of the region."""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass

INF, NAN = math.inf, math.nan
NEAR = {"atol": 2e-5, "rtol": 2e-5}


def _scores(q, k):
    return q @ k.mT / 4


def one_hot(q, k, v, added):
    p = (_scores(q, k) + added).softmax(-1)
    hard = F.one_hot(p.argmax(-1), k.shape[-2]).to(p.dtype)
    return (hard + p - p.detach()) @ v


def scattered(q, k, v, added):
    p = (_scores(q, k) + added).softmax(-1)
    hard = torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0)
    return (hard - p.detach() + p) @ v


def scattered_in_place(q, k, v, added):
    """As GroupViT chooses a group for each token: over the rows, not over the columns."""
    p = (_scores(q, k) + added).softmax(-2)
    hard = torch.zeros_like(p, memory_format=torch.legacy_contiguous_format)
    p = hard.scatter_(-2, p.max(-2, keepdim=True)[1], 1.0) - p.detach() + p
    return (p / (p.sum(-1, keepdim=True) + 1)) @ v


def compared(q, k, v, added):
    score = _scores(q, k) + added
    best = score.argmax(-1, keepdim=True) == torch.arange(k.shape[-2])
    return score.masked_fill(best, -INF).softmax(-1) @ v


def all_but_the_least(q, k, v, added):
    score = _scores(q, k) + added
    return score.scatter(-1, score.argmin(-1, keepdim=True), -INF).softmax(-1) @ v


def largest_only(q, k, v, added):
    """What is written is data: of each row the largest probability stays, with its gradient."""
    p = (_scores(q, k) + added).softmax(-1)
    most, best = p.max(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, best, most * 2) @ v


OVER_COLUMNS = [one_hot, scattered, compared, all_but_the_least]
PROGRAMS = [*OVER_COLUMNS, scattered_in_place]


def given(dtype=torch.float32, rows=40, columns=150, width=16):
    """Whole numbers: scores are exact, and many are equal."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(-2, 3, (2, n, width), generator=generator).to(dtype)
    return draw(rows), draw(columns), torch.randn(2, columns, width, generator=generator).to(dtype)


def compiled(program, *inputs, executor="tiled", dynamic=False):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": executor, "libraries": False, "require": "all"}
    return torch.compile(program, backend="onepass", options=options, dynamic=dynamic)(*inputs)


def stores(report):
    return [store.output for region in report.regions for k in region.data.plan.kernels for store in k.stores]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("program", OVER_COLUMNS)
def test_no_scores_are_stored(program, executor):
    q, k, v = given()
    found = compiled(program, q, k, v, torch.zeros(()), executor=executor)
    torch.testing.assert_close(found.double(), program(q.double(), k.double(), v.double(), torch.zeros(())), **NEAR)
    report = onepass.reports()[-1]
    assert report.fused == 1 and not report.refusals
    assert max(math.prod(t.shape) for t in stores(report)) < 2 * 40 * 150


@pytest.mark.parametrize("program", [*PROGRAMS, largest_only])
def test_gradients(program):
    mine = [x.requires_grad_() for x in given()]
    exact = [x.detach().double().requires_grad_() for x in mine]
    found, wanted = compiled(program, *mine, torch.zeros(())), program(*exact, torch.zeros(()))
    cotangent = torch.randn_like(found)
    found.backward(cotangent)
    wanted.backward(cotangent.double())
    torch.testing.assert_close(found.double(), wanted, **NEAR)
    for one, other in zip(mine, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, **NEAR)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_hostile_scores(program, executor):
    """Ties, -inf in rows and of whole rows, NaN, an infinite score, zeros of both signs."""
    q, k, v = given()
    q[:, 6] = 0
    added = torch.zeros(40, 150)
    added[:, 17:19] = -INF
    added[0], added[1, 3], added[2, [50, 60]], added[3, 7] = -INF, NAN, NAN, INF
    added[4, :149], added[6, ::2] = -INF, -0.0
    found = compiled(program, q, k, v, added, executor=executor)
    torch.testing.assert_close(found, program(q, k, v, added), equal_nan=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("program", [one_hot, scattered, compared])
def test_halves(program, dtype):
    q, k, v = given(dtype)
    added = torch.zeros((), dtype=dtype)
    found = compiled(program, q, k, v, added)
    torch.testing.assert_close(found, program(q, k, v, added), atol=0.02, rtol=0.02)


def test_sizes_that_change():
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "require": "all"}
    run = torch.compile(one_hot, backend="onepass", options=options, dynamic=True)
    for rows, columns in ((40, 150), (33, 129), (3, 9)):
        q, k, v = given(rows=rows, columns=columns)
        torch.testing.assert_close(run(q, k, v, torch.zeros(())), one_hot(q, k, v, torch.zeros(())))
    assert onepass.reports()[-1].fused == 1


def test_fewer_classes_than_positions_raise_as_in_eager():
    def beyond(q, k, v):
        p = _scores(q, k).softmax(-1)
        return (F.one_hot(p.argmax(-1), 100).to(p.dtype) + p[..., :100] - p[..., :100].detach()) @ v[..., :100, :]

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        torch.compile(beyond, backend="onepass", options={"inner": "eager"})(*given())
    assert [r.code for r in onepass.reports()[-1].refusals] == ["OP437"]


def test_a_position_that_is_data_is_written_outside():
    """One out of range raises, as in eager; several of a row are written."""

    def masked(q, k, v, places):
        keep = torch.zeros(2, 40, 150, dtype=torch.bool).scatter(-1, places, True)
        return _scores(q, k).masked_fill(~keep, -INF).softmax(-1) @ v

    places = torch.arange(120).view(1, 40, 3).expand(2, -1, -1)
    for count in (1, 3):
        found = compiled(masked, *given(), places[..., :count])
        torch.testing.assert_close(found, masked(*given(), places[..., :count]))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(masked, *given(), places[..., :1] + 100)
