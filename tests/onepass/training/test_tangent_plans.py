"""The plans of forward mode: results and tangents in one loop, for each set of given tangents, kept on disk."""

import pytest
import torch

from onepass.compiler import compiled_region, disk_cache
from onepass.compiler.options import Options
from onepass.egraph.search.cost import contracts
from onepass.egraph.terms.traversal import reduces, subterms
from onepass.graph.trace import program_of
from onepass.lowering.cost import cheapest_plan
from onepass.lowering.plan.records import NotPlannable
from onepass.process_state import forget
from onepass.training import searched_forms, tangent_plans
from onepass.training.tangent_plans import TangentPlan, tangent_plan

pytestmark = pytest.mark.usefixtures("fresh")
ALL = (True, True, True)


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def causal(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT).masked_fill(hidden, -torch.inf), -1) @ v


def named_log(log, mean, value_output):
    return torch.softmax(log @ mean.mT, -1) @ value_output


def with_largest(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, s.amax(-1)


def text_of(function):
    tensors = [torch.randn(2, n, 16) for n in (600, 700, 700)]
    return compiled_region.make(program_of(function, *tensors), Options()).text


@pytest.mark.parametrize("function", [softmax, causal])
def test_results_and_tangents_share_one_loop_with_six_products(function):
    plan = tangent_plan(text_of(function), ALL).region.plan
    (kernel,) = plan.kernels
    assert len(kernel.loops) == 1 and [s.output.name for s in kernel.stores] == ["output", "tangent_output"]
    values = [value for a in kernel.loops[0].accumulators for value in (a.gauge, *a.values)]
    scores = {r for value in values for r in reduces(value) if r.attrs[1].size == 16 and contracts(r.args[0])}
    assert len(scores) == 3  # of q and k, of q' and k, of q and k'
    wide = [r for a in kernel.loops[0].accumulators for r in a.reductions if any(d.size == 16 for d in r.dims)]
    assert len(wide) == 3  # weights of v, of s' · v, and of v'


def test_no_tensor_of_rows_by_columns_is_stored():
    plan = tangent_plan(text_of(causal), ALL).region.plan
    assert all(store.output.shape[-1] == 16 for kernel in plan.kernels for store in kernel.stores)


def test_a_mask_limits_the_loop_of_the_tangents():
    (kernel,) = tangent_plan(text_of(causal), ALL).region.plan.kernels
    assert kernel.loops[0].ranges and kernel.loops[0].ranges[0].uppers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("changed", ["q", "k", "v", "qk", "qv"])
def test_each_set_of_tangents_has_a_plan_that_reads_no_others(changed):
    found = tangent_plan(text_of(softmax), [name in changed for name in "qkv"])
    names = tuple(f"tangent_{name}" for name in changed)
    assert tuple(t.name for t in found.region.plan.inputs if t.name.startswith("tangent_")) == names
    assert found.of == (0,) and found.region.names[3:] == names


def test_equal_texts_and_tangents_share_plans():
    text = text_of(softmax)
    assert tangent_plan(text, list(ALL)) is tangent_plan(text, ALL)
    assert tangent_plan(text, (True, True, False)) is not tangent_plan(text, ALL)


def test_what_is_not_derived_has_a_reason():
    assert "a largest element" in tangent_plan(text_of(with_largest), ALL)
    assert isinstance(tangent_plan(text_of(with_largest), (False, False, True)), TangentPlan)


def test_inputs_may_have_the_names_of_named_values():
    found = tangent_plan(text_of(named_log), ALL)
    assert isinstance(found, TangentPlan) and len(set(found.region.names)) == 6


def test_a_plan_is_found_on_disk(monkeypatch):
    text = text_of(softmax)
    first = tangent_plan(text, ALL).region.plan
    forget("regions")
    monkeypatch.setattr(searched_forms, "optimize_all", lambda *args, **keywords: pytest.fail("searched again"))
    again = tangent_plan(text, ALL).region
    assert [s.term for k in again.plan.kernels for s in k.stores] == [s.term for k in first.kernels for s in k.stores]
    assert disk_cache.read(again.key) is not None


def test_without_a_certificate_of_another_form_the_tangents_stay_as_derived(monkeypatch):
    search = searched_forms.optimize_all

    def none(results, *args, **keywords):
        if len(results) > 1:
            raise NotPlannable("no certificate")
        return search(results, *args, **keywords)

    text = text_of(softmax)
    monkeypatch.setattr(searched_forms, "optimize_all", none)
    found = tangent_plan(text, ALL)
    assert isinstance(found, TangentPlan) and found.of == (0,)
    assert disk_cache.read(found.region.key) == {"as derived": True, "chosen": found.region.plan.chosen}
    loads = {n.attrs[0].name for s in found.region.plan.kernels[0].stores for n in subterms(s.term) if n.op == "load"}
    assert {"tangent_q", "tangent_k", "tangent_v"} <= loads
    assert tangent_plans.tangent_plan(text, ALL) is found
    forget("regions")
    monkeypatch.setattr(searched_forms, "optimize_all", lambda *_, **__: pytest.fail("searched again"))
    monkeypatch.setattr(cheapest_plan, "cheapest_plan", lambda *_: pytest.fail("chosen again"))
    assert tangent_plan(text, ALL).region.plan == found.region.plan
