"""Models of public libraries, unchanged: every attention is fused, and the answer is as near to float64 as eager's."""

from contextlib import suppress

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from tests.models.own import OWN
from tests.models.records import MODELS
from tests.support.waste import wasted_since_forgotten

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):

    process_state.forget("runners", "regions")
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    process_state.forget("reports")
    yield
    process_state.forget("reports")


def answers(model, kwargs):
    """The first output of eager in float64 or as near to it as it goes, of eager, and of the compiled model."""
    graphs = []

    def backend(graph, example_inputs):
        before = count(graph)
        made = onepass_backend(graph, example_inputs, options={"inner": "eager"})
        graphs.append((before, count(graph)))
        return made

    with torch.no_grad():
        eager = model(**kwargs)[0]
        fused = torch.compile(model, backend=backend)(**kwargs)[0]
    return _wider(model, kwargs, eager), eager, fused, graphs


def _wider(model, kwargs, eager):
    """The first output in float64; where a model's experts know no such products, in float32."""
    for dtype in (torch.float64, torch.float32):
        wide = {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in kwargs.items()}
        with suppress(RuntimeError), torch.no_grad():
            return model.to(dtype)(**wide)[0].double()
    return eager.double()


def as_near(fused, eager, exact) -> bool:
    """Finite where eager is, and as near to float64: a few times eager's error, and what orders of additions lose.

    Rows that float64 makes NaN (two fills of its least number added) say nothing.
    """
    known = exact.isfinite()
    own, size = (eager - exact)[known].abs().max(), exact[known].abs().max()
    near = (fused - exact)[known].abs().max() <= 4 * own + 1e-6 * size
    return bool(near and torch.equal(fused.isfinite(), eager.isfinite()))


def count(graph) -> dict[str, int]:
    """How often each module-level operation that no attention needs occurs."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return {name: names.count(name) for name in names if any(w in name for w in ("linear", "layer_norm", "embedding"))}


def undisturbed(before: dict[str, int], after: dict[str, int]) -> bool:
    """What no attention needs is there as often as before; a table of biases may be read in the kernel."""
    gone = {name: times - after.get(name, 0) for name, times in before.items()}
    fewer = all(n == 0 or (n > 0 and "embedding" in name) for name, n in gone.items())
    return fewer and not after.keys() - before.keys()


@pytest.mark.slow
@pytest.mark.parametrize("record", (*MODELS, *OWN), ids=str)
def test_every_attention_is_fused_and_nothing_else_is_disturbed(record):
    exact, eager, fused, graphs = answers(record.build(), record.inputs())
    reports = onepass.reports()
    assert sum(region.count for report in reports for region in report.regions) == record.attentions
    assert [r.reason for report in reports for r in report.refusals] == []
    assert [f for report in reports for f in report.failures] == []
    assert [n for report in reports for region in report.regions for n in region.notes] == []
    assert all(undisturbed(before, after) for before, after in graphs)
    assert as_near(fused, eager, exact) and not wasted_since_forgotten()
