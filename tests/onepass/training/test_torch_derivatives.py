"""relu and clamp in a region have torch's derivatives where operands are equal, and the values of eager."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph.trace import program_of
from onepass.training.torch_derivatives import (
    TIED,
    derivative_at_a_bound,
    readings,
    with_picked_extrema,
    with_torch_derivatives,
)

pytestmark = pytest.mark.usefixtures("fresh")


def relu(s):
    return F.relu(s)


def squared(s):
    return F.relu(s) ** 2


def clamped(s):
    return s.clamp(-1.0, 1.0)


def clamped_below(s):
    return s.clamp_min(-1.0)


def clamped_above(s):
    return torch.clamp_max(s, 1.0)


def clamped_by_tensors(s):
    return torch.clamp(s, -torch.ones_like(s), torch.ones_like(s))


def crossed(s):
    return s.clamp(1.0, -1.0)


SCORES = (relu, squared, clamped, clamped_below, clamped_above, clamped_by_tensors, crossed)


def ties():
    """Matrices whose products are whole numbers from -2 to 2: most scores are at a bound."""
    torch.manual_seed(0)
    return [torch.randint(-1, 2, shape).float() for shape in ((2, 40, 2), (2, 300, 2), (2, 300, 4))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", SCORES)
def test_gradients_at_ties_are_autograds(score):
    function = lambda q, k, v: score(q @ k.mT) @ v
    compiled = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})
    results = []
    for run in (compiled, function):
        leaves = [x.clone().requires_grad_() for x in ties()]
        result = run(*leaves)
        results.append((result, torch.autograd.grad(result, leaves, torch.ones_like(result))))
    (ours, our_gradients), (eager, right) = results
    torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(our_gradients, right, atol=1e-3, rtol=0)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")


@pytest.mark.parametrize("score", SCORES)
def test_values_stay(score):
    program = program_of(score, torch.randn(3, 4))
    hostile = torch.tensor([[0.0, -0.0, 1.0, -1.0], [torch.inf, -torch.inf, torch.nan, 5.0], [-5.0, 1e-45, 2.0, -2.0]])
    chosen = with_torch_derivatives(program)
    as_maximum = score is clamped_by_tensors and derivative_at_a_bound(True) == 0.5
    assert (chosen == program) == as_maximum
    torch.testing.assert_close(chosen.run(hostile), score(hostile), equal_nan=True, atol=0, rtol=0)


def test_a_program_without_ties_has_one_reading():
    program = program_of(lambda q, k: torch.softmax(q @ k.mT, -1), torch.randn(3, 4), torch.randn(5, 4))
    assert [*readings(program)] == [(program, frozenset())]
    tied = program_of(lambda q, k: torch.relu(q @ k.mT), torch.randn(3, 4), torch.randn(5, 4))
    assert [without for _, without in readings(tied)] == [TIED, frozenset()]


@pytest.mark.parametrize("dim, keepdim", [(-1, False), (0, True), (1, False)])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extrema_are_picked_at_their_positions(kind, dim, keepdim):
    """Of values alone; a position that is a result stays."""
    extrema = lambda x: tuple(getattr(x, kind)(dim, keepdim))
    program = program_of(extrema, torch.randn(3, 4))
    drawn = torch.randint(3, (3, 4)).float()  # with equal ones
    picked = with_picked_extrema(program)
    assert picked != program and f"aten.arg{kind}.default" in [node.target for node in picked.nodes]
    for found, right in zip(picked.results(drawn), extrema(drawn), strict=True):
        torch.testing.assert_close(found, right, atol=0, rtol=0)
    whole = program_of(lambda x: getattr(x, f"a{kind}")(dim), torch.randn(3, 4))
    assert with_picked_extrema(whole) == whole
