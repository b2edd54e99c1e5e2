"""GraphPass inside of Inductor, and users' rules through both doors."""

import copy
import math
import pickle

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass

import onepass
from onepass import GraphPass, process_state
from onepass.api.backend import onepass_backend
from onepass.egraph.terms.ops import exp, log
from onepass.report import records

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DOORS = ("joint_custom_pre_pass", "pre_grad_custom_pass")


@onepass.rule(trust=True)
def logarithm_of_exponential(s: "j"):
    """log(exp(s)) = s"""
    return log(exp(s)), s


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    new_process()
    counters.clear()
    torch.manual_seed(0)
    with torch._inductor.config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=True):
        yield


def new_process():
    """As far as onepass and Dynamo can tell."""
    torch._dynamo.reset()
    process_state.forget()


def causal(q, k, v):
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf), dim=-1) @ v


def roundabout(q, k, v):
    return torch.softmax(torch.log(torch.exp(q @ k.mT / 8)), dim=-1) @ v


def inputs(size=300):
    return [torch.randn(1, 2, size, 16) for _ in range(3)]


def regions():
    return [region for r in records.reports() for region in r.regions]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("door", DOORS)
def test_the_pass_fuses_inside_of_inductor(door):
    arguments = inputs()
    with torch.no_grad():
        result = torch.compile(causal, options={door: GraphPass()})(*arguments)
    assert len(regions()) == 1 and regions()[0].notes == ()
    assert getattr(torch._inductor.config, door) is None, "nothing global was changed"
    torch.testing.assert_close(result, causal(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("door", DOORS)
def test_a_program_out_of_inductors_cache_finds_its_operation_and_its_report(door):
    arguments = inputs()
    with torch.no_grad():
        torch.compile(causal, options={door: GraphPass()})(*arguments)
        (first,) = regions()
        new_process()
        counters.clear()
        result = torch.compile(causal, options={door: GraphPass()})(*arguments)
    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    assert hits >= 1
    (again,) = regions()
    assert (again.key, again.captured, again.derivation) == (first.key, first.captured, first.derivation)
    assert "no search" in again.cache
    torch.testing.assert_close(result, causal(*arguments), rtol=1e-4, atol=1e-5)


def test_the_backend_and_inductors_cache():
    summed = lambda *given: causal(*given).cumsum(-1)  # a region alone would leave Inductor nothing
    arguments = inputs()
    torch.compile(summed, backend=onepass_backend)(*arguments)
    new_process()
    counters.clear()
    result = torch.compile(summed, backend=onepass_backend)(*arguments)
    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    assert hits >= 1
    torch.testing.assert_close(result, summed(*arguments), rtol=1e-4, atol=1e-5)


def test_training_through_pre_grad():
    arguments = [x.requires_grad_() for x in inputs(40)]
    result = torch.compile(causal, options={"pre_grad_custom_pass": GraphPass()})(*arguments)
    mine = torch.autograd.grad(result.square().sum(), arguments)
    eagers = torch.autograd.grad(causal(*arguments).square().sum(), arguments)
    assert len(regions()) == 1
    for a, b in zip(mine, eagers):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_joint_graph_is_left_and_said():
    arguments = [x.requires_grad_() for x in inputs(40)]
    result = torch.compile(causal, options={"joint_custom_pre_pass": GraphPass()})(*arguments)
    assert regions() == []
    assert [refused.kind for r in records.reports() for refused in r.refusals] == ["joint graph"]
    torch.testing.assert_close(result, causal(*arguments), rtol=1e-4, atol=1e-5)


class Counting(CustomGraphPass):
    calls = 0

    def __call__(self, graph):
        Counting.calls += 1
        assert any("onepass" in str(n.target) for n in graph.nodes)

    def uuid(self):
        return "counting 1"


@pytest.mark.parametrize("door", DOORS)
def test_it_composes_with_another_librarys_pass(door):
    Counting.calls = 0
    with torch.no_grad():
        torch.compile(causal, options={door: GraphPass(then=Counting())})(*inputs(40))
    assert Counting.calls == 1 and len(regions()) == 1


@pytest.mark.skipif(TORCH < (2, 13), reason="lists of passes came with torch 2.13")
@pytest.mark.parametrize("door", DOORS)
def test_it_stands_in_a_list_of_passes(door):
    Counting.calls = 0
    with torch.no_grad():
        torch.compile(causal, options={door: [GraphPass(), Counting()]})(*inputs(40))
    assert Counting.calls == 1 and len(regions()) == 1


def test_uuid_covers_rules_options_and_the_next_pass():
    class NoName(Counting):
        def uuid(self):
            return None

    passes = [
        GraphPass(), GraphPass(rules=[logarithm_of_exponential]), GraphPass(strict=True), GraphPass(executor="tiled"),
        GraphPass(then=Counting()),
    ]  # fmt: skip
    assert len({p.uuid() for p in passes}) == len(passes)
    assert GraphPass().uuid() == GraphPass().uuid()
    assert GraphPass(then=NoName()).uuid() is None


def test_uuid_covers_versions(monkeypatch):
    from onepass.compiler import disk_cache

    before = GraphPass().uuid()
    monkeypatch.setattr(disk_cache, "versions", lambda: {"torch": "other"})
    assert GraphPass().uuid() != before


@pytest.mark.parametrize("again", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_pass_can_be_copied(again):
    made = GraphPass(rules=[logarithm_of_exponential], then=Counting())
    assert again(made).uuid() == made.uuid()


def test_a_bad_pass_is_refused():
    with pytest.raises(onepass.errors.OptionError, match=r"fuse_load\b.*fuse_loads"):
        GraphPass(fuse_load="always")
    with pytest.raises(onepass.errors.OnepassError, match="no rule"):
        GraphPass(rules=["softmax"])
    with pytest.raises(onepass.errors.OnepassError, match="then"):
        GraphPass(then=3)


def test_a_users_rule_changes_the_kernel_through_options():
    arguments = inputs()
    plain = onepass.explain(roundabout, *arguments)
    assert "log" in plain.regions[0].extracted
    rules = [logarithm_of_exponential]
    result = torch.compile(roundabout, backend=onepass_backend, options={"inner": "eager", "rules": rules})(*arguments)
    (changed,) = [r for r in regions() if "log" not in r.extracted]
    assert "logarithm_of_exponential" in [step.rule for step in changed.derivation]
    torch.testing.assert_close(result, roundabout(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("door", DOORS)
def test_a_users_rule_changes_the_kernel_through_the_pass(door):
    arguments = inputs()
    chosen = GraphPass(rules=[logarithm_of_exponential])
    with torch.no_grad():
        torch.compile(roundabout, options={door: chosen})(*arguments)
        new_process()
        result = torch.compile(roundabout, options={door: copy.deepcopy(chosen)})(*arguments)
    (region,) = regions()
    assert "log" not in region.extracted
    torch.testing.assert_close(result, roundabout(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [None, len, torch.fx.symbolic_trace(lambda x: x.sin())])
def test_a_pass_runs_on_a_graph_alone(given):
    with pytest.raises(onepass.errors.InputError, match="pre_grad_custom_pass"):
        GraphPass()(given)
