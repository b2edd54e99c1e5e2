"""Two kernels as one: the joined plan computes what the plan computes, and does each product of a tile once."""

from dataclasses import replace

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.ops import iota, le
from onepass.egraph.terms.traversal import reduces, subterms, tensors
from onepass.graph.trace import program_of
from onepass.lowering.analysis import relative_index
from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.tiled.executor import tiled_results
from onepass.training.plans import training
from tests.support.gluon_ahead_of_time import backward_plan, backward_plan_of

KINDS = "full causal window strided shifted softcap bias vector documents narrow sigmoid gated".split()
KINDS += "logarithm evoformer prefix longformer dilated slanted relative gate boolean capped dropout".split()
LENGTH = 320  # above what a tile holds whole


@pytest.fixture(scope="module")
def plans():
    found = {}

    def plan(kind):
        if kind not in found:
            found[kind] = backward_plan_of(kind, 16, rows=LENGTH, columns=LENGTH, batch=1, heads=4)
        return found[kind]

    return plan


def values_for(plan):
    """Random inputs of a plan; of what a forward saves, any numbers will do."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for t in plan.inputs:
        dtype = getattr(torch, t.dtype)
        drawn = torch.randn(t.shape, generator=generator)
        found[t.name] = drawn.to(dtype) if dtype.is_floating_point else (drawn > 0).to(dtype)
    return found


def products_of(kernel):
    """The sums over rows and loop in the values of a kernel's accumulators."""
    (loop,) = kernel.loops
    found = {r for a in loop.accumulators for r in reduces(a.values[0])}
    return {r for r in found if {kernel.rows, loop.dim} <= r.dims}


def difference(one, left, two, right, v):
    scale = one.shape[-1] ** -0.5
    first, second = (torch.softmax(q @ k.mT * scale, -1) for q, k in ((one, left), (two, right)))
    return first @ v - 0.2 * (second @ v)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_joined_plan_computes_what_the_plan_does(kind, plans):
    plan = plans(kind)
    found, values = join(plan), values_for(plan)
    for ours, theirs in zip(tiled_results(found.plan, values), tiled_results(plan, values), strict=True):
        difference = (ours.double() - theirs.double()).norm()
        assert difference <= 2e-3 * theirs.double().norm()  # both are rounded to bfloat16


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["bias", "dense", "hidden"])
def test_what_a_loop_stores_for_pairs_the_joined_kernel_stores(kind, plans):
    """hidden: a window, outside of which the gradient of the bias is 0."""
    plan = plans(kind)
    found, values = join(plan, with_pairs=True), values_for(plan)
    (result,) = (t.name for t in plan.outputs if t.shape[-2:] == (LENGTH, LENGTH))
    assert result in {s.output.name for s in found.main.written_by(found.main.loops[0])}
    assert len(found.plan.kernels) == len(join(plan).plan.kernels) - 1
    binding = bind_joined(found.main)
    (pair,) = binding.pairs
    assert pair.weight in {s.weight for s in binding.row_sums} and pair.store.output.name == result
    for ours, theirs in zip(tiled_results(found.plan, values), tiled_results(plan, values), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 2e-3 * theirs.double().norm()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind, sign", [("relative", 1), ("backwards", -1)])
def test_what_is_summed_along_diagonals_the_joined_kernel_adds_to_memory(kind, sign, plans):
    plan = plans(kind)
    found, values = join(plan, with_pairs=True, with_diagonals=True), values_for(plan)
    (added,) = bind_joined(found.main).diagonal_sums
    assert added.store.output.name in found.main.zeroed and not bind_joined(found.main).pairs
    assert len(found.plan.kernels) == len(join(plan).plan.kernels) - 1 and join(plan, with_pairs=True) is None
    for ours, theirs in zip(tiled_results(found.plan, values), tiled_results(plan, values), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 2e-3 * theirs.double().norm()


def test_without_pairs_there_is_nothing_to_store(plans):
    assert join(plans("full"), with_pairs=True) is None


def groups_side_by_side(q, k, v):
    return torch.softmax(q @ k.repeat_interleave(4, 1).mT, -1) @ v.repeat_interleave(4, 1)


def groups_expanded(q, k, v):
    k, v = (x.expand(-1, -1, 4, -1, -1).reshape(q.shape) for x in (k, v))
    return torch.softmax(q @ k.mT, -1) @ v


def clamped(q, k, v, table):
    rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[-2], k.shape[-2]))
    score = q @ k.mT + table[(columns - rows[:, None]).clamp(-9, 9) + 9].permute(2, 0, 1)
    return torch.softmax(score, -1) @ v


def buckets(q, k, v, table):
    """T5's: near distances, and far ones by their logarithm, of both sides."""
    rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[-2], k.shape[-2]))
    far = columns - rows[:, None]
    near, coarse = far.abs(), 3 + (torch.log(far.abs().clamp(min=1).float() / 3) * 1.5).long()
    index = (far > 0).long() * 9 + torch.where(near < 3, near, coarse.clamp(max=8))
    return torch.softmax(q @ k.mT + table[index].permute(2, 0, 1), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("function", [clamped, buckets])
def test_what_both_kernels_tabulate_is_read_once(function, learned, monkeypatch):
    """One kernel needs a table over columns minus rows, j - i, and the other the same over i - j."""
    monkeypatch.setattr(relative_index, "MIN_SCORES", 1)
    monkeypatch.setattr(relative_index, "MIN_SAVED_WORK", 1)
    inputs = [torch.randn(1, 2, LENGTH, 16).bfloat16() for _ in range(3)] + [torch.randn(19, 2).bfloat16()]
    made = compiled_region.make(program_of(function, *inputs), Options(), (), {})
    found = training(made.text, [True, True, True, learned])
    plan = found.every.region.plan
    tables = {s.output for k in plan.kernels if not k.loops for s in k.stores if len(s.order) == 2}
    assert len(tables) == 1
    joined = join(plan)
    assert len(tables & {*joined.main.inputs}) == 1
    kept = {s.output for k in joined.plan.kernels for s in k.stores}
    assert len(tables & kept) == 1
    assert len({n for s in joined.main.stores for n in subterms(s.term) if n.op == "exp2"}) == 1
    values = values_for(plan)
    for ours, theirs in zip(tiled_results(joined.plan, values), tiled_results(plan, values), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 4e-3 * theirs.double().norm()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("function, axes", [(groups_side_by_side, ()), (groups_expanded, (1,))])
def test_groups_of_heads_are_joined_however_keys_are_repeated(function, axes, heads):
    """heads: of keys. One head of keys for all is multi-query attention: the dim of the groups has one place."""
    shapes = (1, 4 * heads, LENGTH, 16), *[(1, heads, *axes, LENGTH, 16)] * 2
    plan = backward_plan(function, [torch.randn(shape).bfloat16() for shape in shapes])
    found, values = join(plan), values_for(plan)
    assert len(found.plan.kernels) == len(plan.kernels), "what is stored before is in the kernel that stores delta"
    for ours, theirs in zip(tiled_results(found.plan, values), tiled_results(plan, values), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 2e-3 * theirs.double().norm()


def test_the_joined_kernel_has_five_products_where_the_two_have_seven(plans):
    plan = plans("full")
    found = join(plan)
    separate = [k for k in plan.kernels if k.loops]
    assert len(separate) == 2 and sum(len(products_of(k)) + len(k.loops[0].accumulators) for k in separate) == 7
    binding = bind_joined(found.main)
    assert len(binding.products) + len(binding.loop_sums) + len(binding.row_sums) == 5
    assert [s.adds for s in found.main.stores] == [False, False, True]
    assert plan.deterministic and not found.plan.deterministic


def test_what_depends_on_the_loop_alone_is_stored_before(plans):
    found = join(plans("causal"))
    read = {t.name for t in found.main.inputs}
    assert "log" not in read and "output" not in read
    stored = {s.output.name for k in found.plan.kernels[: found.plan.kernels.index(found.main)] for s in k.stores}
    assert len(stored & read) == 2  # the logarithms in base two, and Σ_e o · do


@pytest.mark.parametrize("kind", ["relative", "bias"])
def test_what_a_loop_stores_for_pairs_has_a_kernel_of_its_own(kind, plans):
    plan = plans(kind)
    (written,) = (s for k in plan.kernels for loop in k.loops if loop.tile for s in k.written_by(loop))
    found = join(plan)
    (alone,) = (k for k in found.plan.kernels if written.output in {s.output for s in k.stores})
    assert alone.columns and not alone.loops and bool(written.places) == (kind == "relative")
    assert not isinstance(bind_joined(found.main), str)
    earlier = found.plan.kernels[: found.plan.kernels.index(alone)]
    assert not any(written.output in k.inputs for k in earlier)


def test_kernels_that_keep_other_pairs_are_not_joined(plans):
    plan = plans("causal")
    kernels = [k for k in plan.kernels if k.loops]
    other = kernels[0]
    guard = le(iota(other.loops[0].dim), iota(other.rows) + 1)
    changed = replace(other, loops=(replace(other.loops[0], guard=guard),))
    assert join(plan) is not None
    assert join(replace(plan, kernels=tuple(changed if k is other else k for k in plan.kernels))) is None


def test_a_guard_that_results_of_the_other_kernel_lack_joins_nothing():
    """One result sums over all rows, the other over kept columns: no mask stands behind the first loop."""

    def both(q, k, a, b, kept):
        weights = torch.exp(q @ k.mT * 0.1)
        return weights.mT @ a, weights.masked_fill(~kept[:, None, None, :], 0) @ b

    inputs = [torch.empty(2, 4, LENGTH, 16, dtype=torch.bfloat16) for _ in range(4)]
    program = program_of(both, *inputs, torch.empty(2, LENGTH, dtype=torch.bool))
    assert join(compiled_region.make(program, Options(), (), {}).plan) is None


def test_kernels_that_read_one_another_are_not_joined(plans):
    plan = plans("full")
    first, second = [k for k in plan.kernels if k.loops]
    chained = replace(second, inputs=(*second.inputs, first.output))
    assert join(replace(plan, kernels=tuple(chained if k is second else k for k in plan.kernels))) is None


def test_a_forward_plan_has_nothing_to_join():
    from tests.support.gluon_ahead_of_time import plan_of

    assert join(plan_of("full", 64)) is None


def test_sums_that_are_added_to_lack_the_rows():
    inputs = [torch.empty(1, 2, LENGTH, 16, dtype=torch.bfloat16) for _ in range(5)]
    found = join(backward_plan(difference, inputs))
    assert len(found.sums) == 2  # the gradients of both queries
    for store in found.main.stores:
        if store.adds:
            assert found.main.rows in store.term.dims and found.main.rows not in store.order
            assert store.output.dtype == "float32"
    assert {t.name for t in tensors(found.finish.stores[0].term)} <= {t.name for t in found.sums}
