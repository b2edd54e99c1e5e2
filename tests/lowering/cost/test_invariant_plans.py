"""Invariant plans: what is refused, and that rows keep their bits on the tiled executor, by a plan for each call."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.cost.invariant_plans import described, invariant_plan
from onepass.lowering.plan.records import NotPlannable, Store
from onepass.lowering.plan.thresholds import KEYS_OF_A_PIECE
from onepass.lowering.tiled.executor import tiled_results
from onepass.translate.translate import translate
from tests.fuzz.invariance import PROGRAMS, Random, Sequences, inputs_of, same_bits
from tests.lowering.triton.test_kernel import attention


def results(name, s, invariant=True):
    given = inputs_of(name, s, Random(0))
    captured = translate(program_of(PROGRAMS[name], *given))
    plan = optimize_all(captured.results, invariant=invariant).plan
    return tiled_results(plan, dict(zip([t.name for t in captured.inputs], given, strict=True)))[0]


def batch(dtype=torch.float32):
    torch.manual_seed(0)
    q, k, v = ((2 * torch.randn(3, *shape, 16)).to(dtype) for shape in ((4, 40), (2, 700), (2, 700)))
    return Sequences(q, k, v, torch.tensor([700, 333, 41]), torch.randn(4))


def differing(name, s, invariant):
    """The ways to call the rows in which their bits differ."""
    whole = results(name, s, invariant)
    chunks = ((0, 1), (1, 9), (9, 40))
    ways = {
        "alone": lambda: torch.cat([results(name, s.of([b]), invariant) for b in range(3)]),
        "in a longer buffer": lambda: results(name, s.within(1100, lambda shape: torch.full(shape, 1e4)), invariant),
        "in chunks": lambda: torch.cat([results(name, s.rows(*ends), invariant) for ends in chunks], 2),
    }
    return [way for way, call in ways.items() if not same_bits(whole, call())]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_a_row_and_its_keys(name, dtype):
    s = batch(dtype)
    assert differing(name, s, True) == []
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    given = [x.double() if x.is_floating_point() else x for x in inputs_of(name, s, Random(0))]
    torch.testing.assert_close(results(name, s).double(), PROGRAMS[name](*given), atol=tolerance, rtol=tolerance)


def test_without_the_option_they_are_not():
    assert differing("plain", batch(), False)


def test_a_plan_says_how_long_its_pieces_are():
    case = attention(rows=8, columns=40)
    plan = invariant_plan([Store(*case)], (), [case[0]])
    assert plan.piece == KEYS_OF_A_PIECE and f"pieces of {KEYS_OF_A_PIECE} keys" in described(plan.piece)


def test_products_over_a_loop_are_refused():
    def chances(q, k, v):
        return (1 - torch.sigmoid(q @ k.mT)).prod(-1, keepdim=True) * v[:, :1]

    captured = translate(program_of(chances, *(torch.randn(2, 300, 16) for _ in range(3))))
    with pytest.raises(NotPlannable, match="a product of many has no exact form"):
        optimize_all(captured.results, invariant=True)


def test_scores_that_one_tile_sums_are_refused_but_not_those_of_a_loop():
    def sigmoids(q, k, v):
        return torch.sigmoid(q @ k.mT) @ v

    short, long = (
        translate(program_of(sigmoids, *(torch.randn(2, length, 16) for _ in range(3)))) for length in (50, 300)
    )
    with pytest.raises(NotPlannable, match=r"sums scores over .*, which is short enough for one tile"):
        optimize_all(short.results, invariant=True)
    assert optimize_all(long.results, invariant=True).plan.piece == KEYS_OF_A_PIECE
