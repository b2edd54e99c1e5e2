"""Alternatives keep what they state: each policy has a theorem, each text of instructions its error."""

from pathlib import Path

import numpy as np
import pytest

from onepass.lowering.gluon.device_math import (
    ORDER,
    REGISTERS_AT_A_TIME,
    capped_text,
    logistic_text,
    small_logistic_text,
    weights_text,
)
from onepass.lowering.hopper.approximations import EXP2, RECIPROCAL, RESCALINGS, SMALL, TANGENT

THEORY = Path(__file__).resolve().parents[3] / "proofs" / "theory"


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


# The text that kernels get, run line by line in single precision -----------------------------------------------------

FLOAT, BITS = np.float32, np.uint32
WRAP = lambda word: BITS(int(word, 0) % 2**32)
RUN = {
    "mov.f32": lambda a: a,
    "mov.b32": lambda a: a,
    "neg.f32": lambda a: -a,
    "add.f32": lambda a, b: a + b,
    "fma.rn.f32": lambda a, b, c: FLOAT(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)),
    "max.f32": np.fmax,
    "max.NaN.f32": np.maximum,
    "min.NaN.f32": np.minimum,
    "ex2.approx.ftz.f32": lambda a: np.exp2(a.astype(np.float64)).astype(FLOAT),
    "rcp.approx.ftz.f32": lambda a: FLOAT(1) / a,
    "sub.f32": lambda a, b: a - b,
    "mul.f32": lambda a, b: a * b,
    "tanh.approx.f32": lambda a: np.tanh(a.astype(np.float64)).astype(FLOAT),
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "lop3.b32": lambda a, b, c, _: a & b | c,
    "shl.b32": lambda a, b: a << b,
    "add.s32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
}


def run(text: str, numbers, size: int = REGISTERS_AT_A_TIME) -> list[np.ndarray]:
    """The results of a text for so many registers, which all hold the same numbers; a branch is taken for any."""
    known = {f"${size + k}": FLOAT(numbers).view(BITS) for k in range(size)}
    count, flag, waiting = len(numbers), False, None
    for line in filter(None, (part.strip() for part in text.strip("{} \n").split(";"))):
        label, _, line = line.rpartition(": ")
        waiting = None if label == waiting else waiting
        name, _, rest = line.strip("} ").partition(" ")
        jump = name == "bra.uni" or (name == "@far" and flag)
        if waiting or name in (".reg", "DONE:"):
            continue
        if name in ("bra.uni", "@far"):
            waiting = rest.split()[-1] if jump else None
            continue
        into, *reads = (word.strip() for word in rest.split(","))
        if into == "far":
            compared = {"setp.ne.s32": np.not_equal, "setp.ge.s32": np.greater_equal, "vote.sync.any.pred": None}[name]
            flag = flag if compared is None else compared(known[reads[0]].view(np.int32), int(reads[1], 0)).any()
            continue
        kind = FLOAT if name.endswith("f32") else BITS
        number = lambda word, kind=kind: np.full(count, kind(float(word)) if kind is FLOAT else WRAP(word))
        values = [known[w].view(kind) if w in known else number(w) for w in reads]
        with np.errstate(all="ignore"):
            known[into] = RUN[name](*values).view(BITS)
    return [known[f"${k}"].view(FLOAT) for k in range(size)]


@pytest.mark.parametrize("clamped", [True, False])
@pytest.mark.parametrize("count", [0, 3, 8])
def test_weights_by_multiply_adds_are_within_their_error(count, clamped):
    score = np.linspace(-90, 1, 100001, dtype=FLOAT)
    exact = np.exp2(score.astype(np.float64) * 1.25 - 1.5)
    errors = [np.abs(w / exact - 1).max() for w in run(weights_text(1.25, 1.5, count, clamped), score)]
    assert [k for k, e in enumerate(errors) if e > 1e-5] == sorted(ORDER[:count])
    assert max(errors) <= EXP2.error


def test_weights_of_absent_scores_are_zero_and_none_is_negative():
    low = np.concatenate([[-np.inf, -3e38, -1e9, -200.0], np.linspace(-140, -120, 5001)]).astype(FLOAT)
    for weight in run(weights_text(1.0, 0.0, 8, True), low):
        assert (weight[:4] == 0).all() and (weight >= 0).all() and (weight <= 2.0**-119).all()


@pytest.mark.parametrize("count", [0, 4, 8])
def test_weights_tell_what_is_absent_and_what_is_no_number(count):
    score = np.array([-np.inf, np.nan, -1.0, 0.0, 1.0], FLOAT)
    for weight in run(weights_text(40.0, 40.0, count, True), score):
        assert weight[0] == 0 and np.isnan(weight[1])
        assert weight[2:] == pytest.approx([2.0**-80, 2.0**-40, 1.0], rel=2e-4)
    assert all(np.isnan(w[0]) for w in run(weights_text(40.0, 40.0, count, False), score[1:2]))


def test_the_stated_error_of_exponentials_is_not_far_from_the_least():
    x = np.linspace(-1, 0, 100001, dtype=FLOAT)[:-1]
    found = run(weights_text(1.0, 0.0, 1, True), x)[ORDER[0]]
    assert 0.7 * EXP2.error < np.abs(found / np.exp2(x.astype(np.float64)) - 1).max() <= EXP2.error
    assert best_error(len(EXP2.coefficients)) <= EXP2.error <= 1.4 * best_error(len(EXP2.coefficients))


def best_error(degree: int) -> float:
    """No polynomial of the degree that is exact at 0 has a smaller error on [0, 1]: its least one on a few points."""
    k = np.arange(degree + 1)
    nodes = 0.5 - 0.5 * np.cos(np.pi * (k + 0.8) / (degree + 0.8))
    system = np.hstack([nodes[:, None] ** (k[1:]) * 2.0 ** -nodes[:, None], (-1.0) ** k[:, None]])
    return abs(np.linalg.solve(system, 1 - 2.0**-nodes)[-1])


@pytest.mark.parametrize("count", [0, 5, 8])
def test_logistic_curves_by_multiply_adds_are_within_their_error_of_themselves(count):
    x = np.linspace(-80, 80, 100001, dtype=FLOAT)
    exact = 1 / (1 + np.exp2(-1.5 * x.astype(np.float64) + 2.0))
    errors = [np.abs(y / exact - 1).max() for y in run(logistic_text(-1.5, 2.0, count), x)]
    assert [k for k, e in enumerate(errors) if e > 3e-5] == sorted(ORDER[:count])
    assert max(errors) <= RECIPROCAL.error and (count == 0 or max(errors) > 0.9 * RECIPROCAL.error)


def test_logistic_curves_far_out_and_of_nan():
    for y in run(logistic_text(-1.0, 0.0, 8), np.array([-np.inf, -1e9, np.inf, 1e9, np.nan])):
        assert (y[:2] < 1e-37).all() and (y[:2] >= 0).all() and np.abs(y[2:4] - 1).max() < 2e-4 and np.isnan(y[4])


# Forms for likely arguments ------------------------------------------------------------------------------------------

CAP, SIZE = 30 * 1.4426950408889634, 32


def capped(x, count: int = 4) -> list[np.ndarray]:
    return run(capped_text(0.25, CAP, CAP, count, SIZE), np.array(x, FLOAT), SIZE)


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("most", [0.49, 0.51, 30.0])
def test_capped_weights_are_as_far_off_as_their_tangent_and_their_power(most, count):
    x = np.linspace(-most, most, 20001)
    exact = np.tanh(np.float64(FLOAT(x))) * CAP
    allowed = TANGENT.error * 1.01 * np.abs(exact) * (most < TANGENT.reach) + np.log2(1 + EXP2.error) + 1e-4
    for weight in capped(4 * x, count):
        off = np.abs(np.log2(weight.astype(np.float64)) + CAP - exact)
        assert (off <= allowed).all()
    assert most > TANGENT.reach or (off[x != 0] / np.abs(exact[x != 0])).max() > 0.9 * TANGENT.error


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf, 3e38, 2.0001])
def test_a_number_out_of_reach_takes_its_warp_the_long_way(hostile):
    """And gives what it should; the others are then more exact, never less."""
    for weight in capped([hostile, 0.1, -0.1]):
        assert (
            np.isnan(weight[0])
            if np.isnan(hostile)
            else weight[0] == pytest.approx(2.0 ** (CAP * np.tanh(hostile / 4) - CAP), rel=2e-4)
        )
        assert weight[1:] == pytest.approx(2.0 ** (CAP * np.tanh([0.025, -0.025]) - CAP), rel=2e-4)


@pytest.mark.parametrize("count", [0, 6])
@pytest.mark.parametrize("least", [-3.0, -3.1, -40.0])
def test_small_logistic_curves_are_within_their_error_of_themselves(least, count):
    """In units of which 2^-3 is the reach: from there the form is the other one."""
    y = np.linspace(-80, least, 20001)
    exact = 1 / (1 + np.exp2(-np.float64(FLOAT(y))))
    for found in run(small_logistic_text(-2.0, 1.0, count, SIZE), FLOAT((y + 1) / 2), SIZE):
        assert np.abs(found / exact - 1).max() <= (RECIPROCAL.error if least > -3.1 else SMALL.error) + 2e-5


def test_small_logistic_curves_far_out_and_of_nan():
    for numbers, expected in (([-np.inf, -3e38, -200.0], 0.0), ([np.inf, 3e38, 200.0], 1.0)):
        for found in run(small_logistic_text(-1.0, 0.0, 6, SIZE), np.array(numbers), SIZE):
            assert found == pytest.approx(expected, abs=2e-4)
    for found in run(small_logistic_text(-1.0, 0.0, 6, SIZE), np.array([np.nan, -20.0]), SIZE):
        assert np.isnan(found[0]) and found[1] == pytest.approx(2.0**-20, rel=2e-4)


@pytest.mark.parametrize("near, function", [(TANGENT, np.tanh), (SMALL, lambda x: x / (1 + x))])
def test_the_stated_error_of_a_near_form_is_the_least_one(near, function):
    x = np.linspace(1e-4, near.reach, 20001)
    found = x * sum(c * x ** (n * near.step) for n, c in enumerate(near.coefficients))
    gap = found / function(x) - 1
    assert 0.95 * near.error < np.abs(gap).max() <= near.error
    extremes = np.flatnonzero(np.diff(np.sign(np.diff(gap)))) + 1
    turns = [gap[0], *gap[extremes], gap[-1]]
    assert len(turns) == len(near.coefficients) + 1 and np.abs(turns).min() > 0.95 * near.error
