"""Erases from plan terms what kernels store for one another, by the law stored(x) = x, and shows how, for certificates.

A plan term says what a plan computes and, by `stored`, which of its values kernels read from memory. Erased, it is the
term that is held against what was asked for. `erasing` is the same as a chain of steps, for certificates. Example:
stored(x as part0) · y is x · y.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...egraph.derivation.certificate import BACKWARD, FORWARD, Derivation
from ...egraph.derivation.derive import replaced_everywhere
from ...egraph.rewrite.match import Binding, binding_of, instantiate, match, rewrite
from ...egraph.rewrite.rule import Rule
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ...rules.demotion import read_of_stored
from ..plan.records import Plan
from .canonical_terms import with_args
from .plan_meaning import ReadPlan, read_back
from .whole_reductions import guesses

OF_A_PLAN = "{} as the plan computes it"


class Eraser:
    """Erases canonical terms; the results are canonical. Each subterm is looked at once."""

    def __init__(self):
        self.done: dict[Term, Term] = {}

    def __call__(self, term: Term) -> Term:
        done = self.done
        for node in subterms(term, done.__contains__):
            if node not in done:
                args = tuple(done[a] for a in node.args)
                made = node if args == node.args else with_args(node, args)
                done[node] = made if made.op != "stored" else rewrite(read_of_stored, made)
        return done[term]


def erased(found: ReadPlan, names: Iterable[str]) -> ReadPlan:
    """What a plan stores under these names, and what has to be equal, over the plan's inputs alone."""
    erase = Eraser()
    stored = {name: replace(found.stored[name], term=erase(found.stored[name].term)) for name in names}
    return ReadPlan(stored, tuple((erase(one), erase(other)) for one, other in found.equal))


def stored_parts(term: Term) -> list[str]:
    """The names of what a plan term reads from memory that another kernel wrote, each once."""
    return list(dict.fromkeys(node.attrs[0] for node in subterms(term) if node.op == "stored"))


def erasing(term: Term) -> Derivation:
    """The chain from a plan term to the same over the plan's inputs alone, with whole reductions where a law has them.

    Each step is an instance of a law.
    """
    chain = Derivation(term, term)
    while (node := next((n for n in subterms(chain.goal) if n.op == "stored"), None)) is not None:
        binding = match(read_of_stored.left, node) or {}
        chain = replaced_everywhere(chain, read_of_stored, FORWARD, node, node.args[0], binding)
    while (found := next(filter(None, map(_of_a_whole, subterms(chain.goal))), None)) is not None:
        node, whole, law, binding = found
        chain = replaced_everywhere(chain, law, BACKWARD, node, whole, binding)
    return chain


def _of_a_whole(node: Term) -> tuple[Term, Term, Rule, Binding] | None:
    """A reduction in blocks or parts with the whole one, where it is the very right side of a law, and the binding."""
    for law, whole, chosen in guesses(node) if node.op == "reduce" else ():
        binding = binding_of(law, whole, chosen)
        if binding is not None and instantiate(law.right, binding) is node:
            return node, whole, law, binding
    return None


def certificates(plan: Plan) -> Iterator[dict]:
    """For each result with stored parts, the chain that takes them out, as data that `python -m onepass verify` reads.

    Raises NotReadBack.
    """
    found = read_back(plan).stored
    for output in plan.outputs:
        if stored_parts(found[output.name].term):
            chain = erasing(found[output.name].term)
            yield {"of": OF_A_PLAN.format(output.name), "derivation": chain.to_json(), "rules": []}
