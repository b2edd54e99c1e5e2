"""Extracts the cheapest term of each root from an e-graph: greedily, with the cost of a shared subterm counted once.

Costs are compared in this order: whether the form does far more work than the given one, passes over the longest data,
passes over any data, time, number of nodes. Then a class takes another node where that is made of what the roots need
anyway. The result is deterministic. Example: of exp(x) + exp(x), one exp is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..terms.term import Dim, Tensor, Term
from ..terms.traversal import reduces, subterms
from .cost import Target, contracts, length, node_time, streamed, worthwhile
from .engine import EGraph, ENode, leafy


@dataclass(frozen=True)
class ClassChoice:
    """The best node of a class so far.

    node: itself. depths: nested reductions over each dim. costs: the time of every class that it needs. term: the term
    that it builds. contracted: a reduce of it is a matrix product. excessive: it takes more time than a saved pass is
    worth.
    """

    node: ENode
    depths: dict[Dim, int]
    costs: dict[str, float]
    term: Term
    contracted: bool
    excessive: bool

    @property
    def key(self) -> tuple:
        """What is compared: the smallest key is the best."""
        return *self.passes, sum(self.costs.values()), len(self.costs)

    @property
    def passes(self) -> tuple[bool, int, int]:
        """What is compared first."""
        return self.excessive, deepest(self.depths), max(self.depths.values(), default=0)


def extract(egraph: EGraph, target: Target | None = None) -> Term:
    """The cheapest term of the first root's class."""
    return extract_all(egraph, target)[0]


def extract_all(egraph: EGraph, target: Target | None = None) -> tuple[Term, ...]:
    """The cheapest term of each root's class. Roots share the choices of common classes."""
    target = target or Target()
    best = choices(egraph, target)
    nodes = _sharing(egraph, best, target)
    if all(best[name].node is node for name, node in nodes.items()):
        return tuple(best[root].term for root in egraph.roots)
    terms: dict[str, Term] = {}
    return tuple(_term(root, egraph, nodes, terms) for root in egraph.roots)


def _term(name: str, egraph: EGraph, nodes: dict[str, ENode], terms: dict[str, Term]) -> Term:
    """The term of a class by the node that each class has."""
    if name not in terms:
        node = nodes[name]
        terms[name] = egraph.build(node, tuple(_term(a, egraph, nodes, terms) for a in node.args))
    return terms[name]


def _sharing(egraph: EGraph, best: dict[str, ClassChoice], target: Target) -> dict[str, ENode]:
    """The node of each class that the roots need. Another one than the best is taken where all roots then take less.

    The best node of a class is found without its neighbours. Example: max_j (s · 30) is (max_j s) · 30, but beside
    ⊕_j ⟨s · 30, 1⟩ it is the scale of that, which costs nothing. A reduction stays: a maximum of the very scores of a
    state is that state's scale in each plan.
    """
    nodes = {name: choice.node for name, choice in best.items()}
    times = {name: choice.costs[name] for name, choice in best.items()}
    allowed = worthwhile(egraph.given, target)
    needed = _needed(egraph.roots, nodes)
    for name in sorted(needed):
        for node in egraph.classes[name] if name in needed and nodes[name].op != "reduce" else ():
            if node is nodes[name] or not needed.issuperset(node.args) or name in _needed(node.args, nodes):
                continue
            found = _choose(name, node, egraph, best, target, allowed)
            if found is None or found.passes > best[name].passes:
                continue
            fewer = _needed(egraph.roots, {**nodes, name: node})
            if found.costs[name] - times[name] < sum(times[other] for other in needed - fewer):
                nodes[name], times[name], needed = node, found.costs[name], fewer
    return {name: nodes[name] for name in needed}


def _needed(names: Iterable[str], nodes: dict[str, ENode]) -> set[str]:
    """The classes that these need, themselves included."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += nodes[name].args
    return found


def choices(egraph: EGraph, target: Target) -> dict[str, ClassChoice]:
    """The cheapest choice of every class that has one."""
    best: dict[str, ClassChoice] = {}
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


def _improve(name: str, egraph: EGraph, best: dict[str, ClassChoice], target: Target, allowed: float) -> bool:
    """Chooses the cheapest node whose arguments have a choice. True if it is better than the previous choice."""
    improved = False
    for node in egraph.classes[name]:
        choice = _choose(name, node, egraph, best, target, allowed)
        if choice is not None and (name not in best or choice.key < best[name].key):
            best[name] = choice
            improved = True
    return improved


def _choose(
    name: str, node: ENode, egraph: EGraph, best: dict[str, ClassChoice], target: Target, allowed: float
) -> ClassChoice | None:
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
    return ClassChoice(node, depths, costs, term, contracts(term), sum(costs.values()) > allowed)


def _depths(op: str, attrs: tuple, parts: list[dict[Dim, int]], held: frozenset[Dim] = frozenset()) -> dict[Dim, int]:
    """How many reductions over each dim are nested at this node; `held` dims do not count."""
    depths: dict[Dim, int] = {}
    for part in parts:
        for dim, depth in part.items():
            depths[dim] = max(depths.get(dim, 0), depth)
    if op == "reduce" and attrs[1] not in held:
        depths[attrs[1]] = depths.get(attrs[1], 0) + 1
    return depths


def passes(root: Term, held: frozenset[Dim] = frozenset()) -> int:
    """The number of passes over the longest data.

    A reduction that needs the result of another one over the same dim is one more pass. So is a result with an element
    for each reduced element, such as the weights of a softmax: it reads all of them again.
    """
    done: dict[Term, dict[Dim, int]] = {}
    for node in subterms(root):
        done[node] = _depths(node.op, node.attrs, [done[a] for a in node.args], held)
    depths, axes = dict(done[root]), _axes(root)
    found = [node for node in reduces(root) if node.attrs[1] not in held]
    longest = max((length(node.attrs[1]) for node in found), default=0)  # short dims are read with their rows
    for node in found:
        over = node.attrs[1]
        for dim in root.dims - node.dims if length(over) == longest and not contracts(node.args[0]) else ():
            if axes.get(dim, set()) & axes.get(over, set()):
                depths[dim] = max(depths.get(dim, 0), done[node][over] + 1)
    return deepest(depths)


def _axes(root: Term) -> dict[Dim, set[tuple[Tensor, int]]]:
    """For each dim, the axes of tensors that it indexes. Two dims with a common axis read the same data."""
    found: dict[Dim, set[tuple[Tensor, int]]] = {}
    for node in subterms(root):
        for axis, index in enumerate(node.args if node.op == "load" else ()):
            for dim in index.dims:
                found.setdefault(dim, set()).add((node.attrs[0], axis))
    return found


def measure(root: Term, target: Target, held: frozenset[Dim] = frozenset(), given: Sequence[Term] = ()) -> tuple:
    """The cost of a whole term; smaller is better.

    It has: whether the term takes more time than a saved pass is worth, compared with the given terms; passes over
    long data; passes over any data; time; number of nodes.
    """
    done: dict[Term, dict[Dim, int]] = {}
    time = 0.0
    for node in subterms(root, leafy):
        done[node] = {} if leafy(node) else _depths(node.op, node.attrs, [done[a] for a in node.args], held)
        time += node_time(node, target, node.op == "reduce" and contracts(node.args[0]))
    return time > worthwhile(given, target), deepest(done[root]), max(done[root].values(), default=0), time, len(done)


def deepest(depths: dict[Dim, int]) -> int:
    """The largest depth over a dim that does not fit on the chip; over any dim, if all dims fit."""
    long = [depth for dim, depth in depths.items() if streamed(dim)]
    return max(long or depths.values(), default=0)
