"""Collections of garbage are rare within, and as before at the end, whatever the process had."""

import gc

import pytest
import torch

import onepass
from onepass.garbage import OBJECTS_BEFORE_A_COLLECTION, rare_collections


@pytest.fixture(params=[(700, 10, 10), (0, 10, 10), (OBJECTS_BEFORE_A_COLLECTION + 1, 5, 5)], ids=str)
def threshold(request):
    before = gc.get_threshold()
    gc.set_threshold(*request.param)
    yield gc.get_threshold()  # Python 3.13 may keep less than it is given
    gc.set_threshold(*before)


def test_only_a_low_threshold_is_raised(threshold):
    raised = 0 < threshold[0] < OBJECTS_BEFORE_A_COLLECTION
    with rare_collections():
        assert gc.get_threshold()[0] == (OBJECTS_BEFORE_A_COLLECTION if raised else threshold[0])
        with rare_collections():
            pass
        assert gc.get_threshold()[0] == (OBJECTS_BEFORE_A_COLLECTION if raised else threshold[0])
    assert gc.get_threshold() == threshold


def test_an_error_restores_it(threshold):
    with pytest.raises(RuntimeError, match="stop"), rare_collections():
        raise RuntimeError("stop")
    assert gc.get_threshold() == threshold


def test_explain_raises_it_while_it_works_and_not_longer(threshold):
    seen = []

    def attend(q, k, v):
        seen.append(gc.get_threshold()[0])
        return torch.softmax(q @ k.mT, -1) @ v

    onepass.explain(torch.compiler.disable(attend), *(torch.randn(2, 8, 4) for _ in range(3)))
    assert seen == [max(threshold[0], OBJECTS_BEFORE_A_COLLECTION) if threshold[0] else 0]
    assert gc.get_threshold() == threshold
