"""Hypothesis strategies for terms: integer index terms over few small dims, and pointwise float terms over tensors."""

import numpy as np
from hypothesis import strategies as st

from onepass.egraph import Dim, Tensor
from onepass.egraph.terms.ops import OPS, const, iota, load, make, max_over, sum_over
from onepass.egraph.terms.traversal import all_dims

INDEX_DIMS = (Dim("i", 4), Dim("j", 3), Dim("k", 1))
FLOAT_OPS = ("neg", "exp", "add", "sub", "mul", "maximum", "minimum", "tanh")

index_leaves = st.one_of(st.sampled_from(INDEX_DIMS).map(iota), st.integers(-5, 5).map(const))


def _index_node(inner):
    positive = st.integers(1, 5).map(const)
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub"]), inner, inner),
        st.tuples(st.just("mul"), inner, st.integers(-3, 3).map(const)),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, positive),
        st.tuples(st.just("neg"), inner),
    ).map(lambda parts: make(parts[0], parts[1:]))


index_terms = st.recursive(index_leaves, _index_node, max_leaves=6)
"""Integer terms over INDEX_DIMS: sums, multiples, floordiv and mod by positive literals."""


def _float_leaf(choice):
    letter, dims = choice
    name = "_".join([letter, *(d.name for d in dims)])
    return load(Tensor(name, "float32", tuple(d.size for d in dims)), *map(iota, dims))


float_leaves = st.tuples(st.sampled_from("xyz"), st.lists(st.sampled_from(INDEX_DIMS), unique=True)).map(_float_leaf)


def _float_node(inner):
    pointwise = [st.tuples(st.just(op), *[inner] * OPS[op].arity) for op in FLOAT_OPS]
    folds = st.tuples(st.sampled_from([sum_over, max_over]), st.sampled_from(INDEX_DIMS), inner)
    return st.one_of(
        st.one_of(pointwise).map(lambda parts: make(parts[0], parts[1:])),
        folds.map(lambda parts: parts[0](*parts[1:])),
    )


float_terms = st.recursive(float_leaves, _float_node, max_leaves=8)
"""Float terms over INDEX_DIMS: pointwise operations, sums and maxima."""


def coordinates(root) -> dict[str, np.ndarray]:
    """The coordinate of every dim of INDEX_DIMS as an array that broadcasts over all of them."""
    shape = [1] * len(INDEX_DIMS)
    found = {}
    for place, dim in enumerate(INDEX_DIMS):
        found[dim.name] = np.arange(dim.size).reshape([*shape[:place], dim.size, *shape[place + 1 :]])
    assert set(all_dims(root)) <= set(INDEX_DIMS)
    return found
