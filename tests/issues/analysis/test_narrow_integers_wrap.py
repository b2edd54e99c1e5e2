"""Arithmetic on uint8, int8 and int16, and casts to narrow integers, were computed as if int64 held the result."""

import pytest
import torch

from onepass.egraph.terms.affine import bounds
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, const, iota
from onepass.egraph.terms.term import Dim
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.analysis.value_bounds import interval
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton

LENGTH = 70
places = lambda: torch.arange(LENGTH)
CASES = {  # a mask of the tensor of numbers, and its dtype
    "difference": (lambda a: (a[:, None] - a) <= 100, torch.uint8),
    "size of a difference": (lambda a: (a[:, None] - a).abs() <= 1, torch.uint8),
    "product": (lambda a: (a[:, None] * a) > 0, torch.int8),
    "negation": (lambda a: (-a[:, None]).abs() + a > 3, torch.int8),
    "quotient": (lambda a: (a[:, None] - a) // -5 > 3, torch.int8),
    "a number beyond": (lambda a: (a[:, None] < 300) & (a + 300 > 40), torch.int8),
    "widened first": (lambda a: a[:, None].long() + 100 <= a.long(), torch.uint8),
    "int64 to int32": (lambda a: a.int()[:, None] < a.int(), torch.int64),
    "int64 to int16": (lambda a: a.short()[:, None] < a.short(), torch.int64),
    "places to uint8": (lambda a: (places() * 5).to(torch.uint8)[:, None] >= a, torch.uint8),
    "hashed numbers": (lambda a: a[:, None] * 100000003 * a % 7 < 3, torch.int32),
    "hashed places": (lambda a: places().int()[:, None] * 100000003 * (places().int() + 1) % 7 < a, torch.int8),
}


def attend(mask):
    return lambda q, k, v, a: (q @ k.mT).masked_fill(mask(a), -1e4).softmax(-1) @ v


def inputs(dtype):
    generator = torch.Generator().manual_seed(0)
    reach = torch.iinfo(dtype) if dtype != torch.int64 else torch.iinfo(torch.int32)
    numbers = torch.randint(reach.min, reach.max, (LENGTH,), generator=generator).to(dtype)
    numbers = numbers * 3 if dtype == torch.int64 else numbers
    return [*(torch.randn(1, 2, LENGTH, 16, generator=generator) for _ in range(3)), numbers]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_masks_are_what_eager_makes(name, executor):
    mask, dtype = CASES[name]
    q, k, v, numbers = inputs(dtype)
    exact = attend(mask)(q.double(), k.double(), v.double(), numbers)
    if executor == "tiled":
        compiled = torch.compile(attend(mask), backend="onepass", options={"executor": "tiled", "strict": True})
        found = compiled(q, k, v, numbers)
    else:
        captured = translate(program_of(attend(mask), q, k, v, numbers))
        names = [t.name for t in captured.inputs]
        plan = build_plan(captured.term, captured.output, captured.order)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        values = {n: x.to(device) for n, x in zip(names, (q, k, v, numbers), strict=True)}
        found = run_triton(plan, values, config=TritonConfig(16, 32, 4, 1)).cpu()
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-4)


def casts_of(mask, *more):
    q = torch.zeros(1, 2, LENGTH, 16)
    captured = translate(program_of(attend(mask), q, q, q, *more))
    return {n.dtype for n in subterms(captured.term) if n.op == "cast" and n.args[0].dtype == "int64"} - {"float32"}


def test_what_fits_is_not_wrapped():
    numbers = torch.zeros(LENGTH, dtype=torch.uint8)
    assert casts_of(lambda a: a[:, None] == a, numbers) == set()
    assert casts_of(lambda a: a[:, None].short() * 100 - a > 0, numbers) == set()
    assert casts_of(lambda a: (places()[:, None] - places()).to(torch.int8) > a, numbers) == set()
    assert casts_of(lambda a: a.int()[:, None] - a > 0, numbers) == set()
    assert casts_of(lambda a: (a[:, None] - a).abs() <= 1, numbers.int()) == set()  # may be anything: taken to fit
    assert casts_of(lambda a: a[:, None] - a <= 1, numbers) == {"uint8"}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_bounds_and_intervals_of_a_cast_hold_what_it_gives(dtype):
    place = Dim("i", 40)
    narrow = cast(cast((iota(place) - const(20)) * const(2**29 + 77), dtype), "int64")
    values = evaluate(narrow, {})
    expected = (torch.arange(40) - 20) * (2**29 + 77)
    assert values.tolist() == expected.to(getattr(torch, dtype)).tolist()
    for low, high in (bounds(narrow), interval(narrow)):
        assert (low is None or low <= values.min()) and (high is None or values.max() <= high)
