"""The overview: its blocks of code run one after another, and the report that it shows is the one that is printed."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "overview.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "In transformers"  # whose block needs a model on disk: tests/onepass/integrations/test_transformers.py


def test_the_blocks_run_and_the_report_is_the_one_shown():
    text = PAGE.read_text(encoding="utf-8")
    namespace: dict = {"__name__": "page"}
    kinds, printed = [], ""
    for found in BLOCK.finditer(text):
        kinds.append(found[1])
        if found[1] == "text":
            assert all(line.strip() in printed for line in found[2].splitlines() if line.strip() != "...")
        elif found[1] == "python" and not text[: found.start()].rpartition("\n## ")[2].startswith(ELSEWHERE):
            code = compile("\n" * text[: found.start(2)].count("\n") + found[2], str(PAGE), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(code, namespace)
            printed = output.getvalue()
    assert kinds.count("python") == 4 and kinds.count("text") == 2
    assert "shift_leaves_softmax is proved" in printed


def test_names_it_mentions_exist():
    for name in set(re.findall(r"`onepass\.(\w+)[.(`]", PAGE.read_text(encoding="utf-8"))):
        assert hasattr(onepass, name), name
