"""A whole report as text: what comes first, what is only said where it is asked for, and that nothing is lost."""

import json
from dataclasses import replace

import pytest
import torch

import onepass
from onepass.lowering.stage_times import shown
from onepass.report.records import Refused, Report
from onepass.wording.report_text import report_lines

ENGINE = {"planned", "shape", "plan", "search", "cache"}


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """As in a new process with an empty cache: a search that another test has done is not done again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch._dynamo.reset()
        onepass.process_state.forget()
        return onepass.explain(attend, *(torch.randn(1, 2, 300, 64, dtype=torch.bfloat16) for _ in range(3)))


def labels(lines):
    return {line[2:14].strip() for line in lines if line.startswith("  ") and line[2:3] != " "}


def test_the_engines_own_is_said_where_it_is_asked_for_and_nothing_else_changes(report):
    short, long = str(report).splitlines(), report.text(verbose=True).splitlines()
    assert labels(long) - labels(short) == ENGINE and set(short) < set(long)
    settings = [line for line in long if line.strip().startswith(("turns", "consumers", "late"))]
    assert settings and not any(line in short for line in settings)
    (region,) = report.regions
    assert str(region).splitlines() == [line[2:] for line in short[short.index("region 1") + 1 :]]
    assert region.text(verbose=True).splitlines() == [line[2:] for line in long[long.index("region 1") + 1 : -2]]
    assert long[-2:] == ["", f"seconds of the compilation: {shown(report.seconds)}"] and "search" in report.seconds


def test_what_is_not_printed_is_in_json(report):
    (written,) = json.loads(report.json())["regions"]
    (region,) = report.regions
    assert written["statistics"]["stop"] == region.statistics["stop"] and written["cache"] == region.cache
    assert written["plan_check"] == region.plan_check and "consumers" in written["kernels"][0]["form"]
    long = report.text(verbose=True)
    assert region.cache in long and region.plan_check in long and all(name in long for name in region.statistics)


def test_what_is_left_follows_the_regions(report):
    left = Refused("a reason", "model.py", 3)
    made = replace(report, refusals=(left,), failures=("ValueError: no",), breaks=(left,), title="of another")
    lines = [*report_lines(made)]
    heads = ("\nleft as written", "\nfailed inside", "\ngraph break:")
    places = [n for n, line in enumerate(lines) if line.startswith(heads)]
    assert len(places) == 3 and min(places) > lines.index("\nregion 1") > lines.index("\nof another") > 3


def test_a_report_of_nothing_has_its_answers_alone():
    assert [line for line in str(Report()).splitlines() if line[:1] != " "] == [
        "Is it fused?          No: nothing was found to fuse",
        "Why not?              There is nothing",
        "How much faster?      Nothing changes",
        "What runs on my GPU?  What PyTorch runs without onepass",
    ]


def test_a_notebook_has_everything(report):
    cell = report._repr_html_()
    assert "search   " in cell and "Is it fused?" in cell and "<table>" in cell
