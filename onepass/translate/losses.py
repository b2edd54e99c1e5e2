"""Losses of classes by label, as terms: cross entropy, and the negative logarithm of a likelihood.

The element at a label is a sum over all classes that keeps one: no index is read from memory, so a label may be any
number. A label that is no class, where eager raises, gives an infinite loss. Example: the loss of a row of scores s is
-(Σ_j where(j = label, s_j, 0) - max s - log Σ exp(s - max s)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import add

from .. import messages
from ..egraph.terms.ops import const, eq, exp, iota, log, make, max_over, power, sum_over
from ..egraph.terms.positions import at_position
from ..egraph.terms.sizes import Size, term_of
from ..egraph.terms.term import Dim, Term
from .registry import (
    FLOATING,
    INTEGERS,
    Handlers,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    compute_dtype,
    convert,
    element,
    term_dtype,
)

handles = Handlers()
NONE, MEAN, SUM = 0, 1, 2  # reductions, as ATen numbers them
ZERO = const(0.0)


@dataclass(frozen=True)
class Labelled:
    """A call's classes and labels. rows: the sizes of all axes but that of the classes."""

    call: OperatorCall
    source: TensorValue
    labels: TensorValue
    classes: Dim
    axis: int

    @property
    def rows(self) -> tuple[Size, ...]:
        return tuple(n for k, n in enumerate(self.source.shape) if k != self.axis)

    @property
    def dtype(self) -> str:
        return compute_dtype(self.source.meta.dtype)

    def along(self, row: Sequence[Term]) -> Term:
        """The element of a row at the coordinate of the classes."""
        index = (*row[: self.axis], iota(self.classes), *row[self.axis :])
        return element(self.source, index, self.dtype)

    def label(self, row: Sequence[Term]) -> Term:
        return convert(self.labels.at(tuple(row)), "int64")

    def picked(self, row: Sequence[Term], values: Term) -> Term:
        """The element at the row's label of what has the classes as a dim.

        What is the same for all classes is subtracted behind, together: a row's largest score and the logarithm beside
        it are a logarithm of a sum, whose gradient asks for no largest score. That holds for labels that are classes;
        `checked` says what the loss of others is.
        """
        if values.op == "cast" and self.classes in values.dims:
            return make("cast", (self.picked(row, values.args[0]),), values.attrs)
        same: list[Term] = []
        while values.op == "sub" and self.classes not in values.args[1].dims:
            values, subtracted = values.args
            same.insert(0, subtracted)
        found = at_position(values, self.classes, self.label(row))
        return found - reduce(add, same) if same else found

    def weight(self, row: Sequence[Term]) -> Term | None:
        """The weight of the row's class; None where all weigh alike."""
        weights = self.call["weight"]
        return None if weights is None else self.picked(row, element(weights, (iota(self.classes),), self.dtype))

    def counted(self, row: Sequence[Term]) -> Term:
        """Whether the row is not ignored."""
        return make("not", (eq(self.label(row), const(self.call["ignore_index"])),))

    def checked(self, row: Sequence[Term], loss: Term) -> Term:
        """The loss; 0 of an ignored row, infinite where the label is no class."""
        label = self.label(row)
        is_class = apply("and", apply("le", const(0), label), apply("lt", label, term_of(self.classes.size)))
        return choose(self.counted(row), choose(is_class, loss, const(inf)), ZERO)

    def result(self, loss: Callable[[Sequence[Term]], Term], divisor: Callable[[Sequence[Term]], Term]) -> TensorValue:
        """The losses of all rows, their sum or their mean; it is divided by the sum of the divisors."""
        call, reduction = self.call, self.call["reduction"]
        dtype = term_dtype(call.meta.dtype)
        if reduction == NONE:
            return call.value(lambda index: convert(loss(index), dtype))
        binders = [call.binder(size) for size in self.rows]

        def pull(index: Sequence[Term]) -> Term:
            row = tuple(map(iota, binders))
            total = _summed(binders, loss(row))
            if reduction == MEAN:
                # A power, as laws that bring exponentials together know quotients by exponentials alone.
                total = total * power(_summed(binders, divisor(row)), const(-1.0))
            return convert(total, dtype)

        return call.value(pull)


def _summed(binders: Sequence[Dim], body: Term) -> Term:
    for binder in reversed(binders):
        body = sum_over(binder, body)
    return body


def _labelled(call: OperatorCall, source: TensorValue, labels: TensorValue) -> Labelled:
    """Raises Refusal for labels that are probabilities, and for scores that are no floats."""
    if labels.meta.dtype not in INTEGERS or source.meta.dtype not in FLOATING:
        raise call.refuse(messages.PROBABILITIES_AS_LABELS)
    axis = 1 if len(source.shape) > 1 else 0
    return Labelled(call, source, labels, call.binder(source.shape[axis]), axis)


def _divisor(given: Labelled) -> Callable[[Sequence[Term]], Term]:
    """What a row adds to the number by which a mean divides: 1, or the weight of its class; 0 if it is ignored."""

    def divisor(row: Sequence[Term]) -> Term:
        weight = given.weight(row)
        return choose(given.counted(row), const(1.0) if weight is None else weight, ZERO)

    return divisor


@handles("aten.nll_loss_nd.default", "aten.nll_loss.default")
def negative_likelihood(call: OperatorCall) -> TensorValue:
    given = _labelled(call, call["self"], call["target"])

    def loss(row: Sequence[Term]) -> Term:
        picked = make("neg", (given.picked(row, given.along(row)),))
        weight = given.weight(row)
        return given.checked(row, picked if weight is None else picked * weight)

    return given.result(loss, _divisor(given))


@handles("aten.cross_entropy_loss.default")
def cross_entropy(call: OperatorCall) -> TensorValue:
    """The mean over rows of -log softmax(s)[label]; with smoothing, a share of the mean over all classes joins it."""
    given = _labelled(call, call["self"], call["target"])
    share, kind = call["label_smoothing"], term_dtype(call["self"].meta.dtype)

    def loss(row: Sequence[Term]) -> Term:
        score, largest = given.along(row), max_over(given.classes, given.along(row))
        rest = largest + log(sum_over(given.classes, exp(score - largest)))
        rounded = lambda x: convert(convert(x, kind), given.dtype)  # a softmax's logarithm is stored before it is read
        found, weight = rounded(rest - given.picked(row, score)), given.weight(row)
        found = found if weight is None else found * weight
        if share:
            found = found * const(1.0 - share) + _over_all(given, score - rest) * const(share)
        return given.checked(row, found)

    return given.result(loss, _divisor(given))


def _over_all(given: Labelled, logarithm: Term) -> Term:
    """Minus the mean over all classes of their logarithms, each with its weight."""
    weights, classes = given.call["weight"], given.classes
    if weights is not None:
        logarithm = logarithm * element(weights, (iota(classes),), given.dtype)
    count = convert(term_of(classes.size), given.dtype)
    return make("neg", (apply("div", sum_over(classes, logarithm), count),))
