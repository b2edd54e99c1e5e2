"""Kernels whose programs walk along a grid dim: which do, what they read once, and that they compute the same."""

from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.term import Dim
from onepass.egraph.terms.traversal import rename_dims
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.kernel_edits import with_terms
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton import launch as triton_launch
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.walks import walk_of
from onepass.translate.translate import translate

WINDOWS, KINDS, HEADS, ROWS, WIDTH = 24, 4, 2, 11, 7
CONFIG = TritonConfig(16, 16, 4, 2)


def heads(x):
    return x.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)


def finished(score, v):
    return (score.softmax(-1) @ v).transpose(1, 2).flatten(-2)


def dense(x, bias):
    q, k, v = heads(x)
    return finished(q @ k.mT + bias, v)


def kinds(x, bias, mask):
    q, k, v = heads(x)
    score = (q @ k.mT + bias).unflatten(0, (-1, KINDS)) + mask[:, None]
    return finished(score.flatten(0, 1), v)


def table(x, bias, index, mask):
    q, k, v = heads(x)
    score = (q @ k.mT + bias[index].permute(2, 0, 1)).unflatten(0, (-1, KINDS)) + mask[:, None]
    return finished(score.flatten(0, 1), v)


def hidden(x, keep):
    q, k, v = heads(x)
    return finished((q @ k.mT).masked_fill(~keep, float("-inf")), v)


def with_sum(x, bias):
    """The logarithm of the weights' sum beside the result."""
    q, k, v = heads(x)
    score = q @ k.mT + bias
    return finished(score, v), score.logsumexp(-1)


def alone(x):
    q, k, v = heads(x)
    return finished(q @ k.mT, v)


def own(x, bias):
    """A bias of each window: nothing is read once."""
    q, k, v = heads(x)
    return finished(q @ k.mT + bias, v)


def drawn(*sizes):
    return torch.randn(*sizes)


def inputs(name):
    torch.manual_seed(0)
    x, bias, mask = drawn(WINDOWS, ROWS, 3 * HEADS * WIDTH), drawn(HEADS, ROWS, ROWS), drawn(KINDS, ROWS, ROWS)
    keep = torch.rand(HEADS, ROWS, ROWS) < 0.7
    keep[:, 0] = False  # a row without keys
    index = torch.randint(-5, 5, (ROWS, ROWS))
    return {
        "dense": (dense, x, bias),
        "kinds": (kinds, x, bias, mask),
        "table": (table, x, drawn(5, HEADS), index, mask),
        "hidden": (hidden, x, keep),
        "with_sum": (with_sum, x, bias),
        "alone": (alone, x),
        "own": (own, x, drawn(WINDOWS, HEADS, ROWS, ROWS)),
    }[name]


def planned(name):
    function, *given = inputs(name)
    program = program_of(function, *given)
    plan = optimize_all(translate(program).results).plan
    return plan, dict(zip((entry.name for entry in program.inputs), given)), function, given


STEPS = {"dense": 4, "kinds": 4, "table": 4, "hidden": 4, "with_sum": 4, "alone": None, "own": None}


@pytest.mark.parametrize("name", STEPS)
def test_programs_walk_where_tiles_of_pairs_are_the_same_for_many(name):
    plan, _, _, _ = planned(name)
    assert (walk_of(plan.kernels[0], CONFIG, {}, 1) or (None, None))[1] == STEPS[name]
    for kernel in plan.kernels:
        assert walk_of(kernel, CONFIG, {}, 0) is None, "on a CPU"
        assert walk_of(kernel, replace(CONFIG, loop_tile=8), {}, 1) is None, "a loop of two tiles"
        assert walk_of(kernel, CONFIG, {}, 100) is None, "too few indices for each program"


def test_small_tiles_of_pairs_are_read_again():
    """Beside 11 x 11 numbers of a bias, 3 x 11 x 32 of queries, keys and values are much."""
    q, k, v = (torch.randn(WINDOWS, HEADS, ROWS, 32) for _ in range(3))
    program = program_of(lambda q, k, v, bias: (q @ k.mT + bias).softmax(-1) @ v, q, k, v, drawn(HEADS, ROWS, ROWS))
    (kernel,) = optimize_all(translate(program).results).plan.kernels
    assert walk_of(kernel, CONFIG, {}, 1) is None


@pytest.mark.parametrize("empty", ["windows", "heads"])
def test_nothing_walks_where_there_are_no_programs(empty):
    """A grid without a place was divided by its number of places."""
    plan, _, _, _ = planned("dense")
    (kernel,) = plan.kernels
    gone = WINDOWS if empty == "windows" else HEADS
    names = {dim: Dim(dim.name, 0) for dim in kernel.grid if dim.size == gone}
    renamed = with_terms(kernel, lambda term: rename_dims(term, names))
    grid = tuple(names.get(dim, dim) for dim in kernel.grid)
    assert walk_of(replace(renamed, grid=grid), CONFIG, {}, 1) is None


def test_more_tiles_than_registers_hold_are_read_again():
    q, k, v = (torch.randn(WINDOWS, HEADS, ROWS, WIDTH) for _ in range(3))
    function = lambda q, k, v, *biases: (q @ k.mT + sum(biases)).softmax(-1) @ v
    for count, walks in ((2, True), (3, False)):
        program = program_of(function, q, k, v, *(drawn(HEADS, ROWS, ROWS) for _ in range(count)))
        (kernel,) = optimize_all(translate(program).results).plan.kernels
        assert (walk_of(kernel, replace(CONFIG, row_tile=64, loop_tile=64), {}, 1) is not None) == walks


def test_wide_rows_are_not_loaded_ahead():
    """Of 49 rows with heads of 32, three rounds take 28 KB; with heads of 64, 56."""
    for width, walks in ((32, True), (64, False)):
        q, k, v = (torch.randn(WINDOWS, HEADS, 49, width).bfloat16() for _ in range(3))
        biases = [drawn(HEADS, 49, 49).bfloat16() for _ in range(2)]
        program = program_of(lambda q, k, v, x, y: (q @ k.mT + x + y).softmax(-1) @ v, q, k, v, *biases)
        (kernel,) = optimize_all(translate(program).results).plan.kernels
        assert (walk_of(kernel, TritonConfig(64, 64, 4, 2), {}, 1) is not None) == walks


@pytest.mark.sampled(3)
@pytest.mark.parametrize("apart", [4, 8, 20])
@pytest.mark.parametrize("name", [name for name, steps in STEPS.items() if steps])
def test_a_kernel_that_walks_computes_the_same(name, apart, monkeypatch):
    """apart: also so many that programs differ in their number of indices."""
    plan, tensors, function, given = planned(name)
    walking = {kernel.name: walk_of(kernel, CONFIG, {}, 1) for kernel in plan.kernels}
    found = lambda kernel, *given: walking[kernel.name] and (walking[kernel.name][0], apart)
    monkeypatch.setattr(triton_launch, "walk_of", found)
    launcher = Launcher(plan, CONFIG)
    results = launcher.results(tensors)
    for (kernel, _), source in launcher._sources.items():
        assert (f"_size, {apart})" in source.text) == (walking[kernel] is not None)
        assert (f"steps of {apart}" in launcher.shared.get(kernel, "")) == (walking[kernel] is not None)
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    for result, value in zip(results, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(result.double().reshape(value.shape), value, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["kinds", "table"])
def test_what_is_the_same_is_read_before_the_loop(name):
    plan, _, _, _ = planned(name)
    (kernel,) = plan.kernels
    walk = walk_of(kernel, CONFIG, {}, 1)
    text = emit(kernel, plan, Facts(short=frozenset({str(kernel.loops[0].dim)}), walk=walk)).text
    before, inside = text.split(f" in tl.range({walk[0]}_first")
    assert before.count("tl.load(") == (3 if name == "table" else 2) and inside.count("tl.load(") == 3
    assert f"{walk[0]}_first & {KINDS - 1}" in before
