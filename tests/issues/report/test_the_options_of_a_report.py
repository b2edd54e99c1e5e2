"""A report says which options it is for, and what is fused in part only.

Without options, `explain` said "left as written", and the report of the same function with inner="eager" said that all
that was found is fused: its backward runs the original calls, which no answer said. And require="all" said that nothing
was found where one product was, and was left to Inductor in training.
"""

import json

import pytest
import torch

import onepass
from onepass.compiler.options import Options
from onepass.errors import NotFused

pytestmark = pytest.mark.usefixtures("fresh")



def by_largest(q, k, v):
    weights = torch.sigmoid(q @ k.mT)
    return weights / weights.amax(-1, keepdim=True) @ v  # no gradient is derived


def logsumexp(q, k):
    return torch.logsumexp(q @ k.mT, -1)


def inputs(requires_grad=True):
    return [torch.randn(2, n, 8, requires_grad=requires_grad) for n in (40, 300, 300)]


def test_reports_of_two_options_name_them():
    plain = onepass.explain(by_largest, *inputs())
    assert plain.fused == 0 and plain.answers[0].lines[0] == "in 1 graph, with the default options"
    onepass.compile(by_largest, inner="eager")(*inputs())
    asked = onepass.explain(by_largest, *inputs(), options={"inner": "eager"})
    for report in (onepass.reports()[-1], asked):
        assert report.fused == 1 and "in 1 graph, with options={'inner': 'eager'}" in str(report)
        assert json.loads(report.json())["options"] == report.options == "options={'inner': 'eager'}"


@pytest.mark.parametrize("options", [{"inner": "eager"}, {"inner": "eager", "require": "all"}])
def test_a_forward_alone_is_not_all(options):
    why = onepass.explain(by_largest, *inputs(), options=options).answers[1]
    assert why.answer == "The original calls run the backward of 1 region" and why.tone == "part"
    assert why.lines[0].startswith("only the forward is fused: ")
    without = onepass.explain(by_largest, *inputs(False), options=options).answers[1]
    assert without.answer == "All that was found is fused" and without.tone == "good"


def test_what_was_found_is_said_where_all_is_required():
    q, k = (torch.randn(2, 1200, 64, requires_grad=True) for _ in range(2))
    with pytest.raises(NotFused) as error:
        onepass.explain(logsumexp, q, k, options={"require": "all"})
    assert "0 fused, 1 not" in str(error.value) and "nothing was found" not in str(error.value)
    assert 'options={"prefer": "memory"} fuses it' in str(error.value)


def test_options_are_said_as_they_are_written():
    assert Options().said == "the default options"
    assert Options.read({"invariant": True, "strict": True}).said == "options={'invariant': True}"
    assert Options.read({"executor": "tiled", "libraries": False}).said == (
        "options={'executor': 'tiled', 'libraries': False}"
    )
