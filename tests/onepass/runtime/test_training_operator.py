"""The operations of training: gradients by gradcheck, for each set of needed ones, and under torch's machinery."""

import itertools
import math
from itertools import accumulate

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import operator  # noqa: F401  registers the operations

pytestmark = pytest.mark.usefixtures("fresh")


def causal(q, k, v):
    n = q.shape[-2]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT / 4).masked_fill(hidden, -math.inf), -1) @ v


def biased(q, k, v, bias, temperature):
    return torch.softmax(q @ k.mT * temperature + bias, -1) @ v


def with_sums(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def largest(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, s.amax(-1)


def by_largest(q, k, v):
    weights = torch.sigmoid(q @ k.mT)
    return weights / weights.amax(-1, keepdim=True) @ v


def inputs(n=40, dtype=torch.float32):
    torch.manual_seed(n)
    return [torch.randn(2, 3, n, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def region(function, tensors):
    """The region of a function as one call of the operation."""
    found = compiled_region.make(program_of(function, *(t.detach() for t in tensors)), Options(executor="tiled"))
    return lambda *given: torch.ops.onepass.region(list(given), found.text, [])


def compiled(function, **options):
    return torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True, **options})


def test_gradcheck_in_float64():
    tensors = [t.detach()[:1, :1, :7, :4].clone().requires_grad_() for t in inputs(dtype=torch.float64)]
    bias = torch.randn(1, 1, 7, 7, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    tensors = [*tensors, bias, temperature]
    assert torch.autograd.gradcheck(region(biased, tensors), tensors)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("needed", [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)])
def test_each_set_of_needed_gradients(needed):
    tensors = [t.detach().requires_grad_(k in needed) for k, t in enumerate(inputs())]
    cotangent = torch.randn(2, 3, 40, 16)
    wanted = [t for t in tensors if t.requires_grad]
    found = torch.autograd.grad(compiled(causal)(*tensors), wanted, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(causal(*tensors), wanted, cotangent), atol=1e-4, rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_results_without_a_cotangent(given):
    gradients = []
    for function in (compiled(with_sums), with_sums):
        tensors = inputs()
        torch.manual_seed(0)
        sum((r * torch.randn_like(r)).sum() for r, g in zip(function(*tensors), given, strict=True) if g).backward()
        gradients.append([t.grad for t in tensors])
    for ours, eager in zip(*gradients, strict=True):
        assert (ours is None) == (eager is None)
        if ours is not None:
            torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_dynamic_lengths_need_no_new_graph(inner):
    run = torch.compile(causal, backend="onepass", options={"inner": inner, "strict": True}, dynamic=True)
    graphs = len(onepass.reports())
    for n in (40, 71, 300):
        tensors, copies = inputs(n), inputs(n)
        run(*tensors).square().sum().backward()
        causal(*copies).square().sum().backward()
        for ours, eager in zip(tensors, copies, strict=True):
            torch.testing.assert_close(ours.grad, eager.grad, atol=1e-3, rtol=1e-3)
    assert len(onepass.reports()) == graphs + 1


def test_inductors_graph_runs_the_derived_backward():
    run = torch.compile(causal, backend="onepass", options={"strict": True})
    tensors = inputs()
    run(*tensors).sum().backward()
    (report,) = onepass.reports()[-1].regions
    assert report.backward.startswith("derived") and report.backward_ran == "tiled"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_runs_the_forward_again(reentrant):
    run = compiled(causal)
    tensors, copies = inputs(), inputs()
    checkpoint(run, *tensors, use_reentrant=reentrant).square().sum().backward()
    causal(*copies).square().sum().backward()
    for ours, eager in zip(tensors, copies, strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, atol=1e-4, rtol=1e-4)


def test_gradients_accumulate_and_a_graph_is_retained():
    run = compiled(causal)
    tensors, copies = inputs(), inputs()
    for function, leaves in ((run, tensors), (causal, copies)):
        result = function(*leaves)
        result.sum().backward(retain_graph=True)
        result.square().sum().backward()
    for ours, eager in zip(tensors, copies, strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_strided_and_broadcast_inputs_and_cotangents():
    run = compiled(causal)
    base = torch.randn(2, 40, 3, 16)
    makers = (lambda: base.clone().transpose(1, 2), lambda: base[:, :, :1].clone().transpose(1, 2).expand(2, 3, 40, 16))
    for make in makers:
        leaves = [[make().detach().requires_grad_() for _ in range(3)] for _ in range(2)]
        cotangent = torch.randn(1, 1, 40, 1).expand(2, 3, 40, 16)
        found = [torch.autograd.grad(f(*x), x, cotangent) for f, x in zip((run, causal), leaves, strict=True)]
        torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


def test_half_precision_gradients_are_summed_in_float32():
    run = compiled(causal)
    tensors = [t.detach().bfloat16().requires_grad_() for t in inputs(300)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    cotangent = torch.randn(2, 3, 300, 16).bfloat16()
    found = torch.autograd.grad(run(*tensors), tensors, cotangent)
    right = torch.autograd.grad(causal(*exact), exact, cotangent.double())
    for ours, eager in zip(found, right, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - eager).norm() <= 5e-3 * eager.norm()


@pytest.mark.slow
def test_forward_and_backward_hold_no_more_than_three_times_inputs_and_gradients():
    """At length 8192 the scores of one head are 256 MiB in float32; inputs and gradients are 12 MiB."""
    run = compiled(causal, executor="tiled")
    tensors = [torch.randn(1, 1, 8192, 64, requires_grad=True) for _ in range(3)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(*tensors).sum().backward()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    given = sum(t.nbytes for t in tensors)
    peak = given + max(accumulate(sizes))
    assert 2 * given < peak <= 3 * (given + sum(t.grad.nbytes for t in tensors))


def test_a_backward_of_a_text_that_has_no_plans_asks_autograd():
    run = compiled(by_largest)
    tensors, copies = inputs(), inputs()
    sum(r.square().sum() for r in run(*tensors)).backward()
    sum(r.square().sum() for r in by_largest(*copies)).backward()
    for ours, eager in zip(tensors, copies, strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, atol=1e-3, rtol=1e-3)
    assert onepass.reports()[-1].regions[0].backward.startswith("computed again")


def test_both_operations_are_what_torch_expects():
    tensors = inputs()
    found = compiled_region.make(program_of(causal, *(t.detach() for t in tensors)), Options(executor="tiled"))
    torch.library.opcheck(torch.ops.onepass.region.default, (tensors, found.text, []))
    plain = [t.detach() for t in tensors]
    needed = [True] * 3
    torch.library.opcheck(torch.ops.onepass.region_train.default, (plain, found.text, [], needed))
    result, log = torch.ops.onepass.region_train(plain, found.text, [], needed)
    arguments = ([torch.ones_like(result)], plain, [result, log], found.text, [], needed, needed)
    torch.library.opcheck(torch.ops.onepass.region_backward.default, arguments)
