"""What ranks compute together, as terms over a dim `rank`: a reduction over keys is one over ranks, of what each has.

By the law `reduction_in_parts`, ⊕_j x = ⊕_rank ⊕_j (x where owner[j] = rank), whoever has which key. The outer one is
the merge of states that ranks send each other, in a ring or gathered; for states, ⊕ is that of rescaled sums. By
`states_by_their_numbers`, what is sent of a state are numbers. Invariant: each step is an instance of a proved law, for
any number of ranks. Example: Σ_j exp(s[j]) is Σ_rank Σ_j (exp(s[j]) where owner[j] mod ranks = rank).
"""

from __future__ import annotations

from ...egraph.derivation import ledger
from ...egraph.derivation.certificate import FORWARD, Derivation, check
from ...egraph.derivation.derive import replaced_everywhere
from ...egraph.rewrite.match import applied, binding_of
from ...egraph.rewrite.rule import Rule
from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import reduces
from ...rules.demotion import reduction_in_parts, states_by_their_numbers

RANK = Dim("rank", "ranks")
OWNER = "owner"  # of keys: the ranks that have them
LAWS = (reduction_in_parts, states_by_their_numbers)


def over_ranks(value: Term, keys: Dim) -> Derivation:
    """The chain from a value to the same as ranks compute it, each its part of every reduction over the keys.

    Checked before it is returned. Raises TermError where a law does not apply or is not proved.
    """
    owner = load(Tensor(OWNER, "int64", (keys.size,)), iota(keys))
    chain = Derivation(value, value)
    for whole in dict.fromkeys(r for r in reduces(value) if r.attrs[1] == keys):
        chain = _by(reduction_in_parts, whole, {"c": owner, "dim p": RANK}, chain)
        if whole.attrs[0] == "rescaled":
            chain = _by(states_by_their_numbers, chain.steps[-1].new, {}, chain)
    check(chain, ledger.proved(LAWS))
    return chain


def _by(law: Rule, old: Term, chosen: dict[str, object], chain: Derivation) -> Derivation:
    """The chain with one more step: the law replaces a term everywhere."""
    new = applied(law, old, chosen)
    return replaced_everywhere(chain, law, FORWARD, old, new, binding_of(law, old, chosen) or {})
