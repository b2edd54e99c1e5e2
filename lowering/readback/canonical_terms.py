"""Terms in which names of bound dims do not matter, and substitution of index terms for dims.

A bound dim is named by how many reductions lie inside of its own, so no reduction binds a dim that is free in a term
which is put inside of it. Invariant: a canonical term means what the term means. Example: Σ_j x[j] and Σ_k x[k] are one
canonical term, and so are where(p, where(q, x, 0), 0) and where(q, where(p, x, 0), 0) under a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ...egraph.terms.affine import compare
from ...egraph.terms.ops import MONOIDS, const, iota, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms

BOUND = "%"  # begins the names of bound dims, which no other dim has
KNOWN = 1 << 11  # reductions, and terms with a dim renamed, that are remembered: kernels share them
RENAMINGS = 64  # pairs of names for which they are


def at_indices(term: Term, indices: Mapping[Dim, Term]) -> Term:
    """The canonical term with these index terms for dims that are free in it, all at once."""
    indices = {d: index for d, index in indices.items() if index is not iota(d)}
    return _replaced(term, frozenset(indices), {iota(d): index for d, index in indices.items()})


def _replaced(term: Term, moved: frozenset[Dim], done: dict[Term, Term]) -> Term:
    """The term with other indices for the dims that are moved. done: what terms become; more of them afterwards."""
    if not moved & term.dims:
        return term
    for node in subterms(term, lambda node: node in done or moved.isdisjoint(node.dims)):
        if node not in done:
            args = tuple(done.get(a, a) for a in node.args)
            if node.op == "reduce":  # the order of its guard's parts is by their names
                args = (guarded(node.attrs[0], args[0]),)
            done[node] = node if args == node.args else make(node.op, args, node.attrs)
    return done[term]


@lru_cache(RENAMINGS)
def _renamed(dim: Dim, other: Dim) -> dict[Term, Term]:
    """What terms become where a dim has another name: reductions over one dim share what is inside of them."""
    return {iota(dim): iota(other)}


class Canonical:
    """Makes terms canonical, each subterm once. done: known terms with what they become, which is not looked into."""

    def __init__(self):
        self.done: dict[Term, Term] = {}

    def replaced(self, node: Term) -> Term | None:
        """What stands for a node whose arguments are canonical; None if it stays."""
        return None

    def __call__(self, term: Term) -> Term:
        done = self.done
        for node in subterms(term, done.__contains__):
            if node not in done:
                args = tuple(done[a] for a in node.args)
                made = node if args == node.args else make(node.op, args, node.attrs)
                other = self.replaced(made)
                done[node] = other if other is not None else _canonical(made)
        return done[term]


def with_args(node: Term, args: tuple[Term, ...]) -> Term:
    """A canonical node with other arguments, which are canonical and have as many reductions; so is the result."""
    if node.op == "reduce":
        return make("reduce", (guarded(node.attrs[0], args[0]),), node.attrs)
    made = make(node.op, args, node.attrs)
    return _scale_of_scores(made) if node.op == "scale" else made


def _canonical(node: Term) -> Term:
    if node.op == "reduce":
        return named(node)
    return _scale_of_scores(node) if node.op == "scale" else node


def _scale_of_scores(node: Term) -> Term:
    """The scale of a state, which its weights have no part in, as that of a count."""
    state = node.args[0]
    if state.op != "reduce" or state.args[0].op != "scaled":
        return node
    counted = make("scaled", (state.args[0].args[0], const(1.0)))
    return make("scale", (make("reduce", (counted,), state.attrs),))


@lru_cache(KNOWN)
def named(r: Term) -> Term:
    """The reduction with a canonical name of its dim, and its guard in order."""
    (monoid, dim), body = r.attrs, r.args[0]
    fresh = Dim(f"{BOUND}{1 + _height(body)}", dim.size)
    known = _renamed(dim, fresh)
    if len(known) > KNOWN:
        _renamed.cache_clear()
    return make("reduce", (guarded(monoid, _replaced(body, frozenset({dim}), known)),), (monoid, fresh))


def _height(body: Term) -> int:
    """The largest number in the name of a dim that is bound in a canonical term."""
    inner = (n for n in subterms(body, lambda n: n.op == "reduce") if n.op == "reduce")
    return max((int(n.attrs[1].name[len(BOUND) :]) for n in inner), default=0)


def guarded(monoid: str, body: Term) -> Term:
    """The body of a reduction with the conjuncts of its guard in one order, each once."""
    if monoid == "rescaled":
        if body.op != "scaled":
            return body
        scores, weight = body.args
        return make("scaled", (_in_order(scores, -float("inf")), weight))
    return _in_order(body, MONOIDS[monoid].identity)


def _in_order(body: Term, identity: float | bool) -> Term:
    parts: set[Term] = set()
    inner = body
    while inner.op == "where":
        condition, yes, no = inner.args
        if _is_identity(no, identity):
            parts.update(literals(condition))
            inner = yes
        elif _is_identity(yes, identity):
            parts.update(literals(condition, negated=True))
            inner = no
        else:
            break
    if not parts:
        return inner if inner is not body else body
    condition = None
    for part in sorted(parts, key=hash):
        condition = part if condition is None else make("and", (condition, part))
    return make("where", (condition, inner, const(identity)))


def _is_identity(x: Term, identity: float | bool) -> bool:
    while x.op == "cast":
        x = x.args[0]
    return x.op == "const" and x.attrs[0] == identity


def literals(condition: Term, negated: bool = False) -> list[Term]:
    """Conditions whose conjunction is the condition, or its negation; comparisons of integers have one form."""
    if condition.op == "not":
        return literals(condition.args[0], not negated)
    if condition.op == ("or" if negated else "and"):
        return [part for a in condition.args for part in literals(a, negated)]
    if condition.op in ("le", "lt") and all(a.dtype == "int64" for a in condition.args):
        one, other = condition.args
        op = condition.op
        if negated:
            op, one, other = ("lt" if op == "le" else "le"), other, one
        found = compare(op, one, other)
        return [] if found.op == "const" and found.attrs[0] is True else [found]
    return [make("not", (condition,)) if negated else condition]
