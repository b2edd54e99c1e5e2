"""Numbers in emitted kernels: half, single and double types, powers of hostile values, and what masked places hold."""

import math

import numpy as np
import pytest
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    const,
    eq,
    exp,
    iota,
    le,
    load,
    make,
    max_over,
    maximum,
    power,
    reduce,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.dim_roles import compared
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton.launch import launcher
from tests.lowering.triton.test_kernel import DEVICE, SMALL, attention, compare, inputs_of
from tests.support.triton_runs import run_triton

I, J = Dim("i", 40), Dim("j", 300)


@pytest.mark.parametrize("causal", [False, True])
def test_double(causal):
    compare(attention(33, 40, dtype="float64", causal=causal), tolerance=1e-13)


FEW = TritonConfig(8, 16, 1, 2)


@pytest.mark.parametrize("rows, columns, more", [
    (5, 40, {}), (8, 33, {"dtype": "bfloat16"}), (19, 19, {"causal": True}), (5, 50, {"dtype": "float16", "groups": 2}),
    (20, 50, {"window": 7}), (5, 40, {"bias": True}), (5, 40, {"value_width": 48, "width": 24}),
])  # fmt: skip
def test_rows_that_stand_last(rows, columns, more):
    captured = attention(rows, columns, **more)
    compare(captured, config=FEW)
    (source,) = launcher(build_plan(*captured), FEW)._sources.values()
    assert "tl.dot(k_tile" in source.text and "[None, :]" in source.text


def test_rows_that_stand_last_keep_what_is_not_finite():
    captured = attention(5, 40, batch=3, lengths=True)
    given = inputs_of(build_plan(*captured), {})
    given["v"][1, :, 3, 2], given["q"][1, 0, 4, 5], given["v"][0, 1, 39] = math.inf, math.nan, math.nan
    given["lengths"] = torch.tensor([20, 40, 0], device=DEVICE)
    result = compare(captured, given, config=FEW)
    assert result[2].isnan().all() and not result[0].isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize("places", [5, 70])
def test_products_are_added_up_place_by_place_where_a_guard_says_which(places):
    """Each pair of a row and a column is computed once, in a tile of two dims; a NaN goes to its own place."""
    m, d = Dim("m", places), Dim("d", 16)
    rows, columns = load(Tensor("rows", "float32", (40, 16)), iota(I), iota(d)), Tensor("columns", "float32", (300, 16))
    score = sum_over(d, rows * load(columns, iota(J), iota(d)))
    which = load(Tensor("which", "int64", (300, 40)), iota(J), iota(I))
    term = sum_over(J, where(eq(which, iota(m)), exp(score * const(0.1)), const(0.0)))
    plan = build_plan(term, Tensor("out", "float32", (40, places)), (I, m))
    (kernel,) = plan.kernels
    assert m in kernel.held and compared(kernel, kernel.loops[0]).places == m
    random = torch.Generator().manual_seed(0)
    given = {t.name: torch.randn(t.shape, generator=random) for t in plan.inputs if t.name != "which"}
    given["which"] = torch.randint(-1, places + 1, (300, 40), generator=random)  # two of these are no places
    given["columns"][7, 3] = math.nan
    scores = given["columns"].double() @ given["rows"].double().mT
    kept = given["which"][..., None] == torch.arange(places)
    exact = torch.where(kept, torch.exp(scores * 0.1)[..., None], 0.0).sum(0)
    found = run_triton(plan, {name: x.to(DEVICE) for name, x in given.items()}, config=SMALL).cpu()
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert 0 < exact.isnan().sum() < exact.numel()
    text = launcher(plan, SMALL).source(kernel, Facts(frozenset(), frozenset())).text
    assert "None, None" not in text, "no tile has three dims"


def test_half_precision_is_added_up_place_by_place_in_single():
    """In half precision, the sum of 16 columns would be infinite; that of all is -60000."""
    m, d = Dim("m", 5), Dim("d", 16)
    matrix = lambda name, dim: load(Tensor(name, "float16", (dim.size, 16)), iota(dim), iota(d))
    score = cast(maximum(sum_over(d, matrix("rows", I) * matrix("columns", J)), const(-1e4)), "float16")
    which = load(Tensor("which", "int64", (300, 40)), iota(J), iota(I))
    term = sum_over(J, where(eq(which, iota(m)), score, const(0.0)))
    plan = build_plan(term, Tensor("out", "float16", (40, 5)), (I, m))
    assert compared(plan.kernels[0], plan.kernels[0].loops[0]).places == m
    columns = torch.where(torch.arange(300) < 144, 312.5, -312.5)[:, None].expand(300, 16).half().contiguous()
    given = {"rows": torch.ones(40, 16).half(), "columns": columns, "which": torch.full((300, 40), 2)}
    found = run_triton(plan, {name: x.to(DEVICE) for name, x in given.items()}, config=SMALL).cpu()
    assert found.tolist() == [[0, 0, -60000, 0, 0]] * 40


def guards(places):
    """Guards with a dim of their own, by name; the first one is compared place by place."""
    at = lambda name, dtype, *dims: load(Tensor(name, dtype, tuple(d.size for d in dims)), *map(iota, dims))
    return {
        "index of pairs": eq(at("read", "int64", J, I), iota(places)),
        "index of columns": eq(at("read", "int64", J), iota(places)),
        "index of rows": eq(iota(places), at("read", "int64", I)),
        "mask of each place": at("read", "bool", places, I, J),
        "limit of each place": le(at("read", "int64", places), iota(J)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", guards(Dim("m", 5)))
def test_guards_with_a_dim_of_their_own_keep_what_they_say(name):
    """An index of 64 bits that is a place only in its last 32 is none."""
    m, d = Dim("m", 5), Dim("d", 16)
    matrix = lambda name, dim: load(Tensor(name, "float32", (dim.size, 16)), iota(dim), iota(d))
    score = sum_over(d, matrix("rows", I) * matrix("columns", J))
    guard = guards(m)[name]
    plan = build_plan(
        sum_over(J, where(guard, exp(score * const(0.1)), const(0.0))), Tensor("out", "float32", (40, 5)), (I, m)
    )
    assert (m in plan.kernels[-1].held) == (name == "index of pairs")
    random = torch.Generator().manual_seed(0)
    given = {t.name: torch.randn(t.shape, generator=random) for t in plan.inputs if t.name != "read"}
    (read,) = (t for t in plan.inputs if t.name == "read")
    given["read"] = torch.randint(0, 6, read.shape, generator=random)
    given["read"] = given["read"] > 2 if read.dtype == "bool" else given["read"] + 2**32 * (given["read"] == 3)
    tensors = {n: x.to(DEVICE) for n, x in given.items()}
    arrays = {n: x.numpy() for n, x in given.items()}
    kept = torch.as_tensor(evaluate(where(guard, const(1.0), const(0.0)), arrays, [J, I, m]))
    exact = (kept.double() * torch.exp(0.1 * given["columns"].double() @ given["rows"].double().mT)[..., None]).sum(0)
    found = run_triton(plan, tensors, config=SMALL).cpu()
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("monoid", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_reductions_of_other_types(monoid, dtype):
    at = load(Tensor("x", dtype, (40, 300)), iota(I), iota(J))
    tolerance = {"float16": 2e-2, "bfloat16": 2e-1, "float64": 1e-12}[dtype] if monoid == "sum" else 1e-30
    result = compare((reduce(monoid, J, at), Tensor("out", dtype, (40,)), (I,)), tolerance=tolerance)
    assert str(result.dtype) == f"torch.{dtype}"


BASES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.7, -3.7, 1e-30, 1e30, math.inf, -math.inf, math.nan)
EXPONENTS = (0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5, 2.5, 9.0, 10.0, -9.0, 31.0, math.inf, -math.inf, math.nan)


def powers(exponent, bases, exponents):
    n = Dim("n", len(bases))
    x, y = (load(Tensor(name, "float32", (len(bases),)), iota(n)) for name in "xy")
    term = power(x, y if exponent is None else const(exponent))
    plan = build_plan(term, Tensor("out", "float32", (len(bases),)), (n,))
    given = {"x": torch.tensor(bases, device=DEVICE), "y": torch.tensor(exponents, device=DEVICE)}
    tensors = {t.name: given[t.name] for t in plan.inputs}
    found = run_triton(plan, tensors, config=SMALL).double().cpu().numpy()
    single = [np.float32(b) for b in bases]
    with np.errstate(all="ignore"):
        expected = np.array([np.power(b, np.float32(e)) for b, e in zip(single, exponents, strict=True)], np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_power_with_a_varying_exponent():
    pairs = [(b, e) for b in BASES for e in EXPONENTS if not (b == 0 and e < 0) and abs(b) != math.inf]
    powers(None, *zip(*pairs, strict=True))


@pytest.mark.parametrize("exponent", [0.0, 2.0, -3.0, 2.5, 9.0, 10.0, 31.0])
def test_a_power_with_a_constant_exponent(exponent):
    bases = [b for b in BASES if abs(b) != math.inf]
    powers(exponent, bases, [exponent] * len(bases))


def test_padding_may_hold_anything():
    """Keys past each length are not even read: neither NaN nor infinity of theirs reaches a row."""
    plan = build_plan(*attention(33, 70, lengths=True, batch=2))
    tensors = inputs_of(plan, {}) | {"lengths": torch.tensor([40, 20], device=DEVICE)}
    for name, value in (("k", math.inf), ("k", math.nan), ("v", -math.inf), ("v", math.nan)):
        for batch, length in ((0, 40), (1, 20)):
            tensors[name][batch, :, length + 1] = value
            tensors[name][batch, :, length + 4 :] = value
    found, expected = run_triton(plan, tensors, config=SMALL), run_tiled(plan, tensors)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_the_widest_of_a_row_of_integers():
    at = load(Tensor("x", "int64", (40, 300)), iota(I), iota(J))
    term = max_over(J, make("cast", (at,), ("int32",)))
    plan = build_plan(term, Tensor("out", "int32", (40,)), (I,))
    x = torch.randint(-(2**31), 2**31, (40, 300))
    found = run_triton(plan, {"x": x.to(DEVICE)}, config=SMALL)
    assert np.array_equal(found.cpu().numpy(), evaluate(term, {"x": x.numpy()}, (I,)))
