"""A small e-graph over Terms that remembers why two terms are equal.

Its nodes are terms, so a proof is a path of terms. Each edge is an instance of a rule, or congruence: then the
arguments have paths of their own. Example: after the union of a with b, adding exp(a) and exp(b) gives them one class,
by an edge of congruence.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from time import thread_time

from ..rewrite.match import holds, instantiate, match, match_attribute
from ..rewrite.rule import Rule, variables_of
from ..terms.term import Term, TermError
from ..terms.traversal import subterms

Readings = Sequence[tuple[Rule, bool]]  # a rule, and whether it is read from left to right
MAX_GUARD_ALTERNATIVES = 8  # members of a class tried for a variable before a guard counts as unknown


@dataclass(frozen=True)
class ProofEdge:
    """Why a term equals its neighbour in the proof forest: an instance of a rule, or congruence (rule None)."""

    to: int
    rule: Rule | None
    forward: bool = True


class ProofGraph:
    """Union-find with congruence over numbered terms. Every union adds an edge with its reason to a forest.

    leader: union-find parents. edge: the forest. members, users: nodes of a class, and nodes with an argument in it, by
    the leader. canonical: one node for each key. pending: nodes whose keys may have changed. applied: used instances.
    """

    def __init__(self):
        self.terms: list[Term] = []
        self.arguments: list[tuple[int, ...]] = []
        self.leader: list[int] = []
        self.edge: list[ProofEdge | None] = []
        self.number: dict[Term, int] = {}
        self.members: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        self.canonical: dict[tuple, int] = {}
        self.pending: list[int] = []
        self.by_op: dict[str, list[int]] = defaultdict(list)
        self.applied: set[tuple] = set()

    def find(self, node: int) -> int:
        """The leader of the node's class."""
        leader = self.leader
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    def same(self, a: int, b: int) -> bool:
        """Whether two nodes are known to be equal."""
        return self.find(a) == self.find(b)

    def key(self, node: int) -> tuple:
        """Equal for two nodes that are equal by congruence. A leaf is interned, so it is equal only to itself."""
        if not self.arguments[node]:
            return (node,)
        term = self.terms[node]
        return term.op, term.attrs, tuple(self.find(a) for a in self.arguments[node])

    def add(self, root: Term) -> int:
        """The number of a term. A new term joins the class of a term that is equal by congruence."""
        for term in subterms(root) if root not in self.number else ():
            if term not in self.number:
                self._add_node(term)
        return self.number[root]

    def _add_node(self, term: Term) -> None:
        node = self.number[term] = len(self.terms)
        self.terms.append(term)
        self.arguments.append(tuple(self.number[a] for a in term.args))
        self.leader.append(node)
        self.edge.append(None)
        self.members[node], self.users[node] = [node], []
        self.by_op[term.op].append(node)
        for argument in self.arguments[node]:
            self.users[self.find(argument)].append(node)
        self._meet(node)

    def _meet(self, node: int) -> None:
        other = self.canonical.setdefault(self.key(node), node)
        if not self.same(node, other):
            self.union(node, other, None)

    def union(self, left: int, right: int, rule: Rule | None) -> bool:
        """Records left = right by an instance of the rule, or by congruence (None). False if it was known."""
        small, large = self.find(left), self.find(right)
        if small == large:
            return False
        forward = True
        if len(self.members[small]) + len(self.users[small]) > len(self.members[large]) + len(self.users[large]):
            small, large, left, right, forward = large, small, right, left, False
        self._hang(left, ProofEdge(right, rule, forward))
        self.leader[small] = large
        self.members[large] += self.members.pop(small)
        moved = self.users.pop(small)
        self.users[large] += moved
        self.pending += moved
        return True

    def _hang(self, node: int, edge: ProofEdge | None) -> None:
        """Makes the node the root of its tree, by reversing the path above it, and adds the edge to the new parent."""
        while edge is not None:
            above, self.edge[node] = self.edge[node], edge
            if above is None:
                return
            node, edge = above.to, ProofEdge(node, above.rule, not above.forward)

    def rebuild(self) -> None:
        """Restores congruence after unions."""
        while self.pending:
            moved, self.pending = dict.fromkeys(self.pending), []
            for node in moved:
                self._meet(node)

    def join(self, readings: Readings, deadline: float) -> None:
        """Applies every instance that merges two existing classes, until there is none."""
        learnt = True
        while learnt and thread_time() < deadline:
            learnt = False
            for rule, onward in readings:
                for _, binding in self._matches(rule, onward, deadline):
                    if self._joins(rule, binding) and self._apply(rule, binding):
                        learnt = True
                        self.rebuild()

    def _joins(self, rule: Rule, binding: dict) -> bool:
        try:
            left, right = (self._class(instantiate(side, binding)) for side in (rule.left, rule.right))
        except TermError:
            return False
        return left is not None and right is not None and left != right

    def _class(self, term: Term) -> int | None:
        """The class of a term, up to congruence; None if it has none."""
        if term in self.number or not term.args:
            return self.find(self.number[term]) if term in self.number else None
        arguments = [self._class(a) for a in term.args]
        node = None if None in arguments else self.canonical.get((term.op, term.attrs, tuple(arguments)))
        return None if node is None else self.find(node)

    def classes(self, root: Term) -> dict[Term, int | None]:
        """The class of every subterm, arguments first; None for a subterm without a class, up to congruence."""
        found: dict[Term, int | None] = {}
        for term in subterms(root):
            key = self.key_of(term, found)
            node = self.number.get(term, self.canonical.get(key) if key is not None else None)
            found[term] = None if node is None else self.find(node)
        return found

    def key_of(self, term: Term, classes: dict[Term, int | None]) -> tuple | None:
        """The key that the term has or would have; None if an argument has no class."""
        if not term.args:
            return (self.number[term],) if term in self.number else None
        below = [classes[a] if a in classes else self.classes(a)[a] for a in term.args]
        return None if None in below else (term.op, term.attrs, tuple(below))

    def round(
        self,
        readings: Readings,
        ends: tuple[int, int],
        most_terms: int,
        deadline: float,
        settled: Container[int] = (),
    ) -> bool:
        """Matches every rule, then applies all matches. False if nothing new was learnt, or at `most_terms` terms.

        It stops early when the two ends are equal. settled: classes whose terms are not matched.
        """
        found = []
        for rule, onward in readings:
            for key, binding in self._matches(rule, onward, deadline, settled):
                self.applied.add(key)
                found.append((rule, binding))
        learnt = False
        for rule, binding in found:
            learnt |= self._apply(rule, binding)
            if self.same(*ends) or len(self.terms) > most_terms or thread_time() > deadline:
                break
        self.rebuild()
        return learnt and len(self.terms) <= most_terms

    def _apply(self, rule: Rule, binding: dict) -> bool:
        try:
            left, right = instantiate(rule.left, binding), instantiate(rule.right, binding)
        except TermError:  # a representative has another dtype: the instance is ill-formed
            return False
        if match(rule.left, left) is None:
            return False
        known = len(self.terms)
        return self.union(self.add(left), self.add(right), rule) or len(self.terms) > known

    def _matches(self, rule: Rule, onward: bool, deadline: float, settled=()) -> Iterator[tuple[tuple, dict]]:
        """Instances that no round has applied, each with a key that identifies it."""
        pattern = rule.left if onward else rule.right
        guarded = sorted(set().union(*(variables_of(o) for g in rule.guards for o in g.operands)))
        for node in list(self.by_op[pattern.op]):
            if self.canonical[self.key(node)] != node or self.find(node) in settled:
                continue  # a congruent copy has the same matches
            for found in self._match_node(pattern, node, {}):
                key = (rule.name, onward, *((n, self.find(v) if isinstance(v, int) else v) for n, v in found.items()))
                if key in self.applied:
                    continue
                binding = self._guarded_binding(rule, found, guarded)
                if binding is not None:
                    yield key, binding
            if thread_time() > deadline:
                return

    def _match_node(self, pattern: Term, node: int, found: dict) -> Iterator[dict]:
        """Bindings that make the pattern equal to this node, up to the classes of its arguments."""
        term = self.terms[node]
        if term.op != pattern.op or len(term.args) != len(pattern.args):
            return
        for a, b in zip(pattern.attrs, term.attrs):
            found = match_attribute(a, b, found)
            if found is None:
                return
        options = [found]
        for part, argument in zip(pattern.args, self.arguments[node]):
            options = [more for option in options for more in self._match_class(part, argument, option)]
        yield from options

    def _match_class(self, pattern: Term, node: int, found: dict) -> Iterator[dict]:
        if pattern.op == "var":
            name, dtype = pattern.attrs
            if name in found:
                if self.same(found[name], node):
                    yield found
            elif dtype == "any" or dtype == self.terms[node].dtype:
                yield {**found, name: node}
            return
        seen = set()
        for member in [node, *self.members[self.find(node)]]:
            if self.terms[member].op == pattern.op:
                key = self.key(member)
                if key not in seen:
                    seen.add(key)
                    yield from self._match_node(pattern, member, found)

    def _guarded_binding(self, rule: Rule, found: dict, guarded: list[str]) -> dict | None:
        """The binding with terms for nodes: those that matched, or members of their classes that satisfy the guards."""
        plain = {n: self.terms[v] if isinstance(v, int) else v for n, v in found.items()}
        if all(holds(g, plain) for g in rule.guards):
            return plain
        names = [n for n in guarded if isinstance(found.get(n), int)]
        for choice in itertools.product(*(self._alternatives(found[n]) for n in names)):
            other = {**plain, **dict(zip(names, choice))}
            if all(holds(g, other) for g in rule.guards):
                return other
        return None

    def _alternatives(self, node: int) -> list[Term]:
        """Members of a class that could satisfy a guard: literals first, then terms with few dims."""
        members = (self.terms[m] for m in self.members[self.find(node)])
        return sorted(members, key=lambda t: (t.op != "const", len(t.dims)))[:MAX_GUARD_ALTERNATIVES]

    def explain(self, a: int, b: int) -> Iterator[tuple[int, int, ProofEdge]]:
        """The edges of the forest on the path from a to b, in order and direction of the path."""
        above = [a]
        while self.edge[above[-1]] is not None:
            above.append(self.edge[above[-1]].to)
        meeting, down = {n: k for k, n in enumerate(above)}, []
        while b not in meeting:
            edge = self.edge[b]
            down.append((edge.to, b, ProofEdge(b, edge.rule, not edge.forward)))
            b = edge.to
        for node in above[: meeting[b]]:
            yield node, self.edge[node].to, self.edge[node]
        yield from reversed(down)
