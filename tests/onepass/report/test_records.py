"""What a reader of a report is told where nothing is fused: the true reason, with file and line."""

import sys
from dataclasses import replace

import pytest
import torch

import onepass
from onepass.graph.reduced_products import LEAST_ELEMENTS
from onepass.report.records import Refused, Report

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 20, 16)


def line(function, offset: int = 0) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def weighted(scores, v):
    return torch.softmax(scores, -1) @ v


def projected(x, w):
    wide = torch.nn.functional.linear(x, w)
    return torch.softmax(wide, -1) @ x


def spread(x, v):
    scores = torch.cumsum(x, -1)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize(
    ("function", "shapes", "said", "offset"),
    [
        (weighted, [(2, 20, 20), (2, 20, 16)], "is scores, an input of this graph", 1),
        (projected, [(2, 16, 16), (16, 16)], "comes from linear at {0}, a product with weights", 2),
        (spread, [(2, 20, 20), (2, 20, 16)], "comes from cumsum at {0}, which onepass has no terms for", 2),
    ],
)
def test_what_a_reduction_reads_is_named_where_it_is_no_product(function, shapes, said, offset):
    found = onepass.explain(function, *map(torch.randn, shapes))
    (refused,) = found.refusals
    assert said.format(line(function, 1)) in refused.reason and refused.where == line(function, offset)
    assert "nothing to fuse" not in str(found) and refused.reason in str(found)


def summed(q, k, v):
    q, k = torch.relu(q), torch.relu(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None])


def mixed(x, first, second):
    return torch.softmax(x @ first, -1) @ second


def test_a_sum_without_weights_is_no_refusal():
    found = onepass.explain(summed, X, X, X)
    assert len(found.regions) == 1 and found.refusals == ()


def test_layers_are_said_to_be_layers():
    said = str(onepass.explain(mixed, X, torch.randn(16, 8), torch.randn(8, 16)))
    assert "nothing to fuse" in said and "one matrix for a whole batch, is a layer" in said
    assert "from 2^21 elements on" in said and LEAST_ELEMENTS == 2**21


def picked(q, k, v):
    places = (q @ k.mT).argmax(-1)
    return torch.nn.functional.one_hot(places, k.shape[-2]).to(v.dtype) @ v


def added_up(q, k, v):
    sums = torch.cumsum(torch.einsum("bsd,bse->bsde", k, v), 1)
    return torch.einsum("bsd,bsde->bse", q, sums)


def scaled_rows(q, k, v):
    weights = torch.nn.functional.normalize(torch.exp(q @ k.mT), p=1.0, dim=-1)
    return weights @ v


def gated(q, k, v):
    weights = torch.nn.functional.hardsigmoid(q @ k.mT)
    return weights @ v


UNKNOWN = [(picked, "argmax"), (added_up, "cumsum"), (scaled_rows, "normalize"), (gated, "hardsigmoid")]


@pytest.mark.parametrize(("function", "name"), UNKNOWN)
def test_an_unknown_operation_between_products_is_named(function, name):
    (refused,) = onepass.explain(function, X, X, X).refusals
    assert refused.reason.startswith(f"{name} stands between two contractions") and refused.where == line(function, 1)


def test_a_product_in_front_is_not_denied():
    def attend(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    found = onepass.explain(attend, X, X, X)
    assert len(found.regions) == 1 and found.refusals == () and found.breaks == ()


def interrupted(q, k, v):
    scores = q @ k.mT
    torch._dynamo.graph_break()
    return torch.softmax(scores, -1) @ v


def branching(q, k, v):
    scores = q @ k.mT
    if scores.max() > 3:
        scores = scores / 2
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize(
    ("function", "said"), [(interrupted, "torch._dynamo.graph_break()"), (branching, "a branch on a tensor's value")]
)
def test_a_graph_break_is_named_with_its_line_and_reason(function, said):
    found = onepass.explain(function, X, X, X)
    (ends,) = found.breaks
    assert found.graphs == 2 and said in ends.reason and ends.where == line(function, 2)
    assert f"graph break: {ends.where}" in str(found) and "breaks" in found.json()
    assert [r.kind for r in found.refusals] == ["no product before"]


def looping(q, k, v):
    for _ in range(2):
        scores = q @ k.mT
        torch._dynamo.graph_break()
        v = torch.softmax(scores, -1) @ v
    return v


def test_a_function_that_is_not_captured_says_why():
    found = onepass.explain(looping, X, X, X)
    if found.graphs:
        pytest.skip("this release of Dynamo captures graphs of a loop that breaks")
    assert found.graphs == 0 and "the function runs as Python" in str(found)
    assert found.breaks[0].where == line(looping) and "graph_break" in found.breaks[0].reason


def test_no_break_is_invented_for_a_function_without_tensors():
    found = onepass.explain(lambda x: 3, X)
    assert found.breaks == () and "no graph was captured" in str(found)


def test_the_compiled_function_reports_its_breaks_too():
    torch.compile(interrupted, backend=onepass.onepass_backend, options={"inner": "eager"})(X, X, X)
    places = [b for report in onepass.reports() for b in report.breaks]
    assert places and all(isinstance(b, Refused) and b.where == line(interrupted, 2) for b in places)


def test_a_module_of_torch_has_a_place():
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    (region,) = onepass.explain(attention, X, X, X).regions
    forward = torch.nn.MultiheadAttention.forward.__code__
    assert region.places == (f"{forward.co_filename}:{forward.co_firstlineno}",)
    assert forward.co_filename == sys.modules[torch.nn.MultiheadAttention.__module__].__file__


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "torch operations, tile by tile, or its original calls where they are faster (executor 'auto', from"),
        ({"libraries": False}, "torch operations, tile by tile (executor 'auto', from its first call)"),
        ({"executor": "tiled"}, "tiled: torch operations, tile by tile\n"),
        ({"executor": "triton"}, "Triton kernels under Triton's interpreter (TRITON_INTERPRET=1), else torch oper"),
    ],
)
def test_who_will_run_a_region_on_a_cpu(options, said):
    text = str(onepass.explain(attend, X, X, X, options=options))
    assert f"runs by     {said}" in text
    assert "on Hopper  " not in text and "elsewhere   on a Hopper GPU, plain Triton: its tensors are float32" in text


def test_tensors_without_memory_are_explained():
    large = torch.empty(4, 16, 65536, 64, dtype=torch.bfloat16, device="meta")
    found = onepass.explain(attend, large, large, large)
    assert found.failures == () and found.passes == (3, 1) and found.bytes[0] > 2**40
    assert "runs by     nothing runs here: tensors on meta" in str(found)


def test_who_ran_a_region():
    torch.compile(attend, backend=onepass.onepass_backend, options={"inner": "eager", "libraries": False})(X, X, X)
    (report,) = onepass.reports()
    assert "runs by     tiled: torch operations, tile by tile (executor 'auto')" in str(report)


def test_a_counterexample_says_each_variable_once():
    @onepass.rule
    def scaled_shift(x, c):
        """x / c = x · c"""
        return x / c, x * c

    text = str(onepass.check(scaled_shift))
    assert "[]" not in text and "left side:  x / c =" in text
    assert text.count("\nc = ") == 1 and text.count("\nx = ") == 1


def twice_and_not(q, k, v):
    return attend(attend(q, k, v), k, v) + picked(q, k, v)


def test_a_bare_report_is_one_line():
    found = onepass.explain(twice_and_not, X, X, X)
    where = f"test_records.py:{picked.__code__.co_firstlineno + 1}"
    said = f"2 fused, 1 left as written: argmax stands between two contractions ({where})"
    assert repr(found) == f"<Report: {said}>" and (found.fused, found.left) == (2, 1)
    assert str(found).startswith("Is it fused?          In part: 2 of 3 regions\n") and f"{found}" == str(found)
    region = found.regions[0]
    assert repr(region) == f"<RegionReport: {line(attend, 1)}, 1 kernel>"
    assert repr(replace(region, count=2, places=())) == "<RegionReport: (source line unknown) (2 times), 1 kernel>"


def test_a_bare_report_of_many_refusals_and_of_none_is_short():
    many = Report(refusals=tuple(Refused(f"reason {n}: more", "/a/b.py", n) for n in range(9)))
    assert repr(many) == (
        "<Report: 0 fused, 9 left as written: reason 0 (b.py:0); reason 1 (b.py:1); reason 2 (b.py:2); and 6 more>"
    )
    assert repr(Report()) == "<Report: nothing was found to fuse>"
    assert repr(Report(failures=("ValueError: no (b.py:3)",))) == (
        "<Report: 0 fused, 1 left as written: failed, ValueError: no (b.py:3)>"
    )


def test_a_notebook_shows_a_table_and_folds_the_text():
    found = Report(refusals=(Refused("a < b", "b.py", 1),))
    cell = found._repr_html_()
    assert cell.startswith("<p>0 fused, 1 left as written: a &lt; b (b.py:1)</p><details>") and "a < b" not in cell
    fused = onepass.explain(attend, X, X, X)._repr_html_()
    assert "<table>" in fused and "3 → 1" in fused and "<html" not in fused and fused.count("<details>") == 1
