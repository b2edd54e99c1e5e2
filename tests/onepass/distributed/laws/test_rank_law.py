"""A value over ranks: steps are instances of proved laws, and its ends are equal for all owners of keys."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import onepass
from onepass.distributed.laws.rank_law import LAWS, OWNER, RANK, over_ranks
from onepass.egraph.derivation.certificate import CertificateError, Derivation, check
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, iota, load, mantissa, rescaled_sum, scale, sum_over
from onepass.egraph.terms.term import Dim, Tensor

KEYS = Dim("j", 7)
SCORE, VALUE = (load(Tensor(name, "float64", (7,)), iota(KEYS)) for name in "sv")
VALUES = {
    "mean": mantissa(rescaled_sum(KEYS, SCORE, VALUE)) / mantissa(rescaled_sum(KEYS, SCORE, const(1.0))),
    "logarithm": scale(rescaled_sum(KEYS, SCORE, const(1.0))),
    "without shifts": sum_over(KEYS, exp(SCORE) * VALUE) / sum_over(KEYS, exp(SCORE)),
}
OWNERS = {"in turn": np.arange(7) % 3, "one has all": np.full(7, 2), "dealt": np.array([2, 0, 0, 2, 1, 1, 0])}


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_both_ends_are_equal_whoever_has_which_key(name, hidden, owners):
    drawn = np.random.default_rng(0)
    given = {"s": drawn.normal(size=7), "v": drawn.normal(size=7), OWNER: OWNERS[owners]}
    if hidden:
        given["s"][[0, 1, 4]] = -np.inf
    chain = over_ranks(VALUES[name], KEYS)
    one, other = (evaluate(term, given, {}, sizes={RANK.size: 3}) for term in (chain.start, chain.goal))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    assert chain.rules[0] == "reduction_in_parts"


@pytest.mark.parametrize("name", VALUES)
def test_a_chain_with_another_step_is_refused(name):
    chain = over_ranks(VALUES[name], KEYS)
    check(Derivation.from_json(chain.to_json()), LAWS)
    step = chain.steps[0]
    forged = replace(step, after=chain.goal if len(chain.steps) > 1 else chain.start)
    with pytest.raises(CertificateError):
        check(replace(chain, steps=(forged, *chain.steps[1:])), LAWS)


def test_a_shared_function_has_its_chain(mesh):
    shared = onepass.context_parallel(lambda q, k, v: torch.softmax(q @ k.mT / 3, -1) @ v, mesh, "cp")
    shared(*(torch.randn(1, 2, 6, 8) for _ in range(3)))
    (chain,) = shared.proofs
    assert {"reduction_in_parts", "states_by_their_numbers"} == {*chain.rules}
    assert "⊕_rank" in str(chain) and "owner[" in str(chain)
