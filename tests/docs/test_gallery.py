"""The frame of the committed gallery is that of the records; test_variants.py holds each section to its report."""

from onepass.report.records import Refused, Report
from tests.docs import gallery
from tests.variants import every


def test_the_page_has_the_records_and_nothing_else():
    """A page without reports has today's frame, lines and order; what reports say stands between."""
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert text.startswith(gallery.HEAD)
    records = every()
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == [*(v.name for v in records), "Lines that several variants share"]
    frame = gallery.page([(v, Report()) for v in records])
    mark = "## Lines that several variants share"
    assert text.partition(mark)[2] == frame.partition(mark)[2]


def test_what_depends_on_a_machine_is_left_out():
    refused = Report(refusals=(Refused("used by add at /home/someone/model.py:12 too", "/home/someone/model.py", 12),))
    assert "/home" not in gallery.section(every()[0], refused) + gallery.row(every()[0], refused)
