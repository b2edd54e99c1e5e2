"""Heads mixed before and after softmax: one region, as written or as Inductor has it, for every length.

What the kernels store for each other grows with rows alone; Dynamo compiles as often as it does for any backend.
"""

import math

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import onepass
from onepass.graph.survey import survey
from onepass.runtime import operator

pytestmark = pytest.mark.usefixtures("fresh")
HEADS, WIDTH = 6, 8
LENGTHS = (7, 2, 3, 5, 11, 13, 16, 17, 19, 23, 29, 31, 32, 33, 37, 41, 53, 61, 67, 1)


class ByEinsum(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.before, self.after = (torch.randn(HEADS, HEADS, generator=generator) / 2 for _ in range(2))

    def forward(self, q, k, v, before, after):
        score = torch.einsum("hg,bgij->bhij", before, q @ k.mT / math.sqrt(WIDTH))
        return torch.einsum("hg,bgij->bhij", after, torch.softmax(score, -1)) @ v


class ByLinear(nn.Module):
    """As in class-attention image transformers: two layers over the heads, with biases."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)

    def forward(self, q, k, v):
        score = self.before((q @ k.mT / math.sqrt(WIDTH)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weight = self.after(torch.softmax(score, -1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return weight @ v


class RowsFirst(ByEinsum):
    """Heads stand behind rows and columns."""

    def forward(self, q, k, v, before, after):
        score = torch.einsum("bhid,bhjd->bijh", q, k) @ before / math.sqrt(WIDTH)
        return torch.einsum("bijh,bhje->bhie", torch.softmax(score, -2) @ after, v)


class ByBroadcasting(ByEinsum):
    """Every product of a mixture is made, then summed."""

    def forward(self, q, k, v, before, after):
        mix = lambda matrix, x: (matrix[:, :, None, None] * x[:, None]).sum(2)
        return mix(after, mix(before, q @ k.mT / math.sqrt(WIDTH)).softmax(-1)) @ v


FORMS = (ByEinsum, ByLinear, RowsFirst, ByBroadcasting)


def inputs_of(form, length, keys=None):
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, HEADS, n, WIDTH) for n in (length, keys or length, keys or length)]
    matrices = [] if form is ByLinear else [(HEADS, HEADS)] * 2
    return [torch.randn(*shape, generator=generator) for shape in (*shapes, *matrices)]


def by_backend(graph, inputs):
    return onepass.onepass_backend(graph, inputs, options={"inner": "eager", "strict": True})


def compilations(form):
    """At which lengths the backend was called; every result is compared with float64."""
    model, exact, seen = form(), form().double(), []
    exact.load_state_dict({name: x.double() for name, x in model.state_dict().items()})

    def counting(graph, inputs):
        seen.append(length)
        return by_backend(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counting, dynamic=True)
    with torch.no_grad():
        for length in LENGTHS:
            tensors = inputs_of(form, length)
            wanted = exact(*(x.double() for x in tensors))
            torch.testing.assert_close(compiled(*tensors).double(), wanted, atol=2e-5, rtol=0)
    return seen


def plans():
    return [known.found.plan for known in operator._RUNNERS.values()]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_one_compilation_serves_twenty_lengths(form):
    assert compilations(form) == [7, 1]  # Dynamo itself compiles once more for a length of 1
    plan = plans()[0]
    between = [s.output.shape for kernel in plan.kernels[:-1] for s in kernel.stores]
    symbols = [sum(isinstance(n, str) for n in shape) for shape in between]
    assert len(plan.kernels) == 2 and symbols and set(symbols) == {2}  # batch and rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form, dynamic", [*((form, True) for form in FORMS), (ByLinear, False), (RowsFirst, False)])
def test_inductors_graph_is_one_region_as_well(form, dynamic):
    model, tensors = form(), inputs_of(form, 24)
    run = torch.compile(model, dynamic=dynamic, options={"joint_custom_pre_pass": onepass.GraphPass(strict=True)})
    with torch.no_grad():
        torch.testing.assert_close(run(*tensors), model(*tensors), atol=1e-5, rtol=0)
    (report,) = onepass.reports()
    assert len(report.regions) == 1 and not report.refusals
    (plan,) = plans()
    assert len(plan.kernels) == (2 if dynamic else 3)  # scores of known sizes are stored, then mixed


@pytest.mark.slow
def test_another_number_of_heads_is_compiled_for_itself():
    torch._dynamo.reset()
    run = torch.compile(ByEinsum(), backend=by_backend, dynamic=True)
    for heads in (4, 6):
        own = [torch.randn(2, heads, 9, WIDTH) for _ in range(3)] + [torch.randn(heads, heads) for _ in range(2)]
        torch.testing.assert_close(run(*own), ByEinsum()(*own), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shift", [3, 23, -40])
def test_what_is_rolled_comes_round(shift):
    """Along heads and keys, and by more than there are."""

    def function(q, k, v):
        return torch.softmax(torch.roll(q @ k.mT, (1, shift), (1, -1)), -1) @ v

    run = torch.compile(function, backend=by_backend, dynamic=True)
    for length in (9, 40):
        tensors = [torch.randn(2, 3, length, WIDTH) for _ in range(3)]
        torch.testing.assert_close(run(*tensors), function(*tensors), atol=1e-5, rtol=1e-5)
    assert [len(plan.kernels) for plan in plans()] == [1]


@pytest.mark.parametrize("mixes", [True, False])
def test_only_a_sum_over_a_batch_is_a_mixture(mixes):
    """A sum over rows or columns, or one that leaves only one of them, ends a region as other products do."""

    def function(q, k, matrix):
        score = q @ k.mT  # of as many heads, rows and columns
        return torch.einsum("hg,bgij->bhij" if mixes else "ig,bhgj->bhij", matrix, score)

    tensors = [torch.randn(2, 6, 6, WIDTH), torch.randn(2, 6, 6, WIDTH), torch.randn(6, 6)]
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors).graph
    assert ("mixture" in survey(graph).kind.values()) == mixes
