"""A truth value that Gluon stores was written `(m == float("-inf")) == 0.to(gl.int1)`, which is no Python.

A backward may read such values of each row, here whether a row has a key, so that training fell back to plain Triton.
Found by random programs.
"""

from dataclasses import replace

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.training.plans import training
from tests.proofs.warps.test_gluon_interpreter import hold
from tests.support.on_hopper import hopper_texts, pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


def attend(q, k, v):
    score = q @ k.mT / 4
    return score.softmax(-1) @ v, score.logsumexp(-1)


def negated(store):
    """The store of the second of two truth values, which is a negation."""
    return replace(store, term=store.term.args[1]) if store.output.dtype == "bool" else store


@pytest.mark.parametrize("change", [negated, lambda store: store], ids=["a negation", "two"])
def test_truth_values_of_rows_are_stored(change, monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 300, 16).bfloat16() for _ in range(3)]
    found = compiled_region.make(program_of(attend, *given), Options())
    plan = training(found.text, [True] * 3).forward.plan
    assert "bool" in {output.dtype for output in plan.outputs}
    changed = (replace(kernel, stores=tuple(map(change, kernel.stores))) for kernel in plan.kernels)
    plan = replace(plan, kernels=tuple(changed))
    (one,) = texts = hopper_texts(plan, dict(zip(found.names, given, strict=True)), HopperConfig(loop_tile=64))
    (call,) = one.calls
    assert "def producer" in call.text and ".to(gl.int1)" in call.text
    assert (").to(gl.int1)" in call.text) == (change is negated)
    compile(call.text, "kernel", "exec")
    hold(texts)
