"""Checks by random values that two programs are equal, in a finite field, where nothing is rounded.

Exponents are in Z_q and other numbers in Z_p, where q divides p - 1, so that exp is a homomorphism from Z_q to Z_p. A
maximum is the largest by a random order: an equality must not depend on which score is the largest. Rescaled sums are
folded in several blocks, which are merged. A state of absent elements has no mantissa, which is undefined, as 0/0 is;
of the left program undefined values say nothing. Example: exp(x + y) and exp(x) · exp(y) are the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from ...egraph.terms.ops import OPS
from ...egraph.terms.term import FLOATS, Dim, Term
from ...egraph.terms.traversal import all_dims, subterms

Q = 1_000_000_007
P = 44_000_000_309  # 44 · Q + 1, a prime, as Q is
GENERATOR = pow(2, 44, P)  # of order Q
ABSENT = None  # the exponent of an element that is not there
UNDEFINED = "undefined"  # -∞ - -∞, a division by zero, the mantissa of an absent state
EXPONENT, BASE, OTHER = Q, P, 0


class NotApplicable(Exception):
    """The term has no meaning in finite fields: an operation, or a tensor that is an exponent and a number."""


def moduli(root: Term) -> dict[Term, int]:
    """The field of every subterm, found from the root down: arguments of exp and scales are exponents."""
    found: dict[Term, int] = {root: BASE}
    for node in reversed(list(subterms(root))):
        mine = found[node]
        for place, argument in enumerate(node.args):
            field = _field_of_argument(node, place, mine)
            if found.setdefault(argument, field) != field and argument.op != "const":
                raise NotApplicable(f"{argument} is an exponent here and a number there")
    return found


def _field_of_argument(node: Term, place: int, mine: int) -> int:
    match node.op:
        case "exp":
            return EXPONENT
        case "scale":
            return BASE  # a state, whose parts have fields of their own
        case "scaled":
            return EXPONENT if place == 0 else BASE
        case "where" if place == 0:
            return OTHER
        case "eq" if any(a.op == "const" and a.attrs[0] == float("-inf") for a in node.args):
            return EXPONENT  # a test whether an element is absent
        case "load":
            return OTHER
    return mine


class Field:
    """A random order of exponents, and random values of tensors, which are drawn on first use."""

    def __init__(self, seed: int = 0):
        self.random = Random(seed)
        self.ranks: dict[int, float] = {}
        self.tensors: dict[str, np.ndarray] = {}

    def value(self, root: Term, sizes: Mapping[str, int] | None = None) -> np.ndarray:
        """The values of the term as integers of its field, with one axis for each dim of `all_dims`.

        An axis has the length 1 if the value does not depend on the dim. Raises NotApplicable.
        """
        order, fields = all_dims(root), moduli(root)
        lengths = {d: d.size if isinstance(d.size, int) else (sizes or {})[d.size] for d in order}
        done: dict[Term, Any] = {}
        for node in subterms(root):
            args = [done[a] for a in node.args]
            for place, a in enumerate(node.args):  # a literal is a number of the field of its place
                if a.op == "const":
                    args[place] = _literal(a.attrs[0], _field_of_argument(node, place, fields[node]))
            done[node] = self._node(node, args, fields[node], order, lengths)
        return done[root]

    def _node(self, node: Term, args, modulus: int, order: list[Dim], lengths):
        match node.op:
            case "const":
                return _literal(node.attrs[0], modulus)
            case "iota":
                shape = [lengths[d] if d == node.attrs[0] else 1 for d in order]
                return np.arange(lengths[node.attrs[0]]).reshape(shape)
            case "load":
                return self._tensor(node.attrs[0], modulus, lengths)[tuple(np.broadcast_arrays(*args))]
            case "cast" if node.attrs[0] in FLOATS and node.args[0].dtype in FLOATS:
                return args[0]
            case "reduce":
                return self._fold(node.attrs[0], args[0], modulus, order.index(node.attrs[1]), lengths[node.attrs[1]])
            case "scaled":
                return tuple(args)
            case "scale":
                return args[0][0]
            case "mantissa":
                return _elementwise(lambda m, a: UNDEFINED if m is ABSENT or m == UNDEFINED else a)(*args[0])
        return self._pointwise(node, args, modulus)

    def _pointwise(self, node: Term, args, modulus: int):
        if modulus == OTHER or node.op == "where":
            if OPS[node.op].meaning is None:
                raise NotApplicable(node.op)
            found = OPS[node.op].meaning(*args)
            return found.astype(bool) if node.op == "eq" else found
        if node.op == "maximum":
            return _elementwise(self._larger)(*args)
        if node.op not in _ARITHMETIC:
            raise NotApplicable(f"{node.op} has no meaning in a finite field")
        return _elementwise(lambda *xs: _ARITHMETIC[node.op](modulus, *xs))(*args)

    def _tensor(self, tensor, modulus: int, lengths) -> np.ndarray:
        if tensor.name not in self.tensors:
            sizes = {d.size: n for d, n in lengths.items()}
            shape = tuple(s if isinstance(s, int) else sizes[s] for s in tensor.shape)
            limit = 2 if tensor.dtype == "bool" else modulus or min(shape, default=1)
            drawn = [self.random.randrange(limit) for _ in range(int(np.prod(shape)))]
            kind = bool if tensor.dtype == "bool" else object if modulus else int
            self.tensors[tensor.name] = np.array(drawn, dtype=kind).reshape(shape)
        return self.tensors[tensor.name]

    def _larger(self, a, b):
        """The larger of two exponents by the random order. An absent one is the smallest."""
        if UNDEFINED in (a, b):
            return UNDEFINED
        if a is ABSENT or b is ABSENT:
            return b if a is ABSENT else a
        for x in (a, b):
            self.ranks.setdefault(x, self.random.random())
        return a if self.ranks[a] >= self.ranks[b] else b

    def _fold(self, monoid: str, value, modulus: int, axis: int, size: int):
        if monoid == "rescaled":
            return self._fold_rescaled(value, axis, size)
        operation = {
            "sum": lambda a, b: _ARITHMETIC["add"](modulus, a, b),
            "prod": lambda a, b: _ARITHMETIC["mul"](modulus, a, b),
            "max": self._larger,
        }
        if monoid not in operation:
            raise NotApplicable(f"a reduction by {monoid}")
        parts = _slices(value, axis, size)
        total = parts[0]
        for part in parts[1:]:
            total = _elementwise(operation[monoid])(total, part)
        return total

    def _fold_rescaled(self, state, axis: int, size: int):
        """Folds two blocks separately and merges the results."""
        pairs = list(zip(*(_slices(part, axis, size) for part in np.broadcast_arrays(*state))))
        cut = self.random.randrange(1, size) if size > 1 else 1
        total = None
        for block in (pairs[:cut], pairs[cut:]):
            partial = None
            for pair in block:
                partial = pair if partial is None else self._merged(partial, pair)
            total = partial if total is None else total if partial is None else self._merged(total, partial)
        return total

    def _merged(self, left, right):
        def merge(m, a, n, b):
            if m is ABSENT or n is ABSENT:
                return (n, b) if m is ABSENT else (m, a)
            if UNDEFINED in (m, n, a, b):
                return (UNDEFINED, UNDEFINED) if UNDEFINED in (m, n) else (self._larger(m, n), UNDEFINED)
            top = self._larger(m, n)
            return top, (a * _exp(m - top) + b * _exp(n - top)) % P

        return np.vectorize(merge, otypes=[object, object])(*left, *right)


def _slices(value, axis: int, size: int) -> list[np.ndarray]:
    shape = list(np.shape(value))
    shape[axis] = size
    return np.split(np.broadcast_to(value, shape), size, axis=axis)


def _literal(value, modulus: int) -> np.ndarray:
    """A rational literal in a field, as an array of one element. -∞ is ABSENT."""
    if isinstance(value, bool) or modulus == OTHER:
        return np.array(value)
    if value == float("-inf"):
        return np.array(ABSENT, dtype=object)
    if value != value or value == float("inf"):
        raise NotApplicable(f"the literal {value}")
    exact = Fraction(value)
    return np.array(exact.numerator * pow(exact.denominator, -1, modulus) % modulus, dtype=object)


def _exp(exponent: int | str | None) -> int | str:
    if isinstance(exponent, str):
        return UNDEFINED
    return 0 if exponent is ABSENT else pow(GENERATOR, exponent % Q, P)


def _elementwise(operation):
    return np.vectorize(operation, otypes=[object])


def _divided(modulus: int, a, b):
    return UNDEFINED if b % modulus == 0 else a * pow(b, -1, modulus) % modulus


def _with_absent(operation, also_both: bool = False):
    """The operation, with an absent result for an absent operand: -∞ and any number give -∞.

    Two absent operands give -∞ only in a sum (also_both): -∞ - -∞ is undefined. So is what has an undefined operand.
    """

    def total(modulus: int, *xs):
        if any(isinstance(x, str) for x in xs):
            return UNDEFINED
        if any(x is ABSENT for x in xs):
            all_absent = len(xs) > 1 and all(x is ABSENT for x in xs)
            return UNDEFINED if all_absent and not also_both else ABSENT
        return operation(modulus, *xs)

    return total


def _difference(modulus: int, a, b):
    if b is ABSENT and a is not ABSENT and not isinstance(a, str):
        raise NotApplicable("a number less -∞ is ∞, which is no exponent here")
    return _with_absent(lambda modulus, a, b: (a - b) % modulus)(modulus, a, b)


def _negated(modulus: int, a):
    if a is ABSENT:
        raise NotApplicable("-∞ negated is ∞, which is no exponent here")
    return a if isinstance(a, str) else -a % modulus


_ARITHMETIC: dict[str, Callable] = {
    "add": _with_absent(lambda modulus, a, b: (a + b) % modulus, also_both=True),
    "sub": _difference,
    "mul": _with_absent(lambda modulus, a, b: a * b % modulus),
    "neg": _negated,
    "div": _with_absent(_divided),
    "exp": lambda modulus, a: _exp(a),
}


def agree(left: Term, right: Term, trials: int = 3, sizes: Mapping[str, int] | None = None) -> bool:
    """Whether two programs give the same numbers for random tensors, in each trial. Raises NotApplicable.

    Where the left one is undefined, the right one may be anything; somewhere the left one must be defined.
    """
    seen = False
    for seed in range(trials):
        field = Field(seed)
        a, b = (field.value(side, sizes) for side in (left, right))
        dims = sorted(left.dims | right.dims)
        a, b = (_arranged(value, all_dims(side), dims) for value, side in ((a, left), (b, right)))
        a, b = np.broadcast_arrays(a, b)
        defined = _elementwise(lambda x: not isinstance(x, str))(a).astype(bool)
        seen |= bool(defined.any())
        if not np.array_equal(a[defined], b[defined]):
            return False
    return seen


def _arranged(value, order: list[Dim], wanted: list[Dim]) -> np.ndarray:
    value = np.asarray(value)
    full = value.reshape((1,) * (len(order) - value.ndim) + value.shape)
    gone = tuple(n for n, d in enumerate(order) if d not in wanted)
    kept = [d for d in order if d in wanted]
    flat = np.squeeze(full, axis=gone).transpose([kept.index(d) for d in wanted if d in kept])
    return np.expand_dims(flat, tuple(n for n, d in enumerate(wanted) if d not in kept))
