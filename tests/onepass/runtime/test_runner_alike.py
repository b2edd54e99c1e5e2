"""A call like the last one is known by torch's own check of tensors, and a step's backward goes straight to kernels.

So every step here is done several times, with something that differs in between.
"""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import onepass
from onepass.runtime import training_operator
from onepass.runtime.runner import LastCall, Runner

pytestmark = pytest.mark.usefixtures("fresh")
PLAN = {"executor": "tiled", "libraries": False}


def attend(q, k, v):
    return (q @ k.mT * 0.3).softmax(-1) @ v


def given(length=24, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(1, 2, length, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def compiled(function=attend, **options):
    return torch.compile(function, backend="onepass", dynamic=False, options={**PLAN, **options})


def gradients(call, inputs, cotangent=None):
    result = call(*inputs)
    return torch.autograd.grad(result, [x for x in inputs if x.requires_grad], cotangent or torch.ones_like(result))


def hold(call, inputs, function=attend):
    """Gradients of a step beside eager's in float64."""
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    for found, right in zip(gradients(call, inputs), gradients(function, wide), strict=True):
        assert (found.double() - right).abs().max() < 2e-5 * (1 + right.abs().max())


@pytest.fixture
def straight(monkeypatch):
    """How many backwards went straight to their kernels."""
    seen, known = [], Runner.repeated

    def watching(self, tensors, numbers):
        found = known(self, tensors, numbers)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(Runner, "repeated", watching)
    return seen


def test_steps_of_one_kind_go_straight_to_their_kernels(straight):
    call = compiled()
    for seed in range(6):
        hold(call, given(seed=seed))
    assert straight == [False, *[True] * 4], "the first two are prepared and looked up"


def test_a_broadcast_cotangent_is_laid_out_first(straight):
    call = compiled()
    for seed in range(5):
        inputs, wide = given(seed=seed), [x.detach().double().requires_grad_() for x in given(seed=seed)]
        call(*inputs).sum().backward()
        attend(*wide).sum().backward()
        assert all((x.grad.double() - y.grad).abs().max() < 1e-4 for x, y in zip(inputs, wide, strict=True))
    assert straight[-1]


def test_lengths_in_turns():
    call = compiled()
    for length in (24, 24, 24, 40, 24, 40, 40, 40, 24):
        hold(call, given(length))


def test_layouts_dtypes_and_alignments_in_turns():
    call, plain = compiled(), given()
    longer = [torch.randn(1 + 2 * 24 * 16)[1:].view(1, 2, 24, 16).requires_grad_() for _ in range(3)]
    turned = [torch.randn(1, 24, 2, 16).transpose(1, 2).requires_grad_() for _ in range(3)]
    for inputs in (plain, plain, plain, longer, longer, longer, turned, turned, turned, plain):
        hold(call, inputs)


def test_other_inputs_need_gradients():
    call = compiled()
    for frozen in ((), (), (), (1,), (1,), (1,), (0, 2), (0, 2), (), (1,)):
        inputs = given()
        for k in frozen:
            inputs[k].requires_grad_(False)
        hold(call, inputs)


def test_gradients_of_gradients_between_steps():
    call, wide = compiled(), [x.detach().double().requires_grad_() for x in given()]
    for is_recorded in (False, False, False, True, False, True):
        inputs, rows = given(), []
        for function, tensors in ((call, inputs), (attend, wide)):
            found = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=is_recorded)
            rows.append(torch.autograd.grad(found[0].square().sum(), tensors) if is_recorded else found)
        for found, right in zip(*rows, strict=True):
            assert (found.double() - right).abs().max() < 1e-3 * (1 + right.abs().max())


def test_a_result_that_a_caller_changes_is_computed_again():
    call = compiled()
    for is_changed in (False, False, False, True, False):
        inputs, wide = given(), [x.detach().double().requires_grad_() for x in given()]
        result, right = call(*inputs), attend(*wide)
        cotangent = torch.randn_like(result)
        if is_changed:
            result.detach().mul_(3)
        rows = torch.autograd.grad(result, inputs, cotangent), torch.autograd.grad(right, wide, cotangent.double())
        assert all((x.double() - y).abs().max() < 1e-4 for x, y in zip(*rows, strict=True))


def test_an_input_that_a_caller_changes_is_an_error_at_each_step():
    call = compiled()
    for is_changed in (False, False, False, True, False):
        inputs = given()
        q = inputs[0] * 1.0
        result = call(q, *inputs[1:])
        if is_changed:
            q.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") if is_changed else nullcontext():
            result.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    call = compiled()
    for seed in range(4):
        inputs = given(seed=seed)
        checkpoint(call, *inputs, use_reentrant=reentrant).sum().backward()
        right = gradients(attend, [x.detach().double().requires_grad_() for x in inputs])
        assert all((x.grad.double() - y).abs().max() < 1e-4 for x, y in zip(inputs, right, strict=True))


def test_under_autocast_between_steps():
    call = compiled()
    for is_cast in (False, False, False, True, True, False):
        inputs = given()
        wide = [x.detach().double().requires_grad_() for x in inputs]
        result = call(*inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16) if is_cast else nullcontext():
            found = torch.autograd.grad(result, inputs, torch.ones_like(result))
        right = gradients(attend, wide)
        assert all((x.double() - y).abs().max() < 1e-4 for x, y in zip(found, right, strict=True))


def test_cotangents_with_a_tangent_between_steps():
    """A gradient is linear in the cotangent: its tangent is the gradient for the cotangent's."""
    call, inputs, wide = compiled(), given(), [x.detach().double().requires_grad_() for x in given()]
    cotangent, tangent = torch.randn(2, 1, 2, 24, 16)
    for is_dual in (False, False, False, True, False):
        with forward_ad.dual_level() if is_dual else nullcontext():
            given_one = forward_ad.make_dual(cotangent, tangent) if is_dual else cotangent
            found = torch.autograd.grad(call(*inputs), inputs, given_one)
            parts = [forward_ad.unpack_dual(x) if is_dual else (x, None) for x in found]
        for part, seed in zip((0, 1), (cotangent, tangent)[: 1 + is_dual]):
            right = torch.autograd.grad(attend(*wide), wide, seed.double())
            assert all((x[part].double() - y).abs().max() < 1e-4 for x, y in zip(parts, right, strict=True))


def test_plans_that_are_made_anew(straight):
    call = compiled()
    for number in range(7):
        if number == 4:
            onepass.process_state.forget()
        hold(call, given(seed=number))
    assert straight[-1]


def test_kernels_that_fail_once_are_left(straight, monkeypatch):
    """What runs instead gives the gradients of that step, too."""
    call = compiled(executor="auto")
    for _ in range(3):
        hold(call, given())
    runner = next(iter(training_operator._BACKWARDS.values()))

    def failing(tensors):
        raise RuntimeError("no more")

    if runner.last is not None:
        monkeypatch.setattr(runner.last, "known", (runner.last.known[0], failing))
    hold(call, given())
    assert not straight[-1]


def test_what_the_check_of_a_last_call_tells_apart():
    tensors = given(dtype=torch.float32)
    last = LastCall.of(("kind",), ("tiled", list), tensors, [3])
    assert last is not None and last.is_like(tensors, [3]) and last.is_like(given(seed=1), (3,))
    assert not last.is_like(tensors, [4])
    assert not last.is_like([*tensors[:2], tensors[2].detach()], [3]), "no gradient"
    assert not last.is_like([*tensors[:2], torch.nn.Parameter(tensors[2].detach())], [3]), "another class"
    assert not last.is_like(given(dtype=torch.float64), [3])
    assert not last.is_like(given(25), [3])
    assert not last.is_like([*tensors[:2], tensors[2].detach().mT.contiguous().mT.requires_grad_()], [3]), "strides"
    odd = torch.randn(1 + tensors[0].numel())[1:].view_as(tensors[0]).requires_grad_()
    assert not last.is_like([odd, *tensors[1:]], [3]), "another alignment"
    torch.use_deterministic_algorithms(True)
    try:
        assert not last.is_like(tensors, [3])
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.inference_mode():
        assert not last.is_like(tensors, [3])
