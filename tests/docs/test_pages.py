"""The blocks of Python on pages of the site run one after another, and print what the text behind them says."""

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from onepass.lowering.hopper.config import REPORTED_AS
from onepass.wording import text

pytestmark = pytest.mark.usefixtures("fresh")
DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# page: its blocks of Python
PAGES = {"debugging.md": 5, "features.md": 3, "from_flex.md": 2, "many_gpus.md": 3, "reports.md": 1}
# Run by a test of their own: refusals.md by tests/onepass/test_messages.py, derivation.md by test_derivation.py.
ELSEWHERE = {"overview.md", "tutorial.md", "patterns.md", "gallery.md", "refusals.md", "derivation.md"}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", PAGES)
def test_its_blocks_run(name, monkeypatch):
    page = ModuleType("page")  # a module, because Dynamo looks for a function's globals in one
    monkeypatch.setitem(sys.modules, "page", page)
    written, names, printed = (DOCS / name).read_text(encoding="utf-8"), vars(page), ""
    blocks = list(BLOCK.finditer(written))
    for found in blocks:
        if found[1] == "python":
            code = compile("\n" * written[: found.start(2)].count("\n") + found[2], str(DOCS / name), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(code, names)
            printed = output.getvalue()
        elif found[1] == "text":
            assert found[2] == printed
    assert sum(found[1] == "python" for found in blocks) == PAGES[name]


def test_no_page_has_blocks_that_nothing_runs():
    with_blocks = {path.name for path in DOCS.glob("*.md") if "```python\n" in path.read_text(encoding="utf-8")}
    assert with_blocks <= {*PAGES, *ELSEWHERE}


def test_every_label_of_a_report_is_explained():
    source = Path(text.__file__).read_text(encoding="utf-8")
    yielded = re.findall(r'yield f?"([a-z][\w ]*?) {2,}', source)
    labels = {*yielded, *re.findall(r'_(?:labelled|line_each)\("([\w ]+)"', source)}
    page = (DOCS / "reports.md").read_text(encoding="utf-8")
    assert len(labels) > 20 and [label for label in labels if f"`{label}`" not in page] == []


def test_every_setting_of_a_report_is_explained():
    page = (DOCS / "reports.md").read_text(encoding="utf-8")
    assert len(REPORTED_AS) > 10 and [name for name in REPORTED_AS.values() if f"`{name}`" not in page] == []
