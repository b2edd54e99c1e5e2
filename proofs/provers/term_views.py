"""Views of a term for theorems: as a function of one argument, as factors or addends, as nested reductions.

The views are syntactic and prove nothing. Example: exp(a + b) has the factors exp(a) and exp(b).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...egraph.terms.ops import const, exp, make
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms


def outermost(root: Term) -> list[Term]:
    """The reductions that are not inside another reduction."""
    if root.op == "reduce":
        return [root]
    return list(dict.fromkeys(r for a in root.args for r in outermost(a)))


def joinable(root: Term) -> set[Term]:
    """The operands of sums and differences: two of them that are reductions can be joined."""
    return {a for n in subterms(root) if n.op in ("add", "sub") for a in n.args}


def skeleton(root: Term) -> frozenset:
    """The nested reductions of a term by their monoids and dims, without bodies."""
    return frozenset((r.attrs, skeleton(r.args[0])) for r in outermost(root))


def hole(node: Term, place: int) -> Callable[[Term], Term]:
    """The node as a function of one argument."""
    return lambda x: make(node.op, (*node.args[:place], x, *node.args[place + 1 :]), node.attrs)


def holes(node: Term) -> Iterator[tuple[Callable[[Term], Term], list[Term], Term]]:
    """For each argument that is a reduction: the node as a function of it, the other arguments, the reduction."""
    for place, x in enumerate(node.args):
        if x.op == "reduce":
            yield hole(node, place), [a for n, a in enumerate(node.args) if n != place], x


def factors(x: Term, monoid: str, depends: Callable[[Term], bool]) -> list[Term]:
    """Terms whose product, under a sum, or whose sum, under a maximum, is x. `depends`: on the reduced dim."""
    if monoid not in ("sum", "prod"):
        return addends(x)
    match x.op:
        case "mul":
            return [f for a in x.args for f in factors(a, monoid, depends)]
        case "div":
            return [*factors(x.args[0], monoid, depends), *(1.0 / f for f in factors(x.args[1], monoid, depends))]
        case "neg":
            return [*factors(x.args[0], monoid, depends), const(-1.0)]
        case "exp":
            parts = addends(x.args[0])
            groups = ([a for a in parts if depends(a) == moving] for moving in (True, False))
            return [exp(product("add", group)) for group in groups if group]
    return [x]


def addends(x: Term) -> list[Term]:
    """Terms whose sum is x."""
    match x.op:
        case "add":
            return [a for side in x.args for a in addends(side)]
        case "sub":
            return [*addends(x.args[0]), *(-a for a in addends(x.args[1]))]
    return [x]


def product(op: str, parts: list[Term]) -> Term:
    """The parts, of which there is at least one, joined by the operation."""
    whole = parts[0]
    for part in parts[1:]:
        whole = make(op, (whole, part))
    return whole
