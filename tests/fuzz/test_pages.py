"""A short run of random batches of a paged cache, and that it can fail."""

from random import Random

import pytest
import torch

from tests.fuzz import pages
from tests.support.pages import SPELLINGS

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("executor", "count"), [("tiled", 24), ("triton", 6)])
def test_random_batches_are_right(executor, count):
    assert pages.run(count, 1, executor) == []


def test_a_wrong_answer_is_seen():
    drawn = pages.draw(Random(0), pages.Form(8, 8, True, torch.int64), negative=True)
    assert "float64" in pages.wrong(SPELLINGS[0], lambda *given: torch.zeros_like(given[0]), drawn)
    assert "NaN" in pages.wrong(SPELLINGS[0], lambda *given: torch.full_like(given[0], torch.nan), drawn)
