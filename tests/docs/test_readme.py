"""The README stays short, its quick start runs and prints what it says, and its commands and picture are there."""

import contextlib
import io
import re
import shlex
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pytest

import onepass
from onepass.cli.arguments import ARGUMENTS
from onepass.cli.commands import COMMANDS
from onepass.cli.values import CommandParser

pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).resolve().parents[2]
MAX_WORDS = 900
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(TEXT) if kind == language]


def test_it_is_short():
    assert len(TEXT.split()) <= MAX_WORDS


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_quick_start_prints_what_it_says(inner, monkeypatch):
    monkeypatch.setattr(onepass, "compile", partial(onepass.compile, inner=inner))
    ((code,), (said,)) = blocks("python"), blocks("text")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue() == said
    assert onepass.reports()[-1].fused == 2


def lines() -> list[list[str]]:
    """The words of each line of shell, without its comment."""
    return [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]


def test_its_commands_can_be_read():
    """Each line of `python -m onepass` is read as the command line reads it."""
    known = {name for name, _, _ in COMMANDS}
    commands = [words[words.index("onepass") + 1 :] for words in lines() if "onepass" in words]
    assert len(commands) >= 4
    for name, *rest in commands:
        parser = CommandParser(name)
        ARGUMENTS.get(name, lambda parser: None)(parser)
        assert name in known and parser.parse_args(rest)


def test_its_targets_are_those_of_the_makefile():
    targets = {word for words in lines() if words[:1] == ["make"] for word in words[1:] if "=" not in word}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "test" in targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_nothing_fused_takes_five_commands():
    section = TEXT.split("## Nothing fused?")[1].split("\n## ")[0]
    ((kind, text),) = BLOCK.findall(section)
    assert kind == "sh" and len(text.splitlines()) == 5


def test_its_picture_reads_in_light_and_in_dark():
    """It is text of few bytes with a title and a description, and each colour has one for a dark page."""
    (place,) = re.findall(r"!\[[^\]]{40,}\]\(([^)]+\.svg)\)", TEXT)
    text = (ROOT / place).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    space = root.tag.removesuffix("svg")
    assert len(text) < 10_000 and root.find(f"{space}title").text and root.find(f"{space}desc").text
    light, dark = text.partition("prefers-color-scheme: dark")[::2]
    names = re.compile(r"\.([a-z]+) \{")
    assert set(names.findall(light)) == set(names.findall(dark)) >= {"page", "ink"}
