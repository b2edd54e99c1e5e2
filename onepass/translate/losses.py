"""Losses as terms: of classes by label or by probabilities, and of elements with a target each.

The element at a label is a sum over all classes that keeps one: no index is read from memory, so a label may be any
number. A label that is no class, where eager raises, gives an infinite loss. Example: the loss of a row of scores s is
-(Σ_j where(j = label, s_j, 0) - max s - log Σ exp(s - max s)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from .. import messages
from ..egraph.terms.ops import const, eq, exp, iota, log, make, max_over, power, sum_over
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
    picked,
    spread,
    term_dtype,
)

handles = Handlers()
NONE, MEAN, SUM = 0, 1, 2  # reductions, as ATen numbers them
ZERO, ONE = const(0.0), const(1.0)


@dataclass(frozen=True)
class Labelled:
    """A call's classes and labels. rows: the sizes of all axes but that of the classes."""

    call: OperatorCall
    source: TensorValue
    labels: TensorValue
    classes: Dim
    axis: int

    @staticmethod
    def of(call: OperatorCall) -> Labelled:
        """Raises Refusal for scores that are no floats."""
        source, labels = call["self"], call["target"]
        if source.meta.dtype not in FLOATING:
            raise call.refuse(messages.TARGETS_OF_OTHER_SHAPES)
        axis = 1 if len(source.shape) > 1 else 0
        return Labelled(call, source, labels, call.binder(source.shape[axis]), axis)

    @property
    def rows(self) -> tuple[Size, ...]:
        return tuple(n for k, n in enumerate(self.source.shape) if k != self.axis)

    @property
    def dtype(self) -> str:
        return compute_dtype(self.source.meta.dtype)

    @property
    def by_label(self) -> bool:
        """Whether a row has a label, and not a probability for each class."""
        return self.labels.meta.dtype in INTEGERS

    def along(self, row: Sequence[Term], value: TensorValue | None = None) -> Term:
        """The element of a row, of the scores or of another tensor, at the coordinate of the classes."""
        index = (*row[: self.axis], iota(self.classes), *row[self.axis :])
        return element(value or self.source, index, self.dtype)

    def label(self, row: Sequence[Term]) -> Term:
        return convert(self.labels.at(tuple(row)), "int64")

    def picked(self, row: Sequence[Term], values: Term) -> Term:
        """The element at the row's label of what has the classes as a dim."""
        return picked(values, self.classes, self.label(row))

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
        return _reduced(self.call, self.rows, loss, divisor)


def _reduced(
    call: OperatorCall,
    sizes: Sequence[Size],
    loss: Callable[[Sequence[Term]], Term],
    divisor: Callable[[Sequence[Term]], Term] = lambda place: ONE,
) -> TensorValue:
    """The losses at all places, their sum or their mean; it is divided by the sum of the divisors."""
    reduction, dtype = call["reduction"], term_dtype(call.meta.dtype)
    if reduction == NONE:
        return call.value(lambda index: convert(loss(index), dtype))
    binders = [call.binder(size) for size in sizes]

    def pull(index: Sequence[Term]) -> Term:
        place = tuple(map(iota, binders))
        total = _summed(binders, loss(place))
        if reduction == MEAN:
            # A power, as laws that bring exponentials together know quotients by exponentials alone.
            total = total * power(_summed(binders, divisor(place)), const(-1.0))
        return convert(total, dtype)

    return call.value(pull)


def _summed(binders: Sequence[Dim], body: Term) -> Term:
    for binder in reversed(binders):
        body = sum_over(binder, body)
    return body


def _divisor(given: Labelled) -> Callable[[Sequence[Term]], Term]:
    """What a row adds to the number by which a mean divides: 1, or the weight of its class; 0 if it is ignored."""

    def divisor(row: Sequence[Term]) -> Term:
        weight = given.weight(row)
        return choose(given.counted(row), ONE if weight is None else weight, ZERO)

    return divisor


@handles("aten.nll_loss_nd.default", "aten.nll_loss.default")
def negative_likelihood(call: OperatorCall) -> TensorValue:
    given = Labelled.of(call)

    def loss(row: Sequence[Term]) -> Term:
        likelihood = make("neg", (given.picked(row, given.along(row)),))
        weight = given.weight(row)
        return given.checked(row, likelihood if weight is None else likelihood * weight)

    return given.result(loss, _divisor(given))


@handles("aten.cross_entropy_loss.default")
def cross_entropy(call: OperatorCall) -> TensorValue:
    """The mean over rows of -log softmax(s)[label]; with smoothing, a share of the mean over all classes joins it."""
    given = Labelled.of(call)
    share, kind = call["label_smoothing"], term_dtype(call["self"].meta.dtype)

    def rest(row: Sequence[Term]) -> Term:
        score = given.along(row)
        largest = max_over(given.classes, score)
        return largest + log(sum_over(given.classes, exp(score - largest)))

    def by_probabilities(row: Sequence[Term]) -> Term:
        probability = given.along(row, given.labels)
        if share:
            probability = probability * const(1.0 - share) + apply("div", const(share), _count(given))
        if call["weight"] is not None:
            probability = probability * element(call["weight"], (iota(given.classes),), given.dtype)
        return sum_over(given.classes, probability * (rest(row) - given.along(row)))

    def by_label(row: Sequence[Term]) -> Term:
        score, rounded = given.along(row), lambda x: convert(convert(x, kind), given.dtype)
        # a softmax's logarithm is stored before it is read
        found, weight = rounded(rest(row) - given.picked(row, score)), given.weight(row)
        found = found if weight is None else found * weight
        if share:
            found = found * const(1.0 - share) + _over_all(given, score - rest(row)) * const(share)
        return given.checked(row, found)

    return given.result(by_label, _divisor(given)) if given.by_label else given.result(by_probabilities, lambda _: ONE)


def _count(given: Labelled) -> Term:
    """The number of classes."""
    return convert(term_of(given.classes.size), given.dtype)


def _over_all(given: Labelled, logarithm: Term) -> Term:
    """Minus the mean over all classes of their logarithms, each with its weight."""
    weights, classes = given.call["weight"], given.classes
    if weights is not None:
        logarithm = logarithm * element(weights, (iota(classes),), given.dtype)
    return make("neg", (apply("div", sum_over(classes, logarithm), _count(given)),))


# Elements with a target each ------------------------------------------------------------------------------------------


def _elements(call: OperatorCall, loss: Callable[[Term, Term, Sequence[Term]], Term]) -> TensorValue:
    """The losses of elements, of each with its target and its index, reduced as the call says."""
    source, target = call["self"], call["target"]
    if any(x.meta.dtype not in FLOATING for x in (source, target)) or len(target.shape) != len(source.shape):
        raise call.refuse(messages.TARGETS_OF_OTHER_SHAPES)
    kinds = {compute_dtype(x.meta.dtype) for x in (source, target)}
    kind = "float64" if "float64" in kinds else "float32"
    shape = [b if a == 1 else a for a, b in zip(source.shape, target.shape, strict=True)]

    def at(index: Sequence[Term]) -> Term:
        one, other = (element(x, spread(x, tuple(index), shape), kind) for x in (source, target))
        return loss(one, other, index)

    return _reduced(call, shape, at)


@handles("aten.kl_div.default")
def divergence(call: OperatorCall) -> TensorValue:
    """t · (log t - x), which is 0 where the target is; of a target that is a logarithm, e^t · (t - x)."""

    def loss(x: Term, t: Term, index: Sequence[Term]) -> Term:
        if call["log_target"]:
            return exp(t) * (t - x)
        return choose(eq(t, ZERO), ZERO, t * log(t)) - t * x

    return _elements(call, loss)


@handles("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy(call: OperatorCall) -> TensorValue:
    """(1 - t) · x - log sigmoid(x), the second multiplied by 1 + (weight of positives - 1) · t."""
    shape = call["self"].shape

    def loss(x: Term, t: Term, index: Sequence[Term]) -> Term:
        read = lambda name: element(call[name], spread(call[name], tuple(index), shape), x.dtype)
        logarithm = apply("minimum", x, ZERO) - apply("log1p", exp(-abs(x)))
        if call["pos_weight"] is not None:
            logarithm = logarithm * (ONE + (read("pos_weight") - ONE) * t)
        found = (ONE - t) * x - logarithm
        return found if call["weight"] is None else found * read("weight")

    return _elements(call, loss)
