"""Guards: the side conditions of rules. A guard is a record, never an opaque function.

Matcher, e-graph, sampler and provers therefore read the same condition. A guard whose truth is unknown does not hold,
so its rule does not fire. Every kind of guard is one row of GUARDS: how to decide it, and how to state it to egglog.
Example: `independent(x, "j")` holds where the term x does not depend on the dim j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from string import Formatter

from ..terms.addends import absorbs
from ..terms.affine import affine, bounds, combine
from ..terms.ops import OPERATION_OF, term, within_range
from ..terms.sizes import product, term_of
from ..terms.term import FLOATS, AttributeVariable, Dim, Term, TermError
from ..terms.traversal import all_dims, rename_dims

MONOID_NAMES = (*OPERATION_OF, "rescaled")  # every monoid here is associative and commutative

# Classes of operations and monoids. An increasing function is defined for every x up to ±∞ and never falls as x grows;
# a decreasing one never rises. A foldable monoid folds with an operation. A test compares each class with the meanings
# of terms/ops.py.
CLASSES = {
    "increasing": ("exp", "exp2", "tanh", "sigmoid", "erf", "floor"),
    "decreasing": ("neg",),
    "commutative": ("add", "mul", "maximum", "minimum", "and", "or", "eq", *MONOID_NAMES),
    "associative": ("add", "mul", "maximum", "minimum", "and", "or", *MONOID_NAMES),
    "foldable": tuple(OPERATION_OF),
    "idempotent": ("maximum", "minimum", "and", "or", "max", "min", "any", "all"),
}


@dataclass(frozen=True)
class Guard:
    """A side condition. `kind` is a key of GUARDS; the operands are pattern terms, dims, attributes or numbers."""

    kind: str
    operands: tuple

    def __post_init__(self):
        if self.kind not in GUARDS:
            raise TermError(f"unknown guard {self.kind!r}")
        if len(self.operands) != GUARDS[self.kind].arity:
            raise TermError(f"guard {self.kind!r} takes {GUARDS[self.kind].arity} operands, not {len(self.operands)}")

    def __str__(self) -> str:
        return GUARDS[self.kind].says.format(*self.operands)


@dataclass(frozen=True)
class GuardRow:
    """One kind of guard.

    says: its sentence, with {0}, {1}, ... for the operands. holds: decides it for the values of its operands.
    facts: the egglog facts that state it for the names of its operands; None if egglog cannot state it.
    """

    says: str
    holds: Callable[..., bool]
    facts: Callable[..., list[str]] | None

    @property
    def arity(self) -> int:
        """The number of operands that the sentence names."""
        return len({name for _, name, _, _ in Formatter().parse(self.says) if name})


def _literal(x: Term):
    return x.attrs[0] if x.op == "const" else None


def _compares(test: Callable[[float], bool]) -> Callable[[Term], bool]:
    return lambda x: _literal(x) is not None and test(_literal(x))


def _in_range(x: Term, size: Term) -> bool:
    low, high = bounds(x)
    limit = _literal(size)
    return limit is not None and low is not None and high is not None and 0 <= low and high < limit


def _in_two(dim: Dim, one: Dim, other: Dim) -> bool:
    if None in (dim.size, one.size, other.size):
        return False
    whole, first, second = (affine(term_of(d.size)) for d in (dim, one, other))
    return whole == combine(first, second, 1)


def _within(x: Term, dtype: str) -> bool:
    return x.op == "const" and dtype in FLOATS and bool(within_range(float(x.attrs[0]), dtype))


def read_as(x: Term) -> str:
    """The text of a term with numbered dims: equal for terms that load the same elements along other dims."""
    names = {d: Dim(f"dim {n}", d.size) for n, d in enumerate(all_dims(x))}
    return str(rename_dims(x, names))


GUARDS = {
    "independent": GuardRow(
        "{0} does not depend on {1}",
        lambda x, dim: dim not in x.dims,
        lambda x, dim: [f"(= dims_{x} (free {x}))", f"(= 0 (& dims_{x} {dim}))"],
    ),
    "depends": GuardRow(
        "{0} depends on {1}",
        lambda x, dim: dim in x.dims,
        None,
    ),
    "constant": GuardRow("{0} is a constant", lambda x: x.op == "const", lambda x: [f"(= {x} (const value_{x}))"]),
    "not_constant": GuardRow("{0} is not a constant", lambda x: x.op != "const", None),
    "positive": GuardRow(
        "{0} > 0",
        _compares(lambda v: v > 0 and isfinite(v)),
        lambda x: [f"(= {x} (const value_{x}))", f"(> value_{x} 0.0)"],
    ),
    "nonzero": GuardRow(
        "{0} ≠ 0",
        _compares(lambda v: v != 0 and isfinite(v)),
        lambda x: [f"(= {x} (const value_{x}))", f"(!= value_{x} 0.0)"],
    ),
    "in_range": GuardRow("0 ≤ {0} < {1}", _in_range, None),
    "integer": GuardRow("{0} is an integer", lambda x: x.dtype == "int64", None),
    "has_dtype": GuardRow(
        "{0} has dtype {1}", lambda x, dtype: x.dtype == dtype, lambda x, dtype: [f"(dtype {x} {dtype})"]
    ),
    "float_dtype": GuardRow(
        "{0} is a floating dtype", lambda d: d in ("float16", "bfloat16", "float32", "float64"), None
    ),
    "apart": GuardRow(
        "{0} and {1} are not read alike",
        lambda x, y: read_as(x) != read_as(y),
        lambda x, y: [f"(read {x} text_{x})", f"(read {y} text_{y})", f"(!= text_{x} text_{y})"],
    ),
    "not_share": GuardRow(
        "{0} has no logarithm subtracted from it", lambda x: x.op != "sub" or x.args[1].op != "log", None
    ),
    "not_absorbed": GuardRow("rounding {0} to {1} absorbs no addend", lambda x, dtype: not absorbs(x, dtype), None),
    "within": GuardRow("{0} is within the range of {1}", _within, None),
    "rank": GuardRow("{0} has {1} to {2} dims", lambda x, least, most: least <= len(x.dims) <= most, None),
    "size_at_most": GuardRow("|{0}| ≤ {1}", lambda d, most: isinstance(d.size, int) and d.size <= most, None),
    "divisible": GuardRow("{1} divides |{0}|", lambda d, n: isinstance(d.size, int) and d.size % n == 0, None),
    "in_blocks": GuardRow(
        "|{0}| = |{1}| · |{2}|", lambda d, b, i: product([d.size]) == product([b.size, i.size]), None
    ),
    "in_two": GuardRow("|{0}| = |{1}| + |{2}|", _in_two, None),
    "operation_of": GuardRow("{0} is the operation of {1}", lambda f, m: OPERATION_OF.get(m) == f, None),
    **{name: GuardRow(f"{{0}} is {name}", members.__contains__, None) for name, members in CLASSES.items()},
}
CLASS_GUARDS = ("operation_of", *CLASSES)  # only about operators and monoids: decided as soon as these are known


def independent(x: Term, of: Dim | str) -> Guard:
    """x does not depend on the dim.

    >>> import onepass
    >>> from onepass.egraph.ops import sum_over
    >>> @onepass.rule(when=lambda c: onepass.independent(c, of="j"))
    ... def divisor_out_of_a_sum(s: "j", c):
    ...     "Σ_j (s / c) = (Σ_j s) / c"
    ...     return sum_over("j", s / c), sum_over("j", s) / c
    >>> print(divisor_out_of_a_sum.guards[0])
    c does not depend on j
    """
    return Guard("independent", (x, Dim(of) if isinstance(of, str) else of))


def depends(x: Term, on: Dim | str) -> Guard:
    """x depends on the dim. Only for directed simplification: it is not monotone, so the e-graph cannot use it."""
    return Guard("depends", (x, Dim(on) if isinstance(on, str) else on))


def constant(x: Term) -> Guard:
    """x is a literal."""
    return Guard("constant", (x,))


def not_constant(x: Term) -> Guard:
    """x is no literal. Only for directed simplification."""
    return Guard("not_constant", (x,))


def positive(x: Term) -> Guard:
    """x is a literal, finite and > 0.

    >>> import onepass
    >>> from onepass.egraph.ops import max_over
    >>> @onepass.rule(when=lambda c: onepass.positive(c))
    ... def factor_out_of_a_maximum(s: "j", c: "constant"):
    ...     "max_j (s · c) = (max_j s) · c"
    ...     return max_over("j", s * c), max_over("j", s) * c
    >>> onepass.check(factor_out_of_a_maximum).status
    'proved'
    """
    return Guard("positive", (x,))


def nonzero(x: Term) -> Guard:
    """x is a literal, finite and ≠ 0."""
    return Guard("nonzero", (x,))


def in_range(x: Term, size: Term | int) -> Guard:
    """0 <= x < size follows from the sizes of the dims in the integer term x."""
    return Guard("in_range", (x, term(size)))


def integer(x: Term) -> Guard:
    """x is an integer term."""
    return Guard("integer", (x,))


def has_dtype(x: Term, dtype: str | AttributeVariable) -> Guard:
    """x has this dtype. The search knows it for loads of tensors only."""
    return Guard("has_dtype", (x, dtype))


def float_dtype(dtype: AttributeVariable) -> Guard:
    """The variable stands for a floating dtype."""
    return Guard("float_dtype", (dtype,))


def apart(x: Term, y: Term) -> Guard:
    """x and y are not elements of one tensor at indices that differ in the names of dims only.

    Two rows of one tensor are such elements, for example in the distances between all its rows.
    """
    return Guard("apart", (x, y))


def within(x: Term, dtype: str | AttributeVariable) -> Guard:
    """x is a literal within the range of the floating dtype: a cast does not make it ±∞."""
    return Guard("within", (x, dtype))


def not_absorbed(x: Term, dtype: str | AttributeVariable) -> Guard:
    """Rounding x to the dtype cannot absorb an addend of x. Only for directed simplification."""
    return Guard("not_absorbed", (x, dtype))


def not_share(x: Term) -> Guard:
    """x has no logarithm subtracted from it, as in exp(s - log Σ exp(s)). Only for directed simplification."""
    return Guard("not_share", (x,))


def rank(x: Term, least: int, most: int) -> Guard:
    """x depends on at least `least` and at most `most` dims."""
    return Guard("rank", (x, least, most))


def size_at_most(dim: Dim | str, most: int) -> Guard:
    """The size of the dim is known and at most `most`."""
    return Guard("size_at_most", (Dim(dim) if isinstance(dim, str) else dim, most))


def divisible(dim: Dim | str, by: int) -> Guard:
    """The size of the dim is known and a multiple of `by`."""
    return Guard("divisible", (Dim(dim) if isinstance(dim, str) else dim, by))


def in_blocks(dim: Dim | str, blocks: Dim, inside: Dim) -> Guard:
    """The dim has as many elements as the blocks of `inside` elements each."""
    return Guard("in_blocks", (Dim(dim) if isinstance(dim, str) else dim, blocks, inside))


def in_two(dim: Dim | str, one: Dim, other: Dim) -> Guard:
    """The dim has as many elements as the two others together."""
    return Guard("in_two", (Dim(dim) if isinstance(dim, str) else dim, one, other))


def operation_of(f: AttributeVariable, monoid: AttributeVariable) -> Guard:
    """f is the operation that the monoid folds with."""
    return Guard("operation_of", (f, monoid))


def _class_guard(name: str):
    def guard(variable: AttributeVariable) -> Guard:
        return Guard(name, (variable,))

    guard.__name__ = name
    guard.__doc__ = f"The operator or monoid is {name}: see CLASSES in guard.py."
    return guard


increasing, decreasing, commutative, associative, foldable, idempotent = map(_class_guard, CLASSES)
