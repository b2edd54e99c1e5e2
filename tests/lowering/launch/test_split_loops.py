"""Loops shared out over programs: partial states and their merge, by tiles and by Triton, against float64."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    const,
    iota,
    le,
    load,
    log,
    logical_or,
    mantissa,
    max_over,
    reduce,
    rescaled_sum,
    scale,
    sum_over,
    tanh,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.launch import split_loops
from onepass.lowering.launch.split_loops import (
    chunk_count,
    chunk_sizes,
    split_kernel,
    split_to_run,
    wanted_chunks,
    with_split_kernels,
)
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback import check_plan
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.default_config import of_few_rows
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from tests.lowering.triton.test_kernel import DEVICE, attention, inputs_of

SINGLE = Tensor("out", "float32", (2, 40, 16))
THEORY = Path(__file__).resolve().parents[3] / "proofs" / "theory"


def agree(*captured, sizes=None, parts=3, tolerance=2e-5, **given):
    """Runs the captured (term, output, order) in parts both ways, and compares every result with its meaning."""
    plan, sizes = plan_stores([Store(*one) for one in captured]), sizes or {}
    tensors = {**inputs_of(plan, sizes), **given}
    arrays = {n: (x.double() if x.is_floating_point() else x).cpu().numpy() for n, x in tensors.items()}
    launcher = Launcher(plan, TritonConfig(16, 16, 4, 1, parts))
    runs = {
        "tiled": tiled_results(with_split_kernels(plan), tensors, {**sizes, **chunk_sizes(plan, parts)}),
        "triton": launcher.results(tensors, sizes),
    }
    assert launcher.shared and all(how.endswith(f"; {parts} parts") for how in launcher.shared.values())
    for n, (term, _, order) in enumerate(captured):
        expected = evaluate(term, arrays, order, sizes)
        for who, results in runs.items():
            found = results[n].double().cpu().numpy()
            np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance, err_msg=who)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows, columns, parts", [(1, 64, 2), (1, 97, 3), (5, 131, 4), (17, 50, 7)])
def test_attention(rows, columns, parts):
    agree(attention(rows, columns), parts=parts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_and_grouped_heads(dtype):
    agree(attention(3, 97, heads=4, groups=2, dtype=dtype), tolerance=3e-2 if dtype == "bfloat16" else 4e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows, window", [(64, None), (70, None), (64, 20), (70, 0), (70, 20)])
def test_limits_are_shared_out_tile_by_tile(rows, window):
    agree(attention(rows, causal=True, window=window, heads=1), parts=3)


def test_a_row_whose_keys_are_masked_in_some_parts_or_in_all():
    lengths = torch.tensor([50, 17, 1, 0], device=DEVICE)
    agree(attention(2, 50, batch=4, lengths=True), parts=4, lengths=lengths)


def test_symbolic_lengths():
    captured = attention(symbolic=True)
    for columns in (1, 13, 48, 113):
        agree(captured, sizes={"rows": 1, "columns": columns}, parts=4)


@pytest.mark.slow
def test_a_union_of_ranges():
    kept = lambda i, j: logical_or(le(iota(j), const(20)), le(iota(i) + const(30), iota(j)))
    b, i, j, e = Dim("b", 2), Dim("i", 33), Dim("j", 90), Dim("e", 16)
    score = load(Tensor("s", "float32", (2, 33, 90)), iota(b), iota(i), iota(j))
    score = where(kept(i, j), score, const(-math.inf))
    state = lambda weight: mantissa(rescaled_sum(j, score, weight))
    value = load(Tensor("v", "float32", (2, 90, 16)), iota(b), iota(j), iota(e))
    agree((state(value) / state(const(1.0)), Tensor("out", "float32", (2, 33, 16)), (b, i, e)), parts=3)


def of_scores(make, rows=3, columns=77, dtype="float32"):
    """A result [2, rows] of scores [2, rows, columns]."""
    b, i, j = Dim("b", 2), Dim("i", rows), Dim("j", columns)
    score = load(Tensor("s", "float32", (2, rows, columns)), iota(b), iota(i), iota(j))
    return lambda name: (make(score, j), Tensor(name, dtype, (2, rows)), (b, i))


def test_a_log_sum_exp_and_a_maximum_beside_it():
    state = lambda s, j: rescaled_sum(j, s, const(1.0))
    of = lambda make, name: of_scores(make, columns=300)(name)
    lse = of(lambda s, j: log(mantissa(state(s, j))) + scale(state(s, j)), "lse")
    agree(lse, of(lambda s, j: scale(state(s, j)), "top"), parts=5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_every_monoid(monoid):
    agree(of_scores(lambda s, j: reduce(monoid, j, tanh(s) + const(0.5)), columns=300)("out"), parts=5)


def test_truths():
    for monoid in ("any", "all"):
        agree(of_scores(lambda s, j, m=monoid: reduce(m, j, le(s, const(2.0))), columns=300, dtype="bool")("out"))


def test_half_sums_stay_in_single_precision_between_the_kernels():
    made = of_scores(lambda s, j: sum_over(j, cast(s, "bfloat16")), columns=300, dtype="bfloat16")("out")
    plan = plan_stores([Store(*made)])
    assert {s.output.dtype for s in split_kernel(plan.kernels[0]).first.stores} == {"float32"}
    agree(made, tolerance=3e-2)


def test_two_states_of_two_gauges():
    b, i, j, e = Dim("b", 2), Dim("i", 2), Dim("j", 90), Dim("e", 16)
    value = load(Tensor("v", "float32", (2, 90, 16)), iota(b), iota(j), iota(e))
    one, two = (load(Tensor(n, "float32", (2, 2, 90)), iota(b), iota(i), iota(j)) for n in "st")
    state = lambda s, weight: mantissa(rescaled_sum(j, s, weight))
    ratio = lambda s: state(s, value) / state(s, const(1.0))
    agree((ratio(one) - const(0.2) * ratio(two), Tensor("out", "float32", (2, 2, 16)), (b, i, e)))


def test_absent_and_infinite_scores():
    made = attention(2, 60, change=lambda s: where(le(const(0.0), s), s, const(-math.inf)))
    agree(made, parts=5)
    hidden = torch.full((2, 3, 77), -math.inf, device=DEVICE)
    hidden[0, 0, 70] = 3.0
    agree(of_scores(lambda s, j: mantissa(rescaled_sum(j, s, const(1.0))))("out"), parts=4, s=hidden)


def test_what_needs_a_finished_value_is_not_shared_out():
    made = of_scores(lambda s, j: sum_over(j, tanh(s - max_over(j, s))), columns=300)("out")
    assert all(split_kernel(kernel) is None for kernel in plan_stores([Store(*made)]).kernels)


def latent_rows(rows=5, columns=40, width=32):
    """Keys and values are one tensor in bfloat16, read for all rows; what the rows are is float32."""
    b, i, j, d, e = Dim("b", 2), Dim("i", rows), Dim("j", columns), Dim("d", width), Dim("e", width)
    row = load(Tensor("q", "float32", (2, rows, width)), iota(b), iota(i), iota(d))
    c = lambda x: cast(load(Tensor("c", "bfloat16", (2, columns, width)), iota(b), iota(j), iota(x)), "float32")
    state = lambda weight: mantissa(rescaled_sum(j, sum_over(d, c(d) * row), weight))
    result = cast(state(c(e)) / state(const(1.0)), "bfloat16")
    return result, Tensor("out", "bfloat16", (2, rows, width)), (b, i, e)


def test_a_tile_by_two_names_is_read_once_and_float32_is_multiplied_by_halves():
    captured = latent_rows()
    plan = plan_stores([Store(*captured)])
    text = emit(plan.kernels[0], plan, Facts(frozenset("j"))).text
    loop = text[text.index("for j_start") :]
    assert loop.count("tl.load(") == 1 and "ieee" not in text and loop.count("tl.dot(") == 3
    agree(captured, tolerance=1e-2)


def test_two_halves_have_sixteen_bits():
    b, i, e, d = Dim("b", 2), Dim("i", 40), Dim("e", 16), Dim("d", 64)
    x = load(Tensor("x", "float32", (2, 40, 64)), iota(b), iota(i), iota(d))
    y = cast(load(Tensor("y", "bfloat16", (64, 16)), iota(d), iota(e)), "float32")
    made = cast(sum_over(d, x * y), "bfloat16"), Tensor("out", "bfloat16", (2, 40, 16)), (b, i, e)
    plan = plan_stores([Store(*made)])
    whole = replace(plan, kernels=(replace(plan.kernels[0], stores=(Store(made[0].args[0], SINGLE, made[2]),)),))
    whole = replace(whole, outputs=(SINGLE,))
    tensors = inputs_of(plan, {})
    found = Launcher(whole, TritonConfig(16, 16, 4, 1))(tensors)
    exact = tensors["x"].double() @ tensors["y"].double()
    assert (found - exact).abs().max() < 2**-14 * exact.abs().max()


def test_numbers_of_parts():
    assert chunk_count(1024, 64, 132) == 1, "programs enough"
    assert chunk_count(4, 1024, 132) == 66
    assert chunk_count(4, 64, 132) == 32, "no part of one tile"
    assert chunk_count(4, 20, 132) == 10 and chunk_count(4, 5, 132) == 1, "short"
    assert chunk_count(1, 1, 132) == 1 and chunk_count(8, 100, 0) == 1 and chunk_count(0, 0, 132) == 1


DECODING = TritonConfig(16, 64, 4, 2)


def chunks_of(batch: int, keys: int, rows: int = 1, config: TritonConfig = DECODING, **given) -> int:
    term, output, order = attention(rows=rows, columns=keys, batch=batch, heads=8, width=64, **given)
    (kernel,) = plan_stores([Store(term, output, order)]).kernels
    return wanted_chunks(kernel, config, {}, 132, 1.0)


@pytest.mark.parametrize("warps, parts", [(4, 1), (2, 2), (1, 4)])
def test_programs_of_fewer_warps_have_more_parts(warps, parts):
    """256 programs: eight warps are on each of 132 multiprocessors at once."""
    assert chunks_of(32, 4096, config=TritonConfig(8, 16, warps, 5)) == parts


def test_programs_that_fill_the_registers_have_fewer_parts():
    """64 programs of 64 rows by 512 values: one is on a multiprocessor at once, so two parts fill 132 of them."""

    def parts(width: int) -> int:
        term, output, order = attention(rows=128, columns=4096, batch=32, heads=1, width=width)
        (kernel,) = plan_stores([Store(term, output, order)]).kernels
        return wanted_chunks(kernel, TritonConfig(64, 64, 8, 2), {}, 132, 0.5)

    assert (parts(512), parts(128)) == (2, 4)


def test_few_rows_of_wide_values_have_fewer_parts():
    """32 programs of 16 rows: where a part stores as much as it reads in a step, one is on a multiprocessor at once."""

    def parts(width: int) -> int:
        term, output, order = attention(rows=16, columns=4096, batch=32, heads=1, width=width)
        (kernel,) = plan_stores([Store(term, output, order)]).kernels
        return wanted_chunks(kernel, of_few_rows(width, 2), {}, 132, 1.0)

    assert (parts(512), parts(256)) == (4, 8)
    assert (of_few_rows(512, 2).stages, of_few_rows(256, 2).stages) == (3, 2)


@pytest.mark.parametrize(
    "parts, width, tile, warps", [(4, 128, 4, 1), (3, 128, 4, 1), (8, 128, 8, 2), (4, 512, 4, 4), (2, 64, 2, 1)]
)
def test_states_are_merged_in_one_step_by_as_many_warps_as_have_work(parts, width, tile, warps):
    term, output, order = attention(rows=1, columns=4096, width=width)
    run = Launcher(plan_stores([Store(term, output, order)]), TritonConfig(16, 64, 4, 1, parts))
    (first, last), sizes = run._stages({}, torch.device("cpu"))
    found = run.config(last, sizes, torch.device("cpu"))
    assert last.name == f"{first.name.removesuffix('_parts')}_merged"
    assert (found.loop_tile, found.warps) == (tile, warps)


def test_loops_whose_length_is_data_are_shared_out():
    """One sequence of 65536 keys among short ones was on one program a head; 32 x 8 programs fill the device."""
    assert chunks_of(32, 65536) == 1
    assert chunks_of(32, 65536, lengths=True) == 16
    assert chunks_of(32, 16384, lengths=True) == 8, "2048 keys each"
    assert chunks_of(32, 2048, lengths=True) == 1
    assert chunks_of(1, 65536, lengths=True) == chunks_of(1, 65536) == 33, "more, where they fill the device"
    assert chunks_of(1024, 65536, lengths=True) == 1, "so many programs even out"
    assert chunks_of(32, 65536, rows=64, lengths=True) == 1, "rows enough to compute"


@pytest.mark.slow
def test_heads_that_share_keys_become_rows():
    captured = attention(1, 70, heads=8, groups=4)
    (kernel,) = plan_stores([Store(*captured)]).kernels
    assert kernel.rows.size == 4 and Dim("h_group", 2) in kernel.grid
    keys = next(t for t in subterms(kernel.result) if t.op == "load" and t.attrs[0].name == "k")
    assert kernel.rows not in keys.dims
    for parts in (2, 5):
        agree(captured, parts=parts)
    agree(attention(1, 70, heads=8, groups=8, bias=True))
    agree(attention(3, 70, heads=8, groups=4, batch=2, causal=True))


def test_kernels_that_are_not_read_back_as_the_whole_do_not_run_and_the_log_says_it(monkeypatch, caplog):
    caplog.set_level("INFO", split_loops.__name__)
    (kernel,) = plan_stores([Store(*attention(1, 77))]).kernels
    assert split_loops.split_to_run(kernel) is not None and not caplog.records
    found = split_loops.split_kernel(kernel)
    (store,) = found.last.stores
    wrong = replace(found, last=replace(found.last, stores=(replace(store, term=store.term + store.term),)))
    monkeypatch.setattr(split_loops, "split_kernel", lambda kernel: wrong)
    split_loops.split_to_run.cache_clear()
    assert split_loops.split_to_run(kernel) is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert kernel.name in said and "are not shared out over programs: it was not read back" in said
    split_loops.split_to_run.cache_clear()


def test_many_rows_stay_rows():
    (kernel,) = plan_stores([Store(*attention(40, 70, heads=8, groups=4))]).kernels
    assert str(kernel.rows) == "i"


def test_a_result_of_given_strides_is_written_by_groups():
    captured = attention(1, 40, heads=8, groups=4, value_width=16)
    plan = plan_stores([Store(*captured)])
    tensors = inputs_of(plan, {})
    names, given = list(tensors), list(tensors.values())
    (expected,) = tiled_results(plan, tensors)
    strides = (128, 16, 128, 1)  # [B, S, H, D] in memory
    (found,) = Launcher(plan, TritonConfig(16, 16, 4, 1)).bind(names, given, {}, {"out": strides})(given)
    assert found.stride() == strides
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("width", [1, 16, 80, 96, 128, 320, 512, 4096])
def test_tiles_of_few_rows_are_powers_of_two(width):
    tile = of_few_rows(width, 2).loop_tile
    assert 16 <= tile <= 128 and tile & (tile - 1) == 0


def test_a_dim_of_one_place_is_no_row_where_another_could_be():
    """Few sequences and values of another factor: with the one query as rows, all three were held and made a cube."""
    b, h, i, j, e = Dim("b", 2), Dim("h", 3), Dim("i", 1), Dim("j", 300), Dim("e", 16)
    part = load(Tensor("part", "float32", (2, 3, 1, 300)), iota(b), iota(h), iota(i), iota(j))
    up = load(Tensor("up", "float32", (3, 300, 16)), iota(h), iota(j), iota(e))
    made = sum_over(j, part * up), Tensor("out", "float32", (2, 3, 1, 16)), (b, h, i, e)
    (kernel,) = plan_stores([Store(*made)]).kernels
    assert kernel.rows.size > 1 and len({*kernel.held, kernel.rows}) == 2
    agree(made, tolerance=1e-4)


@pytest.mark.parametrize("name", ["plain", "causal", "a bias"])
def test_what_the_two_kernels_compute_is_the_whole_by_laws_and_not_at_samples(name, monkeypatch):
    """For all lengths and any chunks; nothing is left to compare in numbers."""
    options = {"plain": {}, "causal": {"causal": True}, "a bias": {"bias": True}}[name]
    (kernel,) = plan_stores([Store(*attention(5, 77, **options))]).kernels
    compared = []
    monkeypatch.setattr(check_plan, "demand_equal", lambda plan, pairs: compared.append(pairs))
    split_to_run.cache_clear()
    assert split_to_run(kernel) is not None and compared == [[]]
    assert str(split_to_run(kernel)).endswith("kernel0_merged merges by the law reduction_in_parts")
