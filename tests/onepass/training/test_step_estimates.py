"""Which steps over one product are tried as plans: those whose product has a short inner dim."""

from dataclasses import replace

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.executors import triton_missing
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
