"""Hypothesis strategies for patterns with every construct, and for small terms that such patterns often match."""

from hypothesis import strategies as st

from onepass.egraph import Dim, Tensor, TermError
from onepass.egraph.rewrite.guard import constant, independent, not_constant
from onepass.egraph.rewrite.pattern import OperatorVariable, also, build, either, given
from onepass.egraph.rewrite.pattern_rule import always_bound
from onepass.egraph.terms.ops import const, iota, load, make, reduce, var
from onepass.egraph.terms.term import AttributeVariable

I, J = Dim("i", 2), Dim("j", 3)
LEAVES = (load(Tensor("a", "float32", (2,)), iota(I)), load(Tensor("b", "float32", (3,)), iota(J)), const(1.0))
UNARY, BINARY, MONOIDS = ("neg", "exp"), ("add", "maximum"), ("sum", "max")


def _term_node(inner):
    return st.one_of(
        st.tuples(st.sampled_from(UNARY), inner).map(lambda p: make(p[0], p[1:])),
        st.tuples(st.sampled_from(BINARY), inner, inner).map(lambda p: make(p[0], p[1:])),
        st.tuples(st.sampled_from(MONOIDS), st.sampled_from((I, J)), inner).map(lambda p: reduce(*p)),
    )


small_terms = st.recursive(st.sampled_from(LEAVES), _term_node, max_leaves=3)
"""Terms over two tensors and one literal, with few operations, so that random patterns match them."""


@st.composite
def patterns(draw, depth: int = 3, again: tuple[str, ...] = (), local: tuple[str, ...] = ()):
    """Well-formed patterns over the variables x, y, operators f, g, monoid m and dim d, to a depth."""
    leaves = [var("x"), var("y"), *map(var, local), *(build("again", (), (a,)) for a in again)]
    if depth == 0:
        return draw(st.sampled_from([*leaves, LEAVES[2]]))
    inner = patterns(depth - 1, again, local)
    way = draw(st.sampled_from(("leaf", "operation", "operation", "apply", "either", "also", "given", "new")))
    if way == "leaf":
        return draw(st.sampled_from(leaves))
    if way == "operation":
        return draw(_pattern_node(inner))
    if way == "apply":
        return OperatorVariable(draw(st.sampled_from("fg")))(*draw(st.lists(inner, min_size=1, max_size=2)))
    if way in ("either", "also"):
        return (either if way == "either" else also)(draw(inner), draw(inner))
    if way == "given":
        return _guarded(draw, draw(inner))
    return draw(_binders(depth, again, local))


def _pattern_node(inner):
    monoid = st.sampled_from((*MONOIDS, AttributeVariable("m")))
    dim = st.sampled_from((I, J, Dim("d")))
    return st.one_of(_term_node(inner), st.tuples(monoid, dim, inner).map(lambda p: reduce(*p)))


def _guarded(draw, pattern):
    bound = sorted(n for n in always_bound(pattern) if n in ("x", "y"))
    if not bound:
        return pattern
    x = var(draw(st.sampled_from(bound)))
    return given(pattern, draw(st.sampled_from((constant(x), not_constant(x), independent(x, I)))))


@st.composite
def _binders(draw, depth, again, local):
    """A recursion, or a pattern with a local; each new name differs from those around it."""
    if draw(st.booleans()) and not local:
        return build("exists", (draw(patterns(depth - 1, again, ("z",))),), ("z",))
    name = f"again{len(again)}"
    body = draw(patterns(depth - 1, (*again, name), local))
    return guarded_recursion(name, body, draw(st.integers(1, 3)))


def guarded_recursion(name, body, fuel):
    """The recursive pattern, or its body's first alternative of the kind if it could unfold in place."""
    from onepass.egraph.rewrite.pattern import recursive

    try:
        return recursive(_named(name, body), fuel)
    except TermError:
        return recursive(_named(name, either(var("x"), make("neg", (body,)))), fuel)


def _named(name, body):
    scope: dict = {}
    exec(f"def write({name}): return body", {"body": body}, scope)
    return scope["write"]
