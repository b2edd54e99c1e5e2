"""The original calls in training: results with empty saved values, and gradients by autograd."""

import torch

from onepass.graph.program import Meta
from onepass.graph.trace import program_of
from onepass.training.programs import BackwardProgram, ForwardProgram, gradients_by_autograd, recorded_gradients

CPU = torch.device("cpu")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, n, 8) for n in (5, 7, 7)]


def test_a_forward_has_room_for_saved_values():
    tensors = inputs()
    program = program_of(attention, *tensors)
    forward = ForwardProgram.of(program, (Meta("float32", (2, 5), "cpu"),))
    assert forward.output_metas == (*program.output_metas, Meta("float32", (2, 5), "cpu"))
    result, saved = forward.bound({}, CPU)(tensors)
    torch.testing.assert_close(result, attention(*tensors))
    assert saved.shape == (2, 5) and not saved.any()


def test_a_backward_takes_what_was_kept_and_asks_autograd():
    tensors = inputs()
    program = program_of(attention, *tensors)
    backward = BackwardProgram.of(program, 1, (True, False, True), (True,))
    cotangent = torch.randn(2, 5, 8)
    leaves = [t.clone().requires_grad_() for t in tensors]
    right = torch.autograd.grad(attention(*leaves), (leaves[0], leaves[2]), cotangent)
    with torch.no_grad():
        found = backward.bound({}, CPU)((*tensors, torch.zeros(3), cotangent))
    torch.testing.assert_close(found, right)
    assert [meta.shape for meta in backward.output_metas] == [(2, 5, 8), (2, 7, 8)]


def test_an_input_that_no_cotangent_reaches_gets_zeros():
    tensors = inputs()
    found = gradients_by_autograd(
        lambda given: (given[0] * 1.0, given[1] * 1.0), tensors, (None, tensors[1]), [True] * 3
    )
    assert not found[0].any() and not found[2].any()
    torch.testing.assert_close(found[1], tensors[1])


def test_recorded_gradients_have_gradients_and_the_strides_of_the_inputs():
    q, k, v = (t.double().requires_grad_() for t in inputs())
    k = k.mT.contiguous().mT
    cotangent = torch.randn(2, 5, 8).double()
    run = program_of(attention, q.detach(), k.detach(), v.detach()).results
    found = recorded_gradients(lambda given: run(*given), (q, k, v), (cotangent,), (True, True, False))
    right = torch.autograd.grad(attention(q, k, v), (q, k), cotangent, create_graph=True)
    torch.testing.assert_close(found, [*right])
    assert [g.stride() for g in found] == [q.stride(), k.stride()]
    mine, own = (torch.autograd.grad(a.sin().sum() + b.cos().sum(), (q, v)) for a, b in (found, right))
    torch.testing.assert_close(mine, own)


def test_recorded_gradients_of_plain_tensors():
    tensors = inputs()
    run = program_of(attention, *tensors).results
    cotangent = torch.randn(2, 5, 8)
    with torch.no_grad():
        found = recorded_gradients(lambda given: run(*given), tensors, (cotangent,), [True] * 3)
    leaves = [t.clone().requires_grad_() for t in tensors]
    torch.testing.assert_close(found, [*torch.autograd.grad(attention(*leaves), leaves, cotangent)])
    assert not any(g.requires_grad for g in found)
    missing = recorded_gradients(lambda given: run(*given), tensors, (None,), [True, False, True])
    assert [g.count_nonzero() for g in missing] == [0, 0]
