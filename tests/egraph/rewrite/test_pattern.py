"""Constructs of patterns one by one: what each refuses, scopes of locals, fuel; and the classes of operations."""

import numpy as np
import pytest

from onepass.egraph import Dim, RuleError, Tensor, TermError, also, constant, either, exists, given, recursive, rule
from onepass.egraph.rewrite.guard import CLASSES
from onepass.egraph.rewrite.pattern import OPERATORS
from onepass.egraph.rewrite.pattern_matcher import matches
from onepass.egraph.terms.ops import MONOIDS, OPERATION_OF, OPS, const, exp, iota, load, make, max_over, sum_over, var

A, B, C = (load(Tensor(name, "float32", (3,)), iota(Dim("j", 3))) for name in "abc")
x, y = var("x"), var("y")


def test_each_unfolding_has_locals_of_its_own():
    chain = recursive(lambda again: either(x, exists(lambda z: again + z)))
    found = [match["x"] for match in matches(chain, (A + B) + C)]
    assert found == [(A + B) + C, A + B, A]
    bound_first = recursive(lambda again: either(x, exists(lambda z: z + again)))
    assert [match["x"] for match in matches(bound_first, A + (B + C))] == [A + (B + C), B + C, C]
    shared = exists(lambda z: recursive(lambda again: either(x, again + z)))
    assert [match["x"] for match in matches(shared, (A + B) + C)] == [(A + B) + C, A + B]
    assert [match["x"] for match in matches(shared, (A + B) + B)] == [(A + B) + B, A + B, A]


def test_fuel_ends_a_recursion():
    def found(fuel):
        return len(list(matches(recursive(lambda again: either(x, exp(again)), fuel), exp(exp(exp(A))))))

    assert [found(fuel) for fuel in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]


def test_matches_are_lazy():
    endless = recursive(lambda again: either(x, again + again), fuel=30)
    target = A
    for _ in range(30):
        target = target + target
    assert next(matches(endless, target)) == {"x": target}


@pytest.mark.parametrize(
    "write, why",
    [
        (lambda: either(x), "two patterns or more"),
        (lambda: also(x), "two patterns or more"),
        (lambda: given(x, y), "takes guards after the pattern, not y"),
        (lambda: recursive(lambda again: either(x, again)), "'again' stands for itself"),
        (lambda: recursive(lambda again: exp(again), fuel=0), "the fuel of 'again' is a number of unfoldings, not 0"),
    ],
)
def test_a_construct_refuses_what_means_nothing(write, why):
    with pytest.raises(TermError, match=why):
        write()


def escaped():
    kept = []
    recursive(lambda again: kept.append(again) or exp(again))
    return kept[0]


WRONG = {
    "variable 'b' of the right side is not bound by every alternative": lambda a, b: (either(exp(a), a + b), a + b),
    "variable 'b' is declared and the left side never uses it": lambda a, b: (either(exp(a), -a), a),
    r"guard «b is a constant» mentions 'b', which its pattern": lambda a, b: (
        exp(given(either(a, a * b), constant(b))),
        a,
    ),
    "'again' is used outside of its recursive pattern": lambda a: (a + escaped(), a),
    "the local 'a' is the name of another variable": lambda a: (a + exists(lambda a: exp(a)), a),
    "the left side can be a bare variable": lambda a: (either(exp(a), a), a),
    "'either' belongs on the left side": lambda a: (either(exp(a), -a), either(a, -a)),
    "parameter 'c' of the right side": lambda a: (exp(a), lambda c: c),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_rule_refuses_what_means_nothing(why):
    function = WRONG[why]
    function.__doc__ = "a law"
    with pytest.raises(RuleError, match=rf"rule <lambda> \(.*test_pattern.py:\d+\): .*{why}"):
        rule(function)


def test_an_error_in_code_names_rule_and_line():
    @rule
    def failing(a):
        """exp(a) = a"""
        return exp(a), lambda a: 1 / 0

    with pytest.raises(RuleError, match=r"rule failing \(.*test_pattern.py:\d+\): the right side failed: ZeroDivision"):
        list(failing.applications(exp(A)))

    @rule
    def numeric(a):
        """exp(a) = 1"""
        return exp(a), lambda a: "one"

    with pytest.raises(RuleError, match="gave 'one', which is no term"):
        list(numeric.applications(exp(A)))


# Classes --------------------------------------------------------------------------------------------------------------

VALUES = np.array([-np.inf, -30.0, -2.0, -1.5, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0, 40.0, np.inf])
TRUTHS = np.array([False, True])


def applied(op, *arrays):
    with np.errstate(all="ignore"):
        return np.asarray(OPS[op].meaning(*arrays))


def grid(op, count):
    values = TRUTHS if op in ("and", "or") else VALUES[1:-1]
    return np.meshgrid(*[values] * count, indexing="ij")


def same(a, b):
    return a.dtype == b.dtype and np.allclose(a, b, equal_nan=True)


def is_monotone(op, sign):
    found = applied(op, VALUES).astype(float)
    with np.errstate(invalid="ignore"):
        steps = sign * np.diff(found)
    return not np.isnan(found).any() and bool((np.isnan(steps) | (steps >= 0)).all()) and len(set(found)) > 1


def keeps_type(op):
    """A function from a type to itself, as laws of increasing ones have; `order` gives whole numbers of floats."""
    return OPS[op].arity == 1 and OPS[op].dtype in ("same", "float")


HAS = {
    "increasing": lambda op: keeps_type(op) and is_monotone(op, 1),
    "decreasing": lambda op: keeps_type(op) and is_monotone(op, -1),
    "commutative": lambda op: OPS[op].arity == 2 and same(applied(op, *grid(op, 2)), applied(op, *grid(op, 2)[::-1])),
    "associative": lambda op: OPS[op].arity == 2 and is_associative(op),
    "foldable": lambda op: False,  # monoids alone are
    "idempotent": lambda op: OPS[op].arity == 2 and same(applied(op, *grid(op, 1) * 2), grid(op, 1)[0]),
}


def is_associative(op):
    a, b, c = grid(op, 3)
    if applied(op, a, b).dtype != a.dtype:
        return False
    return same(applied(op, applied(op, a, b), c), applied(op, a, applied(op, b, c)))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_what_the_meanings_say(name):
    assert {op for op in OPERATORS if HAS[name](op)} == set(CLASSES[name]) & set(OPERATORS)


def test_a_monoid_folds_with_its_operation():
    assert {*CLASSES["foldable"]} == {*OPERATION_OF} < {*MONOIDS}
    for monoid, op in OPERATION_OF.items():
        values = TRUTHS if MONOIDS[monoid].dtype == "bool" else VALUES[1:-1]
        pairs = np.stack(np.meshgrid(values, values))
        assert same(MONOIDS[monoid].fold(pairs, 0)[0], applied(op, *pairs))
        once = MONOIDS[monoid].fold(np.stack([values, values]), 0)[0]
        assert same(once, values) == (monoid in CLASSES["idempotent"])
    assert set(MONOIDS) <= set(CLASSES["commutative"]) & set(CLASSES["associative"])


def test_one_pattern_matches_at_every_rank():
    pattern = max_over("j", x * y)
    j = Dim("j", 3)
    for rank in range(1, 6):
        dims = [*(Dim(f"b{n}", 2) for n in range(rank - 1)), j]
        tensor = load(Tensor("t", "float32", tuple(d.size for d in dims)), *map(iota, dims))
        (found,) = matches(pattern, max_over(j, tensor * const(2.0)))
        assert found == {"dim j": j, "x": tensor, "y": const(2.0)}
    assert list(matches(pattern, sum_over(j, make("mul", (A, B))))) == []
