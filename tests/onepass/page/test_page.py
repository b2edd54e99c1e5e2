"""The page of a report: what it says of each family of programs, that it is small, escaped, whole and can be read."""

import base64
import json
import logging
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import onepass
from onepass.compiler.certificate_files import verify
from onepass.messages import UNKNOWN_BETWEEN
from onepass.page import page as module
from onepass.page import region_view
from onepass.page.page import MAX_BYTES, page
from onepass.report.records import Refused, Report
from tests.variants import every

Q, K, V = (torch.randn(2, 80, 16) for _ in range(3))
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"
EMPTY_ELEMENTS = {"meta", "br", "path", "link", "input", "img", "hr"}


def plain(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def causal(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT).masked_fill(~keep, float("-inf")), -1) @ v


def window(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    return torch.softmax(torch.where((j <= i) & (i - j < 20), q @ k.mT, float("-inf")), -1) @ v


def by_documents(q, k, v, documents):
    same = documents[:, None] == documents[None]
    return torch.softmax((q @ k.mT).masked_fill(~same, float("-inf")), -1) @ v


def refused(q, k, v):
    return torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v


def broken(q, k, v):
    scores = q @ k.mT
    torch._dynamo.graph_break()
    return torch.softmax(scores, -1) @ v


def several(q, k, v):
    return refused(causal(plain(q, k, v), k, v), k, v)


def nothing(q, k, v):
    return q + k + v


DOCUMENTS = torch.arange(80) // 16
FAMILIES = {
    "plain": (plain, (Q, K, V), {}),
    "causal": (causal, (Q, K, V), {}),
    "window": (window, (Q, K, V), {}),
    "data": (by_documents, (Q, K, V, DOCUMENTS), {}),
    "refused": (refused, (Q, K, V), {}),
    "break": (broken, (Q, K, V), {}),
    "several": (several, (Q, K, V), {}),
    "training": (plain, (Q, K, V), {"gradients": True}),
    "nothing": (nothing, (Q, K, V), {}),
}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    torch._dynamo.reset()
    return {name: onepass.explain(f, *inputs, **options) for name, (f, inputs, options) in FAMILIES.items()}


class Elements(HTMLParser):
    """What a page holds: its elements with their attributes, its text, and elements that are not closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text += "" if self.open and self.open[-1] == "style" else data


def read(text: str) -> Elements:
    found = Elements(text)
    assert not found.wrong and not found.open
    found.text = " ".join(found.text.split())
    return found


SAID = {  # of each family: what its page says
    "plain": ("Yes: 1 region", "All that was found is fused", "3 → 1", "rescale_weighted_sum", "proved by"),
    "causal": (
        "Yes: 1 region", "Mask of i by j", "skipped: left out 40 %", "for j, tile by tile, where j < i + 1",
        "Schedule over time of kernel0 over j", "Estimated for an H200, not measured",
    ),
    "window": ("Yes: 1 region", "Mask of i by j", "skipped: left out"),
    "data": ("of the data of this call", "full 20 %", "skipped: left out 80 %"),
    "refused": ("No: 1 region left as written", "cumsum stands between", UNKNOWN_BETWEEN.way_out),
    "break": ("graph break", "fullgraph=True", "What to change"),
    "several": ("In part: 2 of 3 regions", "See below what to change", "Mask of i by j"),
    "training": ("Yes: 1 region", "Gradients", "of q, ", "d q"),
    "nothing": ("No: nothing was found to fuse", "there is nothing to fuse", "Nothing changes"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_page_says(family, reports):
    report, found = reports[family], read(page(reports[family]))
    for words in SAID[family]:
        assert words in found.text
    for question in ("Is it fused?", "Why not?", "How much faster?", "What runs on my GPU?"):
        assert question in found.text
    classes = [attributes.get("class", "").split() for _, attributes in found.elements]
    cards = [names[1] for names in classes if names[:1] == ["card"]]
    assert cards.count("fused") == len(report.regions) and cards.count("left") == len(report.refusals)
    assert cards.count("break") == len(report.breaks)
    for region in report.regions:
        for line in (*region.captured.splitlines(), *region.extracted.splitlines()):
            assert " ".join(line.split()) in found.text
    marked = [text for text in re.findall(r'<span class="line here">.*?</span>(.*)', page(report))]
    assert len(marked) >= len(report.regions) + len(report.refusals)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_small_and_needs_nothing_else(family, reports):
    text = page(reports[family])
    assert text.startswith("<!doctype html>") and len(text.encode()) <= MAX_BYTES / 2
    for tag, attributes in read(text).elements:
        assert tag not in ("script", "link", "iframe", "img")
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:application/json;base64,"))
    assert "url(" not in text and "@import" not in text and "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_steps_are_shown_with_their_laws(reports):
    found = read(page(reports["causal"]))
    anchors = {attributes.get("id") for _, attributes in found.elements}
    references = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
    links = [reference[1:] for reference in references if reference[0] == "#"]
    assert len(links) >= 4 and {*links} <= anchors
    steps = sum(len(c["derivation"]["steps"]) for r in reports["causal"].regions for c in r.certificates)
    assert sum(tag == "mark" for tag, _ in found.elements) >= 2 * steps > 0


@pytest.mark.parametrize("family", ["causal", "several", "training"])
def test_the_certificate_can_be_downloaded_and_holds(family, reports, tmp_path):
    found = read(page(reports[family]))
    (link,) = [attributes["href"] for tag, attributes in found.elements if "download" in attributes]
    path = tmp_path / "certificate.json"
    path.write_bytes(base64.b64decode(link.partition("base64,")[2]))
    assert json.loads(path.read_text()) == json.loads(reports[family].certificate())
    assert len(verify(path)) >= len(reports[family].regions)


def hostile(report: Report, folder: Path) -> Report:
    """The report with a name or a sentence that breaks out of HTML in each field of text."""
    file = folder / f"{HOSTILE.replace('/', '')}.py"
    file.write_text(f"{HOSTILE}\n" * 9)
    place = f"{file}:3"
    (region,) = report.regions
    names = {
        "key": HOSTILE, "places": (place,), "lines": (place,), "layers": (HOSTILE,), "captured": HOSTILE,
        "extracted": HOSTILE, "executor": HOSTILE, "ran": HOSTILE, "cache": HOSTILE, "backward": HOSTILE,
        "notes": (HOSTILE,), "around": (HOSTILE,), "between": (HOSTILE,), "device": HOSTILE, "plan_check": HOSTILE,
        "shape_reasons": (HOSTILE,), "forward_mode": HOSTILE, "statistics": {HOSTILE: HOSTILE},
    }  # fmt: skip
    kernels = tuple(replace(k, name=HOSTILE, form=HOSTILE, masks=(HOSTILE,), estimate=HOSTILE) for k in region.kernels)
    steps = tuple(replace(s, rule=f"{s.rule}{HOSTILE}", law=HOSTILE, trusted=True) for s in region.derivation)
    region = replace(region, **names, kernels=kernels, derivation=steps)
    left = Refused(HOSTILE, str(file), 4, HOSTILE)
    return Report((region,), (left,), (HOSTILE,), breaks=(left,), title=HOSTILE)


def test_nothing_breaks_out(reports, tmp_path):
    text = page(hostile(reports["causal"], tmp_path))
    found = read(text)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in read(page(reports["several"])).elements}
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert "<script" not in text and "<img" not in text and "49" not in found.text.split()
    assert found.text.count("<script>alert(1)</script>") > 20
    bare = replace(hostile(reports["causal"], tmp_path), regions=())
    assert "<script" not in page(bare) and "&lt;script&gt;" in page(bare)


def many(report: Report) -> Report:
    """A report of a size that no page could show."""
    (region,) = report.regions
    long = replace(region, captured="x + " * 9000, extracted="y + " * 9000, notes=("z " * 9000,))
    regions = tuple(replace(long, key=str(n)) for n in range(40))
    refusals = tuple(Refused(f"reason {n}: " + "w " * 5000, "model.py", n) for n in range(300))
    return Report(regions, refusals, tuple(f"failure {n} " + "v " * 5000 for n in range(300)))


def test_a_page_stays_small_and_says_what_it_leaves_out(reports):
    text = page(many(reports["causal"]))
    found = read(text)
    assert len(text.encode()) <= MAX_BYTES
    assert "Left out, so that the page stays small" in found.text and "--certificate PATH writes it" in found.text
    assert "In part: 40 of 640 regions" in found.text and "of 40 fused and 600 others" in found.text


def test_a_large_certificate_goes_first(reports, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", len(page(reports["causal"])) - 100)
    monkeypatch.setattr(Report, "certificate", lambda self: "x" * module.MAX_BYTES)
    found = read(page(reports["causal"]))
    assert "Source in Triton" in found.text and not any("download" in attributes for _, attributes in found.elements)


def test_a_page_is_made_of_data_that_is_there_already(reports, monkeypatch):
    """A compile pays nothing for it: the views are made by `page` alone."""
    monkeypatch.setattr(module, "region_view", None)
    torch._dynamo.reset()
    torch.compile(plain, backend=onepass.onepass_backend, options={"inner": "eager"})(Q, K, V)
    (kept,) = onepass.reports()
    assert kept.regions[0].data.plan.kernels and kept.regions[0].lines and not kept.regions[0].data.tensors


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", every(), ids=lambda variant: variant.name)
def test_every_variant_has_a_whole_page(variant, caplog):
    torch._dynamo.reset()
    report = onepass.explain(variant.function, *variant.inputs())
    caplog.set_level(logging.DEBUG, region_view.__name__)
    found = read(page(report))
    lost = [r.getMessage() for r in caplog.records if r.name == region_view.__name__]
    assert all("is left to torch" in sentence for sentence in lost) and "no picture" not in found.text
    masks = [loop for r in report.regions for k in r.data.plan.kernels for loop in k.loops if loop.guard is not None]
    assert sum(tag == "svg" for tag, _ in found.elements) >= len(masks)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390  # pixels
# Headless windows are at least 500 pixels wide, so a frame of a phone's width holds the page.
FRAME = """<!doctype html><iframe id=f style="width:{width}px;height:900px;border:0" src="{page}"></iframe><script>
onload=()=>{{const d=document.getElementById("f").contentDocument;const e=d.documentElement;
d.querySelectorAll("details").forEach(x=>x.open=true);
const tiles=d.querySelectorAll("svg.tiles path").length;
const s=[...d.querySelectorAll("svg.schedule")].map(x=>x.parentElement);
const boxes=d.querySelectorAll("svg.schedule g rect").length;
const box=d.querySelector("svg.schedule g.product rect");
document.title=JSON.stringify({{wide:e.scrollWidth,tall:e.scrollHeight,tiles,boxes,
inside:s.every(x=>x.getBoundingClientRect().right<=e.clientWidth),scrolls:s.some(x=>x.scrollWidth>x.clientWidth),
box:box?getComputedStyle(box).fill:"",paper:getComputedStyle(d.body).backgroundColor}})}}</script>"""


def measured(text: str, folder: Path, width: int, dark: bool) -> dict:
    """The page's size in a browser, how many shapes its pictures have, and the colour of its paper."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width, page="page.html"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command = [BROWSER, *options, (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("family", ["causal", "several"])
def test_a_browser_shows_it_on_a_phone_and_in_the_dark(family, reports, tmp_path):
    text = page(reports[family])
    light, dark = (measured(text, tmp_path, PHONE, dark) for dark in (False, True))
    assert light["wide"] <= PHONE and light["tall"] > 1500 and light["tiles"] >= 4
    assert light["paper"] != dark["paper"] and light["box"] != dark["box"]
    assert light["boxes"] > 15 and light["inside"] and light["scrolls"]
    assert measured(text, tmp_path, 1200, False)["wide"] <= 1200
