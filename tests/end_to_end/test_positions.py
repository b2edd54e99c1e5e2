"""Positions of extrema over a product that is not stored: eager's positions where scores are exact, and where they are
not, positions whose scores are the largest up to rounding."""

import math

import pytest
import torch

import onepass
from onepass.graph import reduced_products
from tests.support.one_product import fused, in_float64, inputs

EXECUTORS = ("tiled", "triton")
INF, NAN = math.inf, math.nan


def whole_numbers(dtype=torch.float32, rows=40, columns=150, width=24):
    """Rows and columns whose products are exact, so that there are many ties; and what is added to the scores."""
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randint(-2, 3, (n, width), generator=generator).to(dtype) for n in (rows, columns))
    added = torch.zeros(rows, columns, dtype=dtype)
    added[:, 17:19] = -INF
    added[0], added[1], added[3] = -INF, INF, NAN
    added[2, [50, 60]] = NAN
    added[4, [7, 9]] = INF
    added[5, 11], added[6, : columns - 1] = -INF, -INF
    added[7, 140], added[7, 100] = NAN, INF
    x[8], x[9] = 0, -0.0
    added[8, ::2] = -0.0
    return x, w, added


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_hostile_scores_have_eagers_positions(dtype, executor, monkeypatch):
    """Ties, NaN, infinities, rows without any score, zeros of both signs."""

    def program(x, w, added):
        score = x @ w.T + added
        return score.argmax(-1), score.argmin(-1), score.argmax(0), score.argmin(0)

    given = whole_numbers(dtype)
    found, _ = fused(program, *given, executor=executor, monkeypatch=monkeypatch)
    for mine, eager in zip(found, program(*given), strict=True):
        assert mine.dtype == torch.int64 and mine.tolist() == eager.tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("largest", [True, False])
def test_values_and_positions_come_from_one_kernel(largest, executor, monkeypatch):
    def program(x, w, added):
        score = x @ w.T + added
        return score.max(-1) if largest else score.min(-1, keepdim=True)

    given = whole_numbers()
    found, report = fused(program, *given, executor=executor, monkeypatch=monkeypatch)
    eager = program(*given)
    torch.testing.assert_close(found[0], eager[0], equal_nan=True)
    assert torch.equal(found[1], eager[1]) and len(report.regions[0].kernels) == 1


def assignment(x, w):
    return ((x * x).sum(-1, keepdim=True) - 2 * x @ w.T + (w * w).sum(-1)).argmin(-1)


DISTANCES = {
    "assignment": (assignment, lambda x, w: -torch.cdist(x, w).square()),
    "head": (lambda x, w: torch.nn.functional.linear(x, w).argmax(-1, keepdim=True)[:, 0], lambda x, w: x @ w.T),
    "capped": (lambda x, w: (x @ w.T).tanh().argmax(-1), lambda x, w: (x @ w.T).tanh()),
    "probability": (lambda x, w: (x @ w.T).softmax(-1).argmax(-1), lambda x, w: x @ w.T),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DISTANCES)
def test_the_score_there_is_the_largest_up_to_rounding(name, dtype, executor, monkeypatch):
    program, scores = DISTANCES[name]
    x, w, _ = inputs(dtype=dtype)
    found, _ = fused(program, x, w, executor=executor, monkeypatch=monkeypatch)
    exact = in_float64(scores, x, w)
    lost = exact.amax(-1) - exact.gather(-1, found[:, None])[:, 0]
    rounds = 0.1 if name == "assignment" and dtype == torch.bfloat16 else 1e-5  # sums of squares are rounded
    assert lost.max() <= rounds * exact.abs().max()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("columns", [5, 64, 150])
def test_masks(columns, executor, monkeypatch):
    def causal(x, w):
        i, j = torch.arange(x.shape[0])[:, None], torch.arange(w.shape[0])
        return (x @ w.T).masked_fill((j > i - 3) & (j != columns - 1), -INF).argmax(-1)

    x, w, _ = whole_numbers()
    found, _ = fused(causal, x, w[:columns], executor=executor, monkeypatch=monkeypatch)
    assert torch.equal(found, causal(x, w[:columns]))


def test_what_reads_positions_stands_behind_the_kernel(monkeypatch):
    """The mutual nearest neighbours of two sets of points, and the words that a head says."""

    def mutual(x, w):
        score = x @ w.T
        there, back = score.argmax(1), score.argmax(0)
        return torch.where(back[there] == torch.arange(len(x)), there, -1), w[there], there.to(torch.int32)

    x, w, _ = whole_numbers()
    found, report = fused(mutual, x, w, monkeypatch=monkeypatch)
    assert all(torch.equal(mine, eager) for mine, eager in zip(found, mutual(x, w), strict=True))
    stores = [store.output.dtype for r in report.regions for k in r.data.plan.kernels for store in k.stores]
    assert {*stores} == {"int64"}


def test_attention_with_the_place_of_the_largest_score():
    def attend(q, k, v):
        score = q @ k.mT / 4
        return score.softmax(-1) @ v, score.argmax(-1)

    torch.manual_seed(0)
    given = [torch.randn(2, 3, 100, 16) for _ in range(3)]
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "require": "all"}
    found = torch.compile(attend, backend="onepass", options=options)(*given)
    torch.testing.assert_close(found, attend(*given))


def test_sizes_that_change(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    program = lambda x, w: (x @ w.T).argmax(-1)
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "require": "all"}
    compiled = torch.compile(program, backend="onepass", options=options, dynamic=True)
    x, w, _ = whole_numbers()
    for rows, columns in ((40, 150), (33, 129), (2, 9)):
        assert torch.equal(compiled(x[:rows], w[:columns]), program(x[:rows], w[:columns]))


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_positions_need_no_gradient(inner, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    x, w, _ = whole_numbers()
    options = {"inner": inner, "executor": "tiled", "require": "all"}
    found = torch.compile(lambda x, w: (x @ w.T).argmax(-1), backend="onepass", options=options)(x.requires_grad_(), w)
    assert torch.equal(found, (x @ w.T).argmax(-1)) and not found.requires_grad


def test_gradients_of_values_beside_positions(monkeypatch):
    x, w, _ = inputs()
    program = lambda x, w: (x @ w.T).max(-1)
    mine, eager = (x.clone().requires_grad_() for _ in range(2))
    found, _ = fused(program, mine, w, monkeypatch=monkeypatch)
    for values in (found[0], program(eager, w)[0]):
        values.square().sum().backward()
    torch.testing.assert_close(mine.grad, eager.grad)


def hard_attention(x, w):
    return (((x @ w.T).argmax(-1)[:, None] == torch.arange(len(w))).to(w.dtype)) @ w


REFUSED = [
    (lambda x, w: (x.double() @ w.double().T).argmax(-1), "OP428"),
    (lambda x, w: (x @ w.T).argmax(), "OP429"),
]


@pytest.mark.parametrize(("program", "code"), REFUSED)
def test_what_has_no_kernel_is_refused(program, code, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    x, w, _ = whole_numbers()
    torch._dynamo.reset()
    assert [r.code for r in onepass.explain(program, x, w).refusals] == [code]


def test_a_product_behind_the_position_is_another_one(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    x, w, _ = whole_numbers()
    torch._dynamo.reset()
    report = onepass.explain(hard_attention, x, w)
    assert report.fused == 1 and [r.code for r in report.refusals] == ["OP201"]
    found = torch.compile(hard_attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})(x, w)
    assert torch.equal(found, hard_attention(x, w))
