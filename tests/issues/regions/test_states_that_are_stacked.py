"""States of several sets of keys that are stacked, and merged by sums over the stack, were a region for each set.

`stack` ended each region, and a merge of more than two sets read the results of the others. In terms, a sum over a
stack is the sum of what it does to each part, so that all sets are loops of one kernel, as for keys that are joined.
So is `cat` along an axis of one place, which ended each region longer than `stack` did, and `cat` of stacks.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def state(q, k, v):
    score = q @ k.mT / q.shape[-1] ** 0.5
    return score.softmax(-1) @ v, score.logsumexp(-1, keepdim=True)


def joined(q, *sets):
    return state(q, torch.cat(sets[::2], 2), torch.cat(sets[1::2], 2))


def stacked(axis, stack=torch.stack):
    def merged(q, *sets):
        states = zip(*(state(q, k, v) for k, v in zip(sets[::2], sets[1::2], strict=True)), strict=True)
        outputs, logs = (stack(found, axis) for found in states)
        return (outputs * logs.softmax(axis)).sum(axis), logs.logsumexp(axis)

    return merged


def concatenated(tensors, axis):
    return torch.cat([x.unsqueeze(axis) for x in tensors], axis)


def one_by_one(tensors, axis):
    """A stack of the first two, which each of the others is joined to."""
    found = torch.stack(tensors[:2], axis)
    for one in tensors[2:]:
        found = torch.cat([found, one.unsqueeze(axis)], axis)
    return found


def with_logarithms_side_by_side(q, *sets):
    states = [state(q, k, v) for k, v in zip(sets[::2], sets[1::2], strict=True)]
    outputs, logs = concatenated([one[0] for one in states], -1), torch.cat([one[1] for one in states], -1)
    return (outputs * logs.softmax(-1)[..., None, :]).sum(-1), logs.logsumexp(-1, keepdim=True)


def public(q, *sets):
    return tuple(onepass.merge(*(onepass.state(q, k, v) for k, v in zip(sets[::2], sets[1::2], strict=True))))


def over(q, *sets):
    states = [onepass.state(q, k, v) for k, v in zip(sets[::2], sets[1::2], strict=True)]
    return tuple(onepass.merge_over(onepass.State(*map(torch.stack, zip(*states, strict=True))), 0))


MERGES = {
    "in front": stacked(0),
    "behind": stacked(-1),
    "joined in front": stacked(0, concatenated),
    "joined behind": stacked(-1, concatenated),
    "one by one in front": stacked(0, one_by_one),
    "one by one behind": stacked(-1, one_by_one),
    "logarithms side by side": with_logarithms_side_by_side,
    "merge": public,
    "merge_over": over,
}


def inputs(count):
    """Sets of unlike lengths; the scores of one are far above those of the others."""
    torch.manual_seed(0)
    sets = [torch.randn(2, 2, 40 + 7 * (n // 2), 16) for n in range(2 * count)]
    sets[2] *= 20
    return [torch.randn(2, 2, 33, 16), *sets]


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("name", MERGES)
def test_all_sets_are_loops_of_one_kernel(name, count):
    report = onepass.explain(MERGES[name], *inputs(count))
    (region,) = report.regions
    (kernel,) = region.kernels
    assert report.left == 0 and len(kernel.loops) == count


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("name", MERGES)
def test_it_computes_the_right_thing(name, count):
    tensors = inputs(count)
    options = {"inner": "eager", "require": "all", "libraries": False}
    compiled = torch.compile(MERGES[name], backend=onepass_backend, options=options)
    exact = joined(*(x.double() for x in tensors))
    for mine, right in zip(compiled(*tensors), exact, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stack", [torch.stack, concatenated, one_by_one])
def test_a_stack_that_is_a_result_stays_behind_the_kernels(stack):
    def both(q, k1, v1, k2, v2):
        return stack([state(q, k1, v1)[0], state(q, k2, v2)[0]], 0)

    tensors = inputs(2)
    compiled = torch.compile(both, backend=onepass_backend, options={"inner": "eager", "libraries": False})
    right = both(*(x.double() for x in tensors))
    torch.testing.assert_close(compiled(*tensors).double(), right, rtol=1e-5, atol=1e-5)
    assert onepass.reports()[-1].fused == 2


@pytest.mark.parametrize("name", ["in front", "joined in front", "one by one in front", "merge_over"])
def test_with_gradients_each_set_keeps_its_own_derivative(name):
    tensors = [x.requires_grad_() for x in inputs(3)]
    compiled = torch.compile(MERGES[name], backend=onepass_backend, options={"inner": "eager", "libraries": False})
    output, total = compiled(*tensors)
    mine = torch.autograd.grad(output.sum() + total.sum(), tensors)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    output, total = joined(*exact)
    right = torch.autograd.grad(output.sum() + total.sum(), exact)
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=5e-4)
    assert onepass.reports()[-1].fused == 3
