"""A graph that runs without a compiler: its checkpoints are torch's own; and which graphs run so."""

import functools

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import onepass
from onepass.api.backend import onepass_backend
from onepass.api.eager_graph import without_compiler


def run(function, *given):
    """The function by its graph."""
    torch._dynamo.reset()
    return torch.compile(function, backend=lambda gm, example_inputs: without_compiler(gm))(*given)


def test_a_graph_without_a_checkpoint_runs_as_it_is():
    x = torch.randn(5)
    assert torch.equal(run(lambda x: x.sin() + 1, x), x.sin() + 1)


def test_random_numbers_are_the_same_in_both_directions():
    dropped = lambda x: torch.nn.functional.dropout(x, 0.5) * x
    inner = lambda x: checkpoint(dropped, x, use_reentrant=False)
    x = torch.ones(64, requires_grad=True)
    result = run(lambda x: checkpoint(inner, x, use_reentrant=False), x)
    (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, 2 * result.detach()) and 0 < result.count_nonzero() < 64


def test_the_policy_of_a_checkpoint_is_asked():
    asked = []

    def decide(context, operation, *args, **kwargs):
        asked.append(operation)
        return CheckpointPolicy.PREFER_RECOMPUTE

    policy = functools.partial(create_selective_checkpoint_contexts, decide)
    x = torch.randn(5, requires_grad=True)
    run(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=policy), x).sum().backward()
    assert asked == [torch.ops.aten.sin.default]
    torch.testing.assert_close(x.grad, x.detach().cos())


# Graphs that leave nothing to compile ---------------------------------------------------------------------------------


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def packed(qkv):
    return attend(*qkv.unflatten(-1, (3, 2, 8)).movedim(-3, 0).transpose(-3, -2))


def with_more_behind(q, k, v):
    return attend(q, k, v).cumsum(-1)


def written_to_an_input(q, k, v):
    return v.copy_(attend(q, k, v).cumsum(-1))


@pytest.fixture
def inductor(monkeypatch):
    """The graphs that Inductor compiled."""
    from torch._inductor import compile_fx

    compiled, own = [], compile_fx.compile_fx
    seen = lambda gm, *args, **more: compiled.append(gm) or own(gm, *args, **more)
    monkeypatch.setattr(compile_fx, "compile_fx", seen)
    torch._dynamo.reset()
    return compiled


def qkv(needed):
    return [torch.randn(2, 2, 24, 8, requires_grad=needed) for _ in range(3)]


def call(function, given, mode=None, **options):
    """The results and gradients of a compiled function."""
    made = torch.compile(function, backend=onepass_backend(options={"libraries": False, **options}, mode=mode))
    result = made(*given)
    assert onepass.reports()[-1].fused == 1
    leaves = [x for x in given if x.requires_grad]
    return [result, *(torch.autograd.grad(result.square().sum(), leaves) if leaves else ())]


def right(function, given):
    """The same in float64, by eager."""
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    result = function(*exact)
    leaves = [x for x in exact if x.requires_grad]
    return [result, *(torch.autograd.grad(result.square().sum(), leaves) if leaves else ())]


@pytest.mark.parametrize("needed", [False, True])
def test_regions_alone_need_no_inductor(inductor, needed):
    given = qkv(needed)
    found = call(attend, given)
    assert not inductor
    for one, exact in zip(found, right(attend, given), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-4)


def test_views_without_gradients_need_no_inductor(inductor):
    given = [torch.randn(2, 24, 48)]
    (found,) = call(packed, given)
    assert not inductor
    torch.testing.assert_close(found.double(), packed(given[0].double()), rtol=1e-4, atol=1e-4)


def test_several_views_with_gradients_need_inductor(inductor):
    given = [torch.randn(2, 24, 48, requires_grad=True)]
    found = call(packed, given)
    assert len(inductor) == 1
    for one, exact in zip(found, right(packed, given), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [with_more_behind, written_to_an_input])
def test_other_operations_need_inductor(inductor, function):
    given = qkv(False)
    exact = function(*(x.double() for x in given))
    (found,) = call(function, given)
    assert len(inductor) == 1
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"mode": "reduce-overhead"}, {"inner_options": {"max_fusion_size": 8}}])
def test_who_asks_for_inductor_gets_it(inductor, settings):
    call(attend, qkv(False), **settings)
    assert inductor


def test_a_setting_of_the_process_asks_for_inductor(inductor):
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        call(attend, qkv(False))
    assert inductor


def test_a_compiled_backward_has_inductors_graph(inductor):
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(lambda gm: gm):
        call(attend, qkv(True))
    assert inductor
