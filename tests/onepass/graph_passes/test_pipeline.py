"""The list of passes over a graph: its order, and that every module of the folder is in it."""

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.api import backend, graph_pass
from onepass.api.graph_pass import GraphPass
from onepass.compiler.options import Options
from onepass.graph_passes import pipeline, reduced_dims
from onepass.graph_passes.pipeline import PASSES, Stage
from tests.support.spellings import attend

ORDER = {
    Stage.PREPARE: (
        "inline_library_calls functionalize assign_behind_views detach_unrecorded float_inputs move_scalars size_calls "
        "checks specialize_sizes draw_seeds flatten_rows reduced_dims find_regions"
    ),
    Stage.REPLACE: "replace called_graphs",
    Stage.FINISH: "remove_seeds attach_unrecorded overlap_exchanges",
    Stage.INDUCTOR: "softmax_dims",
}
ELSEWHERE = {  # passes whose code is not in the module of their name
    "inline_library_calls": "onepass/regions/open_calls.py",
    "assign_behind_views": "onepass/graph_passes/index_assignment.py",
    "detach_unrecorded": "onepass/graph/grad_modes.py",
    "draw_seeds": "onepass/graph/random_calls.py",
    "find_regions": "onepass/regions/find.py",
    "remove_seeds": "onepass/graph/random_calls.py",
    "attach_unrecorded": "onepass/graph/grad_modes.py",
    "checks": "onepass/graph_passes/size_calls.py",
    "called_graphs": "onepass/graph_passes/pipeline.py",
    "flatten_rows": "onepass/regions/layer_rows.py",
    "overlap_exchanges": "onepass/regions/exchanges.py",
    "softmax_dims": "onepass/graph_passes/reduced_dims.py",
}
PARTS = {"index_assignment": "functionalize"} | dict.fromkeys(
    ("insert_call", "output_strides", "region_gradients"), "replace"
)
ROOT = Path(pipeline.__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    torch._dynamo.reset()


def ran(monkeypatch) -> list[str]:
    """A list that gets the name of every pass that runs."""
    names = []

    def noting(one):
        def run(graph, rewriting):
            names.append(one.name)
            one.run(graph, rewriting)

        return pipeline.FxPass(one.name, one.stage, run, one.guarantee)

    monkeypatch.setattr(pipeline, "PASSES", tuple(map(noting, PASSES)))
    return names


def names_of(*stages) -> list[str]:
    return " ".join(ORDER[stage] for stage in stages).split()


def tensors():
    return [torch.randn(2, 24, 16) for _ in range(3)]


def test_the_order():
    assert [one.name for one in PASSES] == names_of(*Stage)
    assert [one.stage for one in PASSES] == [stage for stage in Stage for _ in ORDER[stage].split()]
    assert all(one.guarantee for one in PASSES)


def test_every_module_is_a_pass_or_a_part_of_one():
    modules = {path.stem for path in Path(pipeline.__file__).parent.glob("*.py")} - {"__init__", "pipeline"}
    passes = {one.name for one in PASSES}
    assert modules == (passes - set(ELSEWHERE)) | set(PARTS)
    assert set(ELSEWHERE) <= passes and set(PARTS.values()) <= passes
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_imported_by_its_pass_alone(part):
    users = [p.stem for p in (ROOT / "onepass").rglob("*.py") if f"{part} import" in p.read_text()]
    lists = {"pipeline"} if part in {Path(path).stem for path in ELSEWHERE.values()} else set()
    assert set(users) <= {PARTS[part], *PARTS} | lists and PARTS[part] in users


def test_the_backend_runs_the_list(monkeypatch):
    names = ran(monkeypatch)
    torch.compile(attend, backend=backend.onepass_backend, options={"inner": "eager"})(*tensors())
    assert names == names_of(Stage.PREPARE, Stage.REPLACE, Stage.FINISH)


def test_a_dry_run_stops_before_the_end(monkeypatch):
    names, graph = ran(monkeypatch), make_fx(attend)(*tensors()).graph
    pipeline.rewrite(graph, Options.read({}), dry=True)
    assert names == names_of(Stage.PREPARE, Stage.REPLACE)


def test_the_inductor_pass_runs_the_list(monkeypatch):
    names, made = ran(monkeypatch), GraphPass()
    graph = make_fx(attend)(*tensors()).graph
    made(graph)
    assert names == names_of(*Stage)
    assert "softmax_dims" not in Path(graph_pass.__file__).read_text()


def test_inductors_hook_runs_the_last_pass(monkeypatch):
    calls = []
    monkeypatch.setattr(reduced_dims, "reduce_over_last_dims", calls.append)
    graph = torch.fx.Graph()
    reduced_dims.OverLastDims()(graph)
    assert calls == [graph]


def test_the_log_shows_the_graphs_that_a_pass_changed(caplog):
    with caplog.at_level("DEBUG", pipeline.__name__):
        torch.compile(attend, backend=backend.onepass_backend, options={"inner": "eager"})(*tensors())
    shown = [r.getMessage() for r in caplog.records if r.name == pipeline.__name__]
    (replaced,) = [text for text in shown if "the graph after replace:" in text]
    assert "onepass.region" in replaced and not any("after move_scalars" in text for text in shown)
