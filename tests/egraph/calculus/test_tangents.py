"""Tangents as terms: rescaled states that share one loop, no sum over rows by columns, and right at large scores."""

import numpy as np
import pytest
import torch

from onepass.egraph.calculus.equations import Laws
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.calculus.tangents import tangents
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.term import Tensor
from onepass.egraph.terms.traversal import reduces
from onepass.graph.trace import program_of
from onepass.rules import NORMAL, SEPARATED, SHIFT_FREE
from onepass.translate.translate import translate

LAWS = Laws(NORMAL, SHIFT_FREE, SEPARATED)


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def with_sink(q, k, v, sink, kept):
    s = (q @ k.mT).masked_fill(~kept, -torch.inf)
    weights = torch.softmax(torch.cat([s, sink.expand(*s.shape[:-1], 1)], -1), -1)
    return weights[..., :-1] @ v


def with_sums(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def masked_sigmoid(q, k, v, kept):
    return torch.sigmoid(q @ k.mT).masked_fill(~kept, 0.0) @ v


def largest(q, k, v):
    return (q @ k.mT).amax(-1, keepdim=True) * v


def inputs(scale=1.0):
    torch.manual_seed(0)
    return [torch.randn(n, 8, dtype=torch.float64) * scale for n in (5, 300, 300)]


def derived(function, tensors, *given):
    captured = translate(program_of(function, *tensors))
    normaliser = Normaliser(NORMAL)
    results = [Result(normaliser.normal(r.term), r.output, r.order, None) for r in captured.results]
    names = [t.name for t in captured.inputs]
    changes = {t.name: Tensor(f"d{t.name}", t.dtype, t.shape) for t in captured.inputs if t.name in (given or names)}
    changes = {name: t for name, t in changes.items() if t.dtype != "bool"}
    return results, tangents(results, changes, LAWS)


def exact(function, tensors, results, found):
    """The derived tangents and torch's, where every floating input has one."""
    floating = [x for x in tensors if x.is_floating_point()]
    changes = [torch.randn_like(x) for x in floating]
    rest = [x for x in tensors if not x.is_floating_point()]
    _, right = torch.func.jvp(lambda *x: function(*x, *rest), tuple(floating), tuple(changes))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    arrays = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
    arrays |= {f"d{name}": x.numpy() for name, x in zip(names, changes, strict=False)}
    right = right if isinstance(right, tuple) else (right,)
    terms = zip(found.terms, results, right, strict=True)
    return [(evaluate(term, arrays, r.order), x.numpy()) for term, r, x in terms]


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("function", [softmax, with_sums])
def test_they_are_torchs_where_exponentials_alone_would_overflow(function, scale):
    tensors = inputs(scale)
    for ours, right in exact(function, tensors, *derived(function, tensors)):
        assert np.isfinite(ours).all() and np.allclose(ours, right, rtol=1e-9, atol=1e-9 * np.abs(right).max())


def test_rows_without_keys_beside_a_sink_are_numbers():
    kept = torch.rand(5, 300) < 0.5
    kept[2] = False
    tensors = [*inputs(), torch.randn(1, dtype=torch.float64), kept]
    ((ours, right),) = exact(with_sink, tensors, *derived(with_sink, tensors))
    assert np.allclose(ours, right, atol=1e-12) and not ours[2].any()


def test_every_state_of_a_softmax_has_one_score():
    _, found = derived(softmax, inputs())
    states = [r for r in reduces(found.terms[0]) if r.attrs[0] == "rescaled"]
    assert len({r.args[0].args[0] for r in states}) == 1 and len({r.attrs[1] for r in states}) == 1
    assert len(states) == 5  # the whole, and weights of v, s' · v, v' and s'


@pytest.mark.parametrize(("given", "states"), [(("v",), 2), (("q",), 4), (("q", "k"), 4), (("k", "v"), 5)])
def test_terms_of_tangents_that_are_not_given_are_not_there(given, states):
    _, found = derived(softmax, inputs(), *given)
    assert len([r for r in reduces(found.terms[0]) if r.attrs[0] == "rescaled"]) == states


def test_addends_of_a_masked_sum_have_sums_of_their_own():
    _, found = derived(masked_sigmoid, [*inputs(), torch.rand(5, 300) < 0.5])
    sums = [r for r in reduces(found.terms[0]) if r.attrs[1].size == 300]
    assert len(sums) == 2 and all(r.args[0].op == "where" and r.args[0].args[1].op == "mul" for r in sums)


def test_no_tangent_reaches_a_result_that_none_was_given_for():
    _, found = derived(with_sums, inputs(), "v")
    assert found.terms[0] is not None and found.terms[1] is None


def test_the_largest_score_is_refused():
    with pytest.raises(NotDifferentiable, match="a largest element"):
        derived(largest, inputs()[:2] + [torch.randn(5, 8, dtype=torch.float64)])
