"""The page about patterns is true: its blocks of code run, one after another, in one namespace."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patterns.md"


def test_the_blocks_run():
    text = PAGE.read_text(encoding="utf-8")
    namespace: dict = {"__name__": "page"}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, flags=re.S))
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), namespace)
    assert len(blocks) >= 12
