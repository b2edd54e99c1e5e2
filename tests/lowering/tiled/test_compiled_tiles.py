"""Compiled tiles against the tiled executor: masks, hostile values, ends of loops, stores of a loop.

Where a test is not about Inductor's code, the traced function itself runs: that takes no compiler.
"""

from math import inf, nan

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.joined.join import join
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled import compiled_tiles, executor
from onepass.lowering.tiled.compiled_tiles import CompiledTiles
from onepass.lowering.tiled.executor import tiled_results
from tests.support.attention_terms import MASKS, attention, one_pass, three_pass
from tests.support.gluon_ahead_of_time import backward_plan


@pytest.fixture
def traced(monkeypatch):
    """Small tiles, whose functions are traced and not compiled."""
    monkeypatch.setattr(compiled_tiles, "compiled_graph", lambda graph, given, **_: graph)
    monkeypatch.setattr(executor, "MAX_ELEMENTS", 1 << 11)


def compare(plan, inputs, kinds=1, tolerance=1e-5, **options):
    """At least so many kinds of tiles are compiled, and the results are those of the tiled executor."""
    tiles = CompiledTiles(**options)
    first = tiled_results(plan, inputs, compiled=tiles)
    tiles.close()
    expected = tiled_results(plan, inputs)
    assert len(tiles.known) >= kinds
    for results in (first, tiled_results(plan, inputs, compiled=tiles)):
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def planned(case):
    return build_plan(case.term, case.output, case.order)


@pytest.mark.parametrize("form", [one_pass, three_pass])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.usefixtures("traced")
def test_masks(mask, form):
    case = attention((2,), 130, 150, mask=mask, form=form)
    compare(planned(case), case.inputs)


HOSTILE = {
    "infinite keys": lambda t: t["k"][:, 3].fill_(inf),
    "infinite values": lambda t: t["v"][:, 3].fill_(-inf),
    "nan query": lambda t: t["q"][:, 3].fill_(nan),
    "nan value": lambda t: t["v"][0, 3].fill_(nan),
    "large": lambda t: t["q"].mul_(50),
}


@pytest.mark.parametrize("change", HOSTILE)
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.usefixtures("traced")
def test_hostile_values(change, mask):
    case = attention((2,), 70, 90, mask=mask)
    HOSTILE[change](case.inputs)
    compare(planned(case), case.inputs)


def test_tiles_of_other_shapes_run_by_torch_operations_once_nothing_is_compiled(traced, monkeypatch):
    case, tiles = attention((2,), 130, 150, mask="causal"), CompiledTiles()
    tiles.close()
    (result,), (wanted,) = (tiled_results(planned(case), case.inputs, compiled=c) for c in (tiles, None))
    torch.testing.assert_close(result, wanted)
    assert not tiles.known
    monkeypatch.setattr(compiled_tiles, "MOST_KINDS", 1)
    compare(planned(case), case.inputs)


def relative(q, k, v, x, kept, numbers):
    rows, columns = torch.arange(100)[:, None], torch.arange(120)
    score = (q @ k.mT + x[columns - rows + 99]) * numbers
    return score.masked_fill(~kept, -inf).softmax(-1) @ v


@pytest.mark.usefixtures("traced")
def test_an_index_that_goes_back_is_read_without_a_gather(monkeypatch):
    """x[j - i + 99], with a mask of data, and bytes, which are no bools."""
    monkeypatch.setattr("onepass.lowering.tiled.tile_ops._gather", lambda *_: pytest.fail("it was gathered"))
    q, k, v, x = (torch.randn(shape) for shape in ((2, 100, 16), (2, 120, 16), (2, 120, 16), (219,)))
    kept, numbers = torch.rand(100, 120) > 0.5, torch.randint(0, 9, (100, 120), dtype=torch.uint8)
    given = (q, k, v, x, kept, numbers)
    found = compiled_region.make(program_of(relative, *given), Options())
    inputs = dict(zip((i.name for i in found.program.inputs), given, strict=True))
    compare(found.plan, inputs)
    (result,) = tiled_results(found.plan, inputs)
    exact = relative(*(t.double() if t.is_floating_point() else t for t in given))
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-4)


def soft_capped(q, k, v, masked=False):
    score = torch.tanh(q @ k.mT / 30) * 30
    score = score.masked_fill(torch.arange(150) > torch.arange(150)[:, None], -inf) if masked else score
    return score.softmax(-1) @ v


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("masked", [False, True])
def test_a_loop_that_adds_to_memory(masked):
    """A joined backward adds the gradient of q for each tile of keys."""
    shapes = [(1, 2, 150, 16)] * 3
    plan = backward_plan(lambda q, k, v: soft_capped(q, k, v, masked), [torch.randn(x).bfloat16() for x in shapes])
    joined = join(plan)
    assert joined is not None and any(store.adds for store in joined.main.stores)
    torch.manual_seed(0)
    made = {t.name: torch.randn(t.shape).mul(0.5).to(getattr(torch, t.dtype)) for t in plan.inputs}
    compare(joined.plan, made, tolerance=2e-2)


@pytest.mark.usefixtures("traced")
def test_float64_keeps_torchs_own_hyperbolic_tangent():
    given = [torch.randn(2, 100, 16, dtype=torch.float64) for _ in range(3)]
    found = compiled_region.make(program_of(lambda q, k, v: soft_capped(q, k, v), *given), Options())
    compare(found.plan, dict(zip((i.name for i in found.program.inputs), given, strict=True)), tolerance=1e-12)


def test_the_hyperbolic_tangent_is_as_exact_as_float32_is():
    x = torch.cat([torch.linspace(-12, 12, 200_001), torch.logspace(-30, 1, 50_001), torch.tensor([inf, -inf, 0.0])])
    exact = x.double().tanh()
    unit = exact.abs().clamp(min=torch.finfo(torch.float32).tiny) * torch.finfo(torch.float32).eps
    assert ((compiled_tiles._tanh(x).double() - exact).abs() <= 4 * unit).all()
    assert compiled_tiles._tanh(torch.tensor(nan)).isnan() and compiled_tiles._tanh(x.double()) is NotImplemented


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_inductors_code(dtype, tolerance):
    """rounds: a product of bfloat16 numbers is rounded to that type."""
    case = attention((2,), 200, 300, width=32, value_width=32, dtype=dtype)
    compare(planned(case), case.inputs, tolerance=tolerance, rounds=True)
