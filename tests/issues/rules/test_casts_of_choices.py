"""A fill that its own type holds, but not the type that the scores are cast to, is -∞ there.

The law that drops casts of literals took every literal, so a row without a key came out as an average of all of it.
"""

import math

import pytest
import torch

import onepass
from onepass.egraph.derivation.normalize import normalise
from onepass.egraph.terms.ops import cast, const, infinite_beyond
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.launch.triton_compat import MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA
from onepass.rules import NORMAL
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
LEAST = {dtype: torch.finfo(dtype).min for dtype in (torch.float64, torch.float32, torch.float16)}


def softmax_in_float32(fill):
    def run(q, k, v, keep):
        s = (q @ k.mT * 0.3).masked_fill(~keep, fill)
        return torch.softmax(s, -1, dtype=torch.float32).to(v.dtype) @ v

    return run


def scores_back_in_half(fill):
    def run(q, k, v, keep):
        s = (q @ k.mT * 0.3).float().masked_fill(~keep, fill).to(q.dtype)
        return torch.softmax(s, -1).nan_to_num(0.0) @ v

    return run


CASES = [
    (softmax_in_float32, torch.float64, LEAST[torch.float64], True),
    (softmax_in_float32, torch.float64, -1e9, False),
    (scores_back_in_half, torch.float16, -1e9, True),
    (scores_back_in_half, torch.float16, LEAST[torch.float16], False),
    (scores_back_in_half, torch.bfloat16, LEAST[torch.float32], True),
    (scores_back_in_half, torch.bfloat16, -1e9, False),
]


def named(x):
    return getattr(x, "__name__", str(x))


def inputs(kind):
    torch.manual_seed(0)
    keep = torch.rand(20, 20) < 0.7
    keep[3] = False
    return [*(torch.randn(2, 20, 8).to(kind) for _ in range(3)), keep]


@pytest.mark.parametrize(("make", "kind", "fill", "beyond"), CASES, ids=named)
def test_the_fill_becomes_infinite_where_it_does_not_fit(make, kind, fill, beyond):
    (result,) = translate(program_of(make(fill), *inputs(kind))).results
    literals = {t.attrs[0] for t in subterms(normalise(result.term, NORMAL)) if t.op == "const"}
    assert beyond == (-math.inf in literals) != (fill in literals)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize(("make", "kind", "fill", "beyond"), CASES, ids=named)
def test_a_row_without_a_key_is_as_in_eager(make, kind, fill, beyond, executor):
    options = {"strict": True, "inner": "eager", "libraries": False, "executor": executor}
    fused = torch.compile(make(fill), backend=onepass.onepass_backend, options=options)(*inputs(kind))
    if executor == "triton" and kind == torch.float64 and not MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA:
        (refused,) = onepass.reports()[0].refusals
        assert "Triton before 3.9" in str(refused)
    else:
        assert onepass.reports()[0].regions
    wanted, slack = make(fill)(*inputs(kind)), 4 * max(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)
    assert beyond != bool(wanted[:, 3].nan_to_num(0.0).any())
    torch.testing.assert_close(fused, wanted, atol=slack, rtol=slack, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_range_ends_where_torch_rounds_to_infinity(dtype):
    largest = torch.finfo(getattr(torch, dtype)).max
    half_a_unit = torch.finfo(getattr(torch, dtype)).eps * 2.0 ** math.floor(math.log2(largest)) / 2
    for number in (largest, largest + half_a_unit * 0.99, largest + half_a_unit, math.inf, 0.1):
        for x in (number, -number):
            stored = torch.tensor(x, dtype=torch.float64).to(getattr(torch, dtype)).item()
            assert math.isinf(stored) == math.isinf(infinite_beyond(x, dtype)), x
            assert normalise(cast(const(x), dtype), NORMAL) is const(stored if math.isinf(stored) else x)
