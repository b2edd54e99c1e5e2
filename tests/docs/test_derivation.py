"""The derivation that is followed is the one that is derived: term, steps, plan and kernel."""

import pytest
import torch

from tests.docs.derivation import PAGE, STEPS, page, region

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 calls q, k and v args_0, args_1 and args_2")
def test_the_page_is_what_onepass_writes():
    found = region()
    assert PAGE.read_text(encoding="utf-8") == page(found), "run `make derivation`"
    assert len(found.kernels) == 1 and len(STEPS) == 6
