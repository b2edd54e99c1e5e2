"""The four questions of a report: their answers are one source for the text, the page and JSON."""

import json
from dataclasses import replace

import pytest
import torch

import onepass
from onepass.page.page import page
from onepass.report.records import RECOMPUTES, Refused, Report
from onepass.wording import answers as module
from onepass.wording.answers import Speed, answers, milliseconds, speed_of

QUESTIONS = ("Is it fused?", "Why not?", "How much faster?", "What runs on my GPU?")


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def refused(q, k, v):
    return torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v


def both(q, k, v):
    return refused(attend(q, k, v), k, v)


def nothing(q, k, v):
    return q + k + v


def broken(q, k, v):
    scores = q @ k.mT
    torch._dynamo.graph_break()
    return torch.softmax(scores, -1) @ v


def broken_behind(q, k, v):
    result = attend(q, k, v)
    torch._dynamo.graph_break()
    return result + 1


FUNCTIONS = {f.__name__: f for f in (attend, refused, both, nothing, broken, broken_behind)}


@pytest.fixture(scope="module")
def reports():
    torch._dynamo.reset()
    inputs = [torch.randn(2, 80, 16) for _ in range(3)]
    return {name: onepass.explain(function, *inputs) for name, function in FUNCTIONS.items()}


FIRST = {"attend": "Yes: 1 region", "refused": "No: 1 region left as written", "both": "In part: 1 of 2 regions"}
FIRST |= {"broken_behind": "Yes: 1 region"}
FIRST |= {"broken": "No: 1 region left as written", "nothing": "No: nothing was found to fuse"}
TONES = {"attend": "good", "refused": "bad", "both": "part", "nothing": "bad", "broken": "bad", "broken_behind": "good"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_text_page_and_json_have_the_same_answers(name, reports):
    report = reports[name]
    found = report.answers
    assert tuple(one.question for one in found) == QUESTIONS and found == answers(report)
    assert found[0].tone == TONES[name]
    text, html = str(report).splitlines(), page(report)
    escaped = lambda said: said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    expected = []
    for one in found:
        expected += [f"{one.question:22}{one.answer}", *(" " * 22 + line for line in one.lines)]
        assert f'<p class="said">{escaped(one.answer)}</p>' in html
        assert all(f"<li>{escaped(line)}</li>" in html for line in one.lines)
    assert text[: len(expected)] == expected
    written = json.loads(report.json())["answers"]
    assert [w["answer"] for w in written] == [one.answer for one in found]
    assert [tuple(w["lines"]) for w in written] == [one.lines for one in found]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_why_not_is_said_with_places(name, reports):
    why = reports[name].answers[1]
    assert (why.answer == "All that was found is fused") == (name == "attend")
    said = "\n".join(why.lines)
    assert ("cumsum" in said) == (name in ("refused", "both"))
    assert ("there is nothing to fuse" in said) == (name == "nothing")
    assert ("graph break at test_answers.py:" in said) == name.startswith("broken")
    assert (why.answer == "See below what to change") == (name in ("refused", "both", "broken"))
    assert reports[name].answers[0].answer == FIRST[name]


def test_where_all_is_fused_nothing_asks_for_a_change(reports):
    broken = reports["broken_behind"]
    assert broken.answers[1].answer == "All that was found is fused; 1 graph break may hide more"
    assert answers(replace(broken, breaks=broken.breaks * 2))[1].answer.endswith("; 2 graph breaks may hide more")
    (region,) = reports["attend"].regions
    found = answers(replace(broken, regions=(replace(region, backward=f"{RECOMPUTES}a reason: more", count=2),)))[1]
    assert found.answer == "The original calls run the backward of 2 regions"
    assert found.lines[-1] == "only the forward is fused: a reason"


def test_many_reasons_are_cut_and_say_so():
    why = answers(Report(refusals=tuple(Refused(f"reason {n}: more", "/a/b.py", n) for n in range(9))))[1]
    assert why.lines == (*(f"reason {n} (b.py:{n})" for n in range(4)), "…")


def test_times_are_of_all_occurrences(reports):
    (region,) = reports["attend"].regions
    once, twice = speed_of(region), speed_of(replace(region, count=2))
    assert once.fused > 0 and twice.fused == pytest.approx(2 * once.fused)
    assert twice.times == pytest.approx(once.times)
    assert speed_of(replace(region, bytes=(None, None))).times is None
    assert speed_of(replace(region, data=None)) == Speed(None, None)


def test_a_time_that_cannot_be_estimated_is_left_out_alone(reports, monkeypatch):
    monkeypatch.setattr(module, "_seconds", lambda region: None)
    faster = answers(reports["attend"])[2]
    assert faster.answer == "3 passes become 1" and faster.lines[-1].startswith("no time is estimated")
    monkeypatch.undo()
    (region,) = reports["attend"].regions
    spoiled = replace(region, data=replace(region.data, plan=None))
    assert speed_of(spoiled).fused is None
    assert "no time is estimated" in str(replace(reports["attend"], regions=(spoiled,)))


def test_no_gain_is_called_none(reports, monkeypatch):
    monkeypatch.setattr(module, "_seconds", lambda region: 1.0)
    faster = answers(reports["attend"])[2]
    assert faster.answer == "Not known: the estimates do not decide it at these sizes" and faster.tone == "part"
    assert faster.lines[-1] == "all of what eager takes is not estimated, and nothing was measured"
    assert milliseconds(2.5e-3) == "2.5 ms" and milliseconds(1e-9) == "under 0.001 ms"
