"""Plans run by emitted Triton, in its interpreter where there is no GPU, against the float64 meaning of the term."""

import math

import numpy as np
import pytest
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    const,
    exp,
    iota,
    le,
    load,
    logical_and,
    mantissa,
    max_over,
    maximum,
    reduce,
    rescaled_sum,
    scale,
    sum_over,
    tanh,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.triton.launch import Launcher, LaunchError
from onepass.lowering.triton.launch import load as load_function
from tests.support.triton_runs import run_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
SMALL = TritonConfig(16, 16, 4, 1)
TALL = TritonConfig(32, 16, 4, 2)


def widened(tensor, *index):
    x = load(tensor, *index)
    return x if tensor.dtype == "float32" else cast(x, "float32")


def attention(
    rows=33, columns=None, width=16, value_width=None, batch=1, heads=2, dtype="float32", causal=False, window=None,
    bias=False, groups=1, change=lambda s: s, symbolic=False, factor=None, lengths=False,
):  # fmt: skip
    """Softmax attention as search derives it: two rescaled sums of one gauge, and their ratio."""
    columns, value_width = columns or rows, value_width or width
    b, h = Dim("b", batch), Dim("h", heads)
    i, j = (Dim("i", "rows"), Dim("j", "columns")) if symbolic else (Dim("i", rows), Dim("j", columns))
    d, e = Dim("d", width), Dim("e", value_width)
    q = Tensor("q", dtype, (batch, heads, i.size, width))
    k = Tensor("k", dtype, (batch, heads // groups, j.size, width))
    v = Tensor("v", dtype, (batch, heads // groups, j.size, value_width))
    head = iota(h) if groups == 1 else iota(h) // const(groups)
    score = sum_over(d, widened(q, iota(b), iota(h), iota(i), iota(d)) * widened(k, iota(b), head, iota(j), iota(d)))
    score = change(score * const(factor or 1 / math.sqrt(width)))
    if bias:
        score = score + widened(Tensor("bias", dtype, (heads, i.size, j.size)), iota(h), iota(i), iota(j))
    kept = [le(iota(j), iota(i))] if causal else []
    kept += [le(iota(i) - const(window), iota(j))] if window is not None else []
    kept += [le(iota(j) + const(1), load(Tensor("lengths", "int64", (batch,)), iota(b)))] if lengths else []
    for condition in [kept[0] if len(kept) == 1 else logical_and(*kept)] if kept else []:
        score = where(condition, score, const(-math.inf))
    state = lambda weight: mantissa(rescaled_sum(j, score, weight))
    result = state(widened(v, iota(b), head, iota(j), iota(e))) / state(const(1.0))
    result = result if dtype == "float32" else cast(result, dtype)
    return result, Tensor("out", dtype, (batch, heads, i.size, value_width)), (b, h, i, e)


def inputs_of(plan, sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = lambda t: [sizes.get(s, s) for s in t.shape]
    make = lambda t: torch.randn(shape(t), generator=generator).to(getattr(torch, t.dtype)).to(DEVICE)
    return {t.name: make(t) for t in plan.inputs if t.dtype != "int64"}


def compare(captured, tensors=None, sizes=None, config=SMALL, tolerance=None, **more):
    """Runs the captured (term, output, order) both ways; returns the result."""
    term, output, order = captured
    plan, sizes = build_plan(term, output, order), sizes or {}
    tensors = {**inputs_of(plan, sizes), **(tensors or {}), **more}
    result = run_triton(plan, tensors, sizes, config)
    arrays = {n: (x.double() if x.is_floating_point() else x).cpu().numpy() for n, x in tensors.items()}
    expected = evaluate(term, arrays, order, sizes)
    near = tolerance or TOLERANCE[output.dtype]
    np.testing.assert_allclose(result.double().cpu().numpy(), expected, atol=near, rtol=near)
    return result


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows, columns", [(32, 32), (33, 33), (17, 70), (70, 17)])
def test_attention(dtype, causal, rows, columns):
    compare(attention(rows, columns, dtype=dtype, causal=causal), config=TALL)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", [16, 64, 80, 96, 128, 256])
def test_widths(width):
    compare(attention(20, width=width, causal=True, dtype="bfloat16"))


def test_values_of_another_width():
    compare(attention(20, width=16, value_width=48))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [0, 5, 16, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [64, 70])
def test_window(window, causal, rows):
    compare(attention(rows, window=window, causal=causal), config=TALL)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_and_groups(dtype):
    compare(attention(33, 40, heads=4, groups=2, bias=True, dtype=dtype))


def test_pointwise_changes_of_the_score():
    compare(attention(33, change=lambda s: tanh(s / 30.0) * 30.0, causal=True))
    compare(attention(20, factor=-0.3))
    compare(attention(20, change=lambda s: maximum(s, const(0.1)) + s * s))


def test_symbolic_sizes_and_one_text_for_all():
    captured = attention(symbolic=True, causal=True, width=16)
    launcher = Launcher(build_plan(*captured), SMALL)
    for rows, columns in ((16, 16), (33, 20), (20, 33)):
        sizes = {"rows": rows, "columns": columns}
        compare(captured, sizes=sizes)
        launcher(inputs_of(launcher.plan, sizes), sizes)
    assert len(launcher._sources) == 2, "one text for even sizes, one for the others"


def test_lengths_given_as_a_tensor():
    compare(attention(20, 50, batch=3, lengths=True), lengths=torch.tensor([50, 17, 1], device=DEVICE))


def test_rows_without_a_key_are_nan():
    result = compare(attention(8, 20, batch=2, lengths=True), lengths=torch.tensor([0, 7], device=DEVICE))
    assert result[0].isnan().all() and not result[1].isnan().any()


def test_large_logits():
    compare(attention(40, factor=1000.0, causal=True), tolerance=2e-4)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_not_finite_inputs(value):
    captured = attention(20, bias=True)
    bias = torch.zeros(2, 20, 20)
    bias[0, 3, 5], bias[1, 7, :17] = value, value
    compare(captured, bias=bias.to(DEVICE))


def test_not_contiguous_inputs_and_a_given_output():
    term, output, order = attention(33, causal=True, heads=2, width=16)
    plan = build_plan(term, output, order)
    tensors = inputs_of(plan, {})
    loose = lambda x: torch.empty(1, 33, 2, 32, device=DEVICE)[..., ::2].transpose(1, 2).copy_(x)
    strided = {name: loose(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for x in strided.values())
    given = torch.empty(1, 33, 2, 16, device=DEVICE).transpose(1, 2)
    assert run_triton(plan, strided, config=SMALL, output=given) is given
    torch.testing.assert_close(given, run_triton(plan, tensors, config=SMALL))


def test_a_missing_tensor_or_size_is_named():
    plan = build_plan(*attention(symbolic=True))
    with pytest.raises(LaunchError, match="'q'"):
        run_triton(plan, {}, {})
    with pytest.raises(LaunchError, match="size"):
        run_triton(plan, {n: torch.zeros(1, 2, 8, 16) for n in "qkv"}, {"rows": 8})


# Reductions that are no attention

I, J, E = Dim("i", 40), Dim("j", 300), Dim("e", 20)
X = Tensor("x", "float32", (40, 300))
Y = Tensor("y", "float32", (300, 20))
AT = load(X, iota(I), iota(J))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("monoid", ["sum", "max", "min"])
def test_plain_monoids(monoid):
    compare((reduce(monoid, J, AT), Tensor("out", "float32", (40,)), (I,)), tolerance=1e-4)


@pytest.mark.parametrize("monoid", ["any", "all"])
def test_truth_monoids(monoid):
    body = le(AT, const(2.5 if monoid == "all" else -2.5))
    result = compare((reduce(monoid, J, body), Tensor("out", "bool", (40,)), (I,)), tolerance=1e-9)
    assert 0 < result.sum() < 40


def test_product():
    body = const(1.0) + AT * const(0.01)
    compare((reduce("prod", J, body), Tensor("out", "float32", (40,)), (I,)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("monoid", ["max", "min"])
def test_not_a_number_spreads(monoid):
    x = torch.randn(40, 300)
    x[3, 250] = math.nan
    compare((reduce(monoid, J, AT), Tensor("out", "float32", (40,)), (I,)), x=x.to(DEVICE))


def test_masked_plain_sum():
    body = where(le(iota(J), iota(I) * const(7)), AT, const(0.0))
    compare((sum_over(J, body), Tensor("out", "float32", (40,)), (I,)), tolerance=1e-4)


def test_matrix_product():
    body = AT * load(Y, iota(J), iota(E))
    compare((sum_over(J, body), Tensor("out", "float32", (40, 20)), (I, E)), tolerance=1e-4)


@pytest.mark.slow
def test_softmax_in_three_passes():
    top = max_over(J, AT)
    total = sum_over(J, exp(AT - top))
    body = exp(AT - top) / total * load(Y, iota(J), iota(E))
    compare((sum_over(J, body), Tensor("out", "float32", (40, 20)), (I, E)), tolerance=1e-4)


def test_the_scale_of_a_state():
    state = rescaled_sum(J, AT, const(1.0))
    compare((scale(state) + mantissa(state), Tensor("out", "float32", (40,)), (I,)), tolerance=1e-4)


def test_a_part_that_needs_no_rows_is_a_kernel_of_its_own():
    i, j, d = Dim("i", 400), Dim("j", 300), Dim("d", 16)
    k, v = Tensor("k", "float32", (300, 16)), Tensor("v", "float32", (300, 20))
    state = sum_over(j, load(k, iota(j), iota(d)) * load(v, iota(j), iota(E)))
    term = sum_over(d, load(Tensor("q", "float32", (400, 16)), iota(i), iota(d)) * state)
    captured = term, Tensor("out", "float32", (400, 20)), (i, E)
    assert len(build_plan(*captured).kernels) == 2
    compare(captured, tolerance=1e-3)


def test_gathers():
    table = Tensor("table", "int64", (300,))
    body = load(X, iota(I), load(table, iota(J))) * load(X, iota(I), iota(J) % const(7))
    order = torch.randperm(300, device=DEVICE)
    compare((sum_over(J, body), Tensor("out", "float32", (40,)), (I,)), table=order, tolerance=1e-3)


def test_no_rows_at_all():
    total = sum_over(J, load(Tensor("x", "float32", (300,)), iota(J)))
    compare((total, Tensor("out", "float32", ()), ()), tolerance=1e-4)


# Texts


def test_the_text_is_kept_for_people(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_DEBUG_DIR", str(tmp_path))
    load_function.cache_clear()
    launcher = Launcher(build_plan(*attention(16), derivation=("factor out of sum",)), SMALL)
    launcher(inputs_of(launcher.plan, {}))
    (path,) = tmp_path.glob("*.py")
    text = path.read_text()
    assert "factor out of sum" in text and "tl.dot" in text and "mantissa" in text.splitlines()[0]


def test_a_text_is_loaded_once():
    text = "import triton\n\n\n@triton.jit\ndef nothing():\n    pass\n"
    assert load_function(text, "nothing") is load_function(text, "nothing")
