"""Gradients in another form than the derived one: where one is looked for, what is kept of it, and that it is right."""

from dataclasses import fields

import pytest
import torch

from onepass.compiler import disk_cache
from onepass.egraph.derivation.certificate import check
from onepass.egraph.search.engine import EngineError
from onepass.lowering.cost import cheapest_plan, estimated_plan
from onepass.lowering.plan.records import NotPlannable, Plan
from onepass.process_state import forget
from onepass.rules import ALL, PHASES, WEIGHTED
from onepass.training import searched_forms
from onepass.training.plans import training
from onepass.training.report import gradients_report
from tests.support.backwards import drawn, hold_gradients
from tests.support.gluon_ahead_of_time import compiled_region, program_of

pytestmark = pytest.mark.usefixtures("fresh")


def linear(q, k, v):
    weights = q @ k.mT
    return (weights @ v) / weights.sum(-1, keepdim=True)


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def text_of(function, *shape, dtype=torch.bfloat16):
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for _ in range(3)]
    return compiled_region.make(program_of(function, *inputs), compiled_region.Options(), (), {}).text


def made(function, *shape):
    return training(text_of(function, *shape), (True, True, True))


LONG = (2, 8, 8192, 64)


def is_of_pairs(kernel) -> bool:
    """Whether a kernel goes through each pair of a row and a column."""
    return kernel.rows.size == 8192 and any(loop.dim.size == 8192 for loop in kernel.loops)


def test_gradients_of_linear_attention_multiply_keys_by_values_first():
    found = made(linear, *LONG).every
    assert {*found.chains} == {"grad_q", "grad_k", "grad_v"} and not any(map(is_of_pairs, found.region.plan.kernels))
    for chain in found.chains.values():
        check(chain, ALL)
        assert chain.steps and not {*chain.rules} & {law.name for law in PHASES["streaming"]}


def squared(q, k, v):
    """Weights without a softmax, by distances: their parts may be much larger than they are."""
    return (q[..., None, :] - k[..., None, :, :]).square().sum(-1) @ v


@pytest.mark.parametrize("function, dtype, used", [
    (linear, torch.bfloat16, True), (linear, torch.float16, True), (linear, torch.float32, False),
    (squared, torch.bfloat16, False), (softmax, torch.bfloat16, False),
])  # fmt: skip
def test_differences_are_multiplied_out_only_where_that_loses_less_than_rounding(function, dtype, used, monkeypatch):
    asked = []
    laws = searched_forms._laws
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: True)
    monkeypatch.setattr(searched_forms, "_laws", lambda *given: asked.append(laws(*given)) or asked[-1])
    assert not isinstance(training(text_of(function, 1, 2, 256, 32, dtype=dtype), (True, True, True)), str)
    (found,) = asked
    assert ({*WEIGHTED} <= {*found}) == used and {*PHASES["algebra"]} <= {*found}


def test_the_chains_are_in_the_report_and_its_certificates():
    report = gradients_report(made(linear, *LONG), {})
    assert {"grad_q", "grad_k", "grad_v"} <= {one.get("of") for one in report.certificates}


def test_of_softmax_nothing_is_searched(monkeypatch):
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: pytest.fail("two kernels are one"))
    assert not made(softmax, *LONG).every.chains


def test_short_gradients_stay_as_derived(monkeypatch):
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: pytest.fail("they take as long as launches"))
    assert not made(linear, 1, 2, 64, 16).every.chains


def test_a_form_is_found_on_disk(monkeypatch):
    first = made(linear, *LONG).every
    forget("regions")
    monkeypatch.setattr(searched_forms, "optimize_all", lambda *_, **__: pytest.fail("searched again"))
    again = made(linear, *LONG).every
    assert again is not first and again.region.plan == first.region.plan and {*again.chains} == {*first.chains}


def difference(q, k, v):
    return (torch.softmax(q @ k.mT, -1) - 0.3 * torch.softmax(2 * q @ k.mT, -1)) @ v


def plans_and_reports(text: str) -> list[object]:
    """The plans of a region and of its gradients, with what reports say of them."""
    own, found = compiled_region.read(text), training(text, (True, True, True))
    plans = (own.plan, found.forward.plan, found.every.region.plan)
    return [[getattr(plan, field.name) for field in fields(Plan)] for plan in plans] + [
        found.every.chains, own.report.between, own.report.kernels, gradients_report(found, {})
    ]  # fmt: skip


@pytest.mark.parametrize("function", [softmax, linear, difference])
def test_what_cost_chose_is_found_on_disk(function, monkeypatch):
    """The plans of a region, of its saved values and of its gradients; what is damaged is chosen again, and kept."""
    text = text_of(function, *LONG)
    first = plans_and_reports(text)
    found = training(text, (True, True, True))
    keys = found.found.key, found.forward.key, found.every.region.key
    choose = cheapest_plan.cheapest_plan
    monkeypatch.setattr(cheapest_plan, "cheapest_plan", lambda *_: pytest.fail("chosen again"))
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: pytest.fail("estimated again"))
    forget("regions")
    assert plans_and_reports(text) == first
    chosen = [disk_cache.read(key)["chosen"] for key in keys]
    for key, other in zip(keys, (chosen[1], {}, [0]), strict=True):
        disk_cache.update(key, chosen=other)
    forget("regions")
    monkeypatch.setattr(cheapest_plan, "cheapest_plan", choose)
    assert plans_and_reports(text) == first
    assert [disk_cache.read(key)["chosen"] for key in keys] == chosen


@pytest.mark.parametrize("error, is_kept", [(EngineError("cut off"), False), (NotPlannable("no certificate"), True)])
def test_without_another_form_the_derived_one_stays(error, is_kept, monkeypatch):
    """That is kept, unless the engine failed, which may be of this process alone."""

    def none(results, *args, **keywords):
        if keywords.get("phases"):
            raise error
        return search(results, *args, **keywords)

    search = searched_forms.optimize_all
    monkeypatch.setattr(searched_forms, "optimize_all", none)
    found = made(linear, *LONG).every
    assert not found.chains and searched_forms.is_kept_as_derived(found.region.key) == is_kept
    monkeypatch.setattr(searched_forms, "optimize_all", search)
    forget("regions")
    assert bool(made(linear, *LONG).every.chains) != is_kept


def test_a_damaged_entry_is_searched_again():
    first = made(linear, *LONG).every
    body = disk_cache.read(first.region.key)
    disk_cache.write(first.region.key, body | {"derivations": body["derivations"][::-1]})
    forget("regions")
    assert {*made(linear, *LONG).every.chains} == {*first.chains}


def test_what_has_no_plan_as_derived_may_have_one_in_another_form(monkeypatch):
    def none(*_, **__):
        raise NotPlannable("not so")

    monkeypatch.setattr(searched_forms, "plan_by_cost", none)
    assert made(linear, *LONG).every.chains


@pytest.mark.parametrize("function", [linear, softmax])
def test_gradients_are_those_of_float64(function, monkeypatch):
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: True)
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: True)
    inputs = [x.abs() for x in drawn([(1, 2, 40, 8)] * 3)]
    assert "derived" in hold_gradients(function, inputs, "tiled")
