"""Which products must not round their computed factors to half precision.

A product with a half-precision matrix rounds its other, computed factor to that type, which makes it fast. Where the
result is stored in half precision, or the program rounds the factor or the product itself, there is an error of that
size anyway. Elsewhere it would be the whole error. Example: a float32 result of bfloat16 inputs with no cast between.
Nor may factors be rounded to float16 if their sum is divided afterwards: they may be smaller than 6e-8, its least
number. Example: weights of a softmax, the largest of which are masked before the others are divided by their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import factors, reduces, subterms
from ..plan.dtypes import BYTES, E4M3, HALVES, is_integer
from ..plan.records import Kernel, Plan, Store
from .dim_roles import sum_factors, two_sides

NOTHING_ROUNDED = 'weights="e4m3" rounds nothing here; docs/limits.md says what it asks of values and lengths'
WIDE_INTEGERS = ("int16", "int32", "int64")  # that hold each number of int8
ROUNDED = "weights of e4m3 values may be e4m3, relative to the largest score of their row so far"


def with_exact(kernels: Sequence[Kernel], stores: Sequence[Store], references: Sequence[Term]) -> tuple[Kernel, ...]:
    """The kernels with their `exact` reductions. references[n]: what stores[n] computes, as the program has it.

    A factor that is a sum which the program does not have, as of products done in another order, must not be rounded:
    the program rounds it nowhere.
    """
    had = {signature(n) for term in references for n in reduces(term)}
    shown = {s.output for s, term in zip(stores, references, strict=True) if _shows_roundings(s, term)}
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        nodes = {n for store in kernel.stores if store.output in shown for n in unrounded(store.term)}
        shown |= {n.attrs[0] for n in nodes if n.op == "load"}
        terms = [store.term for store in kernel.stores]
        others = {n for term in terms for n in (*_with_new_factors(term, had), *_divided_afterwards(term))}
        found.append(replace(kernel, exact=frozenset(filter(has_computed, nodes | others))))
    return tuple(reversed(found))


def rounded_sums(references: Sequence[Term]) -> dict[tuple, Term]:
    """The roundings to a half type that the program itself makes of its sums of products, by the sums' signatures."""
    casts = [n for term in references for n in subterms(term) if n.op == "cast" and n.dtype in HALVES]
    sums = [n for n in casts if n.args[0].op == "reduce" and n.args[0].attrs[0] == "sum"]
    return {signature(n.args[0]): n for n in sums if len(signature(n.args[0])[-1]) > 1}


def _shows_roundings(store: Store, reference: Term) -> bool:
    """Whether a result in full precision has a product with a computed factor and no rounding after it."""
    return store.output.dtype not in HALVES and any(map(has_computed, unrounded(reference)))


def _with_new_factors(term: Term, had: set[tuple]) -> Iterator[Term]:
    """The reductions that have a sum for a factor which the program does not have."""
    return (n for n in reduces(term) if _has_new_factor(n, had))


def _divided_afterwards(term: Term) -> Iterator[Term]:
    """Sums of exponentials times float16 values that are divided by another sum over their dim: Σ_j w · v / Σ_j w.

    Those of a rescaled state are no such sums: one of its weights is 1.
    """
    for quotient in (n for n in subterms(term) if n.op == "div"):
        summed = {r.attrs[1] for r in reduces(quotient.args[1])}
        sums = (n for n in factors(quotient.args[0]) if n.op == "reduce" and n.attrs[0] == "sum")
        yield from (n for n in sums if n.attrs[1] in summed and _multiplies_exponentials_by_float16(n))


def _multiplies_exponentials_by_float16(node: Term) -> bool:
    kinds = {part.dtype for part in map(native, sum_factors(node)) if part is not None}
    return "float16" in kinds and any(n.op == "exp" for n in subterms(node.args[0], lambda n: n.op == "reduce"))


def _has_new_factor(node: Term, had: set[tuple]) -> bool:
    parts = sum_factors(node) if node.attrs[0] == "sum" else []
    return any(p.op == "reduce" and p.attrs[0] == "sum" and signature(p) not in had for p in parts)


def signature(node: Term) -> tuple:
    """A sum by the sizes of its dims and the tensors it multiplies: the same in every form that sums in one order."""
    parts = [native(part) or part for part in sum_factors(node)]
    tensors = frozenset(part.attrs[0].name for part in parts if part.op == "load")
    return node.attrs[0], str(node.attrs[1].size), tuple(sorted(str(d.size) for d in node.dims)), tensors


def unrounded(term: Term) -> Iterator[Term]:
    """The subterms from which no rounding to half precision lies on the way to the term."""
    seen, waiting = set(), [term]
    while waiting:
        node = waiting.pop()
        if node not in seen and node.dtype not in HALVES:
            seen.add(node)
            waiting += node.args
            yield node


def has_computed(node: Term) -> bool:
    """Whether the node is the sum of a product of two matrices, one of them computed and not rounded to half."""
    if node.op != "reduce" or node.attrs[0] not in ("sum", "rescaled"):
        return False
    dim, factors = node.attrs[1], sum_factors(node)
    number = 1 if node.args[0].op == "scaled" else 0  # the scores of a softmax state stand for its weights
    weights, values = factors[:number], factors[number:]
    parts = [*weights, *(p for p in values if dim in p.dims)]
    sides = [[parts[k] for k in side] for side in two_sides([p.dims for p in parts], dim)]
    left, right = (frozenset().union(*(p.dims for p in side)) for side in sides)
    if left <= right or right <= left:
        return False
    return any(side[0] in weights or _is_computed(side) for side in sides)


def _is_computed(side: list[Term]) -> bool:
    """Whether a side of a product is more than one half-precision factor."""
    return len(side) > 1 or native(side[0]) is None


def native(part: Term | object) -> Term | None:
    """The half-precision term of which the factor is the exact float32 image; None if there is none."""
    if not isinstance(part, Term):
        return None
    if part.dtype in HALVES:
        return part
    if part.op == "cast" and part.dtype == "float32" and part.args[0].dtype in HALVES:
        return part.args[0]
    return None


def as_stored(part: Term) -> Term | None:
    """The load of which a factor is the exact float32 image, in a dtype that products take; None if there is none."""
    found = _stored_bytes(part) or native(part)
    return found if found is not None and found.op == "load" else None


def _stored_bytes(part: Term) -> Term | None:
    """The load of bytes whose numbers a factor has: halves and float32 hold each of them."""
    node = part
    while node.op == "cast" and node.dtype in (*HALVES, "float32"):
        node = node.args[0]
    if node is part:
        return None
    while node.op == "cast" and node.dtype in WIDE_INTEGERS and is_integer(node.args[0].dtype):
        node = node.args[0]
    return node if node.op == "load" and node.dtype in BYTES else None


def multiplied_bytes(*sides: Term) -> str | None:
    """The type of one byte that both sides of a product have as they are stored; None if there is no such type."""
    loads = [as_stored(side) for side in sides]
    kinds = {None if node is None else node.dtype for node in loads}
    kind = kinds.pop() if len(sides) == 2 and len(kinds) == 1 else None
    return kind if kind in BYTES else None


def with_weights(plan: Plan, weights: str) -> Plan:
    """The plan in which weights of e4m3 values may be rounded to a type: "half", as they are anyway, or "e4m3"."""
    if weights == "half" or not any(_narrow_sums(kernel) for kernel in plan.kernels):
        return plan
    rounding = lambda kernel: replace(kernel, exact=kernel.exact - _narrow_sums(kernel))
    return replace(plan, kernels=tuple(map(rounding, plan.kernels)), weights=weights)


def _narrow_sums(kernel: Kernel) -> frozenset[Term]:
    """The weighted sums of e4m3 values."""
    states = (a for loop in kernel.loops for a in loop.accumulators if a.gauge is not None)
    pairs = (pair for a in states for pair in zip(a.values, a.reductions, strict=True))
    return frozenset(r for value, r in pairs if (found := as_stored(value)) is not None and found.dtype == E4M3)
