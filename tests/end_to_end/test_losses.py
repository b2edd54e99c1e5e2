"""Losses over one product as people write them: one region, whose results and gradients are those of float64."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products
from tests.support.losses import BATCH, IGNORED, LOSSES, TIME, WIDTH, WORDS, cut, drawn, labels, of_next_words

TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 4e-2}
OPTIONS = {"inner": "eager", "libraries": False}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()


def several(result):
    return result if isinstance(result, tuple) else (result,)


def in_type(given, kind):
    return [x.to(kind) if x.is_floating_point() else x for x in given]


def with_gradients(run, given, count=2):
    """The results, and the gradients of their sum for the first inputs, as far as they have one."""
    leaves = [x.detach().clone().requires_grad_() for x in given[:count]]
    results = several(run(*leaves, *given[count:]))
    return *results, *torch.autograd.grad(sum(r.sum() for r in results), leaves, allow_unused=True)


def exactly(run, given):
    """The same in float64, also where a loss asks for float32."""
    with patch.object(torch.Tensor, "float", torch.Tensor.double):
        return with_gradients(run, in_type(given, torch.float64))


def same(found, right, tolerance):
    for one, exact in zip(found, right, strict=True):
        assert (one is None) == (exact is None) or float((exact if one is None else one).abs().max()) == 0
        if one is not None and exact is not None:
            most = max(1e-3, float(exact.abs().max()))
            torch.testing.assert_close(one.double(), exact, rtol=0, atol=tolerance * most)


def compiled(run, executor="tiled", **more):
    return torch.compile(run, backend="onepass", options={**OPTIONS, "executor": executor}, **more)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_results_and_gradients(name, kind):
    loss = LOSSES[name]
    given = in_type(loss.given(), kind)
    right = exactly(loss.run, given)
    found = with_gradients(compiled(loss.run), given)
    report = onepass.reports()[-1]
    assert not report.refusals and not report.failures
    (region,) = report.regions
    assert region.backward.startswith("derived") == loss.derived
    results = len(found) - 2  # in half precision eager's gradient of a largest score may be that of another score
    compared = slice(None) if loss.derived or kind == torch.float32 else slice(results)
    same(found[compared], right[compared], TOLERANCE[kind])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOSSES)
def test_no_kernel_of_the_forward_stores_the_scores(name):
    loss = LOSSES[name]
    given = loss.given()
    with torch.no_grad():
        found = several(compiled(loss.run, "triton")(*given))
    same(found, exactly(loss.run, given)[: len(found)], 3e-5)
    (region,) = onepass.reports()[-1].regions
    sizes = [store.output.shape for kernel in region.data.plan.kernels for store in kernel.stores]
    assert max(map(torch.Size.numel, map(torch.Size, sizes))) <= BATCH * TIME * (WORDS if "by row" in name else 1)


@pytest.mark.parametrize("name", ["next word", "cut", "smoothed", "weighted", "transposed", "kept words"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_ignored_labels_and_large_scores(name, scale):
    """All ignored but one, scores of up to 1e5; with all ignored a mean is NaN, as in eager, and so are gradients."""
    run = LOSSES[name].run
    h, w, y, *rest = LOSSES[name].given()
    y = torch.full_like(y, IGNORED)
    for kept in (True, False):
        if kept:
            y.view(-1)[7] = 3
        else:
            y.fill_(IGNORED)
        given = (h * scale, w, y, *rest)
        right = exactly(run, given)
        found = with_gradients(compiled(run), given)
        assert onepass.reports()[-1].fused
        for one, exact in zip(found, right, strict=True):
            most = float(exact.abs().nan_to_num(0.0).max())
            torch.testing.assert_close(one.double(), exact, rtol=0, atol=1e-4 * max(most, 1e-3), equal_nan=True)


@pytest.mark.parametrize("name", ["next word", "cut", "cut and viewed", "last words", "transposed", "selected"])
def test_lengths_that_change(name):
    loss = LOSSES[name]
    run = compiled(loss.run)
    for length in (12, 9, 5):
        h, w, y = loss.given()
        given = (h[:, :length].contiguous(), w, y[:, :length].contiguous())
        leaves = [x.clone().requires_grad_() for x in given[:2]]
        for one in (leaves[0], given[2]):
            torch._dynamo.mark_dynamic(one, 1)
        found = run(*leaves, given[2])
        same((found, *torch.autograd.grad(found.sum(), leaves)), exactly(loss.run, given), 3e-5)
        assert onepass.reports()[-1].fused


def test_targets_that_are_zero_or_certain():
    def distilled(x, w, target):
        return F.kl_div((x @ w.T).log_softmax(-1), target, reduction="batchmean")

    x, w = drawn(40, WIDTH), drawn(WORDS, WIDTH, seed=1)
    target = F.one_hot(labels(40), WORDS).float()
    for given in ((x, w, target), (x * 1e3, w, target)):
        same(with_gradients(compiled(distilled), given), exactly(distilled, given), 1e-4)
        assert onepass.reports()[-1].fused


def test_large_scores_of_pairs():
    x, y, target = LOSSES["binary"].given()
    for name, rest in (("binary", (target,)), ("sigmoid of pairs", (torch.tensor(5.0), torch.tensor(-10.0)))):
        run, given = LOSSES[name].run, (x * 100, y, *rest)
        same(with_gradients(compiled(run), given), exactly(run, given), 1e-4)


def test_scores_that_a_model_returns_stay():
    """A loss beside the scores it is of has nothing to save."""

    def both(h, w, y):
        logits = F.linear(h, w)
        return of_next_words(logits, y), logits

    given = LOSSES["next word"].given()
    found = compiled(both)(*given)
    assert not onepass.reports()[-1].fused
    torch.testing.assert_close(found, both(*given))


@pytest.mark.parametrize("run", [
    lambda x, w: (x @ w.T).topk(5, -1),
    lambda x, w: (x @ w.T).topk(5, -1).values - (x @ w.T).logsumexp(-1, keepdim=True),
    lambda x, w: (x @ w.T).sort(-1).values[:, -5:],
])  # fmt: skip
def test_what_chooses_by_order_is_left_as_written(run):
    x, w = drawn(40, WIDTH), drawn(WORDS, WIDTH, seed=1)
    found = compiled(run)(x, w)
    assert not onepass.reports()[-1].failures
    torch.testing.assert_close(found, run(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cut", "selected", "transposed"])
def test_autocast_around_the_call(name):
    loss = LOSSES[name]
    given = loss.given()
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(compiled(loss.run), given)
    same(found, exactly(loss.run, given), 4e-2)


def test_an_autocast_inside():
    def inside(h, w, y):
        with torch.autocast("cpu", torch.bfloat16):
            return cut(h, w, y)

    given = LOSSES["cut"].given()
    found = with_gradients(compiled(inside), given)
    same(found, exactly(cut, given), 4e-2)
