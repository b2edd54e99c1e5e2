"""How often the work for a region is done in a first call: once, however many steps of fusion ask for it."""

from collections import Counter

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.graph_passes import functionalize, output_strides, replace
from onepass.regions import find, region
from onepass.translate import translate
from tests.support.spellings import attend

SIZES = pytest.mark.parametrize("dynamic", (False, True))


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    torch.manual_seed(0)
    torch._dynamo.reset()
    process_state.forget()


def layers(q, k, v, scale):
    """Three layers with producers in front of each; the last one's keys are scaled otherwise."""
    for _ in range(2):
        q = attend((q * 2 + q.flip(-1)) * scale, k.tanh(), v)
    return attend(q.sin() + q, k.cos(), v)


def first_call(dynamic):
    inputs = [*(torch.randn(2, 3, 40, 16) for _ in range(3)), torch.randn(16)]
    compiled = torch.compile(layers, backend=onepass_backend(options=OPTIONS), dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs), layers(*inputs), rtol=1e-4, atol=1e-5)


OPTIONS = {"inner": "eager", "executor": "tiled", "strict": True}


def counted(monkeypatch, owner, name, what):
    """Counts the calls of a function by what they are for."""
    seen, function = Counter(), getattr(owner, name)

    def call(*arguments):
        seen[what(*arguments)] += 1
        return function(*arguments)

    monkeypatch.setattr(owner, name, call)
    return seen


@SIZES
def test_equal_regions_are_traced_once(monkeypatch, dynamic):
    """Candidates of fusion and the region itself are different regions; of each there is one trace."""
    traced = counted(monkeypatch, region.Region, "program", region.signature)
    first_call(dynamic)
    assert len(traced) > 1
    assert set(traced.values()) == {1}


@SIZES
def test_a_trace_is_translated_once(monkeypatch, dynamic):
    programs = counted(monkeypatch, translate, "translate", lambda program: program.digest())
    first_call(dynamic)
    assert len(programs) > 1
    assert set(programs.values()) == {1}


@SIZES
def test_widths_and_strides_of_a_region_are_looked_at_again_only_after_a_guard(monkeypatch, dynamic):
    state = lambda one, *_: (one, replace.number_of_guards(one))
    looked_at = counted(monkeypatch, replace, "specialize_widths", state)
    first_call(dynamic)
    assert len(looked_at) > 1
    assert set(looked_at.values()) == {1}


def test_a_graph_without_writes_is_surveyed_once(monkeypatch):
    surveyed = [counted(monkeypatch, module, "survey", type) for module in (functionalize, replace, find)]
    first_call(False)
    assert sum(map(Counter.total, surveyed)) == 1


def test_symbolic_strides_of_equal_results_are_computed_once(monkeypatch):
    """Each layer puts heads beside their columns, so its kernel writes the strides of the copy behind it."""
    copied = counted(monkeypatch, output_strides, "_as_copied", lambda value, order: tuple(order))

    def beside(x):
        for _ in range(3):
            q = x.unflatten(-1, (3, -1)).transpose(1, 2)
            x = x + attend(q, q.tanh(), q).transpose(1, 2).reshape(x.shape)
        return x

    compiled = torch.compile(beside, backend=onepass_backend(options=OPTIONS))
    x = torch.randn(2, 40, 48)
    torch._dynamo.maybe_mark_dynamic(x, [0, 1])
    torch.testing.assert_close(compiled(x), beside(x), rtol=1e-4, atol=1e-5)
    inserted = 3
    assert copied.total() <= inserted + 2  # one for each call that is inserted, and one for each number of guards
