"""Every plan of every variant, of its gradients and of its tangents is read back; a plan that is changed is not, unless
it computes the same: then the tiled executor shows it."""

from random import Random

import pytest
import torch

from onepass.egraph.derivation.certificate import check as check_chain
from onepass.egraph.terms.sizes import resolve
from onepass.lowering.launch.axis_order import in_memory_order
from onepass.lowering.launch.split_loops import split_kernel, split_to_run
from onepass.lowering.plan.records import Plan
from onepass.lowering.readback.canonical_terms import Canonical
from onepass.lowering.readback.check_plan import check, differs_in_order
from onepass.lowering.readback.erase_stored import erased, erasing
from onepass.lowering.readback.plan_meaning import Meaning, NotReadBack, read_back
from onepass.lowering.tiled.executor import tiled_results
from onepass.rules import DEMOTION
from tests.support.plan_mutants import mutants
from tests.support.read_plans import plans_of
from tests.variants import every

VARIANTS = {variant.name: variant for variant in every() if not variant.refused}
CASES = [(name, number) for name, variant in VARIANTS.items() for number in range(len(variant.functions))]
CHANGED = ("causal", "relative bias")  # with limits of loops; with sums along diagonals


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_plan_is_read_back(name, number):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    found = plans_of(variant.functions[number], variant.inputs())
    assert found
    for asked, plan in found:
        check(plan, asked)
        _hold_without_what_is_stored(plan)
        _hold_at_launch(plan)


def _hold_without_what_is_stored(plan: Plan) -> None:
    """The law erases what is stored, step by step. What is left is, node for node, the plan with nothing marked."""
    marked = read_back(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Meaning, "read_at", Meaning.at)
        whole = read_back(plan)
    found = erased(marked, whole.stored)
    assert found.stored == whole.stored and found.equal == whole.equal
    for name, meaning in marked.stored.items():
        chain = erasing(meaning.term)
        check_chain(chain, DEMOTION)
        assert Canonical()(chain.goal) is whole.stored[name].term


def _hold_at_launch(plan: Plan) -> None:
    """What is made of a plan at launch is read back as the plan."""
    for kernel in plan.kernels:
        assert (split_kernel(kernel) is None) == (split_to_run(kernel) is None)
    last_but_one = {t.name: _turned(t.shape) for t in (*plan.inputs, *plan.outputs) if len(t.shape) > 1}
    found = in_memory_order(plan, last_but_one)
    assert not found.orders or not differs_in_order(found.plan, plan, found.orders)


def _turned(shape) -> tuple[int, ...]:
    """Strides of a tensor whose last but one axis is contiguous."""
    lengths = [resolve(n, {}) if isinstance(n, int) else 64 for n in shape]
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * lengths[axis]
    return tuple(strides)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in CHANGED else pytest.mark.slow) for n in VARIANTS])
def test_no_plan_with_another_meaning_is_read_back(name):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    for asked, plan in plans_of(variant.function, variant.inputs()):
        check(plan, asked)
        changed = [*mutants(plan)]
        Random(0).shuffle(changed)
        seen: dict[str, int] = {}
        for what, mutant in changed:
            seen[what] = seen.get(what, 0) + 1
            if seen[what] <= 1 and _is_read_back(mutant, asked):
                assert _compute_the_same(mutant, plan), what


def _is_read_back(plan: Plan, asked) -> bool:
    try:
        check(plan, asked)
    except NotReadBack:
        return False
    return True


def _compute_the_same(one: Plan, other: Plan) -> bool:
    """Wherever the other plan's results are defined: a row without a key, which is NaN, may be anything.

    An element may be off by what float32 rounds of the largest ones: drawn gradients are of ten millions.
    """
    results = [tiled_results(plan, _inputs(other), {}) for plan in (one, other)]

    def near(a, b):
        a, b = (x[~b.isnan()].double() for x in (a, b))
        return torch.allclose(a, b, rtol=1e-4, atol=max(1e-4, 1e-5 * b.abs().max().item()) if b.numel() else 0)

    return all(near(a, b) for a, b in zip(*results, strict=True))


def _inputs(plan: Plan) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    found = {}
    for tensor in plan.inputs:
        dtype, shape = getattr(torch, tensor.dtype), [*map(int, tensor.shape)]
        drawn = torch.randn(shape, generator=random) if dtype.is_floating_point else None
        drawn = torch.randint(0, 2, shape, generator=random) if drawn is None else drawn
        found[tensor.name] = drawn.to(dtype)
    return found
