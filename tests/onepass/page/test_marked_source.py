"""The user's lines around a region, marked; files that are gone or strange are left out."""

import linecache
from pathlib import Path

import pytest

from onepass.page import marked_source
from onepass.page.marked_source import ranges_of, source_views


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("".join(f"line {n}\n" for n in range(1, 41)))
    return path


def test_lines_are_marked_with_what_is_around(file):
    (view,) = source_views([f"{file}:3", f"{file}:5", f"{file}:20"])
    assert [line.number for line in view.lines] == [1, 2, 3, 4, 5, 6, 7, 0, 18, 19, 20, 21, 22]
    assert [line.number for line in view.lines if line.marked] == [3, 5, 20] and view.marked == "3, 5, 20"
    assert all(line.text == f"line {line.number}" for line in view.lines if line.number)
    assert view.name == "model.py" and not view.library


def test_what_cannot_be_read_is_left_out(file):
    assert source_views(["/nowhere/gone.py:3", "", "no place", f"{file}:999", f"{file}:x", f"{file.parent}:1"]) == []
    file.write_bytes(b"\xff\xfe\x00 not text")
    linecache.clearcache()
    assert source_views([f"{file}:1"]) == []


def test_a_file_that_has_changed_is_read_again(file):
    assert source_views([f"{file}:1"])[0].lines[0].text == "line 1"
    file.write_text("another line, much longer\n")
    assert source_views([f"{file}:1"])[0].lines[0].text == "another line, much longer"


def test_the_users_files_come_before_libraries(file):
    library = Path(pytest.__file__)
    views = source_views([f"{library}:1", f"{file}:1"])
    assert [view.library for view in views] == [False, True] and views[1].name == "pytest/__init__.py"


def test_names_are_relative_to_the_working_directory(file, monkeypatch):
    monkeypatch.chdir(file.parent.parent)
    assert source_views([f"{file}:1"])[0].name == f"{file.parent.name}/model.py"


def test_many_lines_are_cut(file, monkeypatch):
    monkeypatch.setattr(marked_source, "MAX_LINES", 4)
    (view,) = source_views([f"{file}:{n}" for n in range(1, 30)])
    assert [line.number for line in view.lines] == [1, 2, 3, 4, 0]


def test_numbers_are_written_as_ranges():
    assert ranges_of([3, 4, 5, 9, 11, 12]) == "3-5, 9, 11-12" and ranges_of([]) == ""
