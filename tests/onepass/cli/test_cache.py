"""The command `cache` says what is kept, and clears that and nothing else."""

import pytest

from onepass.cli.commands import main
from onepass.compiler import disk_cache

pytestmark = pytest.mark.usefixtures("fresh")
NAMES = ["a" * 40, "b" * 40, "c" * 40]


@pytest.fixture
def kept(tmp_path):
    bodies = {"names": ["q", "k"]}, {"status": "proved", "text": "as it is"}, {"choices": {}}
    assert all(disk_cache.write(*pair) for pair in zip(NAMES, bodies, strict=True))
    place = disk_cache.folder()
    (place / "source").mkdir()
    (place / "source" / "kernel0_12.py").write_text("x" * 2000)
    (place / "mine.txt").write_text("kept")
    return place


def test_entries_are_listed_with_what_they_are_of(kept, capsys):
    assert main(["cache", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(NAMES)
    ends = ("kB  region of q, k", "kB  verdict", "kB  settings")
    assert all(lines[name].endswith(end) for name, end in zip(NAMES, ends, strict=True))


def test_an_entry_that_was_changed_is_listed_as_unused(kept, capsys):
    path = kept / "aa" / f"{NAMES[0]}.json"
    path.write_text(path.read_text().replace('"q"', '"x"'))
    assert main(["cache", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(NAMES[0])]
    assert line.endswith("cannot be read, and is not used")


@pytest.mark.parametrize("words", [["cache"], ["cache", "size"]])
def test_the_size_is_that_of_entries_and_of_texts(kept, capsys, words):
    assert main(words) == 0
    said = capsys.readouterr().out
    megabytes = sum(entry.bytes for entry in disk_cache.entries()) / 1e6
    held = f"3 entries, {megabytes:.1f} MB; 1 kernel texts, 0.0 MB; in {kept}"
    assert said == f"{held}; at most 500 MB (ONEPASS_CACHE_MB)\n"
    assert [text.bytes for text in disk_cache.texts()] == [2000]


def test_clearing_removes_what_onepass_keeps_and_nothing_else(kept, capsys):
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 3 entries and 1 kernel texts from {kept}\n"
    assert disk_cache.entries() == [] and disk_cache.texts() == []
    assert (kept / "mine.txt").read_text() == "kept"
    assert main(["cache", "size"]) == 0 and capsys.readouterr().out.startswith("0 entries")


def test_a_folder_of_texts_that_is_a_link_is_left_alone(tmp_path):
    assert disk_cache.write(NAMES[0], {})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text("kept")
    (disk_cache.folder() / "source").symlink_to(elsewhere)
    assert main(["cache", "clear"]) == 0 and (elsewhere / "mine.py").read_text() == "kept"


def test_a_cache_that_is_off_is_said(monkeypatch, capsys):
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    for action in ("list", "size", "clear"):
        assert main(["cache", action]) == 0
        assert "switched off" in capsys.readouterr().err
