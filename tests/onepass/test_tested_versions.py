"""Versions that were not tested are said once, and nothing refuses them; the project's files name the same ends."""

import logging
import re
import tomllib
from pathlib import Path

import pytest

import onepass
from onepass import tested_versions
from onepass.compiler.options import Options
from onepass.tested_versions import TESTED, summary, untested, warn_of_untested

ROOT = Path(__file__).resolve().parents[2]


def text(release) -> str:
    return ".".join(map(str, release))


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("rest", [".0", ".1+cu130", ".0.dev20270101", "rc1", "a0"])
def test_both_ends_are_tested_and_what_lies_beyond_is_not(name, rest):
    (major, first), (_, last) = TESTED[name]
    for minor in range(first, last + 1):
        assert not [*untested({name: f"{major}.{minor}{rest}"})]
    for release, said in (((major, first - 1), "older"), ((major, last + 1), "newer"), ((major + 1, 0), "newer")):
        ((found, sentence),) = untested({name: text(release) + rest})
        assert found == name and said in sentence and text(TESTED[name][1]) in sentence


def test_a_version_that_says_nothing_is_named():
    ((name, sentence),) = untested({"torch": "unknown"})
    assert name == "torch" and "unknown" in sentence


def test_a_process_is_warned_once_and_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(tested_versions, "_installed", lambda: {"torch": "99.1.0", "triton": "3.6.0"})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert Options.read({"strict": True}).strict
    (record,) = caplog.records
    assert "torch 99.1.0 is newer" in record.getMessage() and "doctor" in record.getMessage()


def test_tested_versions_give_no_warning(monkeypatch, caplog):
    monkeypatch.setattr(tested_versions, "_installed", lambda: {name: text(ends[1]) for name, ends in TESTED.items()})
    with caplog.at_level(logging.WARNING):
        warn_of_untested()
    assert not caplog.records


def test_the_project_asks_for_the_first_of_them_and_for_no_last_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("torch", "triton"):
        (asked,) = [line for line in project["dependencies"] if re.match(rf"{name}\b", line)]
        assert asked.split(";")[0].strip() == f"{name}>={text(TESTED[name][0])}"


@pytest.mark.parametrize("page", ["README.md", "docs/limits.md"])
def test_documents_say_the_same(page):
    said = " ".join((ROOT / page).read_text(encoding="utf-8").split()).lower()
    for name, (first, last) in TESTED.items():
        assert f"{name} {text(first)} to {text(last)}" in said, f"{page} does not say: {summary()}"


def test_the_command_says_what_was_tested(monkeypatch, capsys):
    from onepass.cli.commands import main

    monkeypatch.setattr(tested_versions, "_installed", lambda: {"torch": "99.1.0"})
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert summary() in said and "torch 99.1.0 is newer" in said and onepass.__version__ in said
