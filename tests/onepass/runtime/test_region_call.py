"""The kind of a call: its sizes, the metadata of its results, and the sizes at which no plan runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.errors import NotPrepared
from onepass.graph.trace import program_of
from onepass.runtime.region_call import (
    CALLING,
    NO_SIZES,
    PlannedCalls,
    RegionCall,
    all_sizes,
    call_of,
    falls_back,
    is_sealed,
    prepares,
    unfit,
)

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def made(length=40):
    tensors = [torch.randn(1, 2, length, 16) for _ in range(3)]
    return compiled_region.make(program_of(attention, *tensors), Options(executor="tiled")), tensors


def test_the_kind_of_a_call_has_sizes_and_results():
    found, tensors = made()
    call = call_of(found, tensors, ())
    assert call == RegionCall({}, ((torch.float32, (1, 2, 40, 16), None),))
    assert all_sizes(found, tensors, ()) == {} and unfit(found, call) == ""


@pytest.mark.parametrize("length, reason", [(-1, NO_SIZES), (0, ""), (1, "")])
def test_a_negative_number_is_no_size(length, reason):
    """0 is one as long as no length of the plan is that symbol."""
    found, _ = made()
    assert unfit(found, RegionCall({"s0": length}, ())) == reason


@pytest.fixture
def planned(monkeypatch):
    found = PlannedCalls()
    monkeypatch.setattr(CALLING, "planned", found)
    return found


def test_outside_of_a_plan_nothing_is_noted():
    prepares("a region")
    falls_back("no kernel")
    assert CALLING.planned is None and not is_sealed()


def test_a_plan_that_prepares_notes(planned):
    prepares("a region")
    prepares("a graph")
    falls_back("no kernel")
    assert (planned.prepared, planned.fallbacks, is_sealed()) == (2, ["no kernel"], False)


def test_a_sealed_plan_raises(planned):
    planned.sealed = True
    with pytest.raises(NotPrepared, match="a region would be compiled, compared or timed"):
        prepares("a region")
    with pytest.raises(NotPrepared, match="the original calls would run: no kernel"):
        falls_back("no kernel")
    assert (planned.prepared, planned.fallbacks, is_sealed()) == (0, [], True)


def test_another_thread_is_in_no_plan(planned):
    planned.sealed = True
    with ThreadPoolExecutor(1) as one:
        assert not one.submit(is_sealed).result()
        one.submit(prepares, "a region").result()
