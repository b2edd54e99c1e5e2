"""Differences of neighbours and cumulative sums along an axis, of integers that the graph itself makes.

No tensor is read, so both are functions of coordinates. Example: decoders find packed sequences by jumps in positions,
and count positions with the cumulative sum of a mask of ones.
"""

from __future__ import annotations

from .. import messages
from ..egraph.terms.affine import compare
from ..egraph.terms.index_simplify import simplify_index
from ..egraph.terms.ops import const, iota
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import subterms
from .registry import Handlers, OperatorCall, TensorValue, apply, choose, convert, stored, term_dtype

handles = Handlers()


@handles("aten.diff.default")
def differences(call: OperatorCall) -> TensorValue:
    """x[i + 1] - x[i]; with one number in front: x[0] - front, then x[i] - x[i - 1]."""
    source, front = call["self"], call["prepend"]
    axis = source.axis(call["dim"])
    if call["n"] != 1 or call["append"] is not None or term_dtype(call.meta.dtype) != "int64":
        raise call.refuse(messages.DIFFERENCES)
    if front is not None and front.shape[axis] != 1:
        raise call.refuse(messages.DIFFERENCE_IN_FRONT)

    def pull(index):
        at = lambda x, i: convert(x.at((*index[:axis], simplify_index(i), *index[axis + 1 :])), "int64")
        step = lambda later, earlier: stored(simplify_index(apply("sub", later, earlier)), call.meta.dtype)
        i = index[axis]
        if front is None:
            return step(at(source, i + const(1)), at(source, i))
        first = step(at(source, const(0)), at(front, const(0)))
        return choose(compare("le", i, const(0)), first, step(at(source, i), at(source, i - const(1))))

    return call.value(lambda index: _require_numbers(call, pull(index)))


@handles("aten.cumsum.default")
def cumulative_sum(call: OperatorCall) -> TensorValue:
    """Σ_{j ≤ i} x[j] = (i + 1) · x, where x is the same for every j."""
    source = call["self"]
    axis, dtype = source.axis(call["dim"]), term_dtype(call.meta.dtype)
    if dtype != "int64" or not source.shape:
        raise call.refuse(messages.RUNNING_SUM)

    def pull(index):
        j = iota(call.binder(source.shape[axis]))
        x = _require_numbers(call, convert(source.at((*index[:axis], j, *index[axis + 1 :])), dtype))
        if j in subterms(x):
            raise call.refuse(messages.RUNNING_SUM_OF_DATA)
        return stored(simplify_index(apply("mul", x, index[axis] + const(1))), call.meta.dtype)

    return call.value(pull)


def _require_numbers(call: OperatorCall, x: Term) -> Term:
    """x, if it reads no tensor: otherwise positions before the first one would be read. Raises Refusal."""
    if any(t.op == "load" for t in subterms(x)):
        raise call.refuse(messages.RUNNING_SUM_OF_DATA)
    return x
