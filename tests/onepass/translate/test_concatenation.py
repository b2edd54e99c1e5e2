"""Concatenations and padding: what is captured means what eager computes, and reductions over them fall into pieces."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.traversal import reduces, subterms
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

FOLDS = {
    "sum": lambda x, axis: x.sum(axis),
    "prod": lambda x, axis: x.prod(axis),
    "amax": lambda x, axis: x.amax(axis),
    "amin": lambda x, axis: x.amin(axis),
    "softmax": lambda x, axis: x.softmax(axis),
    "any": lambda x, axis: (x > 0.9).any(axis).float() * 1.0,
}


def check(function, *inputs):
    """The captured term, after its value was compared with eager's."""
    captured = translate(program_of(function, *inputs))
    values = {t.name: x.double().numpy() for t, x in zip(captured.inputs, inputs, strict=True)}
    found = torch.from_numpy(evaluate(captured.term, values, captured.order))
    torch.testing.assert_close(found.double(), function(*inputs).double(), rtol=1e-5, atol=1e-5, equal_nan=True)
    return captured.term


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    axis=st.integers(-2, 1),
    along=st.integers(0, 1),
    fold=st.sampled_from(sorted(FOLDS)),
    cut=st.integers(0, 2),
)
def test_a_fold_of_a_concatenation(lengths, axis, along, fold, cut):
    parts = [torch.randn(*((n, 3) if axis % 2 == 0 else (3, n))) for n in lengths]
    whole = sum(lengths)

    def function(*parts):
        joined = torch.cat(parts, axis)
        joined = joined.narrow(axis, min(cut, whole - 1), whole - min(cut, whole - 1))
        return FOLDS[fold](joined * 2.0, along)

    term = check(function, *parts)
    if axis % 2 == along:
        held_back = [t for t in subterms(term) if t.op in ("minimum", "maximum") and t.dtype == "int64"]
        assert not held_back or fold == "softmax"


@settings(max_examples=25)
@given(before=st.integers(0, 3), after=st.integers(0, 3), other=st.integers(0, 2), fold=st.sampled_from(sorted(FOLDS)))
def test_a_fold_of_padding(before, after, other, fold):
    check(lambda x: FOLDS[fold](F.pad(x, (before, after, other, 0), value=0.5) + 1.0, 1), torch.randn(3, 4))


def test_a_reduction_falls_into_one_for_each_piece():
    term = check(lambda a, b: torch.cat([a, b], 1).amax(1), torch.randn(3, 5), torch.randn(3, 7))
    assert sorted(r.attrs[1].size for r in reduces(term)) == [5, 7]
    assert not [t for t in subterms(term) if t.op == "where"]


def test_a_single_element_needs_no_reduction():
    term = check(lambda a, b: torch.cat([a, b], 1).sum(1), torch.randn(3, 5), torch.randn(3, 1))
    assert [r.attrs[1].size for r in reduces(term)] == [5]


@pytest.mark.parametrize("function", [lambda x: F.pad(x, (-1, 0)), lambda x: F.pad(x, (1, 1), mode="reflect")])
def test_what_cuts_off_or_mirrors_is_refused(function):
    with pytest.raises(Refusal):
        translate(program_of(function, torch.randn(3, 4)))
