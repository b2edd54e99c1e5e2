"""Equal programs have equal values at samples, whatever the lengths; other programs have others."""

import numpy as np
import pytest

from onepass.egraph.terms.ops import (
    OF_LAWS,
    OPS,
    const,
    exp,
    iota,
    load,
    make,
    mantissa,
    max_over,
    rescaled_sum,
    scale,
    scaled,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.readback.ring_numbers import RingNumbers, equal
from onepass.lowering.readback.sample_points import Points
from onepass.lowering.readback.sampled_values import SampledValues, pointwise

I, J = Dim("i", 100_000), Dim("j", 8192)
S, V = Tensor("s", "float32", (100_000, 8192)), Tensor("v", "float32", (8192,))
x, v, kept = load(S, iota(I), iota(J)), load(V, iota(J)), load(Tensor("kept", "bool", (8192,)), iota(J))
ABSENT = const(-float("inf"))


def softmax(scores, values):
    weights = exp(scores - max_over(J, scores))
    return sum_over(J, weights / sum_over(J, weights) * values)


def online(scores, values):
    return mantissa(rescaled_sum(J, scores, values)) / mantissa(rescaled_sum(J, scores, const(1.0)))


masked = where(kept, x, ABSENT)
PAIRS = {
    "softmax": (softmax(x, v), online(x, v), True),
    "masked softmax": (softmax(masked, v), online(masked, v), True),
    "log of a sum": (scale(rescaled_sum(J, x, v)), max_over(J, x), True),
    "another scale": (online(x, v), online(x * 1.001, v), False),
    "values squared": (online(x, v), online(x, v * v), False),
    "an unmasked one": (online(masked, v), online(x, v), False),
    "finite mask": (softmax(where(kept, x, const(-1e9)), v), softmax(where(kept, x, const(-1e30)), v), True),
    "mask by addition": (softmax(x + where(kept, const(0.0), const(-1e30)), v), online(masked, v), True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_have_equal_values(name):
    one, other, expected = PAIRS[name]
    values = SampledValues(Points({}, weighed=frozenset({J.size})), {}, {})
    a, b = (values.aligned(term, (I,)) for term in (one, other))
    assert (a.far is None or not np.isnan(a.far).all()) and bool(np.all(equal(a, b))) == expected


def test_another_trial_has_other_tensors():
    one, other = (SampledValues(Points({}), {}, {}, trial).value(x) for trial in (0, 1))
    assert not np.any(equal(one, other))


LEAVES = ("const", "iota", "load", "var", "size", "reduce", "scale", "mantissa", *OF_LAWS)


@pytest.mark.parametrize("op", [name for name in OPS if name not in LEAVES])
def test_every_operation_has_values(op):
    number, whole = v, iota(J)
    boolean = ("not", "and", "or")
    first = kept if op in (*boolean, "where") else whole if op in ("floordiv", "mod", "uniform") else number
    others = kept if op in boolean else whole if first is whole else number
    arity = OPS[op].arity
    node = make(op, (first, *[others] * (arity - 1)), ("float32",) if op == "cast" else ())
    values = SampledValues(Points({}), {}, {})
    found = values.value(node)
    parts = found if isinstance(found, tuple) else (found,)
    shapes = [part.shape if isinstance(part, RingNumbers) else np.shape(part) for part in parts]
    assert set(shapes) == {(len(values.indices(J)),)}


@pytest.mark.parametrize("monoid", ["sum", "prod", "max", "min", "any", "all", "rescaled"])
def test_every_monoid_folds_in_any_order(monoid):
    body = kept if monoid in ("any", "all") else scaled(x, v) if monoid == "rescaled" else x
    node = make("reduce", (body,), (monoid, J))
    turned = Points({}, more={J: Points({})(J)[::-1]})
    one, other = (SampledValues(points, {}, {}).value(node) for points in (Points({}), turned))
    for a, b in zip(one, other) if isinstance(one, tuple) else [(one, other)]:
        assert np.all(equal(a, b) if isinstance(a, RingNumbers) else a == b)


def test_numbers_and_whole_numbers_meet():
    node = make("cast", (iota(J),), ("float32",)) * const(2.0)
    values = SampledValues(Points({}), {}, {})
    whole = values.value(iota(J) * const(2))
    assert np.all(values.value(node).residues == whole[None]) and pointwise is not None
