"""Tables of docs/measurements.md are those of bench/results; a table that has no file says so in front of it."""

import csv
import re
from datetime import date

import pytest

from onepass.bench.results import versions
from tests.docs import result_rows
from tests.docs.measurements import BLOCK, PAGE, TABLES, UNRECORDED, page
from tests.docs.result_rows import RESULTS, figure

TEXT = PAGE.read_text(encoding="utf-8")


def test_tables_are_those_of_the_data_files():
    assert page(TEXT) == TEXT, "run `make measurements`"
    assert [found[1] for found in BLOCK.finditer(TEXT)] == list(TABLES)


def test_a_table_without_a_file_says_so():
    by_hand = BLOCK.sub("", TEXT)
    tables = re.findall(r"([^\n]*)\n\n(\|[^\n]*)\n\|-", by_hand)
    assert len(tables) == len(re.findall(r"^\|-", by_hand, re.MULTILINE)) > 3
    measured = [(before, head) for before, head in tables if head != "| suite | what it measures |"]
    assert [head for before, head in measured if not before.endswith(UNRECORDED)] == []
    assert TEXT.count(UNRECORDED) == len(measured)


def test_a_changed_number_of_a_file_changes_the_page(monkeypatch, tmp_path):
    file = "peers_backward_h200.csv"
    with (RESULTS / file).open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    rows[0]["ms"] = "9.87"
    with (tmp_path / file).open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(result_rows, "RESULTS", tmp_path)
    assert "| 9.87 |" in TABLES["backward"]() and "| 9.87 | 3.05 |" not in TEXT


@pytest.mark.parametrize(
    ("number", "shown"),
    [("0.045104", "0.0451"), (2.8288, "2.83"), ("11.908", "11.9"), (2885.2, "2885"), (0.9, "0.900"), ("", "")],
)
def test_numbers_have_three_figures(number, shown):
    assert figure(number) == shown


def test_rows_say_their_day():
    assert versions().endswith(f" on {date.today()}")
