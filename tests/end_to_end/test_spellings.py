"""From a spelling in PyTorch to both executors, on drawn shapes, dtypes, regimes: as near to float64 as eager.

The Triton kernel runs in Triton's interpreter, so shapes are small; its oracle is the tiled executor of the same plan.
"""

import math
import os

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import run_tiled
from onepass.translate.translate import translate
from tests.support import spellings
from tests.support.triton_runs import run_triton

DTYPES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}  # with the absolute floor of each


def _fill(tensor, value):
    tensor[..., -1, :] = value


REGIMES = {
    "normal": lambda q, k, v: None,
    "large logits": lambda q, k, v: q.mul_(50),
    "ties": lambda q, k, v: k.copy_(k[..., :1, :].expand_as(k)),
    "constant rows": lambda q, k, v: q.zero_(),
    "infinite key": lambda q, k, v: _fill(k, math.inf),
    "minus infinite query": lambda q, k, v: _fill(q, -math.inf),
    "nan key": lambda q, k, v: _fill(k, math.nan),
    "nan query": lambda q, k, v: _fill(q, math.nan),
}


FINITE = ("normal", "large logits", "ties", "constant rows")
# Where a score is not finite, eager's fused operation has answers of its own, and an added mask makes NaN where it is
# hidden: «scores are finite» is a named assumption of the laws there.
OWN_ANSWER = [f for f in spellings.PLAIN + spellings.CAUSAL + spellings.GROUPED if "sdpa" in f.__name__]
OWN_ANSWER += [spellings.causal_additive]


def planned(function, inputs):
    captured = translate(program_of(function, *inputs))
    return optimize(captured.term, captured.output, captured.order)


def assert_as_near_as_eager(result, function, inputs):
    """Error against float64 at most twice eager's, plus the floor; NaN exactly where eager's arithmetic has it."""
    eager, exact = function(*inputs), function(*(x.double() for x in inputs))
    assert result.dtype == eager.dtype and result.shape == eager.shape
    overflowed = eager.isnan() & ~exact.isnan()  # scores beyond half's range: ours are kept in float32
    assert torch.equal(result.isnan() | overflowed, eager.isnan())
    kept = ~(eager.isnan() | exact.isnan())
    # A score of 450 is rounded by 3e-5, which exp makes a relative error: on few elements eager may be luckier.
    size = max(1.0, (inputs[0].double().nan_to_num(posinf=0, neginf=0).abs().max().item()) / 5)
    error, own = ((x.double() - exact)[kept].abs().max().item() if kept.any() else 0.0 for x in (result, eager))
    assert error <= 2 * own + size * DTYPES[result.dtype], (error, own)


def draw_inputs(spelling, batch, heads, rows, columns, width, dtype, regime, seed):
    torch.manual_seed(seed)
    groups = 2 if spelling in spellings.GROUPED else 1
    shapes = [(batch, heads * groups, rows, width)] + [(batch, heads, columns, width)] * 2
    inputs = [torch.randn(*shape).to(dtype) for shape in shapes]
    assume(regime in FINITE or spelling not in OWN_ANSWER)
    assume(dtype is torch.float32 or spelling is not spellings.causal_additive)  # its mask is a float32 tensor
    REGIMES[regime](*inputs)
    return inputs


CASES = {
    "spelling": st.sampled_from(spellings.PLAIN + spellings.CAUSAL + spellings.GROUPED),
    "batch": st.integers(1, 2),
    "heads": st.integers(1, 2),
    "rows": st.integers(1, 70),
    "columns": st.integers(1, 70),
    "width": st.sampled_from([16, 32, 80]),
    "dtype": st.sampled_from(list(DTYPES)),
    "regime": st.sampled_from(list(REGIMES)),
    "seed": st.integers(0, 99),
}


@pytest.mark.slow
@settings(max_examples=100)
@given(**CASES)
def test_tiled(spelling, **case):
    inputs = draw_inputs(spelling, **case)
    plan = planned(spelling, inputs).plan
    result = run_tiled(plan, dict(zip("qkv", inputs, strict=True)), {})
    assert_as_near_as_eager(result, spelling, inputs)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="without a GPU it needs Triton's interpreter")
@settings(max_examples=12)
@given(**CASES | {"rows": st.integers(1, 20), "columns": st.integers(1, 40), "width": st.sampled_from([16, 24])})
def test_triton_agrees_with_tiled_and_with_eager(spelling, **case):
    inputs = draw_inputs(spelling, **case)
    plan = planned(spelling, inputs).plan
    named = dict(zip("qkv", inputs, strict=True))
    result, oracle = run_triton(plan, named, {}), run_tiled(plan, named, {})
    assert torch.equal(result.isnan(), oracle.isnan())
    times = 40 if case["regime"] == "large logits" else 4  # these round by more, in each executor otherwise
    floor = times * DTYPES[result.dtype] * max(1.0, oracle.nan_to_num().abs().max().item())
    assert (result.double() - oracle.double()).nan_to_num().abs().max().item() <= floor
    assert_as_near_as_eager(result, spelling, inputs)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("spelling", spellings.PLAIN + spellings.CAUSAL + spellings.GROUPED, ids=lambda f: f.__name__)
def test_one_kernel_one_loop_and_nothing_of_rows_by_columns(spelling):
    inputs = draw_inputs(spelling, 1, 2, 400, 400, 64, torch.float32, "normal", 0)
    found = planned(spelling, inputs)
    (kernel,) = found.plan.kernels
    (loop,) = kernel.loops
    assert (found.passes_before, found.passes_after, found.plan.passes) == (3, 1, 1)
    assert bool(loop.uppers) == (spelling in spellings.CAUSAL)  # causal: tiles past the diagonal are never run
    assert kernel.output.shape == tuple(spelling(*inputs).shape)
