"""Schedules over time as SVG: boxes lie where their times say, the axis is true behind a cut, nothing breaks out."""

import re
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import pytest

from onepass.lowering.cost.timeline import Box, Timeline, timelines
from onepass.page.timeline_svg import AXIS, GAP, KINDS, LANE, microseconds, timeline_view, words
from tests.support.gluon_ahead_of_time import plan_of

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def found():
    plan = plan_of("full", 64, rows=4096, columns=4096)
    (one,) = timelines(plan, plan.kernels[0])
    return one


def parsed(timeline):
    return ElementTree.fromstring(timeline_view(timeline).svg)


def groups(root):
    return [(g.get("class"), g.find("title").text, g.find("rect")) for g in root.findall("g")]


def test_each_box_lies_where_its_times_say(found):
    root = parsed(found)
    drawn = groups(root)
    assert len(drawn) == len(found.boxes) > 20
    scale = (float(root.get("width")) - 2) / found.end
    for box, (kind, _, rect) in zip(found.boxes, drawn, strict=True):
        assert kind == box.kind in KINDS
        assert float(rect.get("x")) == pytest.approx(box.start * scale, abs=1)
        assert float(rect.get("width")) == pytest.approx((box.end - box.start) * scale, abs=1)
        assert float(rect.get("y")) == AXIS + found.lanes.index(box.lane) * (LANE + GAP)
    assert float(root.get("height")) == AXIS + len(found.lanes) * (LANE + GAP)


def test_the_picture_has_words_for_those_who_do_not_see_it(found):
    root, view = parsed(found), timeline_view(found)
    assert "Schedule of kernel0 over j over time, estimated for an H200" in root.find("title").text
    assert all(lane in root.find("desc").text for lane in found.lanes) and root.get("role") == "img"
    assert {row[0] for row in view.rows} == {lane for lane in found.lanes if lane != "stores"}
    assert view.spent[-1] == ("all", microseconds(found.seconds)) and len(view.spent) > 3
    said = " ".join(view.notes)
    assert f"{found.steps} steps of {microseconds(found.step)}" in said and "not measured" in said
    assert f"{found.left_out} like the third are left out" in said and found.settings in said


def test_behind_the_cut_times_and_steps_are_the_items_own(found):
    assert found.left_out > 0
    shift = found.left_out * found.step
    for box, (_, title, _) in zip(found.boxes, groups(parsed(found)), strict=True):
        behind = box.start >= found.cut
        step = box.step + 1 + found.left_out * behind
        assert title.startswith(f"step {step}, {box.lane}: ")
        assert title.endswith(f"to {microseconds(box.end + shift * behind)}")
    last = max(int(title.split()[1].rstrip(",")) for _, title, _ in groups(parsed(found)))
    assert last == found.steps
    ticks = [float(t.text.split()[0]) for t in parsed(found).findall("text") if t.get("class") == "tick"]
    assert ticks == sorted(ticks) and ticks[0] == 0 and ticks[-1] > shift * 1e6
    (cut,) = [t.text for t in parsed(found).findall("text") if t.get("class") == "cut"]
    assert cut == f"{found.left_out} steps left out"


def test_a_short_item_has_no_cut():
    plan = plan_of("full", 64, rows=256, columns=256)
    (one,) = timelines(plan, plan.kernels[0])
    assert "left out" not in timeline_view(one).svg and 'class="cut"' not in timeline_view(one).svg


@dataclass(frozen=True)
class Labelled:
    """A box of which only the label counts."""

    label: str


def test_words_are_short_and_numbered_only_where_there_are_several():
    named = words(map(Labelled, ["load k", "product 0", "weight 0", "rescale 0.0", "accumulate 0.0", "accumulate 1.1"]))
    assert named == {
        "load k": "k", "product 0": "product", "weight 0": "weights", "rescale 0.0": "rescale",
        "accumulate 0.0": "sum 0.0", "accumulate 1.1": "sum 1.1",
    }  # fmt: skip
    assert words([Labelled("results of warpgroup 1")]) == {"results of warpgroup 1": "results of warpgroup 1"}


def test_times_have_three_digits():
    said = {0.0: "0 µs", 1.2345e-6: "1.23 µs", 12.345e-6: "12.3 µs", 5e-10: "0.0005 µs", 1e-3: "1000 µs"}
    assert {seconds: microseconds(seconds) for seconds in said} == said


def test_nothing_breaks_out(found):
    boxes = tuple(replace(box, label=f"load {HOSTILE}", lane=HOSTILE) for box in found.boxes)
    view = timeline_view(replace(found, title=HOSTILE, device=HOSTILE, lanes=(HOSTILE,), boxes=boxes))
    assert "<script" not in view.svg and not re.search(r"<(?!/?(svg|title|desc|rect|path|text|g)\b)", view.svg)
    ElementTree.fromstring(view.svg)


def test_why_there_is_none_is_said():
    view = timeline_view(Timeline("kernel0", "H200", spent=(("launch", 1e-6),), why_not="it has no loop"))
    assert view.why_not == "it has no loop" and not view.svg and view.spent[-1] == ("all", "1.00 µs")


def test_a_box_without_time_is_seen():
    box = Box("copies", "copy", "load k", 0, 0.0, 0.0)
    later = Box("copies", "copy", "load k", 0, 0.0, 1e-6)
    one = Timeline("kernel0", "H200", lanes=("copies",), boxes=(box, later), step=1e-6, steps=1)
    assert 'width="0.5"' in timeline_view(one).svg
