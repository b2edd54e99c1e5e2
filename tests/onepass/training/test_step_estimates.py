"""Which steps over one product are tried as plans: those whose product has a short inner dim."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.executors import triton_missing
from onepass.lowering.plan.device import H200
from onepass.training.plans import training
from onepass.training.step_estimates import may_beat_inductor, seconds_of_compiled_step, takes_far_longer


def contrast(x, y):
    score = x @ y.T * 3
    return score.logsumexp(0) + score.logsumexp(1)


def made(rows, width):
    given = [torch.empty(rows, width, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    return training(compiled_region.make(program_of(contrast, *given), Options(), (), {}).text, [True, True])


@pytest.mark.skipif(triton_missing() is not None, reason="estimates need Triton")
@pytest.mark.parametrize(("width", "tried"), [(64, True), (128, True), (768, False)])
def test_a_short_inner_dim_is_worth_a_measurement(width, tried):
    assert may_beat_inductor(made(8192, width), {}) == tried


@pytest.mark.skipif(triton_missing() is not None, reason="estimates need Triton")
def test_memory_is_not_worth_any_time():
    """Steps of some times Inductor's stay plans where memory is preferred; those of a hundred times do not."""
    assert not any(takes_far_longer(made(rows, 768), {}) for rows in (8192,))
    slow = made(8192, 768)
    plan = slow.every.region.plan
    backward = replace(slow.every, region=replace(slow.every.region, plan=replace(plan, kernels=plan.kernels * 100)))
    assert takes_far_longer(replace(slow, backwards={((True, True), (True, True)): backward}), {})


def test_the_compiled_step_moves_its_scores_and_multiplies_three_times():
    short, long = (seconds_of_compiled_step(made(4096, width).found.program, {}) for width in (64, 1024))
    products = 3 * 2 * 4096 * 4096 * (1024 - 64) / 7e14
    inputs = 3 * 2 * 4096 * 2 * (1024 - 64) / 4e12
    assert long - short == pytest.approx(products + inputs)


def clip(x, y):
    score = x @ y.T
    return score.logsumexp(0) + score.logsumexp(1)


def layer(x, w):
    return F.linear(x, w).float().logsumexp(-1)


@pytest.mark.parametrize(("run", "moved"), [(clip, 3 * 2 + 4), (layer, 3 * 2)])
def test_a_product_is_moved_for_each_axis_that_is_reduced(run, moved):
    """Also of a layer: its scores are stored and read as those of a product."""
    size, width = 4096, 64
    given = [torch.empty(size, width, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    seconds = seconds_of_compiled_step(program_of(run, *given), {})
    inputs, scores = 3 * 2 * size * width * 2, moved * 2 * size**2
    products = 3 * 2 * size**2 * width / 7e14
    assert seconds == pytest.approx((inputs + scores) / H200.memory_bytes + products, rel=1e-3)
