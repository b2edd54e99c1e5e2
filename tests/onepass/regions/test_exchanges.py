"""Functional collectives in a graph: kernels run while exchanges are under way, and results are eager's."""

import pytest
import torch
from torch import distributed
from torch.distributed import _functional_collectives as collectives

import onepass
from onepass.api.backend import rewrite_module
from onepass.compiler.options import Options

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:.*synchronous fallback.*"),
]
EXCHANGES = ("all_to_all_single", "all_gather_into_tensor", "all_reduce")


@pytest.fixture(autouse=True)
def alone(group_of_one):
    """What is sent comes back."""
    torch._dynamo.reset()


def operands(count=3):
    torch.manual_seed(0)
    return [torch.randn(1, 2, 64, 16) for _ in range(count)]


def passed_on(x):
    return collectives.permute_tensor(x.flatten(), [0], distributed.group.WORLD).view_as(x)


def ring(q, k, v):
    """Three rounds of a ring written by hand."""
    state = onepass.state(q, k, v)
    for _ in range(2):
        k, v = passed_on(k), passed_on(v)
        state = onepass.merge(state, onepass.state(q, k, v))
    return state.output


def ring_of_two(q, k, v):
    state = onepass.state(q, k, v)
    return onepass.merge(state, onepass.state(q, passed_on(k), passed_on(v))).output


def gathered(q, k, v):
    k, v = (collectives.all_gather_tensor(x, 2, distributed.group.WORLD) for x in (k, v))
    return (q @ k.mT / 4).softmax(-1) @ v


def differential(q, k, v):
    """Two regions that wait for exchanges of their own are one still."""
    one, other = (passed_on(x) for x in (k, k + 1))
    return (q @ one.mT / 4).softmax(-1) @ v - 0.5 * (q @ other.mT / 4).softmax(-1) @ v


def sent_when_changed(q, k, v):
    """The keys are sent after a write, and written to again while they would be under way."""
    first = onepass.state(q, k, v)
    k.add_(1)
    sent = passed_on(k)
    k.mul_(2)
    return onepass.merge(first, onepass.state(q, sent, v)).output + k


def as_it_was_sent(q, k, v):
    """What `sent_when_changed` gives where the exchange ends before the second write, for which eager does not wait."""
    states = onepass.state(q, k, v), onepass.state(q, k + 1, v)
    return onepass.merge(*states).output + 2 * (k + 1)


def compiled(function, *given):
    """The result, and what the rewritten graph calls: S an exchange's start, W a wait, R a region, I a write."""
    found = []

    def backend(module, _):
        rewrite_module(module, Options.read({"libraries": False}))
        for node in module.graph.nodes:
            name = str(node.target)
            kinds = {"S": EXCHANGES, "W": ("wait_tensor",), "R": ("onepass.region",), "I": ("add_", "mul_")}
            found.extend(kind for kind, names in kinds.items() if any(n in name for n in names))
        return module

    with torch.no_grad():
        return torch.compile(function, backend=backend)(*given), "".join(found)


@pytest.mark.parametrize(
    "function, order",
    [(ring, "SSRWSWSRWWR"), (gathered, "SSWWR"), (differential, "SSWWR"), (sent_when_changed, "RISWIR")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_kernels_run_while_exchanges_are_under_way(function, order):
    given = operands()
    written = as_it_was_sent if function is sent_when_changed else function
    right = written(*(x.double() for x in given))
    result, found = compiled(function, *given)
    assert found == order
    torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-5)


def test_a_vector_that_was_received_is_read_by_its_axes():
    """An index made of several coordinates has no tensor map."""
    (one, two) = onepass.explain(ring_of_two, *[x.bfloat16() for x in operands()]).regions
    for region in (one, two):
        assert region.kernels[0].form.startswith("warp-specialised Gluon"), region.kernels[0].form


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_gradients_of_a_ring(inner):
    given = [x.requires_grad_() for x in operands()]
    exact = [x.detach().double().requires_grad_() for x in given]
    grad = torch.randn(1, 2, 64, 16)
    autograd = lambda x: collectives.all_to_all_single_autograd(x.flatten(), None, None, distributed.group.WORLD)

    def function(q, k, v):
        one = onepass.state(q, k, v)
        k, v = (autograd(x).view_as(x) for x in (k, v))
        return onepass.merge(one, onepass.state(q, k, v)).output

    result = onepass.compile(function, inner=inner)(*given)
    found = torch.autograd.grad(result, given, grad)
    right = function(*exact)
    torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-5)
    for mine, expected in zip(found, torch.autograd.grad(right, exact, grad.double()), strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-5)


def test_nothing_moves_past_a_level_of_vmap():
    """A graph with a vmap and an exchange behind it runs as written."""

    def function(q, k, v):
        many = torch.vmap(lambda x: x * 2)(q)
        return gathered(many, k, v)

    given = operands()
    right = function(*given)
    result, found = compiled(function, *given)
    assert found.count("S") == found.count("W") == 2
    torch.testing.assert_close(result, right)
