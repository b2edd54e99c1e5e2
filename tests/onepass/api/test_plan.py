"""`onepass.plan` prepares one kind of call: it takes that kind, with any contents, and refuses every other by name.

What is not prepared raises, so that no captured graph holds original calls or a comparison without a word.
"""

import doctest
import math

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api import plan as module
from onepass.errors import InputError, NotFused, NotPrepared, OptionError
from onepass.lowering.plan.records import NotPlannable
from onepass.runtime import executors
from onepass.runtime.region_call import CALLING

pytestmark = pytest.mark.usefixtures("fresh")
TILED = {"inner": "eager", "libraries": False}


def paged(q, cache_k, cache_v, table, lengths):
    """One token of each sequence against pages that a table names."""
    k, v = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (cache_k, cache_v))
    kept = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    return torch.where(kept, q @ k.mT / math.sqrt(q.shape[-1]), -math.inf).softmax(-1) @ v


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def serving_inputs():
    q = torch.randn(3, 4, 1, 16)
    caches = [torch.randn(20, 8, 4, 16) for _ in range(2)]
    return [q, *caches, torch.randint(20, (3, 5)), torch.tensor([40, 7, 23])]


def qkv():
    return [torch.randn(2, 24, 16) for _ in range(3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [TILED, {"inner": "eager"}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["tiled", "rivals", "inductor"],
)
def test_new_contents_need_no_new_plan(options):
    inputs = serving_inputs()
    prepared = onepass.plan(paged, *inputs, **options)
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]
        inputs[3], inputs[4] = torch.randint(20, (3, 5)), torch.randint(1, 41, (3,))
        exact = paged(*(x.double() if x.is_floating_point() else x for x in inputs))
        torch.testing.assert_close(prepared(*inputs), exact.float(), rtol=1e-5, atol=1e-5)
    assert prepared.report.fused == 1


def test_it_says_in_one_line_who_runs_what():
    prepared = onepass.plan(attend, *qkv(), **TILED)
    said = repr(prepared)
    assert said.startswith("<ServingPlan of attend: 1 fused: ") and said.endswith(" by tiled>") and "\n" not in said
    assert prepared.report.regions[0].ran == "tiled"


def test_a_rival_is_measured_before():
    """On a CPU at the second call: a plan leaves none of it to its own calls."""
    prepared = onepass.plan(attend, *qkv(), inner="eager")
    who = prepared.report.regions[0].ran
    assert who == "tiled" or "measured at" in who
    assert CALLING.planned is None


def shifted(x):
    room = torch.empty(x.numel() + 1)[1:]
    return room.view(x.shape).copy_(x)


OTHERS = {
    "shape": (lambda x: x[:1].contiguous(), r"k has shape \(1, 24, 16\), and was planned with \(2, 24, 16\)"),
    "strides": (lambda x: x.mT.contiguous().mT, r"k has strides .* planned with \(384, 16, 1\)"),
    "dtype": (lambda x: x.double(), "k has dtype torch.float64"),
    "device": (lambda x: x.to("meta"), "k has device meta"),
    "alignment": (shifted, "k has address modulo 16 4, and was planned with 0"),
    "gradients": (lambda x: x.clone().requires_grad_(), "k has requires_grad True"),
    "parameter": (lambda x: torch.nn.Parameter(x, requires_grad=False), "k has type Parameter"),
    "number": (lambda x: 3, "k was planned as a tensor, and is 3"),
}


@pytest.mark.parametrize("other", sorted(OTHERS))
def test_a_tensor_of_another_kind_is_named(other):
    change, said = OTHERS[other]
    q, k, v = qkv()
    prepared = onepass.plan(attend, q, k, v, **TILED)
    with pytest.raises(InputError, match=said):
        prepared(q, change(k), v)
    torch.testing.assert_close(prepared(q, k, v), attend(q, k, v))


def test_too_few_arguments_and_other_numbers():
    def scaled(x, *rest, factor=1):
        return torch.softmax(x @ rest[0].mT * rest[2], -1) @ rest[1] * factor

    q, k, v = qkv()
    prepared = onepass.plan(scaled, q, k, v, 0.25, **TILED)
    with pytest.raises(InputError, match="planned for 4 arguments, and got 3"):
        prepared(q, k, v)
    with pytest.raises(InputError, match=r"rest\[2\] was planned as 0.25, and is 0.5"):
        prepared(q, k, v, 0.5)
    with pytest.raises(InputError, match=r"rest\[0\] has shape"):
        prepared(q, k[:, :8], v, 0.25)


def test_a_function_in_which_nothing_is_fused():
    with pytest.raises(NotFused, match="nothing was found"):
        onepass.plan(lambda x: x + 1, torch.ones(3), **TILED)
    with pytest.raises(NotFused, match="nothing was found"):
        onepass.plan(lambda x: x, torch.ones(3), **TILED)


def test_what_is_found_and_refused_raises():
    def half(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q, k, v)

    with pytest.raises(NotFused, match="autocast"):
        onepass.plan(half, *qkv(), **TILED)
    with pytest.raises(NotFused):
        onepass.plan(lambda x: x + 1, torch.ones(3), require="all", **TILED)


@pytest.mark.parametrize("raising", [ValueError, KeyError])
def test_an_error_of_the_function_is_its_own(raising):
    def fails(q, k, v):
        if q.shape[0] == 2:
            raise raising("two sequences")
        return attend(q, k, v)

    with pytest.raises(raising, match="two sequences"):
        onepass.plan(fails, *qkv(), **TILED)


def test_shapes_that_do_not_fit_are_torchs_error():
    q, k, v = qkv()
    with pytest.raises(RuntimeError, match=r"[Ee]xpected size|must match") as caught:
        onepass.plan(attend, q, k[..., :8], v, **TILED)
    assert "dynamo" not in type(caught.value).__module__


def test_what_cannot_be_one_graph_is_torchs_error():
    def broken(q, k, v):
        torch._dynamo.graph_break()
        return attend(q, k, v)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        onepass.plan(broken, *qkv(), **TILED)


def test_mistakes_are_errors_at_once():
    q, k, v = qkv()
    for wrong, error, said in (
        (lambda: onepass.plan(attend, q, k, v, stric=True), OptionError, "no option 'stric'"),
        (lambda: onepass.plan(attend, q, k, **TILED), InputError, "missing a required argument: 'v'"),
        (lambda: onepass.plan(attend, q, k, [v], **TILED), InputError, "v is of type list"),
        (lambda: onepass.plan(attend, q, k, v.numpy(), **TILED), InputError, "v is of type ndarray"),
        (lambda: onepass.plan(attend, q, k, v.to_sparse(), **TILED), InputError, "v has the layout"),
        (lambda: onepass.plan(attend, 1, 2, 3), InputError, "got none"),
        (lambda: onepass.plan(torch.nn.Linear, q), InputError, "takes a function or a module"),
    ):
        with pytest.raises(error, match=said):
            wrong()


def test_what_no_executor_runs_is_no_plan(monkeypatch):
    def refuses(found, tensors, call):
        raise NotPlannable("it is a test")

    monkeypatch.setitem(executors.EXECUTORS, "tiled", refuses)
    with pytest.raises(NotPrepared, match=r"no kernel runs the region at .*test_plan.py(.|\n)*it is a test"):
        onepass.plan(attend, *qkv(), **TILED)


def test_the_original_calls_never_replace_a_kernel_that_fails(monkeypatch):
    """The first calls work; then the executor lacks memory. A compiled call falls back, and a plan's does not."""
    inputs, tiled, fails = qkv(), executors.EXECUTORS["tiled"], []

    def prepare(found, tensors, call):
        run = tiled(found, tensors, call)

        def failing(given):
            if fails:
                raise torch.OutOfMemoryError("none left")
            return run(given)

        return failing

    monkeypatch.setitem(executors.EXECUTORS, "tiled", prepare)
    prepared = onepass.plan(attend, *inputs, **TILED)
    fails.append(True)
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        prepared(*inputs)
    fails.clear()
    torch.testing.assert_close(prepared(*inputs), attend(*inputs))
    assert prepared.report.regions[0].ran == "tiled"
    fails.append(True)
    with torch.no_grad():
        torch.testing.assert_close(onepass.compile(attend, **TILED)(*inputs), attend(*inputs))


def test_a_call_that_would_be_prepared_again_raises():
    inputs = qkv()
    prepared = onepass.plan(attend, *inputs, **TILED)
    process_state.forget("runners")
    with pytest.raises(NotPrepared, match=r"the region at .*test_plan.py.* would be compiled, compared or timed"):
        prepared(*inputs)
    torch._dynamo.reset()
    with pytest.raises(NotPrepared, match="would be compiled anew"):
        prepared(*inputs)


def test_other_modes_and_values_are_not_compiled_for():
    scale = {"now": 4}

    def scaled(q, k, v):
        return torch.softmax(q @ k.mT / scale["now"], -1) @ v

    inputs = qkv()
    prepared = onepass.plan(scaled, *inputs, **TILED)
    before = len(onepass.reports())
    scale["now"] = 8
    with pytest.raises(NotPrepared, match="an attribute that scaled reads"):
        prepared(*inputs)
    scale["now"] = 4
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(NotPrepared, match="autocast"):
        prepared(*inputs)
    with pytest.raises(NotPrepared, match="the same tensor"):
        prepared(inputs[0], inputs[1], inputs[1])
    torch.testing.assert_close(prepared(*inputs), scaled(*inputs))
    assert len(onepass.reports()) == before


def written_between(q, k, v, cache):
    scores = q @ k.mT
    cache[:, :4] = 0.5
    return torch.softmax(scores, -1) @ (v + cache.mean())


def test_arguments_that_share_memory_do_not_run_as_written():
    """A compiled call runs the original calls there, since one is written between two reads of the other."""
    q, k, v = qkv()
    prepared = onepass.plan(written_between, q, k, v, torch.randn(2, 24, 16), **TILED)
    cache = torch.randn(2, 24, 16)
    own = cache.clone()
    torch.testing.assert_close(prepared(q, k, v, cache), written_between(q, k, v, own), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, own)
    before = k.clone()
    with pytest.raises(NotPrepared, match="two arguments share memory"):
        prepared(q, k, v, k.view(k.shape))
    assert torch.equal(k, before)


def test_what_is_written_in_place_is_written_at_each_call():
    def step(q, keys, values, key, place):
        keys[:, place] = key
        return attend(q, keys, values)

    q, keys, values = qkv()
    prepared = onepass.plan(step, q, keys.clone(), values, torch.randn(2, 1, 16), torch.tensor([3]), **TILED)
    own = keys.clone()
    for place in (5, 0, 23):
        key, at = torch.randn(2, 1, 16), torch.tensor([place])
        torch.testing.assert_close(prepared(q, keys, values, key, at), step(q, own, values, key, at))
        torch.testing.assert_close(keys, own)


def test_a_module_whose_calls_never_settle():
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, q, k, v):
            self.calls += 1
            return attend(q, k, v) * self.calls

    with pytest.raises(NotPrepared, match=r"at each call|after 16 calls"):
        onepass.plan(Counting(), *qkv(), **TILED)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("known", [True, False], ids=["this torch", "as torch 2.11"])
def test_many_plans_of_one_function(known, monkeypatch):
    if not known:  # torch.compile of 2.11 gives no function graphs of its own
        monkeypatch.setattr(module, "isolated", lambda most: {})
    """As a server has one for each batch size; each keeps to its own."""
    inputs_of = lambda batch: [torch.randn(batch, 24, 16) for _ in range(3)]
    plans = {batch: onepass.plan(attend, *inputs_of(batch), **TILED) for batch in range(1, 11)}
    for batch, prepared in plans.items():
        inputs = inputs_of(batch)
        torch.testing.assert_close(prepared(*inputs), attend(*inputs))


def test_parameters_get_no_gradients():
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 24, 16)
    prepared = onepass.plan(lambda x: layer(x, x, x, need_weights=False)[0], x, **TILED)
    assert not prepared(x).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(prepared(x), layer(x, x, x, need_weights=False)[0])


def test_the_docstrings_example_runs():
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder().find(module):
        runner.run(found, clear_globs=False)  # Dynamo still looks at globals that it has seen
    assert runner.summarize(verbose=False).failed == 0 and runner.tries > 3
