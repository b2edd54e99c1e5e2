"""Which plan runs: the joined one, in which order it adds, and where the plan runs as it is."""

from contextlib import nullcontext
from math import prod

import pytest
import torch

from onepass.lowering.gluon import launch as gluon_launch
from onepass.lowering.gluon.launch import RefusedLaunch
from onepass.lowering.joined import launch as joined_launch
from onepass.lowering.joined.launch import fills_device, joined_form, launcher
from onepass.lowering.launch import triton_compat
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.triton import launch as triton_launch
from tests.support.gluon_ahead_of_time import backward_plan, backward_plan_of

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


@pytest.fixture(scope="module")
def plan():
    return backward_plan_of("causal", 64, batch=1, heads=2)


def test_a_joined_plan_adds_in_no_fixed_order_and_says_so(plan):
    found = launcher(plan)
    assert found.active is not found and not found.active.plan.deterministic
    (said,) = found.said
    assert "in no fixed order" in said


def test_a_joined_plan_adds_in_one_order_where_a_deterministic_result_is_asked_for(plan):
    found = launcher(plan, deterministic=True)
    assert found.active is not found and found.deterministic
    (said,) = found.said
    assert "in one order" in said and "in_order" in said
    assert not launcher(plan).deterministic and plan.deterministic


def dense_plan(length=256, heads=2, width=64):
    def attention(q, k, v, bias):
        return torch.softmax(q @ k.mT + bias, -1) @ v

    tensors = [torch.randn(1, heads, length, width).bfloat16() for _ in range(3)]
    return backward_plan(attention, [*tensors, torch.randn(1, heads, length, length).bfloat16()])


def test_what_is_stored_for_rows_and_columns_is_stored_by_the_joined_kernel_where_it_may_be():
    """Each kind of call has its own best form: what one refuses, the next one may take."""
    found = launcher(dense_plan(512))
    assert found.joined.binding.pairs

    def run(form, refused):
        if form in refused:
            raise RefusedLaunch("no tensor map")
        return form

    best = found._by_forms(lambda form: run(form, ()))
    other = found._by_forms(lambda form: run(form, (best,)))
    assert best.binding.pairs and not other.binding.pairs and found.joined is other
    assert any("_pairs" in k.name for k in other.plan.kernels)
    assert found._by_forms(lambda form: run(form, (best, other))) is None and found.joined == "no tensor map"
    assert found._by_forms(lambda form: run(form, ())) is best is found.joined


@pytest.mark.sampled(1)
@pytest.mark.parametrize("turned", [False, True])
def test_two_biases_have_gradients_in_kernels_of_their_own(turned):
    """One tile in shared memory leaves for one tensor."""

    def attention(q, k, v, one, two):
        return torch.softmax(q @ k.mT + one + (two.mT if turned else two), -1) @ v

    tensors = [torch.randn(1, 2, 512, 64).bfloat16() for _ in range(3)]
    biases = [torch.randn(1, 2, 512, 512).bfloat16() for _ in range(2)]
    found = launcher(backward_plan(attention, [*tensors, *biases])).joined
    stored = [s.output.name for k in found.plan.kernels for s in k.stores]
    assert not found.binding.pairs and {"grad_one", "grad_two"} <= {*stored} and len({*stored}) == len(stored)


def test_what_is_summed_along_diagonals_is_added_by_the_joined_kernel_unless_in_order():
    plan = backward_plan_of("relative", 64, batch=1, heads=2, rows=512, columns=512)
    assert launcher(plan).joined.binding.diagonal_sums
    assert not launcher(plan, deterministic=True).joined.binding.diagonal_sums


def test_warpgroups_that_share_rows_store_no_pairs():
    found = launcher(dense_plan(512, width=256))
    assert found.joined.joined_config.by_products and not found.joined.binding.pairs


def test_small_sums_behind_a_joined_kernel_are_shared_out_over_programs(monkeypatch):
    def attention(q, k, v, slopes):
        far = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
        return torch.softmax(q @ k.mT + slopes[:, None, None] * far, -1) @ v

    tensors = [torch.randn(1, 2, 4096, 64).bfloat16() for _ in range(3)]
    found = launcher(backward_plan(attention, [*tensors, torch.randn(2).bfloat16()])).joined
    monkeypatch.setattr(triton_launch, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(triton_launch, "architecture", lambda device: "sm_90")
    kernels, _ = found._stages({}, torch.device("cpu"))
    names = [kernel.name for kernel in kernels]
    assert found.joined.main.name in names and found.joined.finish.name in names
    (small,) = (k for k in found.plan.kernels if any(prod(s.output.shape) == 2 for s in k.stores))
    assert {f"{small.name}_parts", f"{small.name}_merged"} <= {*names} and small.name not in names
    assert sum(name.endswith("_parts") for name in names) == 1


def test_kernels_that_draw_numbers_stay_apart():
    plan = backward_plan_of("dropout", 64, batch=1, heads=2)
    found = launcher(plan)
    assert "draws random numbers" in found.joined and found.active.plan is plan


def test_what_is_compiled_ahead_touches_no_memory_of_a_device(plan, monkeypatch):
    """Here is no device, so that to copy a table to one would raise. Nothing is compiled either: it is noted."""
    names = "architecture", "shared_memory", "multiprocessors", "_multiprocessors", "require_suited"
    known = {"architecture": "sm_90", "shared_memory": 2**18, "multiprocessors": 132, "_multiprocessors": 132}
    for module in (triton_launch, gluon_launch, joined_launch):
        for name in names:
            monkeypatch.setattr(module, name, lambda *given, name=name: known.get(name), raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    compiled = []
    for kind in (triton_launch.Launch, gluon_launch.GluonLaunch):
        monkeypatch.setattr(kind, "compiled", lambda launch, values: compiled.append(launch) or launch)
    monkeypatch.setattr(triton_compat, "make_launcher", lambda kernel: None)
    found = launcher(plan)
    tensors = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in plan.inputs]
    found.compile_ahead([t.name for t in plan.inputs], tensors, {}, None, torch.device("cuda", 0))
    assert len(compiled) == len(found.active.plan.kernels) == 3
    given = [a for launch in compiled for a in getattr(launch, "arguments", ()) if isinstance(a, torch.Tensor)]
    assert given and all(a.device.type == "meta" for a in given)


@pytest.mark.parametrize(("heads", "length", "fills"), [(1, 8192, False), (1, 2048, True), (2, 8192, True)])
def test_one_kernel_has_programs_for_half_of_the_device_or_short_loops(heads, length, fills):
    """Else both kernels run, each with programs for its own rows."""
    plan = backward_plan_of("full", 128, batch=1, heads=heads, rows=length, columns=length)
    _, binding, config = joined_form(plan, False, False)
    assert fills_device(binding, config, {}) == fills
