"""The cheapest form in a small e-graph, exactly: one node for every class that is needed, by constraint solving.

Minimises what extract.py compares, in the same order. The answer is measured as a term and taken only if it beats the
greedy one, so it is never costlier.
"""

from __future__ import annotations

from itertools import product

from ..terms.term import Term
from .cost import Target, contracts, node_time, streamed
from .cp_sat import SolverMissing, cp_model, deterministic
from .engine import EGraph, Node
from .extract import Choice, choices, measure

LARGEST = 2000  # nodes; beyond, greedy
WORK = 4.0  # deterministic units of each of the two solves, about seconds
RESOLUTION = 2**36  # integer units of the dearest node's time


def extract_exactly(egraph: EGraph, target: Target | None = None, work: float = WORK) -> tuple[Term, str]:
    """The cheapest term of the root's class, and how it was found.

    "optimal": proved; "feasible": the best within the work; "greedy: why": the solver did not run, or found nothing.
    Proved means of the model, where all nodes of a class have the dims of its greedy form.
    """
    target = target or Target()
    best = choices(egraph, target)
    greedy = best[egraph.root].term
    if sum(map(len, egraph.classes.values())) > LARGEST:
        return greedy, f"greedy: more than {LARGEST} nodes"
    try:
        status, found = _Model(egraph, best, target).solve(work)
    except SolverMissing as missing:
        return greedy, f"greedy: {missing}"
    if found is None:
        return greedy, f"greedy: the solver answers {status}"
    return min(greedy, found, key=lambda term: measure(term, target, egraph.held, egraph.given)), status


class _Model:
    """pick[class]: one flag per node. A class is active if it is needed; levels forbid circles."""

    def __init__(self, egraph: EGraph, best: dict[str, Choice], target: Target):
        self.cp = cp_model()
        self.egraph, self.best, self.target, self.model = egraph, best, target, self.cp.CpModel()
        self.nodes = self._reachable()
        self.pick = {name: [self.model.new_bool_var("") for _ in nodes] for name, nodes in self.nodes.items()}
        self.active = {name: self.model.new_bool_var("") for name in self.nodes}
        self.level = self._numbers(len(self.nodes))
        self._choose_one_each()
        self.passes = self._depths()
        self.time = self._times()

    def _numbers(self, high: int):
        return {name: self.model.new_int_var(0, high, "") for name in self.nodes}

    def _reachable(self) -> dict[str, list[Node]]:
        """The classes below the root with the nodes that can be built, a class never out of itself."""
        nodes, waiting = {}, [self.egraph.root]
        while waiting:
            name = waiting.pop()
            if name not in nodes:
                candidates = self.egraph.classes[name]
                usable = [n for n in candidates if name not in n.args and self.best.keys() >= set(n.args)]
                nodes[name] = usable
                waiting += [a for node in usable for a in node.args]
        return nodes

    def _picks(self):
        for name, nodes in self.nodes.items():
            for flag, node in zip(self.pick[name], nodes):
                yield name, flag, node

    def _choose_one_each(self) -> None:
        self.model.add(self.active[self.egraph.root] == 1)
        for name, flags in self.pick.items():
            self.model.add(sum(flags) == self.active[name])
        for name, flag, node in self._picks():
            for a in set(node.args):
                self.model.add_implication(flag, self.active[a])
                self.model.add(self.level[name] > self.level[a]).only_enforce_if(flag)

    def _depths(self):
        """Passes over what does not fit on the chip, then over anything, as one number."""
        count = len(self.nodes)
        deepest, most = self.model.new_int_var(0, count, ""), self.model.new_int_var(0, count, "")
        reduced = {node.attrs[1] for _, _, node in self._picks() if node.op == "reduce"}
        dims = sorted(reduced - self.egraph.held, key=str)
        long = [dim for dim in dims if streamed(dim)] or dims
        for dim in dims:
            depth = self._numbers(count)
            for name, flag, node in self._picks():
                own = int(node.op == "reduce" and node.attrs[1] == dim)
                for a in set(node.args):
                    self.model.add(depth[name] >= depth[a] + own).only_enforce_if(flag)
            self.model.add(most >= depth[self.egraph.root])
            if dim in long:
                self.model.add(deepest >= depth[self.egraph.root])
        return deepest * (count + 1) + most

    def _times(self):
        """Time, then number of nodes, as one number. A node's time may hang on the nodes picked for its operands."""
        forms = {name: [self._form(node) for node in nodes] for name, nodes in self.nodes.items()}
        table = [(name, flag, self._times_of(node, forms)) for name, flag, node in self._picks()]
        dearest = max((t for _, _, times in table for t, _ in times), default=0.0) or 1.0
        spent = self._numbers(RESOLUTION)
        for name, flag, times in table:
            if len({t for t, _ in times}) == 1:
                times = [(times[0][0], ())]
            for time, flags in times:
                self.model.add(spent[name] >= round(time / dearest * RESOLUTION)).only_enforce_if(flag, *flags)
        return sum(spent.values()) * (len(self.nodes) + 1) + sum(self.active.values())

    def _form(self, node: Node) -> Term:
        return self.egraph.build(node, tuple(self.best[a].term for a in node.args))

    def _times_of(self, node: Node, forms: dict[str, list[Term]]):
        """The node's time for every choice of its operands' nodes, each with the flags of that choice."""
        times = []
        for picked in product(*(list(zip(forms[a], self.pick[a])) for a in node.args)):
            operands = tuple(form for form, _ in picked)
            contracted = node.op == "reduce" and contracts(operands[0])
            time = node_time(self.egraph.build(node, operands), self.target, contracted)
            times.append((time, tuple(flag for _, flag in picked)))
        return times

    def solve(self, work: float) -> tuple[str, Term | None]:
        """Fewest passes first, then the least time among forms with so few."""
        solver = deterministic(self.cp, work)
        self.model.minimize(self.passes)
        first = solver.solve(self.model)
        if first not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return solver.status_name(first).lower(), None
        self.model.add(self.passes <= round(solver.objective_value))
        self._hint(solver)
        self.model.minimize(self.time)
        second = solver.solve(self.model)
        if second not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return solver.status_name(second).lower(), None
        status = "optimal" if first == second == self.cp.OPTIMAL else "feasible"
        return status, self._built(solver)

    def _hint(self, solver) -> None:
        for _, flag, _ in self._picks():
            self.model.add_hint(flag, solver.value(flag))

    def _built(self, solver) -> Term:
        """The term that was picked, operands first: a class is on a higher level than those it needs."""
        done: dict[str, Term] = {}
        picked = [(name, node) for name, flag, node in self._picks() if solver.value(flag)]
        for name, node in sorted(picked, key=lambda row: solver.value(self.level[row[0]])):
            done[name] = self.egraph.build(node, tuple(done[a] for a in node.args))
        return done[self.egraph.root]
