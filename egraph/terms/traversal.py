"""Walks over terms: subterms, bottom-up rebuilding, substitution, renaming of dims, the dims and tensors of a term.

Each walk visits a shared subterm once. Example: `tensors(load(q, i) + load(q, i))` is `[q]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from .ops import iota, make
from .term import Dim, Tensor, Term


def subterms(root: Term, whole: Callable[[Term], bool] | None = None) -> Iterator[Term]:
    """Every distinct subterm once, arguments before the terms that use them. `whole` terms are not looked into."""
    return iter(_every_subterm(root)) if whole is None else _subterms(root, whole)


@lru_cache(4096)
def _every_subterm(root: Term) -> tuple[Term, ...]:
    """Memoised, because a compile walks through its few terms thousands of times."""
    return tuple(_subterms(root, lambda term: False))


def _subterms(root: Term, whole: Callable[[Term], bool]) -> Iterator[Term]:
    seen: set[Term] = set()
    stack: list[tuple[Term, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not whole(node):
                stack.extend((a, False) for a in reversed(node.args))


def rebuild(root: Term, change: Callable[[Term, tuple[Term, ...]], Term]) -> Term:
    """Bottom-up map: `change(node, new_args)` gives the new node; shared subterms are visited once."""
    done: dict[Term, Term] = {}
    for node in subterms(root):
        done[node] = change(node, tuple(done[a] for a in node.args))
    return done[root]


def substitute(root: Term, mapping: dict[Term, Term]) -> Term:
    """Replaces subterms. The caller makes sure that no reduction above binds a free dim of a replacement."""

    def change(node, args):
        return mapping.get(node) or (node if args == node.args else make(node.op, args, node.attrs))

    return rebuild(root, change)


def at_place(body: Term, dim: Dim, place: Term) -> Term:
    """The body with another index where the dim is free. No dim of the place may be bound in the body."""
    done: dict[Term, Term] = {iota(dim): place}

    def visit(node: Term) -> Term:
        if dim not in node.dims:
            return node
        if node not in done:
            done[node] = make(node.op, tuple(map(visit, node.args)), node.attrs)
        return done[node]

    return visit(body)


def rename_dims(root: Term, mapping: dict[Dim, Dim]) -> Term:
    """Renames free and bound dims. The mapping must not merge a bound dim with a free dim of its body."""

    def change(node, args):
        attrs = tuple(mapping.get(a, a) if isinstance(a, Dim) else a for a in node.attrs)
        return node if args == node.args and attrs == node.attrs else make(node.op, args, attrs)

    return rebuild(root, change)


@lru_cache(4096)
def reduces(root: Term) -> tuple[Term, ...]:
    """Every distinct reduction in the term, inner ones first. Memoised, because planning needs it often."""
    return tuple(t for t in subterms(root) if t.op == "reduce")


def factors(product: Term) -> list[Term]:
    """The factors of a nested product: a, b and c for (a · b) · c."""
    return operands(product, "mul")


def operands(root: Term, op: str) -> list[Term]:
    """The operands of a nested operation of this kind: p, q and r for (p ∧ q) ∧ r."""
    return [x for a in root.args for x in operands(a, op)] if root.op == op else [root]


def all_dims(root: Term) -> list[Dim]:
    """Every dim that occurs, free or bound, in order of first occurrence."""
    return list(dict.fromkeys(a for t in subterms(root) for a in t.attrs if isinstance(a, Dim)))


def tensors(root: Term) -> list[Tensor]:
    """Every tensor that is loaded, in order of first occurrence."""
    return list(_tensors(root))


@lru_cache(4096)
def _tensors(root: Term) -> tuple[Tensor, ...]:
    return tuple(dict.fromkeys(a for t in subterms(root) for a in t.attrs if isinstance(a, Tensor)))


def every_reduction(terms: Iterable[Term]) -> list[Term]:
    """Every distinct reduction of the terms, inner ones first."""
    return list(dict.fromkeys(r for term in terms for r in reduces(term)))
