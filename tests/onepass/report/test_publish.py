"""What torch's own logs, traces and warnings say of a compiled graph."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.lowering import stage_times
from onepass.report import publish

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 20, 16)
PROGRAM = """
import torch
def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v
def added_up(q, k, v):
    return attend(q, k, v) + torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v
x = torch.randn(2, 20, 16)
torch.compile(added_up, backend="onepass", options={"inner": "eager"})(x, x, x)
"""


class First(torch.nn.Module):
    def forward(self, q):
        return torch.softmax(q @ q.mT, -1) @ q


class Second(torch.nn.Module):
    def forward(self, q):
        return torch.softmax(torch.cumsum(q @ q.mT, -1), -1) @ q


def fused_then_not(q):
    first = torch.softmax(q @ q.mT, -1) @ q
    torch._dynamo.graph_break()
    return torch.softmax(torch.cumsum(first @ q.mT, -1), -1) @ q


def compiled(function):
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager"})


def said(caplog, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.name == publish.__name__]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "onepass")
    return caplog


def test_each_graph_has_a_line_and_each_region_one_for_debugging(log):
    compiled(Second())(X)
    (line,) = said(log, logging.INFO)
    place = f"test_publish.py:{Second.forward.__code__.co_firstlineno + 1}"
    assert line.startswith("onepass: forward (test_publish.py:")
    assert f": 0 fused, 1 left as written: cumsum stands between two contractions ({place}). Way out: " in line
    (region,) = said(log, logging.DEBUG)
    assert region.startswith(f"onepass: left as written at {__file__}:") and "no kernel is derived" in region


def test_the_seconds_of_each_stage_are_logged_and_reported(log, monkeypatch):
    took = iter(range(10**6))
    monkeypatch.setattr(stage_times.time, "perf_counter", lambda: next(took))  # each look at the clock is a second
    compiled(First())(X)
    found = onepass.reports()[-1]
    assert {"capture", "search", "certificates", "plan", "rewriting", "backend"} <= found.seconds.keys()
    (line,) = [r.getMessage() for r in log.records if "seconds of the compilation" in r.getMessage()]
    assert all(f"{name} {seconds:.3f} s" in line for name, seconds in found.seconds.items())
    assert line.partition("compilation: ")[2] in found.text(verbose=True)
    assert "first run" in found.regions[0].seconds and "seconds     of its first runs: " in found.text(verbose=True)
    torch._dynamo.reset()
    compiled(First())(X)
    assert "search" not in onepass.reports()[-1].seconds
    assert any("known in this process" in text for text in said(log, logging.DEBUG))


def test_a_function_of_which_nothing_is_fused_gives_one_warning(log):
    for _ in range(2):
        torch._dynamo.reset()
        compiled(Second())(X)
    (warning,) = said(log, logging.WARNING)
    assert "nothing is fused in forward" in warning and "cumsum stands between" in warning and "Way out: " in warning


@pytest.mark.parametrize("function", [First(), fused_then_not, torch.relu])
def test_other_functions_give_none(log, function):
    compiled(function)(X)
    assert said(log, logging.WARNING) == [] and said(log, logging.INFO)


def test_a_module_does_not_vouch_for_another_of_the_same_file(log):
    compiled(First())(X)
    compiled(Second())(X)
    assert len(said(log, logging.WARNING)) == 1


def test_what_follows_a_break_is_of_the_same_function(log):
    compiled(fused_then_not)(X)
    first, rest = said(log, logging.INFO)
    name = f"onepass: fused_then_not (test_publish.py:{fused_then_not.__code__.co_firstlineno}): "
    assert first == f"{name}1 fused" and rest.startswith(f"{name}0 fused, 1 left")


def test_a_graph_without_a_function_is_published(log):
    onepass.GraphPass()(torch.fx.symbolic_trace(First()).graph)
    assert said(log, logging.INFO)[0].startswith("onepass: a graph: ")


@pytest.fixture(scope="module")
def in_a_process(tmp_path_factory):
    """What a process with TORCH_LOGS=onepass prints, and the records of its TORCH_TRACE with their payloads."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "program.py").write_text(PROGRAM)
    (trace := folder / "trace").mkdir()
    own = {"TORCH_LOGS": "onepass", "TORCH_TRACE": str(trace), "ONEPASS_CACHE": str(folder / "cache")}
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "import onepass, runpy; runpy.run_path('program.py')"]
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **own, **path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr, "".join(file.read_text() for file in trace.iterdir())


@pytest.mark.slow
def test_torchs_logs_show_a_line_for_each_graph(in_a_process):
    lines = [line for line in in_a_process[0].splitlines() if "onepass: " in line]
    assert len(lines) == 1 and "added_up (program.py:5): 1 fused, 1 left as written: cumsum" in lines[0]


def test_torchs_trace_has_the_report_as_an_artifact(in_a_process):
    lines = in_a_process[1].splitlines()
    (number,) = [n for n, line in enumerate(lines) if publish.ARTIFACT in line]
    record = json.loads(lines[number][lines[number].index("{") :])
    assert record["artifact"] == {"name": publish.ARTIFACT, "encoding": "string"} and record["has_payload"]
    assert "frame_id" in record and lines[number + 1] == "\tIs it fused?          In part: 1 of 2 regions"
    assert any(line.startswith("\t  search  ") for line in lines)


def test_the_line_has_the_way_out_of_the_first_that_is_left(log):
    compiled(fused_then_not)(X)
    lines = said(log, logging.INFO)
    assert "1 fused" in lines[0] and "Way out" not in lines[0]
    assert "0 fused, 1 left as written" in lines[1] and "Way out: " in lines[1] and "#op201" in lines[1]


def test_a_module_of_torch_is_not_called_by_the_name_of_its_wrapper(log):
    compiled(torch.nn.Sequential(First()))(X)
    assert said(log, logging.INFO) == ["onepass: a module or function of torch: 1 fused"]


def test_the_debug_folder_has_the_text_of_every_stage(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_DEBUG_DIR", str(tmp_path / "made"))
    compiled(First())(X)
    (stages,) = (tmp_path / "made").glob("stages-*.txt")
    text = stages.read_text(encoding="utf-8")
    heads = [line.removeprefix("--- ") for line in text.splitlines() if line.startswith("--- ")]
    assert heads[0] == "graph as captured" and heads[-1].startswith("report of forward (test_publish.py:")
    assert {"plan after kernels/build_loops", "graph after replace"} < {*heads}
    assert "softmax" in text and "rescale_sum" in text and "stages" not in text
    assert [path.suffix for path in (tmp_path / "made").glob("kernel*")] == [".py"]


def test_a_debug_folder_that_cannot_be_made_stops_nothing(monkeypatch, tmp_path, log):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONEPASS_DEBUG_DIR", str(tmp_path / "file" / "below"))
    torch.testing.assert_close(compiled(First())(X), First()(X))
    assert onepass.reports()[-1].fused == 1 and sum("$ONEPASS_DEBUG_DIR cannot be used" in m for m in log.messages) == 1
