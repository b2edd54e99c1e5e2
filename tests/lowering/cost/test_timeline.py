"""The schedule of a launch over time: it has the estimate's step and time, and no lane does two things at once."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import onepass
from onepass.fusion.estimates import estimated_for
from onepass.lowering.cost.kernel_cost import STEPS, demand_of
from onepass.lowering.cost.plan_cost import plan_estimate, seconds
from onepass.lowering.cost.timeline import AFTER, BEFORE, timelines
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.plan.device import H200
from onepass.lowering.schedule import kernel_time, pipeline_time
from tests.support.gluon_ahead_of_time import plan_of
from tests.variants import every

KINDS = "full causal window bias difference logarithm peak groups sigmoid documents joined evoformer softcap".split()


def drawn(plan, sizes=None):
    return [one for kernel in plan.kernels for one in timelines(plan, kernel, sizes)]


def step_of(kernel, config, sizes):
    """Seconds of a step by the prediction itself."""
    (loop,) = kernel.loops
    d = demand_of(kernel, loop, config, sizes)
    if isinstance(config, HopperConfig):
        return pipeline_time.clocks(kernel_time.HOPPER_TIMING, d, config)[0] / H200.clock
    return kernel_time.step_clocks(kernel_time.together(d), config) / H200.clock


def ends_of(kernel, config, sizes):
    """Clocks that an item adds to its steps, by the prediction's constants."""
    d = demand_of(kernel, kernel.loops[0], config, sizes)
    if isinstance(config, HopperConfig):
        timing = kernel_time.HOPPER_TIMING
        return (timing.bytes + timing.unsent * (not config.send)) * d.rows
    return kernel_time.TRITON_TIMING.fixed + kernel_time.TRITON_TIMING.bytes * d.rows


def overlaps(boxes):
    """Boxes of a lane of which one begins before the one in front of it has ended."""
    ordered = sorted(boxes, key=lambda box: box.start)
    return [(a, b) for a, b in pairwise(ordered) if b.start < a.end * (1 - 1e-9)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_is_the_estimates(kind, dtype):
    plan = plan_of(kind, 64, dtype, rows=2048, columns=2048)
    found = drawn(plan)
    assert found and not any(one.why_not for one in found)
    assert sum(one.seconds for one in found) == pytest.approx(seconds(plan), rel=1e-9)
    launches = [launch for kernel in plan.kernels for launch in plan_estimate(replace(plan, kernels=(kernel,)))]
    for one, launch in zip(found, launches, strict=True):
        assert one.step == pytest.approx(step_of(launch.kernel, launch.config, launch.sizes))
        assert one.form.startswith("warp-specialised") == isinstance(launch.config, HopperConfig)
        lanes = {lane: [box for box in one.boxes if box.lane == lane] for lane in one.lanes}
        ends = sum(box.end - box.start for box in one.boxes if box.kind == "store")
        assert ends * H200.clock == pytest.approx(ends_of(launch.kernel, launch.config, launch.sizes))
        assert all(lanes.values()) and sum(map(len, lanes.values())) == len(one.boxes)
        assert not any(map(overlaps, lanes.values()))
        assert all(0 <= box.start <= box.end <= one.end for box in one.boxes)
        assert {box.step for box in one.boxes} == {*range(one.steps - one.left_out)}
        assert one.left_out == max(0, one.steps - BEFORE - AFTER) and (one.cut > 0) == (one.left_out > 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_steps_follow_one_another_at_the_estimates_pace(dtype):
    """The third step, behind what the first ones wait for, is about as far from the fourth as the estimate says."""
    (one,) = drawn(plan_of("full", 64, dtype, rows=4096, columns=4096))
    first = lambda step: min(b.start for b in one.boxes if b.step == step and b.lane.startswith("warpgroup 1"))
    assert first(3) - first(2) == pytest.approx(one.step, rel=0.25)
    assert 0.5 < one.stretch < 3


def test_what_a_launch_is_spent_on_adds_up_to_waves_of_steps():
    plan = plan_of("full", 64, rows=2048, columns=2048)
    (one,), (launch,) = drawn(plan), plan_estimate(plan)
    waves = one.items / (one.multiprocessors * one.programs)
    assert dict(one.spent)[STEPS] == pytest.approx(waves * one.steps * one.step)
    assert one.seconds == pytest.approx(launch.estimate.seconds) == sum(launch.estimate.spent.values())
    assert all(seconds >= 0 for _, seconds in one.spent)


def test_settings_are_those_of_the_launch():
    (one,) = drawn(plan_of("full", 64, rows=4096, columns=4096))
    assert "warpgroups of 64 i each, tiles of" in one.settings and "in flight" in one.settings
    groups = int(one.settings.split()[0])
    assert sum(lane.endswith("products") for lane in one.lanes) == groups
    (one,) = drawn(plan_of("full", 64, "float32", rows=4096, columns=4096))
    warps = int(one.settings.partition(" warps")[0].split()[-1])
    assert sum(lane.endswith("products") for lane in one.lanes) == max(1, warps // 4)
    assert any("latency of memory" in note for note in one.notes)


def test_a_short_item_is_drawn_whole():
    (one,) = drawn(plan_of("full", 64, rows=256, columns=256))
    assert one.steps <= BEFORE + AFTER and not one.left_out and not one.cut
    stores = [box for box in one.boxes if box.kind == "store"]
    assert stores and max(box.end for box in one.boxes) == max(box.end for box in stores)


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def test_a_long_loop_of_few_programs_has_a_picture_for_each_of_its_launches():
    torch._dynamo.reset()
    inputs = [torch.randn(1, 1, n, 64) for n in (4, 8192, 8192)]
    with estimated_for((9, 0)):
        (region,) = onepass.explain(attend, *inputs).regions
    plan = region.data.plan
    found = drawn(plan)
    assert len(found) == 2 and sum(one.seconds for one in found) == pytest.approx(seconds(plan))


def test_there_is_none_of_a_kernel_whose_size_is_not_known():
    torch._dynamo.reset()
    inputs = [torch.randn(1, 2, n, 64) for n in (70, 80, 80)]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 2)
    (region,) = onepass.explain(attend, *inputs).regions
    (unknown,) = drawn(region.data.plan)
    assert unknown.why_not == "a size is not known" and not unknown.boxes
    assert drawn(region.data.plan, region.data.sizes)[0].boxes


def both(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def test_a_kernel_without_a_loop_says_so():
    torch._dynamo.reset()
    plan = onepass.explain(both, *(torch.randn(1, 2, 300, 16) for _ in range(3))).regions[0].data.plan
    with_loops, without = drawn(plan)
    assert with_loops.boxes and "has no loop" in without.why_not and without.seconds > 0
    assert with_loops.seconds + without.seconds == pytest.approx(seconds(plan))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", every(), ids=lambda variant: variant.name)
def test_every_variant_has_one_or_says_why(variant):
    torch._dynamo.reset()
    with estimated_for((9, 0)):
        report = onepass.explain(variant.function, *variant.inputs())
    for region in report.regions:
        for one in drawn(region.data.plan, region.data.sizes):
            assert bool(one.boxes) != bool(one.why_not)
