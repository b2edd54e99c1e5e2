"""Finds a derivation: a chain of whole terms from one term to another, each step an instance of one rule.

A chain may rewrite shared subterms place by place, and is then as long as the terms written out. So a second attempt
first rewrites subterms of the start into equal subterms of the goal, each everywhere at once. Example: if products are
grouped differently on both sides, they are regrouped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import thread_time

from ..rewrite.match import Binding, holds, instantiate, match
from ..rewrite.rule import Rule
from ..terms.term import Term, TermError
from ..terms.traversal import substitute, subterms
from .certificate import BACKWARD, FORWARD, Derivation, DerivationStep, binding_text, replace_at
from .normalize import Normaliser
from .proof_graph import ProofGraph, Readings

MAX_ROOT_FORMS = 50  # terms tried to show that two are equal by rules at the root
MAX_LOCAL_STEPS = 1000  # of a chain that rewrites shared subterms place by place


@dataclass(frozen=True)
class DerivationLimits:
    """Limits of one search: distinct terms, rounds of matching, seconds of this thread.

    Time in which the thread does not run is not counted, so that a busy machine finds what an idle one finds.
    """

    terms: int = 20_000
    rounds: int = 20
    seconds: float = 5.0


def derive(start: Term, goal: Term, rules: Sequence[Rule], limits: DerivationLimits | None = None) -> Derivation | None:
    """A chain of rule instances from start to goal; None if none is found within the limits.

    Rules whose right side has something that is chosen are not tried: the search has nothing to choose it by.
    """
    limits = limits or DerivationLimits()
    readings = [reading for r in rules if not r.chosen for reading in ((r, True), (r, False))[: 1 + r.both]]
    plain = _derived(start, goal, readings, replace(limits, terms=limits.terms // 10))
    if plain is not None:
        return plain
    alike = _made_alike(start, goal, readings, limits)
    further = _derived(alike.goal, goal, readings, limits)
    return _derived(start, goal, readings, limits) if further is None else alike.then(further)


def _derived(start: Term, goal: Term, readings: Readings, limits: DerivationLimits) -> Derivation | None:
    deadline = thread_time() + limits.seconds
    graph = ProofGraph()
    ends = graph.add(start), graph.add(goal)
    graph.rebuild()
    # Common subterms are not rewritten at first: laws of sums and products would only make them grow.
    settled = {graph.number[term] for term in set(subterms(start)).intersection(subterms(goal))}
    for _ in range(limits.rounds):
        if graph.same(*ends):
            break
        learnt = graph.round(readings, ends, limits.terms, deadline, {graph.find(node) for node in settled})
        if thread_time() > deadline or len(graph.terms) > limits.terms or not (learnt or settled):
            break
        settled = settled if learnt else set()
    if not graph.same(*ends) or _many_steps(graph, *ends, {}) > MAX_LOCAL_STEPS:
        return None
    return Derivation(start, goal, _steps(graph, start, goal))


def _made_alike(start: Term, goal: Term, readings: Readings, limits: DerivationLimits) -> Derivation:
    """Replaces subterms of the start by equal subterms of the goal, where short chains show that they are equal.

    It works from the outside in. So an inner term is replaced at all its places, those made by earlier steps included.
    """
    deadline = thread_time() + limits.seconds
    graph = ProofGraph()
    graph.add(start), graph.add(goal)
    graph.rebuild()
    graph.join(readings, deadline)
    kept = dict.fromkeys(subterms(goal))
    wanted = {graph.find(graph.number[term]): term for term in kept}
    current, seen = start, set(kept)
    steps: list[DerivationStep] = []
    chain: list[DerivationStep] | None = None
    while (chain is None or chain) and thread_time() < deadline:
        classes, chain = graph.classes(current), []
        fresh = [term for term in classes if term not in seen and classes[term] in wanted]
        while fresh and not chain:
            seen.add(fresh[-1])
            chain = _short_chain(fresh[-1], wanted[classes[fresh.pop()]], readings, graph, classes, kept)
        for step in chain:
            after = substitute(current, {step.before: step.after})
            place = path_to(current, step.before)
            steps.append(replace(step, position=place, before=current, after=after, everywhere=True))
            current = after
    return Derivation(start, current, tuple(steps))


def _short_chain(
    start: Term, goal: Term, readings: Readings, graph: ProofGraph, classes: dict, kept
) -> list[DerivationStep]:
    """A few steps at the root that turn the term into the goal's operation on arguments equal to the goal's."""
    wanted = graph.key(graph.number[goal])
    found: dict[Term, list[DerivationStep]] = {start: []}
    waiting = [start]
    for term in waiting:
        if graph.key_of(term, classes) == wanted:
            return found[term]
        for rule, onward in readings if term not in kept else ():  # terms of the goal are not rewritten
            new = instance(rule, onward, term)
            if new is not None and new not in found and len(found) < MAX_ROOT_FORMS:
                found[new] = [*found[term], _step(rule, onward, (), term, new, new)]
                waiting.append(new)
    return []


def replay(start: Term, normaliser: Normaliser) -> Derivation:
    """The changes of the normaliser as a chain of whole terms. A shared subterm changes everywhere in one step."""
    steps: list[DerivationStep] = []
    current = start
    settled: set[Term] = set()
    while True:
        found = _next_change(current, normaliser, settled)
        if found is None:
            return Derivation(start, current, tuple(steps))
        old, position = found
        for rule, new in normaliser.changes[old]:
            after = substitute(current, {old: new})
            name, binding = (rule, ()) if isinstance(rule, str) else (rule.name, binding_text(match(rule.left, old)))
            steps.append(DerivationStep(name, FORWARD, position, binding, current, after, everywhere=True))
            old, current = new, after


def replaced_everywhere(
    chain: Derivation, rule: Rule, direction: str, old: Term, new: Term, shown: Binding
) -> Derivation:
    """The chain with one more step, by which a term is replaced wherever it occurs. shown: the rule's binding."""
    after, place = substitute(chain.goal, {old: new}), path_to(chain.goal, old)
    step = DerivationStep(rule.name, direction, place, binding_text(shown), chain.goal, after, everywhere=True)
    return chain.then(Derivation(chain.goal, after, (step,)))


def path_to(root: Term, term: Term) -> tuple[int, ...]:
    """A path of argument numbers from the root to one occurrence of the subterm."""
    above: dict[Term, tuple[Term, int]] = {}
    for node in subterms(root):
        for number, argument in enumerate(node.args):
            above.setdefault(argument, (node, number))
    path: list[int] = []
    while term is not root:
        term, number = above[term]
        path.append(number)
    return tuple(reversed(path))


def instance(rule: Rule, onward: bool, term: Term) -> Term | None:
    """The whole term rewritten by the rule, from left to right if `onward`; None if the rule does not apply."""
    left, right = (rule.left, rule.right) if onward else (rule.right, rule.left)
    binding = match(left, term)
    if binding is None or not all(holds(guard, binding) for guard in rule.guards):
        return None
    try:
        return instantiate(right, binding)
    except TermError:
        return None


def _next_change(root: Term, normaliser: Normaliser, settled: set[Term]) -> tuple[Term, tuple[int, ...]] | None:
    """The first subterm, arguments first, that the normaliser changed, and a path to it. Adds others to `settled`."""
    stack: list[tuple[Term, tuple[int, ...]]] = [(root, ())]
    while stack:
        node, position = stack[-1]
        below = next(((a, n) for n, a in enumerate(node.args) if a not in settled), None)
        if below is not None:
            stack.append((below[0], (*position, below[1])))
        elif node in normaliser.changes:
            return node, position
        else:
            settled.add(node)
            stack.pop()
    return None


def _many_steps(graph: ProofGraph, a: int, b: int, cache: dict[tuple[int, int], int]) -> int:
    """The number of steps that `_local_steps` would list."""
    if (a, b) not in cache:
        count = 0
        for before, after, edge in graph.explain(a, b):
            inner = zip(graph.arguments[before], graph.arguments[after]) if edge.rule is None else ()
            count += (edge.rule is not None) + sum(_many_steps(graph, p, q, cache) for p, q in inner if p != q)
        cache[a, b] = count
    return cache[a, b]


def _local_steps(graph: ProofGraph, a: int, b: int, cache: dict) -> list[tuple[tuple[int, ...], Rule, bool, Term]]:
    """Rewrites from term a to term b as (position, rule, forward, new subterm). Congruence becomes positions."""
    if (a, b) in cache:
        return cache[a, b]
    steps: list[tuple[tuple[int, ...], Rule, bool, Term]] = []
    for before, after, edge in graph.explain(a, b):
        if edge.rule is not None:
            steps.append(((), edge.rule, edge.forward, graph.terms[after]))
            continue
        for place, (p, q) in enumerate(zip(graph.arguments[before], graph.arguments[after])):
            inner = _local_steps(graph, p, q, cache) if p != q else ()
            steps += [((place, *position), rule, forward, new) for position, rule, forward, new in inner]
    cache[a, b] = steps
    return steps


def _steps(graph: ProofGraph, start: Term, goal: Term) -> tuple[DerivationStep, ...]:
    """The chain of whole terms, without the parts that return to an earlier term."""
    steps: list[DerivationStep] = []
    place, current = {start: 0}, start
    for position, rule, forward, new in _local_steps(graph, graph.number[start], graph.number[goal], {}):
        after = replace_at(current, position, new)
        if after in place:
            for dropped in steps[place[after] :]:
                del place[dropped.after]
            del steps[place[after] :]
        else:
            steps.append(_step(rule, forward, position, current, after, new))
            place[after] = len(steps)
        current = after
    return tuple(steps)


def _step(rule: Rule, forward: bool, position, before: Term, after: Term, new: Term) -> DerivationStep:
    left = new
    if forward:
        left = before
        for number in position:
            left = left.args[number]
    binding = binding_text(match(rule.left, left) or {})
    return DerivationStep(rule.name, FORWARD if forward else BACKWARD, tuple(position), binding, before, after)
