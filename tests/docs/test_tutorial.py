"""The tutorial as a reader meets it: its blocks are run in order, and what they print is what it says."""

import contextlib
import doctest
import io
import re
import sys
import tomllib
from pathlib import Path

import pytest

import onepass
from onepass.compiler.rule_plugins import GROUP
from onepass.egraph.rewrite.rule import ASSUMPTIONS
from tests.onepass.compiler.test_rule_plugins import install

pytestmark = pytest.mark.usefixtures("fresh")
TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks() -> list[tuple[int, str, str]]:
    """Line of the first line, language, text."""
    text = TUTORIAL.read_text(encoding="utf-8")
    return [(text[: found.start(2)].count("\n"), found[1], found[2]) for found in BLOCK.finditer(text)]


def run(line: int, text: str, names: dict) -> str:
    """What the block prints. Its lines are those of the tutorial, so that errors and rules name them."""
    code = compile("\n" * line + text, str(TUTORIAL), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return printed.getvalue()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")
def test_every_block_does_what_is_said(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    names, printed, module = {"__name__": "tutorial"}, "", ""
    for line, language, text in blocks():
        if language == "python" and text.startswith("# my_laws.py"):
            module = text
        elif language == "python":
            printed = run(line, text, names)
        elif language == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            install(tmp_path, "my-package", "my_laws", points[GROUP], module)
        else:
            assert doctest.OutputChecker().check_output(text, printed, LOOSELY), f"line {line}: it prints\n{printed}"
    sys.modules.pop("my_laws", None)
    assert {"nearest", "least_energy_is_largest_score", "fast", "test_laws"} <= set(names)


def test_it_has_blocks_of_every_kind():
    languages = [language for _, language, _ in blocks()]
    assert languages.count("python") >= 8 and languages.count("text") >= 5 and languages.count("toml") == 1


def test_every_assumption_is_in_the_table():
    listed = re.findall(r'^\| `"([^"]+)"`', TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(["reassociates", "bitwise", *ASSUMPTIONS])


def test_names_it_mentions_exist():
    text = TUTORIAL.read_text(encoding="utf-8")
    for name in set(re.findall(r"`onepass\.(\w+)[.(`]", text)):
        assert hasattr(onepass, name), name
    for name in set(re.findall(r"onepass\.testing\.(\w+)", text)):
        assert hasattr(onepass.testing, name), name
