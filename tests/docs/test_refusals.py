"""The page of refusals is the one that its records make; every link in a message has its section there."""

import re

from onepass import messages
from tests.docs.refusals import PAGE, page


def test_the_page_is_made_from_the_records():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make refusals`"


def test_every_link_has_its_section():
    anchors = set(re.findall(r'<a id="(\w+)">', page()))
    assert "| `NotFused` |" in page() and "| `OptionError` |" in page()
    assert {message.link.partition("#")[2] for message in messages.ALL.values()} == anchors


def test_every_message_has_a_way_out_that_can_be_done():
    assert all(len(m.way_out.split()) >= 3 and not m.way_out.endswith(".") for m in messages.ALL.values())
