"""Checks that the right side of a rule has the dtype of the left side, for all dtypes of its variables.

A variable has one of a few dtypes or is a literal, so all choices are tried. A choice for which the left side is
ill-typed is no instance. Example: x · 1.0 = x holds for float dtypes, and an integer x is no instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from time import thread_time

from ...egraph.rewrite.match import holds, instantiate
from ...egraph.rewrite.rule import Rule, variables_of
from ...egraph.sampling.compare_sides import ill_typed
from ...egraph.sampling.samples import NAMES
from ...egraph.terms.ops import const, load, scaled
from ...egraph.terms.term import Dim, Tensor, Term, TermError
from ...egraph.terms.traversal import reduces, subterms

FLOATING = ("float32", "bfloat16")
DTYPES = (*FLOATING, "int64", "bool")
TOO_MANY = "too many choices of dtypes for its variables"
ONLY_DTYPES = (
    "over the real numbers the sides are proved equal; but a rule is for every dtype, and for some {why}. "
    "Where floats are meant, say so: when=lambda {names}: {guards}; or take it at its word: trust=True"
)
DECIDED_BY_DTYPE = ("has_dtype", "float_dtype", "integer", "within")
LITERAL = ("constant", "positive", "nonzero")


def complaint(rule: Rule, deadline: float = inf, among: Sequence[str] = DTYPES) -> str:
    """The first choice of dtypes for which the sides disagree, or that no time was left; "" if all choices agree.

    among: the dtypes that a variable of any dtype may have.
    """
    for binding in _bindings(rule, among):
        if thread_time() > deadline:
            return TOO_MANY
        try:
            left = instantiate(rule.left, binding)
        except TermError:
            continue
        if all(holds(g, binding) for g in rule.guards if g.kind in DECIDED_BY_DTYPE):
            try:
                right = instantiate(rule.right, binding)
            except TermError as error:
                right = error
            if why := ill_typed(left, right):
                return why
    return ""


def only_dtypes_are_left(rule: Rule, why: str) -> str:
    """What is undecided of a rule whose sides are equal as numbers. why: what `complaint` says of it."""
    if why == TOO_MANY:
        return why
    free = [n.attrs[0] for n in subterms(rule.left) if n.op == "var" and n.attrs[1] == "any"]
    guards = ", ".join(f'has_dtype({name}, "float32")' for name in free)
    guards = f"({guards})" if len(free) > 1 else guards
    return ONLY_DTYPES.format(why=why, names=", ".join(free), guards=guards)


def _bindings(rule: Rule, among: Sequence[str]) -> Iterator[dict[str, object]]:
    """Every choice: loads of every dtype for variables, numbers for literals, dtypes for dtype variables."""
    literal = {g.operands[0] for g in rule.guards if g.kind in LITERAL}
    pattern = {n.attrs[0]: n for side in (rule.left, rule.right) for n in subterms(side) if n.op == "var"}
    named = variables_of(rule.left) | variables_of(rule.right)
    dims = {name: Dim(name.removeprefix("dim "), 2) for name in named if name.startswith("dim ")}
    paired = any(r.attrs[0] == "rescaled" for r in reduces(rule.left))
    choices = {name: _values(node, node in literal, paired, among) for name, node in pattern.items()}
    choices |= {name: DTYPES for name, kind in rule.variables if kind == "dtype"}
    choices |= {name: NAMES for name, kind in rule.variables if kind == "name"}
    for chosen in product(*choices.values()):
        yield {**dims, **dict(zip(choices, chosen))}


def _values(node: Term, literal: bool, paired: bool, among: Sequence[str]) -> tuple:
    name, dtype = node.attrs
    if literal:
        return (const(2),) if dtype == "int64" else (const(2.0), const(2))
    scalars = tuple(load(Tensor(name, d)) for d in (among if dtype == "any" else (dtype,)))
    return (*scalars, scaled(scalars[0], scalars[0])) if paired and dtype == "any" else scalars
