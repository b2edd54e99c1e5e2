"""The values of a term over exact numbers: what a kernel's text is compared with.

Every array has one axis for each dim of the term, in one order, of length 1 where it does not depend on the dim. Some
dims can be restricted to a few places, so that of a large result a part is computed. Meanings are those of
egraph/terms/ops.py, written again for exact numbers. Example: TermValues({"x": numbers}, {}).value(term, (i, j)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from ...egraph.terms.ops import OPS
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import FLOATS, Dim, Term
from ...egraph.terms.traversal import factors, subterms
from . import numbers as exact
from .numbers import Numbers, Value

INTEGER_OPERATIONS = ("floordiv", "mod", "and", "or", "not", "uniform")


class NoMeaning(Exception):
    """An operation has no meaning over exact numbers here; the message names it."""


class TermValues:
    """Evaluates terms of one kernel. places: the coordinates of dims that are restricted."""

    def __init__(
        self,
        tensors: Mapping[str, Value],
        sizes: Mapping[str, int],
        order: Sequence[Dim],
        places: Mapping[Dim, np.ndarray] | None = None,
        levels: int = exact.LEVELS,
    ):
        self.tensors, self.sizes, self.order = tensors, sizes, list(order)
        self.places = dict(places or {})
        self.done: dict[Term, Any] = {}
        self.levels = levels

    def of(self, term: Term) -> Any:
        """The values of a term; of a state, its scale and its mantissa."""
        if term not in self.done:
            with np.errstate(all="ignore"):
                self.done[term] = self._value(term)
        return self.done[term]

    def coordinates(self, dim: Dim) -> np.ndarray:
        """The places of a dim."""
        found = self.places.get(dim)
        return np.arange(resolve(dim.size, self.sizes)) if found is None else found

    def _value(self, node: Term):
        match node.op:
            case "const":
                value = node.attrs[0]
                return exact.literal(value) if isinstance(value, float) else np.asarray(value)
            case "iota":
                return self.coordinates(node.attrs[0]).reshape([-1 if d == node.attrs[0] else 1 for d in self.order])
            case "size":
                return np.asarray(resolve(node.attrs[0], self.sizes))
            case "load":
                return self._loaded(node)
            case "cast":
                return cast(self.of(node.args[0]), node.attrs[0])
            case "reduce":
                return self._reduced(node)
            case "scaled":
                return tuple(exact.numbers(self.of(a)) for a in node.args)
            case "scale":
                return self.of(node.args[0])[0]
            case "mantissa":
                top, total = self.of(node.args[0])
                return exact.choose(np.isneginf(top.shadow), UNDEFINED, total)
        return pointwise(node, [self.of(a) for a in node.args])

    def _loaded(self, node: Term) -> Value:
        array, index = self.tensors[node.attrs[0].name], [np.asarray(self.of(a)) for a in node.args]
        if not index:
            return self.taken(array, ())
        within = [(place >= 0) & (place < length) for place, length in zip(index, array.shape, strict=True)]
        inside = reduce(np.logical_and, within)
        found = self.taken(array, tuple(np.broadcast_arrays(*(np.where(w, p, 0) for w, p in zip(within, index)))))
        if inside.all() or not isinstance(found, Numbers):
            return found
        return exact.choose(inside, found, UNDEFINED)  # a place beyond a tensor: who reads it must not use it

    def taken(self, array: Value, at: tuple) -> Value:
        """Elements of a tensor."""
        if isinstance(array, Numbers):
            return array.arranged(lambda part: part[at])
        return exact.of_floats(array[at], self.levels) if array.dtype.kind == "f" else array[at]

    # Reductions

    def _reduced(self, node: Term) -> Any:
        monoid, dim = node.attrs
        axis, size = self.order.index(dim), len(self.coordinates(dim))
        body = node.args[0]
        if monoid == "rescaled":
            return self._rescaled(self.of(body) if body.op != "scaled" else None, body, axis, size)
        if monoid == "sum" and body.dtype in FLOATS:
            return self._sum([], body, axis, size)
        return kept(partial(fold, monoid), spread(self.of(body), axis, size, len(self.order)), axis)

    def _rescaled(self, state, body: Term, axis: int, size: int):
        """The largest scale, and the sum of weights by it; an element whose scale is -∞ is absent."""
        gauge = exact.numbers(self.of(body.args[0])) if state is None else state[0]
        gauge = spread(gauge, axis, size, len(self.order))
        top = kept(exact.highest, gauge, axis)
        absent = np.isneginf(gauge.shadow)
        shift = exact.choose(np.isneginf(top.shadow), exact.literal(0.0), top)
        weight = exact.exp(exact.subtract(gauge, shift))
        if state is None:
            return top, self._sum([weight], body.args[1], axis, size, absent)
        inside = exact.choose(absent, exact.literal(0.0), exact.multiply(weight, state[1]))
        return top, kept(exact.total, spread(inside, axis, size, len(self.order)), axis)

    def _sum(self, weights: list[Numbers], body: Term, axis: int, size: int, absent: np.ndarray | None = None):
        """The sum of a product along an axis, as a product of matrices where all factors are finite."""
        found = weights + [exact.numbers(self.of(f)) for f in self._factors(body)]
        if all(np.isfinite(f.shadow).all() for f in found):
            return self._contracted(found, axis, size)
        value = reduce(exact.multiply, [*weights, exact.numbers(self.of(body))])
        value = value if absent is None else exact.choose(absent, exact.literal(0.0), value)
        return kept(exact.total, spread(value, axis, size, len(self.order)), axis)

    def _factors(self, body: Term) -> list[Term]:
        """The factors of a product; a choice of something or 0 is a product with a condition."""
        found = []
        for factor in factors(body):
            if factor.op == "where" and factor.args[2].op == "const" and factor.args[2].attrs[0] == 0:
                found += [factor.args[0], *self._factors(factor.args[1])]
            else:
                found.append(factor)
        return found

    def _contracted(self, found: list[Numbers], axis: int, size: int) -> Numbers:
        rank = len(self.order)
        found = [widened(f, rank) for f in found]
        outside = [f for f in found if f.shape[axis] == 1]
        inside = sorted((f for f in found if f.shape[axis] > 1), key=lambda f: f.shadow.size)
        if not inside:
            return reduce(exact.multiply, outside, exact.numbers(np.asarray(size)))
        while len(inside) > 2:  # the two whose product is the smallest
            pairs = [(_size(inside[n], inside[m]), n, m) for n, m in combinations(range(len(inside)), 2)]
            _, one, other = min(pairs)
            joined = exact.multiply(inside[one], inside[other])
            inside = [f for n, f in enumerate(inside) if n not in (one, other)] + [joined]
        summed = _matrix_sum(inside[0], inside[1], axis) if len(inside) == 2 else kept(exact.total, inside[0], axis)
        return reduce(exact.multiply, outside, summed)


def _size(a: Numbers, b: Numbers) -> int:
    """Of the product of two arrays."""
    return prod(np.broadcast_shapes(a.shape, b.shape))


EXPONENTIALS = ("exp", "exp2", "tanh", "sigmoid", "pow")


def levels_of(terms: Iterable[Term]) -> int:
    """How many primes the values of these terms need: one more than exponentials are in one another."""
    depths: dict[Term, int] = {}
    for node in (node for term in terms for node in subterms(term)):
        grows = node.op in EXPONENTIALS or (node.op == "reduce" and node.attrs[0] == "rescaled")
        depths[node] = max((depths[a] for a in node.args), default=0) + grows
    deepest = max(depths.values(), default=0)
    if deepest >= exact.LEVELS:
        raise NoMeaning(f"{deepest} exponentials in one another")
    return deepest + 1


UNDEFINED = exact.of_floats(np.nan)


def widened(value: Value, rank: int) -> Value:
    """The value with as many axes, missing ones in front."""
    if value.ndim == rank:
        return value
    change = lambda part: np.asarray(part).reshape((1,) * (rank - np.ndim(part)) + np.shape(part))
    return value.arranged(change) if isinstance(value, Numbers) else change(value)


def spread(value: Value, axis: int, size: int, rank: int) -> Value:
    """The value with an axis of its full length."""
    value = widened(value, rank)
    shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
    change = lambda part: np.broadcast_to(part, shape)
    return value.arranged(change) if isinstance(value, Numbers) else change(value)


def kept(folds: Callable, value: Value, axis: int) -> Value:
    """A fold whose axis stays, with the length 1."""
    found = folds(value, axis)
    change = lambda part: np.expand_dims(part, axis)
    return found.arranged(change) if isinstance(found, Numbers) else change(found)


def fold(monoid: str, value: Value, axis: int) -> Value:
    """The value folded along an axis, which it then lacks."""
    if isinstance(value, Numbers):
        return NUMBER_FOLDS[monoid](value, axis)
    return INTEGER_FOLDS[monoid](value, axis=axis)


def _product(value: Numbers, axis: int) -> Numbers:
    at = lambda n: value.arranged(lambda part: np.take(part, n, axis))
    return reduce(exact.multiply, [at(n) for n in range(value.shape[axis])])


def _lowest(value: Numbers, axis: int) -> Numbers:
    return exact.negate(exact.highest(exact.negate(value), axis))


NUMBER_FOLDS: dict[str, Callable] = {"sum": exact.total, "max": exact.highest, "min": _lowest, "prod": _product}
INTEGER_FOLDS: dict[str, Callable] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
INTEGER_FOLDS |= {"any": np.any, "all": np.all}


def _matrix_sum(a: Numbers, b: Numbers, axis: int) -> Numbers:
    """Σ a · b along an axis. Axes that both have stay in front, then those of a alone, then those of b alone."""
    rank = a.ndim
    rest = [n for n in range(rank) if n != axis]
    mine = [n for n in rest if a.shape[n] > 1 and b.shape[n] == 1]
    others = [n for n in rest if a.shape[n] == 1]
    both = [n for n in rest if n not in mine and n not in others]
    turned = lambda x, order: x.arranged(lambda part: np.transpose(part, order))
    a, b = turned(a, (*both, *mine, *others, axis)), turned(b, (*both, axis, *others, *mine))
    lead, width = a.shape[: len(both)], a.shape[-1]
    rows, columns = [a.shape[len(both) + n] for n in range(len(mine))], b.shape[len(both) + 1 :][: len(others)]
    a = a.arranged(lambda part: part.reshape(*lead, prod(rows), width))
    b = b.arranged(lambda part: part.reshape(*part.shape[: len(both)], width, prod(columns)))
    found = exact.matrix_product(a, b)
    lead = found.shape[: len(both)]
    places = [(*both, *mine, *others).index(n) for n in rest]
    settled = lambda part: np.expand_dims(part.reshape(*lead, *rows, *columns).transpose(places), axis)
    return found.arranged(settled)


# Operations at one place


def cast(value: Value, dtype: str) -> Value:
    """The value as another dtype. Numbers are not rounded."""
    if dtype in FLOATS:
        return exact.numbers(value)
    if dtype == "bool":
        return value.shadow != 0 if isinstance(value, Numbers) else np.asarray(value).astype(bool)
    whole = np.trunc(value.shadow).astype(np.int64) if isinstance(value, Numbers) else np.asarray(value)
    return whole.astype(dtype).astype(np.int64)


def pointwise(node: Term, args: list[Value]) -> Value:
    """An operation at each place. It is one of numbers if an operand or its result is."""
    if node.op == "where":
        condition, *sides = args
        if node.dtype in FLOATS or any(isinstance(x, Numbers) for x in sides):
            return exact.choose(np.asarray(condition), *map(exact.numbers, sides))
        return np.where(condition, *sides)
    if node.op == "uniform":
        return exact.of_floats(OPS["uniform"].meaning(*args))
    if not any(isinstance(x, Numbers) for x in args) and node.dtype not in FLOATS:
        meaning = OPS[node.op].meaning
        if meaning is None:
            raise NoMeaning(node.op)
        return meaning(*args)
    if node.op not in MEANINGS:
        raise NoMeaning(node.op)
    return MEANINGS[node.op](*map(exact.numbers, args))


def _tangent(x: Numbers) -> Numbers:
    one, power = exact.literal(1.0), exact.exp(exact.multiply(exact.literal(-2.0), absolute(x)))
    size = exact.divide(exact.subtract(one, power), exact.add(one, power))
    return exact.choose(x.shadow < 0, exact.negate(size), size)


def absolute(x: Numbers) -> Numbers:
    """|x|."""
    return exact.choose(x.shadow < 0, exact.negate(x), x)


def log2(x: Numbers) -> Numbers:
    """The logarithm to base 2."""
    return exact.divide(exact.unknown_function("log", x), exact.literal(np.log(2.0)))


def square_root(x: Numbers) -> Numbers:
    """√x."""
    return exact.unknown_function("sqrt", x)


def sigmoid(x: Numbers) -> Numbers:
    """1 / (1 + e^-x)."""
    one = exact.literal(1.0)
    return exact.divide(one, exact.add(one, exact.exp(exact.negate(x))))


def power(x: Numbers, y: Numbers) -> Numbers:
    """x^y: a product for a small whole number y that is the same everywhere, else by a logarithm."""
    if y.shadow.size == 1 and float(y.shadow.flat[0]).is_integer() and abs(y.shadow.flat[0]) <= 8:
        count = int(y.shadow.flat[0])
        found = reduce(exact.multiply, [x] * abs(count), exact.literal(1.0))
        return found if count >= 0 else exact.divide(exact.literal(1.0), found)
    one = exact.literal(1.0)
    logarithm = exact.unknown_function("log", absolute(x))
    size = exact.choose(absolute(x).shadow == 1, one, exact.exp(exact.multiply(logarithm, y)))
    whole, odd = np.floor(y.shadow) == y.shadow, np.floor(y.shadow / 2) != y.shadow / 2
    negative = exact.choose(whole, exact.choose(whole & odd, exact.negate(size), size), UNDEFINED)
    signed = exact.choose(x.shadow < 0, negative, size)
    return exact.choose(np.asarray((y.shadow == 0) | (x.shadow == 1)), one, signed)


def _floor_of_quotient(x: Numbers, y: Numbers) -> Numbers:
    return exact.floor(exact.divide(x, y))


MEANINGS: dict[str, Callable] = {
    "neg": exact.negate,
    "exp": exact.exp,
    "exp2": exact.exp2,
    "log": partial(exact.unknown_function, "log"),
    "log2": log2,
    "log1p": lambda x: exact.unknown_function("log", exact.add(exact.literal(1.0), x)),
    "sqrt": square_root,
    "rsqrt": lambda x: exact.divide(exact.literal(1.0), square_root(x)),
    "tanh": _tangent,
    "sigmoid": sigmoid,
    "erf": partial(exact.unknown_function, "erf"),
    "sin": partial(exact.unknown_function, "sin"),
    "cos": partial(exact.unknown_function, "cos"),
    "abs": absolute,
    "floor": exact.floor,
    "stored": lambda x: x,
    "finite": lambda x: np.isfinite(x.shadow),
    "order": lambda x: OPS["order"].meaning(x.shadow),
    "add": exact.add,
    "sub": exact.subtract,
    "mul": exact.multiply,
    "div": exact.divide,
    "pow": power,
    "maximum": exact.largest,
    "minimum": exact.smallest,
    "floordiv": _floor_of_quotient,
    "mod": lambda x, y: exact.subtract(x, exact.multiply(_floor_of_quotient(x, y), y)),
    "lt": exact.less,
    "le": lambda x, y: exact.less(x, y) | exact.equal(x, y),
    "eq": exact.equal,
}
