"""What the report says of a derived backward."""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training
from onepass.training.report import backward_line, gradients_report, tangents_report
from onepass.training.tangent_plans import tangent_plan

pytestmark = pytest.mark.usefixtures("fresh")


def text_of(function):
    tensors = [torch.randn(2, n, 16) for n in (600, 700, 700)]
    return compiled_region.make(program_of(function, *tensors), Options()).text


def said(function):
    return backward_line(training(text_of(function), [True] * 3))


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def test_kernels_and_saved_values_are_named():
    first, *kernels = said(softmax).splitlines()
    *parts, repeats = first.split("; ")
    assert parts == ["derived, 3 kernels", "saves log float32[h, i]", "reads the result output"]
    assert repeats == "deterministic, unless a GPU joins two kernels"
    names = {line.partition(";")[0].partition(": ")[2] for line in kernels}
    assert names == {"grad_q", "part0 (a part)", "grad_v, grad_k"}
    assert any(line.endswith("rows j, loops over i_0") for line in kernels)


def test_nothing_saved_is_said():
    first = said(lambda q, k, v: torch.sigmoid(q @ k.mT) @ v).splitlines()[0]
    assert "saves nothing" in first and "reads" not in first


def test_gradients_in_full():
    made = training(text_of(softmax), [True] * 3)
    found = gradients_report(made, {})
    assert [name for name, _ in found.forms] == ["q", "k", "v"]
    assert dict(found.forms)["v"] == "Σ_i grad_output[h, i, e] · exp(Σ_d q[h, i, d] · k[h, j, d] - log[h, i])"
    assert {"exponential_of_shift", "quotients_divide", "divisor_out_of_sum"} <= {step.rule for step in found.rules}
    assert not any(step.rule.startswith("saved") or step.trusted for step in found.rules)
    assert ("exp(x): g · exp(x)", 1) in found.rows and ("Σ_j x: g for each element", 3) in found.rows
    assert {s.name: (s.dims, s.bytes, s.is_result) for s in found.saved} == {
        "log": (("h", "i"), 4 * 2 * 600, False),
        "output": (("h", "i", "e"), 4 * 2 * 600 * 16, True),
    }
    assert found.equations[0].endswith("= exp(log[h, i]) (shown, for rows that keep an element)")
    assert sorted(len(kernel.products) for kernel in found.kernels) == [0, 3, 4]
    stored = {name: kernel.loops for kernel in found.kernels for name in kernel.stores}
    assert stored["grad_k"] == stored["grad_v"] == ("i_0",) and stored["grad_q"] == ("j_0",)
    assert found.deterministic == "deterministic, unless a GPU joins two kernels" and found.assumptions
    assert found.between[0].startswith("part0[h, i_0] is stored between kernels by the law read_of_stored: it ")
    assert f"between     {found.between[0]}" in str(found)
    derivatives, log, *of_plan = found.certificates
    assert [c["of"] for c in of_plan] == [f"grad_{name} as the plan computes it" for name in "qk"]
    assert derivatives["derivatives"]["mode"] == "gradients" and log["of"] == "log" and log["derivation"]["steps"]


def test_tangents_in_full():
    text = text_of(softmax)
    found = tangents_report(text, tangent_plan(text, [True, False, True]))
    assert [name for name, _ in found.forms] == ["output"] and "tangent_k" not in found.forms[0][1]
    (kernel,) = found.kernels
    assert len(kernel.products) == 5 and len(kernel.loops) == 1 and "tangent_output" in kernel.stores
    assert found.saved == () and found.deterministic == "deterministic"
    assert [c.get("of", "") for c in found.certificates] == ["", "tangent_output"]


def test_why_they_are_not_derived():
    text = text_of(lambda q, k, v: (q @ k.mT).amax(-1, keepdim=True) * v.sum(-2, keepdim=True))
    found = gradients_report(training(text, [True] * 3), {})
    assert "max" in found.why_not and found.forms == found.kernels == found.certificates == ()
    assert str(found) == f"gradients   not derived, the original calls compute them: {found.why_not}"
    assert "max" in tangents_report(text, tangent_plan(text, [True] * 3)).why_not
