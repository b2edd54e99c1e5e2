"""proofs/README.md says of how many lines what is trusted has; the lines are counted again.

A figure may be 4 % off, so that an edit of a few lines needs no other figure.
"""

import re
from pathlib import Path

import pytest

from onepass.proofs.rocq import derivatives
from onepass.proofs.rocq_audit import committed

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "proofs" / "README.md").read_text(encoding="utf-8")
MODULES = re.compile(r"^\| ((?:`[\w/.]+\.py`(?:, )?)+) \| (\d+) \|", re.MULTILINE)
STATEMENTS = (
    *("theory/Values.v", "theory/Folds.v", "rocq/statements.py", "rocq/meanings.py", "rocq/derivatives.py"),
    "provers/claims.py",
)
CHECKER = ("certificate.py", "derivative_certificate.py", "match.py", "guard.py", "rule.py")
READBACK = ROOT / "lowering" / "readback"
FIGURES = {  # a sentence of the table "What is trusted", and the files whose lines it counts
    r"provers: ([\d,]+), against": lambda: [*python("proofs/provers"), *python("proofs/algebra")],
    r"what writes statements: ([\d,]+)": lambda: [ROOT / "proofs" / name for name in STATEMENTS],
    r"certificates: ([\d,]+) \| \*\*": lambda: [
        f for part in ("derivation", "calculus", "rewrite") for f in python(f"egraph/{part}") if f.name in CHECKER
    ],
    r"`lowering/readback`: ([\d,]+)": lambda: python("lowering/readback"),
    r"`texts/check.py`: ([\d,]+)": lambda: [
        *python("proofs/kernels"), *python("proofs/warps"), ROOT / "proofs" / "texts" / "check.py"
    ],
    r"without readback: ([\d,]+)": lambda: [f for f in python("lowering") if READBACK not in f.parents],
    r"all rows: ([\d,]+)": lambda: [ROOT / "egraph" / "calculus" / "partials.py"],
}  # fmt: skip


def python(folder: str) -> list[Path]:
    return [*(ROOT / folder).rglob("*.py")]


def lines(files) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def is_near(said: str, counted: int) -> bool:
    return abs(int(said.replace(",", "")) - counted) <= 0.04 * counted


@pytest.mark.parametrize("sentence", FIGURES)
def test_what_is_trusted_has_as_many_lines_as_the_page_says(sentence):
    (said,), counted = re.findall(sentence, PAGE), lines(FIGURES[sentence]())
    assert is_near(said, counted), f"{sentence}: {counted} lines, the page says {said}"


def test_modules_that_check_kernels_have_as_many_lines_as_the_page_says():
    rows = MODULES.findall(PAGE)
    assert len(rows) == 8
    for names, said in rows:
        first, *others = re.findall(r"`([\w/.]+)`", names)
        folder = ROOT / "proofs" / Path(first).parent
        counted = lines([ROOT / "proofs" / first, *(folder / name for name in others)])
        assert is_near(said, counted), f"{names}: {counted} lines, the page says {said}"


def test_rows_of_derivatives_that_are_no_theorems_are_named():
    left = [name.removeprefix("derivative_of_") for name in committed().unchecked if name.startswith("derivative_of_")]
    count = len(derivatives.operations())
    said = f"{len(left)} of {count} rows: {', '.join(left)} |" if left else f"none of {count} rows |"
    assert said in PAGE


def test_a_figure_that_is_off_is_seen():
    assert is_near("1,040", 1000) and not is_near("1,050", 1000) and not is_near("710", 670)
