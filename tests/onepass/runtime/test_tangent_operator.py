"""The operation of forward mode: by gradcheck, for each set of tangents, and under torch's machinery."""

import itertools
import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import executors, operator, tangent_operator  # noqa: F401  registers the operations
from tests.onepass.runtime.test_training_operator import biased, causal, largest, with_sums
from tests.support.dual_numbers import dual_numbers_were_compiled

pytestmark = pytest.mark.usefixtures("fresh")
INNER = pytest.mark.parametrize("inner", ["eager", "inductor"])


def clamped(q, k, v):
    return (q @ k.mT).clamp(-1.0, 1.0).relu() @ v


def between(q, k, v):
    """Calls around the region, whose tangents are torch's."""
    return causal((q * 2).sin(), k, v).cos()


def inputs(n=40, dtype=torch.float32, seed=0):
    torch.manual_seed(n + seed)
    return [torch.randn(2, 3, n, 16, dtype=dtype) for _ in range(3)]


def region(function, tensors):
    """The region of a function as one call of the operation."""
    found = compiled_region.make(program_of(function, *(t.detach() for t in tensors)), Options(executor="tiled"))
    return lambda *given: torch.ops.onepass.region(list(given), found.text, [])


def compiled(function, **options):
    options = {"inner": "eager", "strict": True, "executor": "tiled", **options}
    return torch.compile(function, backend="onepass", options=options)


def jvp_of(function):
    return lambda q, k, v, *changes: torch.func.jvp(function, (q, k, v), changes)


def dual_results(function, tensors, changes):
    with forward_ad.dual_level():
        pairs = zip(tensors, changes, strict=True)
        found = function(*[t if c is None else forward_ad.make_dual(t, c) for t, c in pairs])
        found = found if isinstance(found, tuple) else (found,)
        return [tuple(forward_ad.unpack_dual(x)) for x in found]


def said():
    dual_numbers_were_compiled()
    (report,) = onepass.reports()[-1].regions
    return report.forward_mode, report.forward_mode_ran


@pytest.mark.slow
def test_gradcheck_of_forward_mode_in_float64():
    tensors = [t[:1, :1, :7, :4].clone().requires_grad_() for t in inputs(dtype=torch.float64)]
    bias = torch.randn(1, 1, 7, 7, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    tensors = [*tensors, bias, temperature]
    run = region(biased, tensors)
    assert torch.autograd.gradcheck(run, tensors, check_forward_ad=True)
    assert tangent_operator._RUNNERS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)])
def test_each_set_of_tangents(given):
    tensors, changes = inputs(), [c if k in given else None for k, c in enumerate(inputs(seed=1))]
    found, right = (dual_results(f, tensors, changes) for f in (compiled(causal), causal))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert said()[0].startswith("forward mode: derived, 1 kernel\n") and said()[1] == "tiled"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [(True, True, True), (False, False, True)])
def test_a_result_that_no_tangent_reaches_has_none(given):
    tensors, changes = inputs(), [c if g else None for c, g in zip(inputs(seed=1), given, strict=True)]
    found, right = (dual_results(f, tensors, changes) for f in (compiled(with_sums), with_sums))
    assert [x[1] is None for x in found] == [not any(given[:2]) and k == 1 for k in range(2)]
    torch.testing.assert_close(found[0], right[0], atol=1e-4, rtol=1e-4)


def test_tangents_of_zeros_are_none():
    tensors = inputs()
    zeros = torch._efficientzerotensor(tensors[0].shape)
    found, right = (dual_results(f, tensors, [None, None, zeros]) for f in (compiled(causal), causal))
    torch.testing.assert_close(found[0][0], right[0][0], atol=1e-4, rtol=1e-4)
    assert found[0][1] is None or not found[0][1].any()


@pytest.mark.sampled(1)
@INNER
def test_jvp_inside_of_a_compiled_function(inner):
    run = compiled(jvp_of(between), inner=inner)
    tensors, changes = inputs(), inputs(seed=1)
    torch.testing.assert_close(run(*tensors, *changes), jvp_of(between)(*tensors, *changes), atol=1e-4, rtol=1e-4)
    assert said()[0].startswith("forward mode: derived, 1 kernel\n") and said()[1] == "tiled"


@pytest.mark.sampled(1)
@INNER
def test_dual_numbers_inside_of_a_compiled_function(inner):
    def run(q, k, v, *changes):
        with forward_ad.dual_level():
            pairs = zip((q, k, v), changes, strict=True)
            found = forward_ad.unpack_dual(between(*[forward_ad.make_dual(t, c) for t, c in pairs]))
            return found.primal, found.tangent

    tensors, changes = inputs(), inputs(seed=1)
    found = compiled(run, inner=inner)(*tensors, *changes)
    torch.testing.assert_close(found, jvp_of(between)(*tensors, *changes), atol=1e-4, rtol=1e-4)
    assert said()[1] == "tiled"


@pytest.mark.sampled(1)
@INNER
@pytest.mark.parametrize("first", ["with tangents", "without"])
def test_dual_numbers_around_a_compiled_function(inner, first):
    """Inductor's code drops tangents: a call with dual numbers runs the graph as eager would, with the plan."""
    run = compiled(between, inner=inner)
    tensors, changes = inputs(), inputs(seed=1)
    if first == "without":
        run(*tensors)
    found, right = (dual_results(f, tensors, changes) for f in (run, between))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(run(*tensors), between(*tensors), atol=1e-4, rtol=1e-4)
    assert said()[1] == "tiled"


def test_forward_mode_that_is_switched_off_gives_no_tangents():
    run, tensors = compiled(causal), inputs()
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, t) for t in tensors]
        with forward_ad._set_fwd_grad_enabled(False):
            found = run(*duals)
        assert forward_ad.unpack_dual(found).tangent is None


@pytest.mark.slow
@INNER
def test_results_beside_detached_tangents_have_derived_gradients(inner):
    """As flow matching by mean velocities trains: the tangent is a target."""

    def loss(*given):
        result, tangent = jvp_of(between)(*given)
        return (result - tangent.detach()).square().sum()

    both = [[x.requires_grad_() for x in (*inputs(), *inputs(seed=1))] for _ in range(2)]
    found = [torch.autograd.grad(f(*x), x[:3]) for f, x in zip((compiled(loss, inner=inner), loss), both, strict=True)]
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)
    (report,) = onepass.reports()[-1].regions
    assert report.backward.startswith("derived") and report.backward_ran == "tiled"
    assert said()[0].startswith("forward mode: derived")


@pytest.mark.slow
@INNER
def test_gradients_of_tangents_are_those_of_the_original_calls(inner):
    def loss(*given):
        result, tangent = jvp_of(between)(*given)
        return (result * tangent).sum()

    both = [[x.requires_grad_() for x in (*inputs(), *inputs(seed=1))] for _ in range(2)]
    found = [torch.autograd.grad(f(*x), x) for f, x in zip((compiled(loss, inner=inner), loss), both, strict=True)]
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


def test_gradients_of_gradients_of_tangents():
    def loss(*given):
        return jvp_of(causal)(*given)[1].square().sum()

    found = []
    for function in (compiled(loss), loss):
        leaves = [x.requires_grad_() for x in (*inputs(), *inputs(seed=1))]
        (first,) = torch.autograd.grad(function(*leaves), leaves[:1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaves))
    torch.testing.assert_close(*found, atol=1e-2, rtol=1e-3)


def hessian_vector(q, k, v, *changes):
    of = lambda q, k, v: causal(q, k, v).square().sum()
    return torch.func.jvp(torch.func.grad(of, argnums=(0, 1, 2)), (q, k, v), changes)[1]


def reverse_over_forward(q, k, v, *changes):
    of = lambda q: torch.func.jvp(causal, (q, k, v), changes)[1].square().sum()
    return torch.func.grad(of)(q)


def forward_over_forward(q, k, v, *changes):
    of = lambda q: torch.func.jvp(causal, (q, k, v), changes)[1]
    return torch.func.jvp(of, (q,), changes[:1])[1]


def columns(q, k, v, *changes):
    return torch.func.vmap(lambda c: torch.func.jvp(lambda q: causal(q, k, v), (q,), (c,))[1])(torch.stack(changes))


@pytest.mark.slow
@INNER
@pytest.mark.parametrize("function", [hessian_vector, reverse_over_forward, forward_over_forward, columns])
def test_other_transforms_see_the_original_calls(function, inner):
    given = (*inputs(), *inputs(seed=1))
    torch.testing.assert_close(compiled(function, inner=inner)(*given), function(*given), atol=1e-3, rtol=1e-3)
    (refused,) = onepass.reports()[-1].refusals
    assert "function transform" in refused.reason


def test_tangents_of_gradients_by_dual_numbers_are_right():
    """Autograd at the level of the dual numbers may ask for the tangents of gradients: the original calls have them."""

    def simple(q, k, v):
        return torch.sigmoid(q @ k.mT) @ v  # torch's own formula for softmax cannot be differentiated so

    found = []
    for function in (compiled(simple), simple):
        leaf, *rest = inputs()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(leaf.requires_grad_(), inputs(seed=1)[0])
            (gradient,) = torch.autograd.grad(function(dual, *rest).square().sum(), leaf)
            found.append(forward_ad.unpack_dual(gradient).tangent)
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)
    assert tangent_operator.NESTED in said()[0]


def test_what_is_not_derived_runs_the_original_calls():
    tensors, changes = inputs(), inputs(seed=1)
    found, right = (dual_results(f, tensors, changes) for f in (compiled(largest), largest))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert said()[0].startswith("forward mode: the original calls (the derivative of a largest element")


@pytest.mark.sampled(1)
@INNER
def test_what_is_not_derived_inside_of_a_compiled_function(inner):
    run, given = compiled(jvp_of(largest), inner=inner), (*inputs(), *inputs(seed=1))
    torch.testing.assert_close(run(*given), jvp_of(largest)(*given), atol=1e-4, rtol=1e-4)
    assert said()[0].startswith("forward mode: the original calls (the derivative of a largest element")


def test_an_executor_that_fails_leaves_the_original_calls(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no")

    tensors, changes = inputs(), inputs(seed=1)
    run = compiled(causal, strict=False)
    run(*tensors)
    monkeypatch.setitem(executors.EXECUTORS, "tiled", fails)
    found, right = (dual_results(f, tensors, changes) for f in (run, causal))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert said()[1] == "the original calls"


def test_ties_at_clamp_and_relu_are_torchs():
    tensors = [torch.zeros(1, 1, 5, 4), torch.ones(1, 1, 6, 4), torch.randn(1, 1, 6, 4)]
    tensors[0][..., 0] = torch.tensor([1.0, 0.0, -1.0, 0.5, 2.0])
    changes = [torch.randn_like(t) for t in tensors]
    found, right = (dual_results(f, tensors, changes) for f in (compiled(clamped), clamped))
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hostile", [math.nan, math.inf])
def test_a_hostile_tangent_stays_in_its_rows(hostile):
    tensors, changes = inputs(), inputs(seed=1)
    changes[0][0, 0, 3, 2] = hostile
    found, right = (dual_results(f, tensors, changes) for f in (compiled(causal), causal))
    (result, tangent), (_, eager) = found[0], right[0]
    assert result.isfinite().all()
    reached = ~eager.isfinite().all(-1)
    assert reached.sum() == 1 and torch.equal(~tangent.isfinite().all(-1), reached)


@pytest.mark.sampled(1)
@INNER
def test_dynamic_lengths_need_no_new_graph(inner):
    """Of a jvp inside of the function, torch fixes the lengths in any graph."""
    options = {"inner": inner, "strict": True, "executor": "tiled"}
    run = torch.compile(causal, backend="onepass", options=options, dynamic=True)
    graphs = len(onepass.reports())
    for n in (40, 71, 300):
        tensors, changes = inputs(n), inputs(n, seed=1)
        found, right = (dual_results(f, tensors, changes) for f in (run, causal))
        torch.testing.assert_close(found, right, atol=1e-3, rtol=1e-3)
    assert said()[1] == "tiled" and len(onepass.reports()) == graphs + 1


def test_a_mode_around_the_backward_of_tangents_changes_nothing():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def loss(*given):
        return jvp_of(causal)(*given)[1].square().sum()

    leaves = [x.requires_grad_() for x in (*inputs(), *inputs(seed=1))]
    right = torch.autograd.grad(loss(*leaves), leaves)
    found = compiled(loss)(*leaves)
    with Mode():
        found = torch.autograd.grad(found, leaves)
    torch.testing.assert_close(found, right, atol=1e-3, rtol=1e-3)


def test_strided_and_broadcast_tangents():
    base = torch.randn(2, 40, 3, 16)
    tensors = [base.transpose(1, 2) for _ in range(3)]
    changes = [base[:, :, :1].transpose(1, 2).expand(2, 3, 40, 16), torch.ones(1).expand(2, 3, 40, 16), tensors[0]]
    found, right = (dual_results(f, tensors, changes) for f in (compiled(causal), causal))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


def test_half_precision_is_summed_in_float32():
    tensors, changes = ([t.bfloat16() for t in inputs(300, seed=s)] for s in (0, 1))
    found = dual_results(compiled(causal), tensors, changes)[0]
    dual_numbers_were_compiled()
    right = dual_results(causal, [t.double() for t in tensors], [c.double() for c in changes])[0]
    for ours, exact in zip(found, right, strict=True):
        assert ours.dtype == torch.bfloat16 and (ours.double() - exact).norm() <= 4e-3 * exact.norm()


def test_autocast_around_the_call_changes_nothing():
    tensors, changes = inputs(), inputs(seed=1)
    run = compiled(causal)
    right = dual_results(run, tensors, changes)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        found = dual_results(run, tensors, changes)
    torch.testing.assert_close(found, right)


@pytest.mark.slow
def test_peak_memory_has_no_rows_by_columns():
    """At length 4096 the scores of one head are 64 MiB in float32; inputs, results and tangents are 8 MiB."""
    run, tensors = compiled(causal), [torch.randn(1, 1, 4096, 64) for _ in range(3)]
    dual_results(run, tensors, tensors)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        dual_results(run, tensors, tensors)
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 32 << 20


def test_both_operations_are_what_torch_expects():
    tensors, changes = inputs(), inputs(seed=1)
    found = compiled_region.make(program_of(causal, *tensors), Options(executor="tiled"))
    given = [True, False, True]
    arguments = tensors, [changes[0], changes[2]], found.text, [], given
    torch.library.opcheck(torch.ops.onepass.region_tangents.default, arguments)
    torch.library.opcheck(torch.ops.onepass.region.dual, (tensors, found.text, []))
    backward = [torch.ones_like(tensors[0])], *arguments, [True] * 5
    torch.library.opcheck(torch.ops.onepass.region_tangents_backward.default, backward)
