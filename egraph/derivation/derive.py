"""Finds a derivation from one term to another by given rules: a chain of whole terms, each an instance of one rule.

Where that finds none soon, what both ends have in another shape deep inside (products regrouped) is made alike first,
everywhere at once: a chain that goes to each place in turn is as long as the terms are when written out. The pipeline
calls `derive` with the rules that fired in the large engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from ..rewrite.match import holds, instantiate, match
from ..rewrite.rule import Rule
from ..terms.term import Term, TermError
from ..terms.traversal import substitute, subterms
from .certificate import BACKWARD, FORWARD, Derivation, Step, binding_text, replace_at
from .normalize import Normaliser
from .proof_graph import ProofGraph, Readings

FEW = 50  # terms looked at to see that two are equal by rules at the root
LONG = 1000  # steps of a chain that goes to each place in turn


@dataclass(frozen=True)
class Limits:
    """When to give up: distinct terms, rounds of matching, seconds."""

    terms: int = 20_000
    rounds: int = 20
    seconds: float = 5.0


def derive(start: Term, goal: Term, rules: Sequence[Rule], limits: Limits | None = None) -> Derivation | None:
    """A chain of rule instances from start to goal, or None where the rules do not find one within the limits."""
    limits = limits or Limits()
    readings = [reading for r in rules for reading in ((r, True), (r, False))[: 1 + r.both]]
    plain = _derived(start, goal, readings, replace(limits, terms=limits.terms // 10))
    if plain is not None:
        return plain
    alike = _made_alike(start, goal, readings, limits)
    further = _derived(alike.goal, goal, readings, limits)
    return _derived(start, goal, readings, limits) if further is None else alike.then(further)


def _derived(start: Term, goal: Term, readings: Readings, limits: Limits) -> Derivation | None:
    deadline = perf_counter() + limits.seconds
    graph = ProofGraph()
    ends = graph.add(start), graph.add(goal)
    graph.rebuild()
    # What both ends have is left alone first: laws of sums and products would make it grow, for nothing.
    settled = {graph.number[term] for term in set(subterms(start)).intersection(subterms(goal))}
    for _ in range(limits.rounds):
        if graph.same(*ends):
            break
        learnt = graph.round(readings, ends, limits.terms, deadline, {graph.find(node) for node in settled})
        if perf_counter() > deadline or len(graph.terms) > limits.terms or not (learnt or settled):
            break
        settled = settled if learnt else set()
    if not graph.same(*ends) or _many_steps(graph, *ends, {}) > LONG:
        return None
    return Derivation(start, goal, _steps(graph, start, goal))


def _made_alike(start: Term, goal: Term, readings: Readings, limits: Limits) -> Derivation:
    """From the start to the same with the goal's subterms in place of equal ones, as far as short chains lead there.

    From the outside in: an inner term then is one for all places that need it, also for those that a step has made.
    """
    deadline = perf_counter() + limits.seconds
    graph = ProofGraph()
    graph.add(start), graph.add(goal)
    graph.rebuild()
    graph.join(readings, deadline)
    kept = dict.fromkeys(subterms(goal))
    wanted = {graph.find(graph.number[term]): term for term in kept}
    current, steps, seen, chain = start, [], set(kept), [None]
    while chain and perf_counter() < deadline:
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


def _short_chain(start: Term, goal: Term, readings: Readings, graph: ProofGraph, classes: dict, kept) -> list[Step]:
    """Few steps that rewrite the whole term into one with the goal's operation on what equals the goal's arguments."""
    wanted = graph.key(graph.number[goal])
    found: dict[Term, list[Step]] = {start: []}
    waiting = [start]
    for term in waiting:
        if graph.key_of(term, classes) == wanted:
            return found[term]
        for rule, onward in readings if term not in kept else ():  # a kept term stays wherever it is
            new = instance(rule, onward, term)
            if new is not None and new not in found and len(found) < FEW:
                found[new] = [*found[term], _step(rule, onward, (), term, new, new)]
                waiting.append(new)
    return []


def replay(start: Term, normaliser: Normaliser) -> Derivation:
    """What the normaliser did to a term as a chain of whole terms: a shared subterm changes everywhere in one step."""
    steps: list[Step] = []
    current, settled = start, set()
    while True:
        found = _next_change(current, normaliser, settled)
        if found is None:
            return Derivation(start, current, tuple(steps))
        old, position = found
        for rule, new in normaliser.changes[old]:
            after = substitute(current, {old: new})
            name, binding = (rule, ()) if isinstance(rule, str) else (rule.name, binding_text(match(rule.left, old)))
            steps.append(Step(name, FORWARD, position, binding, current, after, everywhere=True))
            old, current = new, after


def path_to(root: Term, term: Term) -> tuple[int, ...]:
    """The path of argument numbers to one of the places of a subterm."""
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
    """What the rule, read from left to right or back, makes of a whole term; None where it says nothing of it."""
    left, right = (rule.left, rule.right) if onward else (rule.right, rule.left)
    binding = match(left, term)
    if binding is None or not all(holds(guard, binding) for guard in rule.guards):
        return None
    try:
        return instantiate(right, binding)
    except TermError:
        return None


def _next_change(root: Term, normaliser: Normaliser, settled: set[Term]) -> tuple[Term, tuple[int, ...]] | None:
    """The first subterm, arguments first, that the normaliser changed, with a path to it; the others are settled."""
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
    """How many rewrites _local_steps would list."""
    if (a, b) not in cache:
        count = 0
        for before, after, edge in graph.explain(a, b):
            inner = zip(graph.arguments[before], graph.arguments[after]) if edge.rule is None else ()
            count += (edge.rule is not None) + sum(_many_steps(graph, p, q, cache) for p, q in inner if p != q)
        cache[a, b] = count
    return cache[a, b]


def _local_steps(graph: ProofGraph, a: int, b: int, cache: dict) -> list[tuple[tuple[int, ...], Rule, bool, Term]]:
    """Rewrites from term a to term b as (position, rule, forward, new subterm), congruence resolved into positions."""
    if (a, b) in cache:
        return cache[a, b]
    steps = []
    for before, after, edge in graph.explain(a, b):
        if edge.rule is not None:
            steps.append(((), edge.rule, edge.forward, graph.terms[after]))
            continue
        for place, (p, q) in enumerate(zip(graph.arguments[before], graph.arguments[after])):
            inner = _local_steps(graph, p, q, cache) if p != q else ()
            steps += [((place, *position), rule, forward, new) for position, rule, forward, new in inner]
    cache[a, b] = steps
    return steps


def _steps(graph: ProofGraph, start: Term, goal: Term) -> tuple[Step, ...]:
    """The chain of whole terms; a stretch that returns to a term seen before is cut out."""
    steps: list[Step] = []
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


def _step(rule: Rule, forward: bool, position, before: Term, after: Term, new: Term) -> Step:
    left = new
    if forward:
        left = before
        for number in position:
            left = left.args[number]
    binding = binding_text(match(rule.left, left) or {})
    return Step(rule.name, FORWARD if forward else BACKWARD, tuple(position), binding, before, after)
