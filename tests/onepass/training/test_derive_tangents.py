"""What forward mode stores beside the results: a tangent each, under names that are free, or a reason."""

import pytest
import torch

from onepass.graph.trace import program_of
from onepass.training.derive_tangents import tangent_stores
from onepass.training.not_derived import NotDerived
from onepass.translate.translate import translate


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def with_sums(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def detached(q, k, v):
    return torch.softmax(q @ k.detach().mT, -1) @ v


def taken(tangent_v, tangent_output, v):
    return torch.softmax(tangent_v @ tangent_output.mT, -1) @ v


def relu(q, k, v):
    return torch.relu(q @ k.mT) @ v


def stores(function, given=(True, True, True), dtype=torch.float32, without=()):
    program = program_of(function, *[torch.randn(2, n, 16, dtype=dtype) for n in (40, 300, 300)])
    return tangent_stores(program, translate(program), given, without)


def test_a_tangent_is_stored_as_its_result():
    found = stores(softmax, dtype=torch.bfloat16)
    store = found.tangents[0]
    assert (store.output.name, store.output.dtype, store.output.shape) == ("tangent_output", "bfloat16", (2, 40, 16))
    assert store.term.dtype == "bfloat16"
    assert [t.name for t in found.given] == ["tangent_q", "tangent_k", "tangent_v"]


def test_results_that_no_tangent_reaches_have_none():
    assert stores(with_sums, (False, False, True)).tangents.keys() == {0}
    assert stores(with_sums, (True, False, False)).tangents.keys() == {0, 1}


def test_names_that_are_taken_are_not_taken_again():
    found = stores(taken, (False, False, True))
    assert found.given[2].name == "tangent_v_" and found.tangents[0].output.name == "tangent_output_"


def test_a_detached_value_is_refused_where_it_hides_a_tangent():
    with pytest.raises(NotDerived, match="detached"):
        stores(detached, (True, True, True))
    assert stores(detached, (True, False, True)).tangents


def test_operations_that_are_not_differentiated_are_refused():
    with pytest.raises(NotDerived, match="maximum is left"):
        stores(relu, without=("maximum",))
