"""The passes of the stage `terms`: each rewrites the stores' terms into a form that makes fewer or simpler loops.

Invariant: no pass changes a value, apart from the order in which numbers are added. Example: a sum over a dim of size 2
becomes an addition and needs no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce as reduce_by
from operator import mul

from ...egraph.terms.index_simplify import floordiv, mod, simplify_index
from ...egraph.terms.ops import const, iota, make, mantissa, reduce, scale, scaled, sum_over
from ...egraph.terms.printing import show
from ...egraph.terms.term import FLOATS, Dim, Term
from ...egraph.terms.traversal import (
    all_dims,
    at_place,
    every_reduction,
    factors,
    rebuild,
    reduces,
    substitute,
    subterms,
)
from ..analysis.data_indices import read_where_chosen as with_places_where_chosen
from ..analysis.dim_roles import is_product, nodes_between, product_sides
from ..analysis.nested_sums import (
    ZERO,
    Nest,
    dims_around,
    is_batch,
    is_sum,
    nest_of,
    products_of_pairs,
    sums_over_batch,
    with_loops_outermost,
)
from ..analysis.shared_sums import Cut, cut_of, distance_cut_of
from ..masks.masked_weights import with_hidden_weights_left_out
from ..plan.dtypes import HALVES
from ..plan.records import Store
from ..plan.term_edits import in_blocks, unshadowed, with_fresh_bound_dims
from .planning_state import Planning

MAX_MERGED_SIZE = 256  # elements of two summed dims that become one: a tile holds them whole
MAX_UNROLLED_SIZE = 4  # elements of a summed dim that is unrolled, such as the coordinates of a point
MAX_UNROLLED_OPERATIONS = 16  # operations on pairs in one unrolled sum: their operands are in registers all at once


def split_flattened_dims(planning: Planning) -> Planning:
    """A pass: reductions over a dim that the program has flattened from two dims become reductions over each."""
    return planning.with_terms(with_flattened_dims_split)


def rename_shadowed_dims(planning: Planning) -> Planning:
    """A pass: no reduction binds a dim inside another reduction that binds the same dim around a use of it."""
    return planning.with_terms(unshadowed)


def reassociate_divisors(planning: Planning) -> Planning:
    """A pass: divisors move to the factor that has their dims."""
    return planning.with_terms(with_divisors_reassociated)


def multiply_out_addends(planning: Planning) -> Planning:
    """A pass: a sum of products with a sum as a factor becomes two sums, where both are products of matrices."""
    return planning.with_terms(with_addends_multiplied_out)


def sums_of_one_as_axes(planning: Planning) -> Planning:
    """A pass: a batch of one that a result sums over, around products, is one more axis of the result.

    That is the same memory. With the axis it fits kernels and loops of stores that have the dim. Example: a sum over a
    batch of one.
    """
    return replace(planning, stores=tuple(map(_with_axes_of_one, planning.stores)))


def _with_axes_of_one(store: Store) -> Store:
    casts, guards, total = _around(store.term)
    if not is_sum(total):
        return store
    nest = nest_of(total)
    ones = [d for d in nest.dims if d.size == 1 and is_batch([d], nest.body)]
    axes = [*nest.dims, *store.order]
    if not ones or len({*axes}) < len(axes):
        return store
    rest = replace(nest, guards=(*guards, *nest.guards)).sum(d for d in nest.dims if d not in ones)
    output = replace(store.output, shape=(*(1 for _ in ones), *store.output.shape))
    return replace(store, term=_with_casts(rest, casts), output=output, order=(*ones, *store.order))


def halve_sums(planning: Planning) -> Planning:
    """A pass: a sum that lacks the rows of its products is cut in two, and the first half is stored.

    A loop of another store makes that half beside its own sums. Example: a number for each head, the sum of something
    over all rows and columns, is the sum of numbers for each column. What is summed by a function of column - row is
    summed by distance first.
    """
    for store in planning.stores:
        while by_distance := distance_cut_of(planning.stores[planning.index(store.output.name)], planning.part_name):
            half, place = by_distance.half, _halves(planning)
            planning = planning.with_part(half, place, f"[{show(half.places[-1])}]", "sums along diagonals")
            planning = planning.with_replaced({store.output.name}, {by_distance.root: by_distance.made(half.output)})
    while found := next(_cuts(planning), None):
        name, cut = found
        planning, read = planning.with_load(cut.part, _before(planning, name), "has the loop of another sum", cut.dims)
        rest = cut.rest
        if cut.apart:
            longest = sum_over(rest[0], read)
            planning, read = planning.with_load(longest, _before(planning, name), "is a sum of too many sums", cut.dims)
            rest = rest[1:]
        planning = planning.with_replaced({name}, {cut.root: Nest(rest, (), read).sum(rest)})
    return planning


def _halves(planning: Planning) -> int:
    """How many halves are stored, before all results."""
    return len(planning.stores) - len(planning.results)


def _before(planning: Planning, name: str) -> int:
    """The place of one more half that this store reads: behind the other ones, and before the store."""
    return min(_halves(planning), planning.index(name))


def _cuts(planning: Planning) -> Iterator[tuple[str, Cut]]:
    """The name of each store that is to be cut, and how."""
    for store in planning.stores:
        if cut := cut_of(store, planning.stores):
            yield store.output.name, cut


def merge_summed_dims(planning: Planning) -> Planning:
    """A pass: a sum of a sum becomes one sum over both dims."""
    return planning.with_terms(with_summed_dims_merged)


def order_nested_sums(planning: Planning) -> Planning:
    """A pass: sums directly inside of one another, of products for each of their dims, are one loop over all dims.

    A sum that moves outwards may then stand around a reduction that binds its dim again, which gets another name.
    """
    change = lambda term: _with_reductions(_with_guard_inside(term), _with_loop_outermost)
    return planning.with_terms(lambda term: unshadowed(change(term)))


def _with_guard_inside(term: Term) -> Term:
    """where(p, Σ x, 0) as Σ where(p, x, 0) for a sum over a batch: the loop has no round where p keeps no pair."""
    casts, guards, total = _around(term)
    if not guards or not is_sum(total) or not sums_over_batch(with_loops_outermost(total)):
        return term
    nest = nest_of(total)
    return _with_casts(replace(nest, guards=(*guards, *nest.guards)).sum(nest.dims), casts)


def _around(term: Term) -> tuple[list[tuple], list[Term], Term]:
    """The casts and the guards that a term ends with, in any order, and what they are of."""
    casts, guards = [], []
    while term.op == "cast" or (term.op == "where" and term.args[2] is ZERO):
        if term.op == "cast":
            casts.append(term.attrs)
            term = term.args[0]
        else:
            guards.append(term.args[0])
            term = term.args[1]
    return casts, guards, term


def _with_casts(term: Term, casts: list[tuple]) -> Term:
    for attrs in reversed(casts):
        term = make("cast", (term,), attrs)
    return term


def _with_loop_outermost(r: Term) -> Term:
    return with_loops_outermost(r) if is_sum(r) else r


def unroll_short_sums(planning: Planning) -> Planning:
    """A pass: sums over short dims become additions."""
    return planning.with_terms(with_short_sums_unrolled)


def read_where_chosen(planning: Planning) -> Planning:
    """A pass: an entry of a table is looked up only where a choice takes what it leads to."""
    return planning.with_terms(with_places_where_chosen)


def rename_bound_dims(planning: Planning) -> Planning:
    """A pass: a dim that is an axis of some result and bound by a reduction gets another name where it is bound."""
    axes = tuple(dict.fromkeys(d for store in planning.stores for d in store.order))
    return _with_terms(planning, with_fresh_bound_dims(planning.terms, axes))


def share_softmax_scales(planning: Planning) -> Planning:
    """A pass: each maximum of scores G, and each scale of a state with the scores G, becomes the scale of one state.

    That state is one of the fewest dims, so that a dim of the values alone (a column of the result) does not look like
    one that the scale depends on. Where each state has such a dim, the scale is that of a count. Of several it is the
    state that waits for the fewest other reductions.
    """
    terms = planning.terms
    found = every_reduction(terms)
    rescaled = sorted(filter(is_rescaled, found), key=lambda r: (-len(r.dims), -len(reduces(r))))
    states = {(r.attrs[1], r.args[0].args[0]): scale(_without_values(r)) for r in rescaled}
    mapping = {r: states.get((r.attrs[1], r.args[0])) for r in found if r.attrs[0] == "max"}
    mapping |= {scale(r): states[r.attrs[1], r.args[0].args[0]] for r in rescaled}
    mapping = {term: same for term, same in mapping.items() if same is not None and same is not term}
    return planning.with_terms(lambda term: substitute(term, mapping))


def leave_out_hidden_weights(planning: Planning) -> Planning:
    """A pass: a sum of weights leaves out scores that -∞ hides, where the weights' shift is a largest score."""
    return planning.with_terms(with_hidden_weights_left_out)


def _with_terms(planning: Planning, terms: list[Term]) -> Planning:
    stores = zip(planning.stores, terms, strict=True)
    return replace(planning, stores=tuple(replace(store, term=term) for store, term in stores))


def _without_values(r: Term) -> Term:
    """The state, or a count with its scores where it has dims that the scores lack."""
    gauge = r.args[0].args[0]
    return r if r.dims <= gauge.dims else reduce("rescaled", r.attrs[1], scaled(gauge, const(1.0)))


def is_rescaled(r: Term) -> bool:
    """Whether the reduction is a softmax state of scores and values."""
    return r.attrs[0] == "rescaled" and r.args[0].op == "scaled"


def _with_reductions(root: Term, change: Callable[[Term], Term]) -> Term:
    """The term with each of its reductions changed, inner ones first."""

    def visit(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        return change(made) if made.op == "reduce" else made

    return rebuild(root, visit)


# Divisors


def with_divisors_reassociated(root: Term) -> Term:
    """The same term with each sum of (a / c) · b or of (a · b) / c as one of a · (b · (1 / c)), where b has c's dims.

    (a / c) · b is rewritten only where a lacks a dim of c. An example is Σ_j (v[j, e] / c[i]) · p[i, j], where c
    normalizes the weights p by row: v / c would be another matrix for each row i. As v · (p · (1 / c)) it is a product
    of two matrices again. The price is one multiplication for each element of b.
    """
    return _with_reductions(root, _with_divisor_reassociated)


def _with_divisor_reassociated(r: Term) -> Term:
    if r.attrs[0] != "sum":
        return r
    a, other, c = next(_quotients(r.args[0]), (None, None, None))
    if a is None:
        return r
    moved = make("mul", (a, make("mul", (other, make("div", (const(1.0), c))))))
    return make("reduce", (moved,), r.attrs) if moved.dtype == r.args[0].dtype else r


def _quotients(body: Term) -> Iterator[tuple[Term, Term, Term]]:
    """The readings of a body as a · (b · (1 / c)), as (a, b, c); of two computed factors b is the one with sums."""
    if body.op == "mul":
        for x, y in (body.args, body.args[::-1]):
            if x.op == "div" and not x.args[1].dims <= x.args[0].dims and x.args[1].dims <= y.dims:
                yield x.args[0], y, x.args[1]
    if body.op == "div" and body.args[0].op == "mul":
        c = body.args[1]
        pairs = (body.args[0].args, body.args[0].args[::-1])
        suited = [(x, y) for x, y in pairs if c.dims <= y.dims and not x.dims <= c.dims]
        yield from ((x, y, c) for x, y in sorted(suited, key=lambda pair: not reduces(pair[1])))


# Factors that are sums


def with_addends_multiplied_out(root: Term) -> Term:
    """The same term with Σ_d q · (k + r) as Σ_d q · k + Σ_d q · r, where these two are products of matrices alone.

    An example is a key that differs from query to query by a vector of their places, k[h, j, d] + r[i, j, d]. For
    q[h, i, d] the sum of both would be multiplied for each h and i, number by number. Apart they are products of
    matrices, for each h and for each i. All inputs are of half precision: what float32 loses of a sum that nearly
    cancels is less than their rounding.
    """

    def visit(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op == "mantissa" and is_rescaled(made.args[0]):
            r, wrap = made.args[0], mantissa
        elif is_sum(made):
            r, wrap = made, lambda part: part
        else:
            return made
        return next((make(op, tuple(map(wrap, parts))) for op, *parts in _products_of_addends(r)), made)

    dtypes = {n.dtype for n in subterms(root) if n.op == "load" and n.dtype in FLOATS}
    changed = root
    while dtypes <= {*HALVES} and (after := rebuild(changed, visit)) is not changed:
        changed = after
    return changed


def _products_of_addends(r: Term) -> Iterator[tuple[str, Term, Term]]:
    """The readings of a sum that is no product of matrices as a sum or difference of two that are."""
    body = r.args[0]
    every = factors(body.args[1] if body.op == "scaled" else body)
    for number, factor in enumerate(every):
        if factor.op in ("add", "sub"):
            values = [reduce_by(mul, (*every[:number], part, *every[number + 1 :])) for part in factor.args]
            bodies = [scaled(body.args[0], value) if body.op == "scaled" else value for value in values]
            parts = [make("reduce", (one,), r.attrs) for one in bodies]
            if not is_product(r) and all(map(is_product, parts)):
                yield factor.op, parts[0], parts[1]


# Sums of sums


def with_summed_dims_merged(root: Term) -> Term:
    """The same term with Σ_p Σ_x a[i, p, x] · b[j, p, x] as one sum over a dim of all pairs (p, x).

    A product of matrices has one inner dim. The merged dim counts the pairs: p is its quotient by the size of x, and x
    is the remainder.
    """
    return _with_reductions(root, lambda r: _merged(r) if _is_mergeable(r) else r)


def _is_mergeable(r: Term) -> bool:
    """Whether this is a sum of a sum of products, in which each factor has both dims or none of them.

    No factor may be a product of rows and columns: both sums are loops then.
    """
    if r.args[0].op != "reduce" or {r.attrs[0], r.args[0].attrs[0]} != {"sum"}:
        return False
    outer, inner, body = r.attrs[1], r.args[0].attrs[1], r.args[0].args[0]
    if not (isinstance(outer.size, int) and isinstance(inner.size, int)) or outer.size * inner.size > MAX_MERGED_SIZE:
        return False
    nodes = [n for n in subterms(body) if n.op != "iota"]
    if products_of_pairs(body):
        return False
    return body.op == "mul" and outer != inner and all((outer in n.dims) == (inner in n.dims) for n in nodes)


def _merged(r: Term) -> Term:
    """The one sum. Its pairs are in the order of memory: the dim that is indexed last changes fastest."""
    body = r.args[0].args[0]
    read = next(n for n in subterms(body) if n.op == "load" and r.attrs[1] in n.dims)
    first, second = sorted((r.attrs[1], r.args[0].attrs[1]), key=lambda d: _last_axis(read, d))
    merged = Dim(f"{first.name}_{second.name}", first.size * second.size)
    size = const(second.size)
    change = {iota(first): floordiv(iota(merged), size), iota(second): mod(iota(merged), size)}
    return make("reduce", (substitute(body, change),), ("sum", merged))


def _last_axis(read: Term, dim: Dim) -> int:
    return max(k for k, index in enumerate(read.args) if dim in index.dims)


# Short sums


def with_short_sums_unrolled(root: Term) -> Term:
    """The same term with Σ_d f(a[i, d], b[j, d]) as f(a[i, 0], b[j, 0]) + f(a[i, 1], b[j, 1]) + ..., for a short d.

    An example is the squared distance of two points, Σ_d (a[i, d] - b[j, d])². A tile of rows and columns then needs no
    third dim: each addend takes one register for each pair (i, j), and no thread waits for another one. A dim around a
    loop stays: the loop does each product for one index of it.
    """
    found = reduces(root)
    around = {d for r in found for d in dims_around(r)} | {r.attrs[1] for r in found if sums_over_batch(r)}
    return _with_reductions(root, lambda r: _unrolled(r) if _is_short(r) and r.attrs[1] not in around else r)


def _is_short(r: Term) -> bool:
    size = r.attrs[1].size
    if r.attrs[0] != "sum" or r.dtype in HALVES:  # a reduction adds halves in float32, an addition does not
        return False
    if not isinstance(size, int) or size > MAX_UNROLLED_SIZE:
        return False
    return 0 < len(nodes_between(r.args[0], r.attrs[1])) * size <= MAX_UNROLLED_OPERATIONS


def _unrolled(r: Term) -> Term:
    terms = [at_place(r.args[0], r.attrs[1], const(index)) for index in range(r.attrs[1].size)]
    while len(terms) > 1:  # by pairs: in a chain each addition would wait for the one before
        pairs = [make("add", tuple(terms[k : k + 2])) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
    return terms[0]


# Flattened dims


def with_flattened_dims_split(root: Term) -> Term:
    """The same term with ⊕_d f(d // n, d % n) as ⊕_i ⊕_j f(i, j), where d would be a batch of a product.

    Here ⊕ is any reduction. A program that flattens two dims before it reduces them reads one tensor by the quotient
    and another one by the remainder. With two dims, a product of what the two read is a product of matrices again.
    """
    names = {d.name for d in all_dims(root)}

    def change(r: Term) -> Term:
        size = _inner_size(r)
        made = None if size is None else in_blocks(r, r.attrs[1].size // size, names, ("outer", "inner"))
        return r if made is None else simplify_index(made)

    return _with_reductions(root, change)


def _inner_size(r: Term) -> int | None:
    """The size of the inner one of the two dims that the reduced dim was flattened from; None if it was not."""
    dim, body = r.attrs[1], r.args[0]
    if not isinstance(dim.size, int) or r.dtype in HALVES:  # in two it would round in between
        return None
    if not any(dim in one & other for one, other in map(product_sides, reduces(body))):
        return None
    users = [n for n in subterms(body) if iota(dim) in n.args]
    if any(n.op not in ("floordiv", "mod") or n.args[1].op != "const" for n in users):
        return None
    sizes = {n.args[1].attrs[0] for n in users}
    return next((size for size in sizes if len(sizes) == 1 and dim.size % size == 0), None)
