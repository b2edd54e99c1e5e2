"""What a user reads who writes a wrong rule: each message names the rule, its line, and what is wrong with it."""

import pickle
from dataclasses import replace

import pytest
import torch

from onepass.api.graph_pass import GraphPass
from onepass.compiler.options import OptionError, Options
from onepass.egraph import Dim, RuleError, TermError, either, independent, positive, rule
from onepass.egraph.rewrite.guard import GUARDS, Guard
from onepass.egraph.rewrite.rule import ASSUMPTIONS, EXACTNESS, refuse_bad
from onepass.egraph.terms.ops import cast, const, exp, logical_not, max_over, reduce, sum_over, var, where


def refused(function, **options) -> str:
    with pytest.raises(RuleError) as raised:
        rule(function, **options)
    message = str(raised.value)
    assert message.startswith(f"rule {function.__name__} (")
    assert f"test_rule.py:{function.__code__.co_firstlineno})" in message
    return message


def test_a_variable_that_the_left_side_does_not_bind():
    def invented(a):
        """a + 0 = a · b"""
        return a + 0.0, a * var("b")

    assert "variable 'b' of the right side is not bound by the left side" in refused(invented)


def test_a_dim_that_the_left_side_does_not_bind():
    def invented_dim(a):
        """a + 0 = Σ_k a"""
        return a + 0.0, sum_over("k", a)

    assert "variable 'dim k' of the right side is not bound by the left side" in refused(invented_dim)


def test_an_attribute_that_the_left_side_does_not_bind():
    def invented_dtype(a, t: "dtype"):
        """a + 0 = t(a)"""
        return a + 0.0, cast(a, t)

    assert "variable 't' of the right side is not bound by the left side" in refused(invented_dtype)


def test_a_law_of_both_directions_binds_on_both_sides():
    def forgetful(a, b):
        """a · 0 + b = b"""
        return a * 0.0 + b, b + 0.0

    assert rule(forgetful).name == "forgetful"
    assert "variable 'a' of the left side is not bound by the right side (both=True)" in refused(forgetful, both=True)


def test_a_variable_that_is_never_used():
    def wasteful(a, b):
        """a + 0 = a"""
        return a + 0.0, a

    assert "variable 'b' is declared and never used" in refused(wasteful)


def test_equal_sides():
    def obvious(a):
        """e^a = e^a"""
        return exp(a), exp(a)

    assert "both sides are the same term" in refused(obvious)


def test_a_missing_law():
    def unsaid(a):
        return a + 0.0, a

    assert "the docstring must state the law in one line" in refused(unsaid)


def test_a_left_side_that_matches_everything():
    def everything(a):
        """a = a + 0"""
        return a, a + 0.0

    assert "the left side is a bare variable: it would match everything" in refused(everything)


def test_sides_of_two_dtypes():
    def forgotten_cast(p: "predicate", n: "index"):
        """¬p = n + 1"""
        return where(p, n, n + 1), logical_not(p)

    assert "the left side is int64, the right side bool" in refused(forgotten_cast)


def test_an_ill_typed_side():
    def exponential_of_index(n: "index"):
        """e^(n + 0) = e^n"""
        return exp(n + 0), exp(n)

    assert "exp does not take an operand of dtype int64" in refused(exponential_of_index)


def test_an_unknown_monoid():
    def median(a: "j"):
        """median_j a = max_j a"""
        return reduce("median", "j", a), max_over("j", a)

    assert "unknown monoid 'median'" in refused(median)


@pytest.mark.parametrize(
    "body, what",
    [
        (lambda a: (a + 0.0,), "(a + 0,)"),
        (lambda a: a + 0.0, "a + 0"),
        (lambda a: ..., "..."),
        (lambda a: None, "nothing"),
    ],
)
def test_a_body_that_returns_no_two_sides(body, what):
    def one_sided(a):
        """a + 0"""
        return body(a)

    assert f"the body returns the two sides, `return left, right`; this one returns {what}" in refused(one_sided)


@pytest.mark.parametrize(
    "body, what",
    [
        (lambda a, c: (a < c, c > a), "terms have no order in Python (<, >, max, min, if): write lt, le, eq, where"),
        (lambda a, c: (max(a, c), max(c, a)), "terms have no order in Python"),
        (lambda a, c: (a == c, c == a), "the left side is False, which is no term: == compares here and now, eq of"),
        (lambda a, c: (a.sum(), c), "has no attribute 'sum'; a body is written with the rule's parameters"),
        (lambda a, c: (torch.exp(a), c), "must be Tensor, not Term; a body is written with"),
        (lambda a, c: (a + 1j, c), "1j is neither a term nor a real number"),
        (lambda a, c: (0.0, a - a), "the left side is 0.0, which is no term: build it from the variables"),
    ],
)
def test_a_body_in_what_is_no_algebra(body, what):
    def written(a: "j", c):
        """a = c"""
        return body(a, c)

    assert what in refused(written)


def test_python_numbers_and_operators_in_a_body():
    @rule
    def square(a: "j"):
        """a² / 2 = |a| · |a| / 2"""
        return a**2 / 2, abs(a) * abs(a) / 2

    assert str(square) == "square: a ^ 2 / 2 = abs(a) · abs(a) / 2"
    assert [type(side.args[1].attrs[0]) for side in (square.left, square.right)] == [float, float]


def test_a_side_that_is_no_term():
    def sided(a):
        """a + 0 = nothing"""
        return a + 0.0, None

    assert "the right side is None, which is no term" in refused(sided)


def harmless(a: "j", c):
    """Σ_j a · c = (Σ_j a) · c"""
    return sum_over("j", a * c), sum_over("j", a) * c


def test_a_guard_on_a_variable_that_does_not_exist():
    message = refused(harmless, when=lambda z: positive(z))
    assert "`when` asks for a variable 'z'; the rule has a, c" in message


def test_a_guard_on_a_dim_that_the_left_side_does_not_bind():
    message = refused(harmless, when=lambda c: independent(c, of="k"))
    assert "guard «c does not depend on k» mentions 'dim k', which the left side does not bind" in message


def test_a_guard_on_a_variable_that_the_left_side_does_not_bind():
    message = refused(harmless, when=lambda c: independent(var("z"), of="j"))
    assert "guard «z does not depend on j» mentions 'z', which the left side does not bind" in message


def test_an_unknown_guard():
    assert "unknown guard 'probably'" in refused(harmless, when=lambda c: Guard("probably", (c,)))


@pytest.mark.parametrize("guard", [None, True, lambda c: True], ids=["None", "True", "a function"])
def test_a_guard_that_is_no_guard(guard):
    assert "no Guard" in refused(harmless, when=lambda c: guard)


EXACT = "exact is one of 'bitwise', 'reassociates', 'scores are finite', 'masked values are finite', "


@pytest.mark.parametrize("given", ["on a good day", "Bitwise", "", None, True, ["bitwise"]])
def test_an_assumption_that_nobody_knows(given):
    def alternatives(a, b):
        """a + -b = -b + a = a - b"""
        return either(a + -b, -b + a), a - b

    for law in (harmless, alternatives):
        said = refused(law, exact=given)
        assert EXACT in said and said.endswith(f"not {given!r}")
    with pytest.raises(RuleError, match="exact is one of"):
        refuse_bad(replace(rule(harmless), exact=given))


@pytest.mark.parametrize("known", [*EXACTNESS, *ASSUMPTIONS])
def test_an_assumption_that_is_known(known):
    assert rule(harmless, exact=known).assumption == (None if known in EXACTNESS else known)


@pytest.mark.parametrize("kind", ["", "j", "constant", "index", "predicate", "index constant", "i j"])
def test_an_annotation_decides_the_dtype_of_a_variable(kind):
    def plain(x):
        """where(true, x, x) = x"""
        return where(const(True), x, x), x

    plain.__annotations__["x"] = kind
    kinds = kind.split()
    expected = "int64" if "index" in kinds else "bool" if "predicate" in kinds else "any"
    assert rule(plain).right.dtype == expected


def test_a_rule_error_is_a_term_error_and_a_type_error():
    assert issubclass(RuleError, TermError) and issubclass(TermError, TypeError)


def test_a_rule_prints_its_law_and_its_guards():
    record = rule(harmless, when=lambda c: independent(c, of="j"))
    assert str(record) == "harmless: Σ_j a · c = (Σ_j a) · c   when c does not depend on j"


def test_a_rule_survives_pickling():
    record = rule(harmless, when=lambda c: independent(c, of="j"))
    assert pickle.loads(pickle.dumps(record)) == record


def test_reading_backwards_twice_is_the_rule():
    record = rule(harmless)
    assert record.reversed().left is record.right
    assert record.reversed().reversed() == record


@pytest.mark.parametrize("kind", sorted(GUARDS))
def test_every_guard_says_what_it_asks(kind):
    operands = (var("x"), Dim("j"), 2)[: GUARDS[kind].says.count("{")]
    assert "x" in str(Guard(kind, operands)) and "{" not in str(Guard(kind, operands))


def test_one_rule_instead_of_a_list():
    law = rule(harmless)
    for make in (lambda: Options(rules=law), lambda: GraphPass(law), lambda: Options.read({"rules": law})):
        with pytest.raises(OptionError, match=r"write \[harmless\] \(.*test_rule.py:\d+\)"):
            make()


@pytest.mark.parametrize("given", ["harmless", 3, None, {"harmless": 1}])
def test_what_is_no_list_of_rules(given):
    with pytest.raises(OptionError, match=r"rules is a list of rules.*, not "):
        Options(rules=given)


def test_a_law_that_was_not_decorated():
    line = harmless.__code__.co_firstlineno
    with pytest.raises(OptionError, match=rf"test_rule.py:{line}\), which is no rule: decorate"):
        Options(rules=[harmless])
