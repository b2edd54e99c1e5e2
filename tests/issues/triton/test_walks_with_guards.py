"""Programs that walk read a tile once, with the mask of the first loop or window that needed it: a second loop over the
same keys got zeros, and a mask of each window had no name yet. States that are the same for all windows of a program
were written where no window is.
"""

from functools import partial
from math import inf

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton import launch as triton_launch
from onepass.lowering.triton import walks
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

WINDOWS, KINDS, HEADS, ROWS, WIDTH = 12, 4, 2, 11, 7
CONFIG = TritonConfig(16, 16, 4, 2)


def score(q, k, bias):
    return q @ k.mT + bias


def padded(q, k, v, bias, pad):
    return score(q, k, bias).masked_fill(~pad[:, None, None], -inf).softmax(-1) @ v


def table(q, k, v, entries, index, pad):
    return padded(q, k, v, entries[index].permute(2, 0, 1), pad)


def two_loops(q, k, v, bias, pad):
    """The second loop keeps the keys that the first one drops."""
    scores = score(q, k, bias)
    first = scores.masked_fill(~pad, -inf).logsumexp(-1, keepdim=True)
    return (scores * first).masked_fill(pad, -inf).softmax(-1) @ v


def one_of_each(q, k, v, bias, pad):
    """A loop whose mask is that of all windows, then one of each window's."""
    scores = score(q, k, bias)
    first = scores.masked_fill(pad[0], -inf).logsumexp(-1, keepdim=True)
    return (scores * first).masked_fill(~pad[:, None, None], -inf).softmax(-1) @ v


def inputs(name):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, WINDOWS, HEADS, ROWS, WIDTH)
    bias, pad = torch.randn(HEADS, ROWS, ROWS), torch.rand(WINDOWS, ROWS) < 0.6
    pad[:, 0], pad[:, 1] = True, False
    index = torch.randint(-5, 5, (ROWS, ROWS))
    return {
        "padded": (padded, q, k, v, bias, pad),
        "table": (table, q, k, v, torch.randn(5, HEADS), index, pad),
        "two loops": (two_loops, q, k, v, bias, pad[1]),
        "one of each": (one_of_each, q, k, v, bias, pad),
    }[name]


def planned(function, given):
    program = program_of(function, *given)
    tensors = dict(zip((entry.name for entry in program.inputs), given, strict=True))
    return optimize_all(translate(program).results).plan, tensors


@pytest.fixture(autouse=True)
def short_walks(monkeypatch):
    monkeypatch.setattr(walks, "LEAST_SHARE", 0)
    monkeypatch.setattr(walks, "LEAST_STEPS", 1)


@pytest.mark.parametrize("apart", [1, 5])
@pytest.mark.parametrize("name", ["padded", "table", "two loops", "one of each"])
def test_a_kernel_that_walks_keeps_what_each_loop_and_window_keeps(name, apart, monkeypatch):
    function, *given = inputs(name)
    plan, tensors = planned(function, given)
    (kernel,) = plan.kernels
    assert walks.walk_of(kernel, CONFIG, {}, 1) is not None
    monkeypatch.setattr(triton_launch, "walk_of", lambda *_: ("b", apart))
    (result,) = Launcher(plan, CONFIG).results(tensors)
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)


def test_an_index_is_demanded_where_a_window_keeps_it():
    """The demand stands in the walk, where the window's mask is known; the tile before it."""
    function, *given = inputs("table")
    plan, _ = planned(function, given)
    (kernel,) = plan.kernels
    text = emit(kernel, plan, Facts(short=frozenset({str(kernel.loops[0].dim)}), walk=("b", 4))).text
    before, inside = text.split(" in tl.range(b_first")
    assert "entries_tile = " in before and "pad_tile = " in inside and "wild = wild |" in inside
    assert "device_assert" not in before and inside.rstrip().splitlines()[-1].startswith("    tl.device_assert(~wild")


def with_state(q, k, v, bias, mask, beside):
    kinds = mask[torch.arange(WINDOWS) % KINDS][:, None]
    return (score(q, k, bias) + kinds).softmax(-1) @ v + beside(bias + kinds, v)


BESIDE = {
    "values of one window": lambda score, v: score.softmax(-1) @ v[0],
    "logarithm": lambda score, v: score.logsumexp(-1, keepdim=True),
    "sum": lambda score, v: score.sum(-1)[..., None],
}


@pytest.mark.parametrize("name", BESIDE)
def test_no_walk_where_a_state_is_the_same_for_all_windows_of_a_program(name):
    _, q, k, v, bias, _ = inputs("padded")
    plan, _ = planned(partial(with_state, beside=BESIDE[name]), (q, k, v, bias, torch.randn(KINDS, ROWS, ROWS)))
    for kernel in plan.kernels:
        assert (walks.walk_of(kernel, CONFIG, {}, 1) or ("h",))[0] != "b"
