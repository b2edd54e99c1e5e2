"""The oldest of 257 reports is forgotten. Its regions were kept: they counted as found in a compiler's cache, and stood
in a last report of their own, where a reader expects the newest graph.
"""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass.report import records
from onepass.report.records import MAX_REPORTS_KEPT, Report

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def test_regions_of_forgotten_reports_are_forgotten():
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    compiled(*(torch.randn(2, 40, 16) for _ in range(3)))
    (region,) = onepass.reports()[-1].regions
    for _ in range(MAX_REPORTS_KEPT):  # graphs without regions push out reports, and no regions
        records.record(Report())
    records.record(Report((replace(region, key="another"),)))
    found = onepass.reports()
    assert len(found) == MAX_REPORTS_KEPT and [x.key for x in found[-1].regions] == ["another"]


def test_a_region_of_a_kept_report_stays():
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    compiled(*(torch.randn(2, 40, 16) for _ in range(3)))
    (region,) = onepass.reports()[-1].regions
    for _ in range(MAX_REPORTS_KEPT + 10):
        records.record(Report((region,)))
    records.ran(region.key, "someone")
    assert onepass.reports()[-1].regions[0].ran == "someone"
