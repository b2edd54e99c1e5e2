"""What surrounds a training step: autocast, scaled losses, changes in place, frozen parts, switches between calls."""

import itertools
import math

import pytest
import torch
from torch._dynamo import config

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
INNER = ["eager", "inductor"]
NAMES = ("q", "k", "v", "bias", "slopes")


def attention(q, k, v, bias, slopes):
    at = torch.arange(q.shape[-2])
    score = q @ k.mT / 4 + bias - slopes[:, None, None] * (at[:, None] - at)
    return torch.softmax(score.masked_fill(at[:, None] < at, -math.inf), -1) @ v


def inputs(rows=20):
    torch.manual_seed(rows)
    return [*torch.randn(3, 2, 3, rows, 16), torch.randn(rows, rows), torch.rand(3)]


def leaves(needed=NAMES, kind=torch.float32):
    return [x.to(kind, copy=True).requires_grad_(n in needed) for n, x in zip(NAMES, inputs(), strict=True)]


def compiled(function, inner):
    return torch.compile(function, backend=onepass_backend, options={"inner": inner, "strict": True})


def gradients(call, given):
    """The gradient of each input, None where it has none."""
    result = call(*given)
    if result.requires_grad:
        result.sin().sum().backward()
    return [x.grad for x in given]


def assert_near(found, exact, tolerance=1e-4):
    assert [g is None for g in found] == [g is None for g in exact]
    pairs = [(g, e) for g, e in zip(found, exact, strict=True) if g is not None]
    for mine, right in pairs:
        torch.testing.assert_close(mine, right, check_dtype=False, atol=tolerance, rtol=tolerance)


# Autocast and scaled losses -------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("around_backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inner", INNER)
def test_under_autocast_gradients_have_the_inputs_dtypes(inner, dtype, around_backward):
    exact = gradients(attention, leaves(kind=torch.float64))
    found = {}
    for name, call in (("eager", attention), ("mine", compiled(attention, inner))):
        given = leaves()
        with torch.autocast("cpu", dtype=dtype):
            result = call(*given)
        assert result.dtype == dtype
        with torch.autocast("cpu", dtype=dtype, enabled=around_backward):
            result.float().sin().sum().backward()
        found[name] = [x.grad for x in given]
        assert all(x.grad.dtype == x.dtype for x in given)
    for mine, eager, right in zip(found["mine"], found["eager"], exact, strict=True):
        error = (mine - right).norm() / right.norm()
        assert error <= 2 * (eager - right).norm() / right.norm() + 1e-3
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
def test_a_scaled_loss_takes_the_same_step(inner):
    """Also where the scale overflows: that step is left out, as in eager."""
    final = []
    for call in (attention, compiled(attention, inner)):
        given = leaves()
        optimizer = torch.optim.SGD(given, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for scale in (None, 2.0**16, 1e38):
            optimizer.zero_grad()
            if scale is not None:
                scaler.update(scale)
            with torch.autocast("cpu", dtype=torch.float16):
                result = call(*given)
            scaler.scale(result.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        final.append([*given, torch.tensor(scaler.get_scale())])
    for eager, mine in zip(*final, strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-3, rtol=1e-3)
    assert not torch.equal(final[1][0], inputs()[0]) and final[1][-1] < 1e38


# Changes in place -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("inner", "changed"), [("eager", "q"), ("eager", "k"), ("eager", "v"), ("inductor", "q"), ("inductor", "v")]
)
def test_an_input_that_is_changed_before_the_backward_raises_as_in_eager(inner, changed):
    """Inductor keeps the transposed keys as a view of its own, of which torch sees no change."""
    for call in (attention, compiled(attention, inner)):
        given = leaves()
        result = call(*given)
        with torch.no_grad():
            given[NAMES.index(changed)].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
def test_a_parameter_that_is_changed_after_the_backward_is_read_anew(inner):
    call = compiled(attention, inner)
    mine, exact = leaves(), leaves(kind=torch.float64)
    for _ in range(3):
        for given, function in ((mine, call), (exact, attention)):
            gradients(function, given)
            with torch.no_grad():
                for x in given:
                    x.sub_(0.1 * x.grad)
                    x.grad = None
        assert_near(mine, exact)


# Which gradients are needed -------------------------------------------------------------------------------------------


VARIED = ("q", "v", "bias", "slopes")
COMBINATIONS = [c for n in range(len(VARIED) + 1) for c in itertools.combinations(VARIED, n)]


@pytest.mark.slow
def test_every_combination_of_needed_gradients_in_one_function():
    """The function is called with each set in turn, as when parts of a model are frozen and thawed."""
    call = compiled(attention, "eager")
    with config.patch(recompile_limit=2 * len(COMBINATIONS)):
        for needed in COMBINATIONS:
            assert_near(gradients(call, leaves(needed)), gradients(attention, leaves(needed, torch.float64)))
        for needed in reversed(COMBINATIONS):
            found = gradients(call, leaves(needed))
            assert [g is not None for g in found] == [n in needed for n in NAMES]
    assert len(onepass.reports()) == len(COMBINATIONS)
    assert all(len(report.regions) == 1 for report in onepass.reports())


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_gradients_are_switched_between_calls(inner):
    call = compiled(attention, inner)
    given = leaves()
    assert_near(gradients(call, given), gradients(attention, leaves(kind=torch.float64)))
    with torch.no_grad():
        assert not call(*given).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(call(*given), attention(*given), atol=1e-4, rtol=1e-4)
    for x in (given[0], given[3]):
        x.requires_grad_(False)
    for x in given:
        x.grad = None
    exact = leaves(("k", "v", "slopes"), torch.float64)
    assert_near(gradients(call, given), gradients(attention, exact))
    given[0].requires_grad_(True)
    for x in given:
        x.grad = None
    assert_near(gradients(call, given), gradients(attention, leaves(("q", "k", "v", "slopes"), torch.float64)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("wanted", [("q",), ("v", "bias"), ("slopes",)])
@pytest.mark.parametrize("inner", INNER)
def test_fewer_gradients_are_asked_for_than_are_recorded(inner, wanted):
    places = [NAMES.index(name) for name in wanted]
    pick = lambda given: [given[n] for n in places]
    mine, exact = leaves(), leaves(kind=torch.float64)
    found = torch.autograd.grad(compiled(attention, inner)(*mine).sin().sum(), pick(mine))
    assert_near(found, torch.autograd.grad(attention(*exact).sin().sum(), pick(exact)))


class Frozen(torch.nn.Module):
    """A projection, attention whose table may be frozen, and a part without gradients."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(20, 20))
        self.slopes = torch.nn.Parameter(torch.rand(3))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        with torch.no_grad():
            scale = 1 / (1 + q.abs().amax())
        return attention(q * scale, k, v, self.bias, self.slopes)


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_parts_of_a_module_are_frozen_and_thawed(inner):
    torch.manual_seed(0)
    mine, exact = Frozen(), Frozen().double()
    exact.load_state_dict(mine.state_dict())
    call = compiled(mine, inner)
    x = torch.randn(2, 3, 20, 16)
    for frozen in ((), ("bias",), ("qkv.weight",), ("bias", "slopes"), ("qkv.weight", "bias", "slopes"), ()):
        for module in (mine, exact):
            module.zero_grad()
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in frozen)
        gradients(call, [x]), gradients(exact, [x.double()])
        of = lambda module: [p.grad for p in module.parameters()]
        assert_near(of(mine), of(exact))
        assert [p.grad is None for p in mine.parameters()] == [n in frozen for n, _ in mine.named_parameters()]
