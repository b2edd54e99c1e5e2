"""require="all": it holds where everything found is fused, and else the error names each reason, place and way out."""

import re

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.errors import NotFused, OptionError
from onepass.messages import ONE_PRODUCT_IN_TRAINING, UNKNOWN_BETWEEN
from onepass.report.records import Refused, Report
from onepass.report.requirements import hold
from onepass.wording.text import way_out

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 20, 16)
ALL = {"require": "all"}
FAILURE = "ValueError: no (model.py:3)"


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def added_up(q, k, v):
    return torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v


def half(q, k, v):
    return attend(q, k, v) + added_up(q, k, v)


def summed_up(q, k, v):
    rows = q.repeat(1, 100, 1)
    return attend(q, k, v), torch.logsumexp(rows @ rows.mT, -1)


def nothing(q, k, v):
    return q + k + v


def then_broken(q, k, v):
    found = attend(q, k, v)
    torch._dynamo.graph_break()
    return found + 1


def broken_first(q, k, v):
    q = q + 1
    torch._dynamo.graph_break()
    return attend(q, k, v)


def broken_nothing(q, k, v):
    q = q + 1
    torch._dynamo.graph_break()
    return q + k


def as_backend(function):
    torch.compile(function, backend=onepass_backend, options={**ALL, "inner": "eager"})(X, X, X)


def as_compile(function):
    onepass.compile(function, require="all", inner="eager")(X, X, X)


def as_pass(function):
    torch.compile(function, options={"pre_grad_custom_pass": onepass.GraphPass(require="all")})(X, X, X)


def as_explain(function):
    onepass.explain(function, X, X, X, options=ALL)


WAYS = (as_backend, as_compile, as_pass, as_explain)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [added_up, half, nothing, broken_nothing])
def test_it_raises_where_something_is_left(way, function):
    with pytest.raises(Exception, match='require="all" does not hold') as raised:
        way(function)
    assert isinstance(raised.value, NotFused) or "NotFused" in str(raised.value)
    said = str(raised.value)
    if function in (added_up, half):
        line = added_up.__code__.co_firstlineno + 1
        assert f"{__file__}:{line}: cumsum stands between" in said and UNKNOWN_BETWEEN.way_out in said
    else:
        assert "nothing was found to fuse" in said and "fullgraph=True" in said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [attend, then_broken, broken_first])
def test_it_holds_where_everything_found_is_fused(way, function):
    way(function)
    assert way is as_explain or any(report.fused for report in onepass.reports())


def test_what_inductor_does_better_in_training_is_no_obstacle():
    report = onepass.explain(summed_up, X, X, X, gradients=True, options=ALL)
    assert report.fused == 1 and [r.code for r in report.refusals] == [ONE_PRODUCT_IN_TRAINING.code]


def test_nothing_is_required_by_default():
    torch.compile(half, backend=onepass_backend, options={"inner": "eager"})(X, X, X)
    (report,) = onepass.reports()
    assert (report.fused, report.left) == (1, 1)


def test_values_of_the_option():
    with pytest.raises(OptionError, match="require is one of nothing, all, not True"):
        onepass.onepass_backend(options={"require": True})
    assert onepass.GraphPass(require="all").uuid() != onepass.GraphPass().uuid()


def test_a_failure_counts_as_not_fused():
    report = Report(failures=(FAILURE,))
    hold(report, "nothing")
    with pytest.raises(NotFused, match=re.escape(FAILURE)) as raised:
        hold(report, "all", part=True)
    assert 'options={"strict": True}' in str(raised.value)


def test_a_part_of_a_function_may_have_nothing():
    hold(Report(), "all", part=True)
    with pytest.raises(NotFused, match="nothing was found"):
        hold(Report(), "all")


def test_explain_names_the_breaks_where_nothing_is_found():
    place = f"{__file__}:{broken_nothing.__code__.co_firstlineno + 2}"
    with pytest.raises(NotFused, match=f"{re.escape(place)}: a graph ends"):
        as_explain(broken_nothing)


def test_a_refusal_of_another_kind_has_a_way_out():
    assert "explain" in way_out(Refused("it is so", kind="no plan"))
