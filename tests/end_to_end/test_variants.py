"""Every variant through the backend: as near to float64 as eager is, in as many kernels and passes as its record says.

ONEPASS_SPELLINGS=1 runs every spelling of every variant; otherwise each variant's first function runs.
"""

import os

import pytest
import torch
from torch import fx

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.op_kinds import kind_of, name_of
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.report import records
from onepass.translate.translate import translate
from tests.docs import gallery
from tests.support.waste import wasted_since_forgotten
from tests.variants import every, heads

HEAVY = ("contraction", "attention", "reduction", "layer")
MOVING = ("cat", "stack", "pad")
RECORDS = every()
CASES = [(v, f) for v in RECORDS for f in (v.functions if os.environ.get("ONEPASS_SPELLINGS") else v.functions[:1])]


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Reports as in a new process: one that is kept has the names of whoever came first."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    process_state.forget("runners", "regions")


def tuples(result):
    return result if isinstance(result, tuple) else (result,)


def left_outside(graph: fx.Graph) -> tuple[str, ...]:
    """What the graph still reduces, multiplies or concatenates besides the fused regions."""
    calls = [n for n in graph.nodes if n.op in ("call_function", "call_method")]
    return tuple(sorted(name_of(n) for n in calls if kind_of(n) in HEAVY or name_of(n) in MOVING))


def compiled(function, inputs):
    """The results, what is left outside of kernels, and the report."""
    torch._dynamo.reset()
    process_state.forget("reports")
    left = []

    def backend(module, example_inputs):
        made = onepass_backend(module, example_inputs, options={"inner": "eager", "executor": "tiled"})
        left.extend(left_outside(module.graph))
        return made

    with torch.no_grad():
        results = torch.compile(function, backend=backend)(*inputs)
    (found,) = records.reports()
    return tuples(results), tuple(left), found


@pytest.mark.sampled(24)
@pytest.mark.parametrize("variant, function", CASES, ids=[f"{v.name}: {f.__name__}" for v, f in CASES])
def test_variant(variant, function):
    torch.manual_seed(0)
    inputs = variant.inputs()
    results, left, found = compiled(function, inputs)
    exact = tuples(function(*(x.double() if x.is_floating_point() else x for x in inputs)))
    eager = tuples(function(*inputs))
    for result, wanted, own in zip(results, exact, eager, strict=True):
        assert torch.equal(result.isnan(), wanted.isnan())
        error, allowed = ((x.double() - wanted).nan_to_num().abs().max().item() for x in (result, own))
        assert error <= 2 * allowed + 1e-5 * max(1.0, wanted.nan_to_num().abs().max().item())
    assert not found.failures and not wasted_since_forgotten()
    if function is variant.function:  # docs/gallery.md is stale where this fails: make gallery
        page = gallery.PAGE.read_text(encoding="utf-8")
        assert gallery.row(variant, found) in page.splitlines()
        assert f"\n{gallery.section(variant, found)}\n#" in page
    if variant.refused:
        assert [r for r in found.refusals if variant.refused in r.reason] or not found.regions
        return
    assert not found.refusals and left == variant.outside
    assert [(len(r.kernels), r.passes[1]) for r in found.regions] == [(variant.kernels, variant.passes)]


BY_NAME = {v.name: v for v in RECORDS}
LENGTHS = ((40, 41), (300, 37), (7, 300))
DYNAMIC = {
    "attention sink": lambda rows, columns: [*heads(2, rows=rows, columns=columns), torch.randn(2)],
    "two key sets": lambda rows, columns: [*heads(2, rows=9, columns=rows), *heads(2, columns=columns)[1:]],
    "log-sum-exp beside the output": lambda rows, columns: heads(2, rows=rows, columns=columns),
    "weights beside the output": lambda rows, columns: heads(2, rows=rows, columns=columns),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DYNAMIC)
def test_one_kernel_serves_every_length(name):
    variant, kernels = BY_NAME[name], []

    def backend(module, example_inputs):
        made = onepass_backend(module, example_inputs, options={"inner": "eager", "executor": "tiled", "strict": True})
        kernels.extend(len(r.kernels) for r in records.reports()[-1].regions)
        return made

    torch._dynamo.reset()
    process_state.forget("reports")
    fast = torch.compile(variant.function, backend=backend)
    for lengths in LENGTHS:
        inputs = DYNAMIC[name](*lengths)
        for x in (x for x in inputs if x.dim() == 4 and x.shape[2] in lengths):
            torch._dynamo.mark_dynamic(x, 2)
        with torch.no_grad():
            results = tuples(fast(*inputs))
        for result, wanted in zip(results, tuples(variant.function(*inputs)), strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    assert kernels == [variant.kernels]


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="without a GPU it needs Triton's interpreter")
@pytest.mark.parametrize("name", [*DYNAMIC, "invariant points", "two values under one softmax", "differential"])
def test_every_result_of_the_emitted_kernels(name):
    torch.manual_seed(0)
    inputs = [x[..., :40, :] if x.dim() == 4 and x.shape[2] > 40 else x for x in BY_NAME[name].inputs()]
    program = program_of(BY_NAME[name].function, *inputs)
    plan = optimize_all(translate(program).results).plan
    named = {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}
    for result, oracle in zip(Launcher(plan).results(named, {}), tiled_results(plan, named), strict=True):
        torch.testing.assert_close(result, oracle, rtol=1e-4, atol=1e-5)


def test_names_are_unique_and_sources_are_there():
    assert len({v.name for v in RECORDS}) == len(RECORDS)
    assert all("def " in v.source or "lambda" in v.source for v in RECORDS)
