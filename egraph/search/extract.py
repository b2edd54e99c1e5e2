"""The cheapest form in an e-graph: greedy over DAGs, so that a shared subterm is paid once.

Cost is compared in order: far more work than as written, passes over the longest data, over anything, time, number of
nodes. Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..terms.term import Dim, Tensor, Term
from ..terms.traversal import reduces, subterms
from .cost import Target, contracts, length, node_time, streamed, worthwhile
from .engine import EGraph, Node, leafy


@dataclass(frozen=True)
class Choice:
    """The best node of a class so far: reduction depth per dim, cost of every class it needs, the term it builds.

    excessive: it takes more time than any saved pass is worth.
    """

    depths: dict[Dim, int]
    costs: dict[str, float]
    term: Term
    contracted: bool
    excessive: bool

    @property
    def key(self):
        passes = deepest(self.depths), max(self.depths.values(), default=0)
        return self.excessive, *passes, sum(self.costs.values()), len(self.costs)


def extract(egraph: EGraph, target: Target | None = None) -> Term:
    """The cheapest term of the first root's class."""
    return extract_all(egraph, target)[0]


def extract_all(egraph: EGraph, target: Target | None = None) -> tuple[Term, ...]:
    """The cheapest term of each root's class; what two roots have in common is chosen once, and so shared."""
    best = choices(egraph, target or Target())
    return tuple(best[root].term for root in egraph.roots)


def choices(egraph: EGraph, target: Target) -> dict[str, Choice]:
    """The cheapest choice of every class that has one."""
    best: dict[str, Choice] = {}
    allowed = worthwhile(egraph.given, target)
    users: dict[str, set[str]] = {}
    for name, nodes in egraph.classes.items():
        for node in nodes:
            for a in node.args:
                users.setdefault(a, set()).add(name)
    waiting = dict.fromkeys(egraph.classes)
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        if _improve(name, egraph, best, target, allowed):
            waiting.update(dict.fromkeys(sorted(users.get(name, ()))))
    return best


def _improve(name: str, egraph: EGraph, best: dict[str, Choice], target: Target, allowed: float) -> bool:
    """Takes the cheapest node whose arguments have a choice; True if that is better than before."""
    improved = False
    for node in egraph.classes[name]:
        choice = _choose(name, node, egraph, best, target, allowed)
        if choice is not None and (name not in best or choice.key < best[name].key):
            best[name] = choice
            improved = True
    return improved


def _choose(
    name: str, node: Node, egraph: EGraph, best: dict[str, Choice], target: Target, allowed: float
) -> Choice | None:
    chosen = [best.get(a) for a in node.args]
    if any(c is None or name in c.costs for c in chosen):
        return None
    term = egraph.build(node, tuple(c.term for c in chosen))
    contracted = node.op == "reduce" and chosen[0].contracted
    time = node_time(term, target, contracted)
    costs: dict[str, float] = {}
    for c in chosen:
        costs.update(c.costs)
    costs[name] = time
    depths = _depths(node.op, node.attrs, [c.depths for c in chosen], egraph.held)
    return Choice(depths, costs, term, contracts(term), sum(costs.values()) > allowed)


def _depths(op: str, attrs: tuple, parts: list[dict[Dim, int]], held=frozenset()) -> dict[Dim, int]:
    """How many reductions over each dim wait for one another below this node; over held ones, none do."""
    depths: dict[Dim, int] = {}
    for part in parts:
        for dim, depth in part.items():
            depths[dim] = max(depths.get(dim, 0), depth)
    if op == "reduce" and attrs[1] not in held:
        depths[attrs[1]] = depths.get(attrs[1], 0) + 1
    return depths


def passes(root: Term, held=frozenset()) -> int:
    """Passes over the longest data: a reduction that needs another's finished value over the same dim opens one.

    So does a result with an element for each one that was reduced, as weights are: it reads all of them again.
    """
    done: dict[Term, dict[Dim, int]] = {}
    for node in subterms(root):
        done[node] = _depths(node.op, node.attrs, [done[a] for a in node.args], held)
    depths, axes = dict(done[root]), _axes(root)
    found = [node for node in reduces(root) if node.attrs[1] not in held]
    longest = max((length(node.attrs[1]) for node in found), default=0)  # widths are read with their rows
    for node in found:
        over = node.attrs[1]
        for dim in root.dims - node.dims if length(over) == longest and not contracts(node.args[0]) else ():
            if axes.get(dim, set()) & axes.get(over, set()):
                depths[dim] = max(depths.get(dim, 0), done[node][over] + 1)
    return deepest(depths)


def _axes(root: Term) -> dict[Dim, set[tuple[Tensor, int]]]:
    """The axes of tensors that each dim is an index of: two dims with one in common read the same data."""
    found: dict[Dim, set[tuple[Tensor, int]]] = {}
    for node in subterms(root):
        for axis, index in enumerate(node.args if node.op == "load" else ()):
            for dim in index.dims:
                found.setdefault(dim, set()).add((node.attrs[0], axis))
    return found


def measure(root: Term, target: Target, held=frozenset(), given: Sequence[Term] = ()) -> tuple:
    """What is compared, of a whole term: passes over long data, over anything, time, number of nodes.

    In front, whether it takes more time than any saved pass is worth, compared with the terms as given.
    """
    done: dict[Term, dict[Dim, int]] = {}
    time = 0.0
    for node in subterms(root, leafy):
        done[node] = {} if leafy(node) else _depths(node.op, node.attrs, [done[a] for a in node.args], held)
        time += node_time(node, target, node.op == "reduce" and contracts(node.args[0]))
    return time > worthwhile(given, target), deepest(done[root]), max(done[root].values(), default=0), time, len(done)


def deepest(depths: dict[Dim, int]) -> int:
    """Passes over what does not fit on the chip; where everything fits, over anything."""
    long = [depth for dim, depth in depths.items() if streamed(dim)]
    return max(long or depths.values(), default=0)
