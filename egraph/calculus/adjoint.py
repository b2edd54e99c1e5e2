"""Reverse mode on terms: from cotangents of results to the cotangent of every load.

What an operand was broadcast over is summed; the cotangent of a sum is that of each of its elements. Dims are names:
only a product that has other names elsewhere is one product, whose cotangents are added. Example: of Σ_d q[i, d] ·
k[j, d] with cotangent g[i, j], the load of q gets Σ_j g[i, j] · k[j, d].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from operator import add

from ..derivation.normalize import canonical_names
from ..terms.term import FLOATS, Dim, Term
from ..terms.traversal import all_dims, reduces, subterms
from .partials import ZERO, NotDifferentiable, partials
from .transpose import summed, with_axes

Simplify = Callable[[Term, Term], Term]  # (node, its cotangent) -> an equal cotangent


def cotangents_of_loads(
    results: Mapping[Term, Term], wanted: Collection[str], simplify: Simplify = lambda node, g: g
) -> list[tuple[Term, Term]]:
    """Each load of a wanted tensor with its cotangent, over the dims of the load's index and no others.

    results: each result's term with its cotangent. wanted: names of tensors. `simplify` is asked where cotangents meet:
    at reductions, at loads and at nodes with several users. Raises NotDifferentiable.
    """
    nodes, users = _nodes_and_users(results)
    active = _active(nodes, wanted)
    others = _under_other_names(nodes, active)
    found: list[tuple[Term, Term]] = []
    cotangents = dict(results)
    for node in reversed(nodes):
        if node not in cotangents or node not in active:
            continue
        is_joint = node.op in ("reduce", "load") or users[node] > 1
        g = simplify(node, cotangents[node]) if is_joint else cotangents[node]
        if node.op == "load" and g is not ZERO:
            found.append((node, g))
        joined = [_under_name_of(others[node], node, g)] if node in others and _is_pointwise(g) else None
        for operand, part in joined or _passed_on(node, g, active, users):
            cotangents[operand] = cotangents[operand] + part if operand in cotangents else part
    return found


def _under_other_names(nodes: Iterable[Term], active: Collection[Term]) -> dict[Term, Term]:
    """By product: the first of the nodes that is the same product under other names of dims. The first has no entry.

    Example: scores of a loss in both directions, Σ_d x[i, d] · y[j, d] summed over i, and Σ_d x[j, d] · y[k, d] over k.
    A gradient then has one product with the scores of both.
    """
    first: dict[Term, Term] = {}
    sums = (n for n in nodes if n in active and n.op == "reduce" and n.attrs[0] == "sum" and len(n.dims) > 1)
    products = (n for n in sums if not reduces(n.args[0]))
    known = ((n, first.setdefault(canonical_names(n), n)) for n in products)
    return {n: one for n, one in known if n is not one}


def _under_name_of(other: Term, node: Term, g: Term) -> tuple[Term, Term]:
    """The same product under other names of dims, and the cotangent with these names."""
    pairs = [(name, dim) for name, dim in zip(all_dims(other), all_dims(node), strict=True) if dim in node.dims]
    own, axes = zip(*pairs, strict=True)
    return other, with_axes(own, g, axes)


def _is_pointwise(g: Term) -> bool:
    """Whether a cotangent has products alone in it, and no sums over them, which are loops of their own."""
    return not any(reduces(r.args[0]) for r in reduces(g))


def rows_used(forms: Iterable[Term], changed: Collection[str]) -> Counter[str]:
    """How many nodes of the forms have a derivative by something that depends on a changed tensor, by operation."""
    nodes, _ = _nodes_and_users(forms)
    active = _active(nodes, changed)
    passing = (n for n in nodes if n in active and n.op != "load" and _passes(n, active))
    return Counter(node.op for node in passing)


def _passes(node: Term, active: Collection[Term]) -> bool:
    """Whether a node has a derivative by an active operand. No derivative reaches a maximum that is left in a form."""
    if node.op == "reduce":
        return node.attrs[0] == "sum"
    pairs = zip(node.args, _parts(node, ZERO), strict=True)
    return any(part is not None and operand in active for operand, part in pairs)


def _nodes_and_users(results: Iterable[Term]) -> tuple[list[Term], Counter[Term]]:
    """Every distinct node, operands first and none inside of an index, and how many nodes use each."""
    nodes = list(dict.fromkeys(n for root in results for n in subterms(root, lambda t: t.op == "load")))
    return nodes, Counter(a for n in nodes if n.op != "load" for a in {*n.args})


def _passed_on(node: Term, g: Term, active: Collection[Term], users: Mapping[Term, int]) -> Iterator[tuple[Term, Term]]:
    """Each active operand with what a node's cotangent gives to its own; nothing of a load, and nothing of 0."""
    if node.op == "load" or g is ZERO:
        return
    for operand, part in zip(node.args, _parts(node, g), strict=True):
        if part is not None and operand in active:
            waits = _waits(operand) and users[operand] == 1
            yield operand, part if waits else summed(part, (_everywhere(node) | part.dims) - operand.dims)


def _waits(operand: Term) -> bool:
    """Whether a sum waits until the derivative of the operand was multiplied: of exp(a), where a is a number by head.

    exp(a) is bounded only beside the divisors of the rows: (Σ_i g / exp(L)) · exp(a) = Σ_i g · exp(a - L).
    """
    return operand.op == "exp" and not reduces(operand)


def _active(nodes: list[Term], wanted: Collection[str]) -> set[Term]:
    """Floating nodes that depend on a wanted tensor."""
    active: set[Term] = set()
    for node in nodes:
        if node.op == "load":
            depends = node.attrs[0].name in wanted
        else:
            depends = any(a in active for a in node.args)
        if depends and node.dtype in FLOATS:
            active.add(node)
        elif depends and node.op in ("scaled", "reduce"):
            active.add(node)  # of no floating dtype: `partials` and `_reduction` say what is wrong with it
    return active


def _everywhere(node: Term) -> frozenset[Dim]:
    """The dims over which a node's derivative is taken: its own, and the one that it reduces."""
    return node.dims | {node.attrs[1]} if node.op == "reduce" else node.dims


def _parts(node: Term, g: Term) -> tuple[Term | None, ...]:
    if node.op == "reduce":
        return (_reduction(node, g),)
    if node.op == "exp" and len(apart := _by_divisor(g)) > 1:
        return (reduce(add, (part for one in apart for part in partials(node, one) if part is not None)),)
    return partials(node, g)


def _by_divisor(g: Term) -> list[Term]:
    """The addends of an exponential's cotangent, summed up for each exponential that divides them.

    (x / exp(L) + y / exp(M)) · exp(a) is bounded only as x · exp(a - L) + y · exp(a - M). Example: a loss over the rows
    and the columns of its scores.
    """
    found: dict[Term, Term] = {}
    waiting = [(g, True)]
    while waiting:
        one, is_added = waiting.pop()
        if one.op in ("add", "sub"):
            waiting += [(one.args[1], is_added == (one.op == "add")), (one.args[0], is_added)]
            continue
        divisor = one.args[1] if one.op == "div" else one
        signed = one if is_added else -one
        found[divisor] = found[divisor] + signed if divisor in found else signed
    return [*found.values()] if sum(divisor.op == "exp" for divisor in found) > 1 else [g]


def _reduction(node: Term, g: Term) -> Term:
    """The cotangent of each element of a sum: the sum's own.

    Raises NotDifferentiable for a largest or least element: the derivative asks which element it is, and a score that
    is computed again need not be bit for bit the one that it was.
    """
    if node.attrs[0] != "sum":
        raise no_sum(node)
    return g


def no_sum(reduction: Term) -> NotDifferentiable:
    """That a reduction by another monoid than a sum is left in the form that is differentiated."""
    monoid, _ = reduction.attrs
    which = {"max": "largest element asks which one it is", "min": "least element asks which one it is"}
    return NotDifferentiable(f"the derivative of a {which.get(monoid, f'reduction by {monoid} is not stated')}", monoid)
