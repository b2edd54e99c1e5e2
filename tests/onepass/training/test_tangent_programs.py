"""The original calls in forward mode: tangents behind the results, their gradients, and levels that are open or not."""

import torch
from torch.autograd import forward_ad

from onepass.graph.program import Program
from onepass.graph.trace import program_of
from onepass.training.tangent_programs import (
    TangentProgram,
    by_dual_numbers,
    spread,
    tangent_gradients,
    tangent_gradients_below_autograd,
)

CPU = torch.device("cpu")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, n, 8, dtype=torch.float64) for n in (5, 7, 7)]


def test_tangents_come_behind_the_results():
    tensors = inputs()
    program = TangentProgram.of_region(program_of(attention, *tensors), ["dq", "dv"], (True, False, True), [0])
    dq, dv = torch.randn_like(tensors[0]), torch.randn_like(tensors[2])
    with torch.no_grad():
        found = program.bound({}, CPU)((*tensors, dq, dv))
    right = torch.func.jvp(lambda q, v: attention(q, tensors[1], v), (tensors[0], tensors[2]), (dq, dv))
    torch.testing.assert_close(found, right)
    assert [entry.name for entry in program.inputs][3:] == ["dq", "dv"]
    assert [meta.shape for meta in program.output_metas] == [(2, 5, 8)] * 2 and isinstance(program, Program)


def test_a_level_of_dual_numbers_may_be_open():
    tensors, changes = inputs(), inputs()
    for _ in range(2):
        with forward_ad.dual_level():
            results, tangents = by_dual_numbers(lambda duals: [attention(*duals)], tensors, changes)
    right = torch.func.jvp(attention, tuple(tensors), tuple(changes))
    torch.testing.assert_close((results[0], tangents[0]), right)


def test_a_result_without_a_tangent_has_none():
    q, k, _ = inputs()
    results, tangents = by_dual_numbers(lambda duals: [duals[0] * 2, duals[1] * 2], [q, k], [None, k])
    assert tangents[0] is None and torch.equal(tangents[1], k * 2) and torch.equal(results[0], q * 2)


def test_tensors_are_spread_over_the_places_that_have_one():
    q, _, v = inputs()
    assert [x is y for x, y in zip(spread([q, v], [True, False, True]), (q, None, v), strict=True)] == [True] * 3


def test_gradients_of_tangents():
    tensors, changes = inputs(), inputs()
    leaves = [x.clone().requires_grad_() for x in (*tensors, changes[0])]
    _, tangent = torch.func.jvp(lambda q: attention(q, *leaves[1:3]), (leaves[0],), (leaves[3],))
    cotangent = torch.randn_like(tangent)
    right = torch.autograd.grad(tangent, leaves, cotangent)
    arguments = lambda duals: [attention(*duals)], leaves[:3], [leaves[3], None, None], {0: cotangent}, [True] * 4
    torch.testing.assert_close(tuple(tangent_gradients(*arguments)), right)
    torch.testing.assert_close(tuple(tangent_gradients_below_autograd(*arguments)), right)
    assert tangent_gradients(*arguments)[0].requires_grad
    assert not tangent_gradients_below_autograd(*arguments)[0].requires_grad


def test_what_no_cotangent_reaches_gets_zeros():
    q, k, v = (x.requires_grad_() for x in inputs())
    run, changes = lambda duals: [attention(*duals)], [q.detach(), None, None]
    found = tangent_gradients(run, [q, k, v], changes, {0: None}, [True] * 4)
    assert len(found) == 4 and not any(x.any() for x in found)
