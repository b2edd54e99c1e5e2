"""The tiled executor against the term's meaning in float64, beside eager's own error in the same dtype.

Small tiles are forced, so that every case has empty, full and partial tiles and short last ones.
"""

import subprocess
import sys
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.ops import const, iota, load, make, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled import executor
from onepass.lowering.tiled.executor import InputMismatch, run_tiled
from tests.support.attention_terms import (
    MASKS,
    Case,
    attention,
    check,
    eager_attention,
    error,
    loaded,
    one_pass,
    run,
    three_pass,
)


@pytest.mark.parametrize("form", [one_pass, three_pass])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.usefixtures("tiles")
def test_masks(mask, form):
    check(attention(mask=mask, form=form, symbolic=True))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", [one_pass, three_pass])
@pytest.mark.usefixtures("tiles")
def test_dtypes(dtype, form):
    check(attention(dtype=dtype, form=form, mask="causal", symbolic=True))


@pytest.mark.parametrize("batch", [(), (3,), (2, 2, 2), (1, 2, 1, 2)])
@pytest.mark.usefixtures("tiles")
def test_batch_dims_in_any_number(batch):
    check(attention(batch, queries=33, keys=50, mask="causal"))


@pytest.mark.parametrize(
    "queries, keys, width, value_width", [(1, 300, 16, 16), (300, 2, 16, 8), (257, 255, 80, 40), (5, 5, 1, 1)]
)
@pytest.mark.usefixtures("tiles")
def test_lengths(queries, keys, width, value_width):
    check(attention((2,), queries, keys, width, value_width, symbolic=True))


def test_wide_values_and_wide_contractions():
    check(attention((2,), 40, 300, width=300, value_width=600))


def plain_and(change, form=one_pass, **options) -> Case:
    case = attention((2,), 40, 90, form=form, symbolic=True, **options)
    change(case.inputs)
    return case


REGIMES = {
    "large": lambda t: t["q"].mul_(50),
    "ties": lambda t: t["k"].copy_(t["k"][:, :1].expand_as(t["k"])),
    "constant rows": lambda t: t["q"].zero_(),
    "infinite keys": lambda t: t["k"][:, 3].fill_(inf),
    "infinite values": lambda t: t["v"][:, 3].fill_(-inf),
    "nan query": lambda t: t["q"][:, 3].fill_(nan),
    "nan key": lambda t: t["k"][0, 3].fill_(nan),
    "nan value": lambda t: t["v"][0, 3].fill_(nan),
}


@pytest.mark.sampled(31)
@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.usefixtures("tiles")
def test_regimes(name, mask):
    check(plain_and(REGIMES[name], mask=mask))


def test_what_is_absent_may_hold_anything():
    """Keys from 50 on are padding: their values are not read, not even as 0 · NaN."""
    case = attention((2,), 40, 90)
    j, kept = Dim("j", 90), load(Tensor("lengths", "int64", (2,)), iota(Dim("b0", 2)))
    q, k, v = (
        loaded(Tensor(n, "float32", (2, s, 16)), Dim("b0", 2), x, d)
        for n, s, x, d in (
            ("q", 40, Dim("i", 40), Dim("d", 16)),
            ("k", 90, j, Dim("d", 16)),
            ("v", 90, j, Dim("e", 16)),
        )
    )
    case.term = one_pass(j, where(make("lt", (iota(j), kept)), sum_over(Dim("d", 16), q * k) * 0.25, -inf), v)
    case.inputs["lengths"] = torch.tensor([50, 7])
    for b, n in enumerate((50, 7)):
        case.inputs["k"][b, n:], case.inputs["v"][b, n:] = nan, nan
        case.inputs["v"][b, n + 1], case.inputs["v"][b, n + 2] = inf, -inf
    found = run(case)
    for b, n in enumerate((50, 7)):
        part = {x: t[b, : n if x in "kv" else 40] for x, t in case.inputs.items() if x != "lengths"}
        assert error(found[b], eager_attention(part, None)) < 1e-6
    (loop,) = build_plan(case.term, case.output, case.order).kernels[0].loops
    assert loop.limits_only and len(loop.uppers) == 1


def test_rows_without_a_key_are_nan():
    found = run(attention((2,), 70, 90, mask="shifted"))
    assert found[:, :20].isnan().all() and found[:, 20:].isfinite().all()


def test_empty_tiles_never_run(monkeypatch):
    seen = []
    add = executor.AccumulatorState.add
    monkeypatch.setattr(
        executor.AccumulatorState,
        "add",
        lambda s, v, drops, o, f: (seen.append(drops is not None), add(s, v, drops, o, f)),
    )
    for name, value in (("FIRST_TILE_ROWS", 32), ("FIRST_TILE_COLUMNS", 16), ("MAX_ELEMENTS_ON_A_CPU", 1024)):
        monkeypatch.setattr(executor, name, value)
    run(attention((1,), 128, 128, mask="causal", symbolic=True))
    assert (len(seen), sum(seen)) == (2 + 4 + 6 + 8, 4 * 2)


@pytest.mark.parametrize("spelling", ["h // g", "two dims"])
@pytest.mark.usefixtures("tiles")
def test_heads_that_share_keys(spelling):
    b, h, i, j, d, e = Dim("b", 2), Dim("h", 6), Dim("i", 40), Dim("j", "s0"), Dim("d", 16), Dim("e", 16)
    n, g = Dim("n", 2), Dim("g", 3)
    head, group, lead = (
        (iota(h), iota(h) // const(3), (b, h)) if spelling == "h // g" else (iota(n) * const(3) + iota(g), n, (b, n, g))
    )
    q = loaded(Tensor("q", "float32", (2, 6, 40, 16)), b, head, i, d)
    k, v = (loaded(Tensor(x, "float32", (2, 2, "s0", 16)), b, group, j, y) for x, y in (("k", d), ("v", e)))
    inputs = {"q": torch.randn(2, 6, 40, 16), "k": torch.randn(2, 2, 70, 16), "v": torch.randn(2, 2, 70, 16)}
    shape = (2, 6, 40, 16) if spelling == "h // g" else (2, 2, 3, 40, 16)

    def eager(t):
        whole = {x: t[x].repeat_interleave(3, 1) if x != "q" else t[x] for x in t}
        return eager_attention(whole, None).reshape(shape)

    check(
        Case(
            one_pass(j, sum_over(d, q * k) * 0.25, v),
            Tensor("out", "float32", shape),
            (*lead, i, e),
            inputs,
            eager,
            {"s0": 70},
        )
    )


def test_empty_loops_and_empty_outputs():
    case = attention((2,), 4, 0, symbolic=True)
    assert run(case).isnan().all()
    assert run(attention((0,), 4, 6, symbolic=True)).shape == (0, 4, 16)


def test_inputs_that_are_not_the_plans_are_named():
    case = attention((2,), 40, 90)
    with pytest.raises(InputMismatch, match="no tensor was given for v"):
        run_tiled(build_plan(case.term, case.output, case.order), {n: case.inputs[n] for n in "qk"})
    with pytest.raises(InputMismatch, match=r"k is float64\[2, 90, 16\], the plan wants float32\[2, 90, 16\]"):
        run_tiled(build_plan(case.term, case.output, case.order), {**case.inputs, "k": case.inputs["k"].double()})


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 70),
    st.integers(1, 35).map(lambda n: 2 * n),
    st.sampled_from([1, 5, 16]),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from([one_pass, three_pass]),
    st.sampled_from(["float32", "bfloat16", "float64"]),
    st.integers(0, 9),
    st.sampled_from([0.0, 1.0, 50.0]),
)
def test_any_attention(batch, queries, keys, width, mask, form, dtype, seed, size):
    before = executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS, executor.MAX_ELEMENTS_ON_A_CPU
    executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS, executor.MAX_ELEMENTS_ON_A_CPU = 16, 32, 4000
    try:
        case = attention(
            tuple(batch), queries, keys, width, dtype=dtype, mask=mask, form=form, symbolic=True, seed=seed
        )
        case.inputs["q"].mul_(size)
        check(case)
    finally:
        executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS, executor.MAX_ELEMENTS_ON_A_CPU = before


MEMORY = """
import resource, torch
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled
from tests.support.attention_terms import attention
def run(n, heads):
    case = attention((1, heads), n, n, 64, mask="MASK")
    run_tiled(build_plan(case.term, case.output, case.order), case.inputs)
    return 4 * sum(x.numel() for x in case.inputs.values()) + 4 * case.inputs["q"].numel(), case
run(64, 1)
small = attention((1, 8), 4096, 4096, 64)
plan_of = lambda case: build_plan(case.term, case.output, case.order)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = run_tiled(plan_of(small), small.inputs)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - output.nbytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_memory_does_not_grow_with_the_square(mask):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.replace("MASK", mask)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 64 << 20, "the scores alone would be 512 MiB"
