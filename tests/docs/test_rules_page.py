"""The page about laws, rules/README.md: its blocks of code run one after another, and it stays short."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "rules" / "README.md"
MAX_LINES = 120


def test_the_blocks_run():
    text = PAGE.read_text(encoding="utf-8")
    namespace: dict = {"__name__": "page"}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, flags=re.S))
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), namespace)
    assert len(blocks) == 5


def test_it_is_short_and_names_files_that_exist():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    paths = re.findall(r"`((?:egraph|proofs|rules|tests)/[\w/.]+)`", text)
    assert paths and all((ROOT / path).exists() for path in paths)
