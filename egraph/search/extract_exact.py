"""Extracts the cheapest form of a small e-graph exactly: a constraint solver picks one node for every needed class.

It minimises the costs of extract.py in the same order. The result is measured as a term and used only if it beats the
greedy one, so it is never worse. Example: a costlier node of a class can be the better choice if another class needs
its operands anyway.
"""

from __future__ import annotations

from itertools import product

from ..terms.term import Term
from .cost import Target, contracts, node_time, streamed
from .cp_sat import SolverMissing, cp_model, deterministic
from .engine import EGraph, ENode
from .extract import ClassChoice, choices, measure

MAX_NODES = 2000  # of an e-graph; a larger one is extracted greedily
SOLVER_WORK = 4.0  # of each of the two solves, in deterministic units of about a second
TIME_UNITS = 2**36  # integer units in the time of the most expensive node


def extract_exactly(egraph: EGraph, target: Target | None = None, work: float = SOLVER_WORK) -> tuple[Term, str]:
    """The cheapest term of the root's class, and how it was found.

    "optimal": proved to be the best. "feasible": the best found within the work. "greedy: why": the solver did not run,
    or found nothing. The proof is about the model, in which all nodes of a class have the dims of its greedy form.
    """
    target = target or Target()
    best = choices(egraph, target)
    greedy = best[egraph.root].term
    if sum(map(len, egraph.classes.values())) > MAX_NODES:
        return greedy, f"greedy: more than {MAX_NODES} nodes"
    try:
        status, found = _ExtractionModel(egraph, best, target).solve(work)
    except SolverMissing as missing:
        return greedy, f"greedy: {missing}"
    if found is None:
        return greedy, f"greedy: the solver answers {status}"
    return min(greedy, found, key=lambda term: measure(term, target, egraph.held, egraph.given)), status


class _ExtractionModel:
    """The constraint model. pick: a flag for each node. active: the class is needed. level: forbids cycles."""

    def __init__(self, egraph: EGraph, best: dict[str, ClassChoice], target: Target):
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

    def _reachable(self) -> dict[str, list[ENode]]:
        """The classes below the root with the nodes that can be built. A class is not built of itself."""
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
        """Passes over dims that do not fit on the chip, then over any dims, as one number."""
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
        """Time, then number of nodes, as one number. A node's time may depend on the nodes of its operands."""
        forms = {name: [self._form(node) for node in nodes] for name, nodes in self.nodes.items()}
        table = [(name, flag, self._times_of(node, forms)) for name, flag, node in self._picks()]
        slowest = max((t for _, _, times in table for t, _ in times), default=0.0) or 1.0
        spent = self._numbers(TIME_UNITS)
        for name, flag, times in table:
            if len({t for t, _ in times}) == 1:
                times = [(times[0][0], ())]
            for time, flags in times:
                self.model.add(spent[name] >= round(time / slowest * TIME_UNITS)).only_enforce_if(flag, *flags)
        return sum(spent.values()) * (len(self.nodes) + 1) + sum(self.active.values())

    def _form(self, node: ENode) -> Term:
        return self.egraph.build(node, tuple(self.best[a].term for a in node.args))

    def _times_of(self, node: ENode, forms: dict[str, list[Term]]):
        """The node's time for every choice of nodes for its operands, each with the flags of that choice."""
        times = []
        for picked in product(*(list(zip(forms[a], self.pick[a])) for a in node.args)):
            operands = tuple(form for form, _ in picked)
            contracted = node.op == "reduce" and contracts(operands[0])
            time = node_time(self.egraph.build(node, operands), self.target, contracted)
            times.append((time, tuple(flag for _, flag in picked)))
        return times

    def solve(self, work: float) -> tuple[str, Term | None]:
        """Minimises passes, then time among the forms with as few passes. Returns the status and the term."""
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
        """The term of the picked nodes, built operands first: a class has a higher level than the classes it needs."""
        done: dict[str, Term] = {}
        picked = [(name, node) for name, flag, node in self._picks() if solver.value(flag)]
        for name, node in sorted(picked, key=lambda row: solver.value(self.level[row[0]])):
            done[name] = self.egraph.build(node, tuple(done[a] for a in node.args))
        return done[self.egraph.root]
