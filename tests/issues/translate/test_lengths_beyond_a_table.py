"""With lengths that are not known when a region is captured, a place beyond a table was the nearest row of it, where
eager raises: a sequence longer than its table of relative places gave numbers."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.egraph.terms.ops import const, iota, make
from onepass.egraph.terms.term import Dim
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.translate.index_bounds import BoundsCondition
from onepass.translate.translate import translate


def _scored(q, k, v, rows):
    return torch.softmax(q @ k.mT + torch.einsum("bhid,ijd->bhij", q, rows), -1) @ v


def _apart(q, k):
    return torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]


def wrapping(q, k, v, table):
    return _scored(q, k, v, table[_apart(q, k)])


def embedded(q, k, v, table):
    return _scored(q, k, v, F.embedding(_apart(q, k) + q.shape[-2] - 1, table))


def inputs(rows, columns):
    torch.manual_seed(rows)
    return [torch.randn(2, 2, n, 16) for n in (rows, columns, columns)]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function, places", [(wrapping, 60), (embedded, 90)])
def test_a_length_beyond_the_table_raises_as_in_eager(function, places, executor):
    options = {"inner": "eager", "executor": executor, "strict": True, "libraries": False}
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onepass", options=options, dynamic=True)
    table = torch.randn(places, 16)
    for rows, columns in ((40, 50), (20, 30), (33, 45)):
        given = [*inputs(rows, columns), table]
        exact = function(*(x.double() for x in given))
        torch.testing.assert_close(compiled(*given).double(), exact, atol=2e-5, rtol=0)
    with pytest.raises(IndexError):
        compiled(*inputs(70, 35), table)
    (region,) = onepass.reports()[-1].regions
    assert any("beyond a table" in note for note in region.notes)


@pytest.mark.parametrize("function", [wrapping, embedded])
def test_known_lengths_are_refused(function):
    with pytest.raises(Refusal, match="are beyond a table of 20"):
        translate(program_of(function, *inputs(70, 30), torch.randn(20, 16)))


def test_places_are_asked_at_the_sizes_of_a_call():
    i, n = iota(Dim("i", "n")), make("size", (), ("n",))
    assert BoundsCondition(i + n, "m", False).holds({"n": 5, "m": 10})
    assert not BoundsCondition(i + n, "m", False).holds({"n": 5, "m": 9})
    assert BoundsCondition(i - n, 5, True).holds({"n": 5}) and not BoundsCondition(i - n, 5, False).holds({"n": 5})
    assert not BoundsCondition(i - n, 5, True).holds({"n": 6})
    clamped = make("minimum", (i, const(7)))
    assert BoundsCondition(clamped, 8, False).holds({"n": 10**6})
    assert not BoundsCondition(clamped, 7, False).holds({"n": 10**6})
    assert BoundsCondition(i % 3 + i // 2, 300, False).holds({"n": 0})
