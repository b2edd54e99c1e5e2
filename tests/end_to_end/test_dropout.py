"""Dropout inside of regions: a seed says which elements are dropped, in every executor, forward and backward."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import onepass
from onepass.runtime import executors, operator
from tests.support.dropped import (
    END_OF_SEEDS,
    EVERY,
    RECOMPUTED,
    SHARE,
    by_seeds,
    by_torch,
    causal,
    dropped_scores,
    inputs_of,
    plain,
    seeds,
    sinks,
    with_weights,
)

pytestmark = pytest.mark.usefixtures("fresh")
NEAR = dict(check_dtype=False, rtol=1e-4, atol=1e-4)
STANDARD_DEVIATIONS = 5.5  # so far a count is off by chance once in 10^7 times


def compiled(function, **options):
    return torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True, **options})


@pytest.fixture
def own_seeds():
    """Inductor draws random numbers as eager does."""
    with torch._inductor.config.patch(fallback_random=True):
        yield


def results_and_gradients(function, inputs, number, dtype=torch.float32):
    """The results with the seed `number`, and gradients by all floating inputs for cotangents that are always alike."""
    leaves = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in (y.detach() for y in inputs)]
    torch.manual_seed(number)
    found = function(*leaves)
    results = found if isinstance(found, tuple) else (found,)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(r.shape, generator=generator).to(dtype) for r in results]
    wanted = [x for x in leaves if x.is_floating_point()]
    return [*results, *torch.autograd.grad(results, wanted, cotangents)]


def exact(function, inputs, number, share=SHARE):
    return results_and_gradients(lambda *x: function(by_seeds(number, share), *x), inputs, number, torch.float64)


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_every_kind_of_attention_is_right_and_so_are_its_gradients(function):
    inputs = inputs_of(function)
    run = compiled(lambda *x: function(by_torch, *x))
    found = results_and_gradients(run, inputs, 3)
    (region,) = onepass.reports()[-1].regions
    torch.testing.assert_close(found, exact(function, inputs, 3), **NEAR)
    assert region.backward.startswith("derived") != (function in RECOMPUTED), region.backward


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_without_gradients_every_kind_is_one_region_of_as_few_passes_as_without_dropout(function):
    inputs = inputs_of(function)
    (region,) = onepass.explain(lambda *x: function(by_torch, *x), *inputs).regions
    (without,) = onepass.explain(lambda *x: function(lambda w: w, *x), *inputs).regions
    assert region.passes[1] == without.passes[1]


@pytest.mark.slow
@pytest.mark.parametrize("function", [plain, causal, sinks, with_weights, dropped_scores], ids=lambda f: f.__name__)
def test_gradients_are_those_of_differences(function):
    """With one seed, the region is a smooth function of its inputs. No other executor takes over between calls."""
    inputs = [x.double() for x in inputs_of(function)]
    q, k, v = (x[:1, :1, :6, :3].contiguous().requires_grad_() for x in inputs[:3])
    more = [x[:1].requires_grad_() for x in inputs[3:]]
    run = compiled(lambda *x: function(by_torch, *x), deterministic=True)

    def seeded(*given):
        torch.manual_seed(5)
        return run(*given)

    assert torch.autograd.gradcheck(seeded, (q, k, v, *more))
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("function, place", [(causal, 0), (causal, 1), (plain, 0), (plain, 1), (plain, 2)])
def test_numbers_that_are_none_reach_what_they_reach_in_eager(function, place, number):
    """A dropped weight is a zero, and so NaN times a value without bound: only a mask makes a key absent."""
    inputs = inputs_of(function)
    inputs[place][0, 1, 20, 3] = number
    torch.manual_seed(5)
    found = compiled(lambda *x: function(by_torch, *x))(*inputs)
    right = function(by_seeds(5), *(x.double() for x in inputs))
    torch.testing.assert_close(found, right, equal_nan=True, **NEAR)


def revealing(count=3, heads=2, size=48):
    """q, k and v for which attention shows its mask: all weights are alike, and values are a unit matrix."""
    none = torch.zeros(count, heads, size, size)
    return none, none.clone(), torch.eye(size).expand(count, heads, size, size).clone()


def masks(function, inputs, number):
    """What is kept, read off the result and off the gradient of the values for a unit matrix of cotangents."""
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    torch.manual_seed(number)
    result = function(q, k, v)
    result.backward(torch.eye(v.shape[-1]).expand_as(result))
    return result != 0, v.grad.mT != 0


def broken(*_):
    raise RuntimeError("broken")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("who", ["tiled", "triton", "original calls"])
def test_who_runs_a_region_does_not_matter(who, monkeypatch):
    if who == "original calls":
        monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    options = {"executor": "triton"} if who == "triton" else {"strict": False}
    inputs = revealing()
    forward, backward = masks(compiled(lambda *x: plain(by_torch, *x), **options), inputs, 7)
    kept = torch.ops.onepass.uniform_numbers(forward.shape, seeds(7)[0]) >= SHARE
    assert torch.equal(forward, kept) and torch.equal(backward, kept)
    ran = {"tiled": "tiled", "triton": "triton", "original calls": executors.ORIGINAL}[who]
    (region,) = onepass.reports()[-1].regions
    assert (region.ran, region.backward_ran) == (ran, ran) or who == "original calls"


def test_a_backward_that_falls_back_drops_what_the_forward_dropped(monkeypatch):
    inputs = revealing()
    q, k, v = (x.requires_grad_() for x in inputs)
    torch.manual_seed(7)
    result = compiled(lambda *x: plain(by_torch, *x), strict=False)(q, k, v)
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    (gradient,) = torch.autograd.grad(result, v, torch.eye(48).expand_as(result))
    assert onepass.reports()[-1].regions[0].backward_ran == executors.ORIGINAL
    assert torch.equal(gradient.mT != 0, result != 0)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("tiles")
def test_tiles_do_not_matter():
    inputs = inputs_of(causal)
    found = results_and_gradients(compiled(lambda *x: causal(by_torch, *x)), inputs, 5)
    torch.testing.assert_close(found, exact(causal, inputs, 5), **NEAR)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype):
    inputs = [x.to(dtype) for x in inputs_of(causal)]
    found = results_and_gradients(compiled(lambda *x: causal(by_torch, *x)), inputs, 5, dtype)
    near = dict(check_dtype=False, rtol=0.02, atol=0.03)
    torch.testing.assert_close(found, exact(causal, inputs, 5), **near)


# Chance ---------------------------------------------------------------------------------------------------------------


def is_likely(counts, draws, chance):
    """Whether counts among so many draws are no further from the mean than chance explains."""
    deviation = math.sqrt(draws * chance * (1 - chance))
    return bool(((counts - draws * chance).abs() < STANDARD_DEVIATIONS * deviation).all())


def test_shares_of_rows_columns_heads_and_calls_are_those_of_chance():
    run, inputs = compiled(lambda *x: plain(by_torch, *x)), revealing(4, 4, 64)
    torch.manual_seed(0)
    kept = torch.stack([run(*inputs) != 0 for _ in range(6)]).double()
    for dims in ((0, 1, 2, 3), (0, 1, 2, 4), (1, 2, 3, 4), (0, 3, 4), (2, 3), (4,)):
        counts = kept.sum(dims)
        assert is_likely(counts, kept.numel() / counts.numel(), 1 - SHARE), dims
    both = (kept[1:] * kept[:-1]).sum((1, 2, 3, 4))  # of calls in a row
    assert is_likely(both, kept[0].numel(), (1 - SHARE) ** 2)
    heads = (kept[:, :, 1:] * kept[:, :, :-1]).sum((0, 1, 3, 4))
    assert is_likely(heads, kept[:, :, 0].numel(), (1 - SHARE) ** 2)


def test_a_seed_decides_and_calls_differ():
    run, inputs = compiled(lambda *x: plain(by_torch, *x), deterministic=True), inputs_of(plain)
    torch.manual_seed(1)
    first, second = run(*inputs), run(*inputs)
    torch.manual_seed(1)
    assert torch.equal(first, run(*inputs)) and torch.equal(second, run(*inputs))
    assert not torch.equal(first, second)


def test_other_numbers_are_drawn_in_the_order_of_the_program():
    def around(q, k, v):
        before = torch.rand(2)
        result = plain(by_torch, q, k, v)
        return before, result, torch.rand(2)

    inputs = inputs_of(plain)
    torch.manual_seed(4)
    before, result, after = compiled(around)(*inputs)
    torch.manual_seed(4)
    assert torch.equal(before, torch.rand(2))
    seed = torch.randint(0, END_OF_SEEDS, [2])
    expected = plain(lambda w: torch.ops.onepass.dropout(w, SHARE, seed), *(x.double() for x in inputs))
    torch.testing.assert_close(result, expected, **NEAR)
    assert torch.equal(after, torch.rand(2))


# Shares ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.0, 1e-12, 1 - 2.0**-10, 1.0])
def test_shares_at_the_ends(share):
    inputs = inputs_of(plain)
    run = compiled(lambda *x: plain(lambda w: F.dropout(w, share), *x))
    found = results_and_gradients(run, inputs, 3)
    if share == 0:
        right = results_and_gradients(lambda *x: plain(lambda w: w, *x), inputs, 3, torch.float64)
    else:
        right = exact(plain, inputs, 3, share)
    torch.testing.assert_close(found, right, check_dtype=False, rtol=1e-4, atol=1e-4 / (1.0001 - min(share, 0.999)))
    assert share < 1 or not any(x.any() for x in found)


def test_a_row_whose_weights_are_all_dropped_is_zero():
    inputs = [x[..., :4, :].contiguous() for x in inputs_of(plain)]
    run = compiled(lambda *x: plain(lambda w: F.dropout(w, 0.7), *x))
    found = results_and_gradients(run, inputs, 3)
    right = exact(plain, inputs, 3, 0.7)
    torch.testing.assert_close(found, right, **NEAR)
    empty = (right[0] == 0).all(-1)
    assert 0 < empty.sum() < empty.numel() and not found[0][empty].any()


def test_a_row_without_keys_stays_what_it_is():
    mask = torch.ones(50, 50, dtype=torch.bool).tril(-1)
    function = lambda drop, q, k, v: drop((q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1)) @ v
    inputs = inputs_of(plain)
    found = compiled(lambda *x: function(by_torch, *x))(*inputs)
    torch.manual_seed(2)
    found = compiled(lambda *x: function(by_torch, *x))(*inputs)
    right = function(by_seeds(2), *(x.double() for x in inputs))
    torch.testing.assert_close(found[..., 1:, :], right[..., 1:, :], **NEAR)


# torch's own calls ----------------------------------------------------------------------------------------------------


def by_torchs_attention(number):
    """torch's attention, with the dropout of these seeds; in float64 where the inputs are."""
    left = iter(seeds(number))

    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        arguments = attn_mask, dropout_p, is_causal, scale, enable_gqa, next(left)
        return torch.ops.onepass.scaled_dot_product_attention(q, k, v, *arguments)

    return attention


WORDS = [{}, {"scale": 0.3}, {"enable_gqa": True}]
WAYS_TO_MASK = [*((kept, more) for kept in (None, "bool", "float") for more in WORDS), (None, {"is_causal": True})]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kept, more", WAYS_TO_MASK)
def test_torchs_attention(kept, more):
    mask = None if kept is None else torch.ones(50, 50, dtype=torch.bool).tril()
    mask = torch.randn(50, 50) if kept == "float" else mask
    q, k, v = inputs_of(plain)
    k, v = (x[:, :2] for x in (k, v)) if more.get("enable_gqa") else (k, v)
    call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=SHARE, **more)
    found = results_and_gradients(compiled(call), (q, k, v), 6)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")
    cast = None if mask is None else mask.double() if kept == "float" else mask
    seeded = by_torchs_attention(6)
    right = lambda q, k, v: seeded(q, k, v, attn_mask=cast, dropout_p=SHARE, **more)
    torch.testing.assert_close(found, results_and_gradients(right, (q, k, v), 6, torch.float64), **NEAR)


NO_FIRST_ROW = torch.ones(50, 50, dtype=torch.bool).tril(-1)


@pytest.mark.parametrize(
    "more", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"attn_mask": NO_FIRST_ROW}]
)
def test_our_attention_without_dropout_is_torchs(more):
    q, k, v = (x.double() for x in inputs_of(plain))
    k, v = (x[:, :2] for x in (k, v)) if more.get("enable_gqa") else (k, v)
    found = by_torchs_attention(0)(q, k, v, **more)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, **more))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_in_training(need_weights, monkeypatch):
    layer = nn.MultiheadAttention(32, 4, SHARE, batch_first=True).train()
    parameters = [p.detach().clone() for p in layer.parameters()]
    x = torch.randn(2, 24, 32)

    def called(*given):
        names = [name for name, _ in layer.named_parameters()]
        x, *rest = given
        return torch.func.functional_call(layer, dict(zip(names, rest)), (x, x, x), {"need_weights": need_weights})[0]

    found = results_and_gradients(compiled(called), (x, *parameters), 9)
    assert len(onepass.reports()[-1].regions) == 1
    drop, attention = by_seeds(9), by_torchs_attention(9)
    monkeypatch.setattr(F, "dropout", lambda w, p: drop(w))
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, m, p, c: attention(q, k, v, m, p, c))
    torch.testing.assert_close(found, results_and_gradients(called, (x, *parameters), 9, torch.float64), **NEAR)


def test_a_module_in_training_and_in_eval():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(SHARE)

        def forward(self, q, k, v):
            return plain(self.dropout, q, k, v)

    module, inputs = Attention(), inputs_of(plain)
    run = compiled(module)
    torch.testing.assert_close(results_and_gradients(run, inputs, 2), exact(plain, inputs, 2), **NEAR)
    module.eval()
    right = plain(lambda w: w, *(x.double() for x in inputs))
    torch.testing.assert_close(run(*inputs), right, **NEAR)


# torch's machinery ----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_dynamic_lengths_need_no_new_graph(inner, own_seeds):
    run = torch.compile(
        lambda *x: causal(by_torch, *x), backend="onepass", options={"inner": inner, "strict": True}, dynamic=True
    )
    seen = []
    for n in (40, 71, 130):
        inputs = [torch.randn(2, 3, n, 16) for _ in range(3)]
        torch.testing.assert_close(results_and_gradients(run, inputs, n), exact(causal, inputs, n), **NEAR)
        seen.append(len(onepass.reports()))
    assert len({*seen}) == 1, "the first call compiles, and no other"
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")


def test_inductor_saves_the_seed_for_the_backward():
    run = torch.compile(lambda *x: plain(by_torch, *x), backend="onepass", options={"strict": True})
    for number in (1, 2):
        forward, backward = masks(run, revealing(), number)
        assert torch.equal(forward, backward)
        assert is_likely(forward.sum().double(), forward.numel(), 1 - SHARE)
    assert onepass.reports()[-1].regions[0].backward_ran == "tiled"


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_a_checkpoint_around_a_region_drops_the_same_again(reentrant, inner):
    run = torch.compile(lambda *x: plain(by_torch, *x), backend="onepass", options={"inner": inner})
    forward, backward = masks(lambda *x: checkpoint(run, *x, use_reentrant=reentrant), revealing(), 3)
    assert torch.equal(forward, backward) and 0 < forward.sum() < forward.numel()


def test_a_checkpoint_inside_of_a_compiled_function_drops_the_same_again():
    inside = lambda *x: checkpoint(lambda *y: plain(by_torch, *y), *x, use_reentrant=False)
    run = torch.compile(inside, backend="onepass")
    forward, backward = masks(run, revealing(), 3)
    assert torch.equal(forward, backward) and 0 < forward.sum() < forward.numel()


@pytest.mark.slow
def test_a_pass_of_inductor_on_its_own_operations():
    """There, dropout is random numbers, a comparison and products."""
    run = torch.compile(lambda *x: plain(by_torch, *x), options={"joint_custom_pre_pass": onepass.GraphPass()})
    with torch.no_grad(), operator.recorded() as calls:
        found = run(*revealing())
    assert len(onepass.reports()[-1].regions) == 1
    ((tensors, _),) = calls.values()
    (seed,) = (x for x in tensors if x.dtype == torch.int64)
    kept = torch.ops.onepass.uniform_numbers(found.shape, seed) > SHARE
    torch.testing.assert_close(found, kept / (48 * (1 - SHARE)))


def test_a_pass_of_inductor_in_front_of_gradients(own_seeds):
    run = torch.compile(lambda *x: causal(by_torch, *x), options={"pre_grad_custom_pass": onepass.GraphPass()})
    inputs = inputs_of(causal)
    torch.testing.assert_close(results_and_gradients(run, inputs, 8), exact(causal, inputs, 8), **NEAR)
    assert len(onepass.reports()[-1].regions) == 1


def test_what_is_left_as_written_draws_what_eager_draws():
    def left(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(by_torch, q, k, v)

    inputs, results = inputs_of(plain), []
    for function in (left, compiled(left)):
        torch.manual_seed(3)
        results.append(function(*inputs))
    assert torch.equal(*results)
    assert not onepass.reports()[-1].regions and onepass.reports()[-1].refusals
