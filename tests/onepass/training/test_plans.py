"""The plans of a region in training: by its text and the needed gradients, kept on disk, and no wider than they are."""

import pytest
import torch

from onepass.compiler import compiled_region, disk_cache
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training import plans, searched_forms
from onepass.training.plans import Training, training

pytestmark = pytest.mark.usefixtures("fresh")


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def named_log(log, row, mean):
    return torch.softmax(log @ row.mT, -1) @ mean


def with_largest(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, s.amax(-1)


def text_of(function, options=None):
    tensors = [torch.randn(2, n, 16) for n in (600, 700, 700)]
    return compiled_region.make(program_of(function, *tensors), options or Options()).text


def test_equal_texts_and_needs_share_plans():
    text = text_of(softmax)
    found = training(text, [True, True, True])
    assert training(text, (True, True, True)) is found
    assert training(text, [False, False, True]) is not found


def test_the_keys_gradients_and_the_values_gradients_share_a_kernel():
    found = training(text_of(softmax), [True] * 3)
    (shared,) = [k for k in found.every.region.plan.kernels if len(k.stores) > 1]
    assert len(shared.loops) == 1 and shared.rows.name == "j"


def test_a_backward_of_fewer_gradients_reads_what_is_saved():
    found = training(text_of(softmax), [True] * 3)
    only = found.backward((False, False, True), (True,))
    assert only.gradients == (2,) and only.kept == (1,) and len(only.region.plan.outputs) == 1


def test_what_is_not_derived_has_a_reason():
    assert "a largest element" in training(text_of(with_largest), [True] * 3)
    assert isinstance(training(text_of(with_largest), [False, False, True]), Training)


def test_inputs_may_have_the_names_of_saved_values():
    found = training(text_of(named_log), [True] * 3)
    names = found.every.region.names
    assert len(set(names)) == len(names)


def test_a_forward_is_found_on_disk(monkeypatch):
    text = text_of(softmax)
    first = training(text, [True] * 3)
    plans._KNOWN.clear()
    monkeypatch.setattr(searched_forms, "optimize_all", None)  # it is not searched again
    again = training(text, [True] * 3)
    assert again is not first and again.forward.plan == first.forward.plan


def test_a_damaged_entry_is_searched_again():
    text = text_of(softmax)
    first = training(text, [True] * 3)
    body = disk_cache.read(first.forward.key)
    disk_cache.write(first.forward.key, {**body, "derivations": body["derivations"][:1]})
    plans._KNOWN.clear()
    assert training(text, [True] * 3).forward.plan == first.forward.plan
