"""Collections of garbage are rare within, and as before at the end, whatever the process had."""

import gc

import pytest
import torch

import onepass
from onepass.compiler import compiled_region, disk_cache
from onepass.compiler.options import Options
from onepass.garbage import OBJECTS_BEFORE_A_COLLECTION, rare_collections
from onepass.graph.trace import program_of
from onepass.training.plans import training
from onepass.training.tangent_plans import tangent_plan


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


@pytest.mark.usefixtures("fresh")
def test_a_step_and_its_tangents_are_planned_with_it_and_nothing_else_is(threshold, monkeypatch):
    """Each plan reads the disk first."""
    seen = []
    read = disk_cache.read
    monkeypatch.setattr(disk_cache, "read", lambda key: seen.append(gc.get_threshold()[0]) or read(key))
    program = program_of(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *(torch.randn(2, 8, 4) for _ in range(3)))
    text = compiled_region.make(program, Options()).text
    assert not isinstance(training(text, (True, True, True)), str)
    assert not isinstance(tangent_plan(text, (True, True, True)), str)
    assert len(seen) >= 4 and {*seen} == {max(threshold[0], OBJECTS_BEFORE_A_COLLECTION) if threshold[0] else 0}
    assert gc.get_threshold() == threshold
