"""Alternatives keep what they state: each policy has a theorem, each polynomial is the best of its degree."""

from pathlib import Path

import numpy as np
import pytest

from onepass.lowering.alternatives import EXP2, RESCALINGS

THEORY = Path(__file__).resolve().parent.parent / "proofs" / "theory"


@pytest.mark.parametrize("policy", RESCALINGS, ids=lambda policy: policy.name)
def test_a_policy_names_a_theorem(policy):
    file, name = policy.theorem.split(".")
    text = (THEORY / f"{file}.v").read_text()
    assert f"Theorem {name} :" in text and "Admitted" not in text


@pytest.mark.parametrize("bound", [p.bound for p in RESCALINGS])
def test_every_policy_gives_the_same_quotient(bound):
    generator = np.random.default_rng(0)
    scores, values = generator.normal(size=400) * 5 + np.linspace(0, 30, 400), generator.normal(size=400)
    scale, total, weights = scores[0], values[0], 1.0
    for s, v in zip(scores[1:], values[1:]):
        new = max(scale, s) if s > scale + bound else scale
        keep, weight = np.exp2(scale - new), np.exp2(s - new)
        assert weight <= 2.0**bound
        scale, total, weights = new, total * keep + weight * v, weights * keep + weight
    exact = np.exp2(scores - scores.max())
    assert total / weights == pytest.approx((exact * values).sum() / exact.sum(), rel=1e-9)


def best_error(degree: int) -> float:
    """No polynomial of the degree has a smaller error: its least error on a few points (de la Vallée Poussin)."""
    k = np.arange(degree + 2)
    nodes = -0.5 * np.cos(np.pi * k / (degree + 1))
    system = np.hstack([nodes[:, None] ** np.arange(degree + 1) * 2.0 ** -nodes[:, None], (-1.0) ** k[:, None]])
    return abs(np.linalg.solve(system, np.ones(degree + 2))[-1])


@pytest.mark.parametrize("degree", EXP2)
def test_a_polynomial_has_its_error_and_no_other_is_much_better(degree):
    row = EXP2[degree]
    assert row.degree == degree and row.instructions == degree + 3
    x = np.linspace(-0.5, 0.5, 100001)
    error = np.abs(np.polyval(row.coefficients[::-1], x) * 2.0**-x - 1).max()
    assert 0.99 * row.error < error <= row.error
    assert best_error(degree) <= row.error <= 1.05 * best_error(degree)


@pytest.mark.parametrize("degree", EXP2)
def test_in_single_precision_rounding_adds_two_units(degree):
    y = np.linspace(-126, 0, 200001, dtype=np.float32)
    whole = np.rint(y)
    x, power = y - whole, np.zeros_like(y)
    for c in reversed(EXP2[degree].coefficients):
        power = power * x + np.float32(c)
    result = np.ldexp(power, whole.astype(np.int32))
    error = np.abs(result.astype(np.float64) / np.exp2(y.astype(np.float64)) - 1).max()
    assert error <= EXP2[degree].error + 2 * 2.0**-23
