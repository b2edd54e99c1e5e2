"""The reference of laws is the one that the records make, and names every law, operation and guard."""

from onepass.egraph.rewrite.guard import GUARDS
from onepass.egraph.terms.ops import OPS
from onepass.rules import ALL
from tests.docs.laws import PAGE, page


def test_the_page_is_made_from_the_records():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make laws`"


def test_everything_is_on_it():
    text = page()
    assert all(f"`{name}`" in text for name in (*OPS, *GUARDS, *(rule.name for rule in ALL)))
    assert text.count("| proved: ") == len(ALL)
