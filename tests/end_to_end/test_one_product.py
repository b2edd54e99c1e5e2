"""Reductions of one product without a second one: values against float64, and that no kernel stores the scores."""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products
from tests.support.one_product import PROGRAMS, fused, in_float64, inputs

EXECUTORS = ("tiled", "triton")


def _same(found, expected, tolerance):
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _stored(report):
    return [s.output for r in report.regions for kernel in r.data.plan.kernels for s in kernel.stores]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_float64_gives(name, executor, monkeypatch):
    given = inputs()
    found, report = fused(PROGRAMS[name], *given, executor=executor, monkeypatch=monkeypatch)
    assert report.fused and not report.refusals
    _same(found, in_float64(PROGRAMS[name], *given), 2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_kernel_stores_the_scores(name, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()  # else sizes that differ from another test's become symbols
    rows, columns = 1024, 4096
    report = onepass.explain(PROGRAMS[name], *inputs(rows, columns, 320, torch.bfloat16))
    assert report.fused and not report.refusals
    assert not [output for output in _stored(report) if math.prod(output.shape) > rows + columns]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("width", "dtype"), [(300, torch.float32), (1040, torch.float32), (520, torch.bfloat16)])
def test_wide_rows_are_read_in_chunks(width, dtype, executor, monkeypatch):
    given = inputs(40, 200, width, dtype)
    program = PROGRAMS["cross entropy of a layer"]
    found, _ = fused(program, *given, executor=executor, monkeypatch=monkeypatch)
    _same(found, in_float64(program, *given), 2e-2 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_hostile_scores(executor, monkeypatch):
    """Scores of 3e4, a row without any score, four classes."""
    x, w, y = inputs()
    program = PROGRAMS["log-sum-exp"]
    _same(*(run(program, x * 1e3, w * 10) for run in _runs(executor, monkeypatch)), 1e-4)
    _same(*(run(program, x, w[:4]) for run in _runs(executor, monkeypatch)), 1e-5)

    def masked(x, w, y):
        score = (x @ w.T).masked_fill(y[:, None] == 3, -math.inf)
        return score.logsumexp(-1), score.amax(-1)

    y[5] = 3
    _same(*(run(masked, x, w, y) for run in _runs(executor, monkeypatch)), 1e-5)


def _runs(executor, monkeypatch):
    own = lambda f, *given: fused(_of_three(f), *_three(given), executor=executor, monkeypatch=monkeypatch)[0]
    return own, lambda f, *given: in_float64(_of_three(f), *_three(given))


def _of_three(function):
    return lambda x, w, y: function(x, w, y)


def _three(given):
    return given if len(given) == 3 else (*given, torch.zeros(given[0].shape[0], dtype=torch.int64))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_that_are_ignored_do_not_count(reduction, monkeypatch):
    x, w, y = inputs()
    program = lambda x, w, y: F.cross_entropy(x @ w.T, y, reduction=reduction)
    for ignored in (y % 3 == 0, y >= 0):  # some, and all: the mean of nothing is NaN, as in eager
        labels = torch.where(ignored, -100, y)
        found, _ = fused(program, x, w, labels, monkeypatch=monkeypatch)
        _same(found, in_float64(program, x, w, labels), 2e-5)


def test_a_label_that_is_no_class_gives_an_infinite_loss(monkeypatch):
    """Where eager raises. Nothing is read at the label."""
    x, w, y = inputs()
    y[2], y[4] = 300, -1
    program = PROGRAMS["cross entropy of a layer"]
    found, _ = fused(program, x, w, y, monkeypatch=monkeypatch)
    assert found.isinf().nonzero().flatten().tolist() == [2, 4]


def test_small_products_are_left_alone():
    assert not onepass.explain(PROGRAMS["cross entropy"], *inputs()).fused


def test_scores_that_are_also_returned_stay(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    given = inputs()

    def both(x, w, y):
        score = x @ w.T
        return score, score.logsumexp(-1)

    assert not onepass.explain(both, *given).fused


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["contrast", "CLIP", "cross entropy of a layer"])
def test_training_is_left_to_inductor(name, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    found = onepass.explain(PROGRAMS[name], *inputs(), gradients=True)
    assert not found.fused and {r.code for r in found.refusals} == {"OP604"}
    with torch.no_grad():
        assert onepass.explain(PROGRAMS[name], *inputs()).fused


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["contrast", "CLIP", "cross entropy of a layer", "likelihood"])
def test_training_stays_a_plan_where_memory_is_preferred(name, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    x, w, y = inputs()
    given, right = ([t.to(kind).requires_grad_() for t in (x, w)] for kind in (torch.float32, torch.float64))
    options = {"prefer": "memory"}
    report = onepass.explain(PROGRAMS[name], *given, y, gradients=True, options=options)
    assert report.fused and not report.refusals
    assert not [output for output in _stored(report) if math.prod(output.shape) >= len(x) * len(w)]
    run = torch.compile(PROGRAMS[name], backend="onepass", options=options)
    for _ in range(3):  # no later call may be one that stores the scores
        results = run(*given, y)
        _same(_gradients(results, given), _gradients(PROGRAMS[name](*right, y), right), 2e-5)
    assert "as Inductor compiles" not in str(onepass.reports()[-1]) and onepass.reports()[-1].fused


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [
    "contrast", "CLIP", "cross entropy of a layer", "likelihood", "logarithms and entropy",
])  # fmt: skip
def test_gradients_where_torch_does_not_compile_the_rest(name, monkeypatch):
    x, w, y = inputs()
    given = [t.clone().requires_grad_() for t in (x, w)]
    right = [t.double().requires_grad_() for t in (x, w)]
    found, _ = fused(PROGRAMS[name], *given, y, monkeypatch=monkeypatch)
    _same(_gradients(found, given), _gradients(PROGRAMS[name](*right, y), right), 2e-5)


def _gradients(results, of):
    results = results if isinstance(results, tuple) else (results,)
    return torch.autograd.grad(sum((r * r.detach().cos()).sum() for r in results), of)
