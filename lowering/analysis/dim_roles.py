"""What a term's structure says about its dims: which are loops, batches of a product, or carried by values only.

Invariant: answers depend on terms and static sizes alone. Example: in Σ_j p[b, i, j] · v[b, j, e] the dim j is summed,
b is a batch, and i and e are the two sides of a product of matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...egraph.search.cost import MAX_INNER_SIZE, contracts, whole_dims
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import factors, operands, reduces, subterms
from ..plan.records import Accumulator, Kernel, Loop
from .nested_sums import (
    body_of,
    dims_around,
    is_sum,
    nest_of,
    products_of_pairs,
    reductions,
    sides_of,
    sums_over_batch,
)
from .relative_index import relative_factors, relative_scores

MAX_CUBE_SIZE = 2048  # elements of two reduced dims that a tile of rows computes for each row
MAX_CHAINED_SIZE = 64  # elements of a dim that a tile holds of one product as a factor of the next product
CONTRACTIBLE = ("mul", "load", "cast", "reduce", "scaled")  # what a product of matrices computes without a cube
MIN_STEPS = 2  # elements of a dim that is relative_scores step by step
SEVERAL_PAIRS = 4  # operations on pairs, from which on their operands take many registers


def is_long(dim: Dim, held_limit: int) -> bool:
    """Whether a tile should not hold the dim whole: it is too long, or its length is not known."""
    return not isinstance(dim.size, int) or dim.size > held_limit


def static_size(dim: Dim) -> int:
    """The size of a dim that is known to be static, as one that a tile holds whole."""
    assert isinstance(dim.size, int), f"{dim} has the symbolic size {dim.size}"
    return dim.size


def size_key(dim: Dim) -> tuple[bool, int]:
    """Sorts dims by size; a symbolic one counts as longer than any number."""
    return (True, 0) if not isinstance(dim.size, int) else (False, dim.size)


def loop_dims(terms: Iterable[Term], held_limit: int) -> frozenset[Dim]:
    """The reduced dims that are loops: long ones, those of a softmax state, and those of large cubes or chains."""
    return _loop_dims(tuple(reductions(terms)), held_limit)


@lru_cache(512)
def _loop_dims(found: tuple[Term, ...], held_limit: int) -> frozenset[Dim]:
    long = {r.attrs[1] for r in found if is_long(r.attrs[1], held_limit) or _has_dims_around(r)} | _of_cubes(found)
    long |= _of_chains(found, long)
    long |= {r.attrs[1] for r in found if sums_over_batch(r)} if not long else set()
    return frozenset(r.attrs[1] for r in found if r.attrs[0] == "rescaled") | (long - _contracted_inside(found, long))


def _has_dims_around(r: Term) -> bool:
    return bool(dims_around(r)) and not sums_over_batch(r)


def _of_cubes(found: Sequence[Term]) -> set[Dim]:
    """Dims d of reductions over large cubes: terms over d, over a dim that is reduced inside, and over a third dim.

    An example is Σ_d Σ_c |a[i, d, c] - b[j, d, c]|: no product of matrices computes the differences, so a tile would
    have i, j, d and c all at once. A batch of the inner sum is no third dim: one index of it is on the grid.
    """
    dims: set[Dim] = set()
    for outer in found:
        dim = outer.attrs[1]
        for inner in (r for r in reduces(body_of(outer)) if dim in r.dims):
            two, batch = {dim, inner.attrs[1]}, batch_of(inner)
            flat = [n for n in subterms(inner.args[0]) if n.op not in CONTRACTIBLE and two < n.dims]
            known = all(isinstance(d.size, int) for d in two)
            if any(n.dims - batch - two for n in flat) and known and prod(d.size for d in two) > MAX_CUBE_SIZE:
                dims.add(dim)
    return dims


def _of_chains(found: Sequence[Term], long: set[Dim]) -> set[Dim]:
    """Dims of products with a factor that is a product itself and that a tile would hold whole.

    In Σ_d (Σ_c a[i, c] · b[c, d]) · v[d, e] a tile would hold all d of the inner product at once.
    """
    dims: set[Dim] = set()
    for outer in (r for r in found if is_product(r) and is_long(r.attrs[1], MAX_CHAINED_SIZE)):
        inside = [r for r in reduces(body_of(outer)) if is_product(r) and outer.attrs[1] in r.dims]
        if any(r.attrs[1] not in long | dims for r in inside):
            dims.add(outer.attrs[1])
    return dims


def _contracted_inside(found: Sequence[Term], long: set[Dim]) -> set[Dim]:
    """Long static dims whose reductions are sums inside a reduction of a long dim on which the sum depends.

    An example is the sum over d of q[i, d] · k[j, d] in a softmax over j. A tile holds these dims whole, or goes
    through them in chunks (chunks.py), and the cost that the search uses assumes the same. A sum for each row beside
    it, as a diagonal of the same product, is computed alike.
    """
    inside = {
        r for outer in found if outer.attrs[1] in long for r in reduces(body_of(outer)) if outer.attrs[1] in r.dims
    }
    bad = {r.attrs[1] for r in found if r.attrs[0] != "sum" or (r not in inside and reduces(r.args[0]))}
    dims, whole = {r.attrs[1] for r in inside} & long - bad, whole_dims(found)
    return {d for d in dims if isinstance(d.size, int) and (d.size <= MAX_INNER_SIZE or d not in whole)}


def loop_reductions(terms: Sequence[Term], held_limit: int) -> list[Term]:
    """Reductions that need a loop, inner ones first."""
    dims = loop_dims(terms, held_limit)
    return [r for r in reductions(terms) if r.attrs[1] in dims]


def sum_factors(r: Term) -> list[Term]:
    """Factors of a sum's body, without a guard around it; the scores of a softmax state count as one more factor."""
    body = body_of(r)
    if body.op == "scaled":
        return [body.args[0], *factors(body.args[1])]
    while body.op == "where":
        body = body.args[1]
    return factors(body)


def columns_of(nodes: Iterable[Term], rows: Dim, grid: Sequence[Dim], least: int) -> tuple[Dim, ...]:
    """A dim of the grid that is on the other side of a product, or of an operation on pairs, than the rows; or none.

    With tiles of rows and of this dim, the product is one of matrices, and neighbours in memory belong to one program.
    least: elements that the shorter of the two must have.
    """
    for node in nodes:
        sides = _sides(node)
        mine = frozenset().union(*(side for side in sides if rows in side))
        others = frozenset().union(*(side for side in sides if rows not in side)) - mine
        found = [d for d in grid if d in others and min(size_key(d), size_key(rows)) >= (False, least)]
        if mine and found:
            return tuple(found[-1:])
    return ()


def _sides(node: Term) -> list[frozenset[Dim]]:
    if node.op == "reduce":
        return [f.dims - {node.attrs[1]} for f in sum_factors(node)] if node.attrs[0] in ("sum", "rescaled") else []
    return [a.dims for a in node.args] if sides_between(node) else []


def two_sides(dims: list[frozenset[Dim]], summed: Dim) -> tuple[list[int], list[int]]:
    """Divides factors, given by their dims, into the two of a product to be summed; the second is empty if one is all.

    Each side has a factor with the summed dim; a factor that fits on both sides goes to the second, smaller one.
    """
    having = sorted((k for k, d in enumerate(dims) if summed in d), key=lambda k: -len(dims[k]))
    if len(having) < 2:
        return list(range(len(dims))), []
    one = having[0]
    other = next((k for k in having[1:] if not dims[k] <= dims[one]), having[1])
    left = [
        k for k in range(len(dims)) if k == one or (k != other and not dims[k] <= dims[other] and dims[k] <= dims[one])
    ]
    return left, [k for k in range(len(dims)) if k not in left]


@lru_cache(4096)
def product_sides(r: Term) -> tuple[frozenset[Dim], frozenset[Dim]]:
    """The dims of the two sides of the product that a sum adds; two empty sets for another reduction."""
    if r.attrs[0] not in ("sum", "rescaled"):
        return frozenset(), frozenset()
    dims = [f.dims for f in sum_factors(r)]
    around = frozenset(dims_around(r))
    left, right = (frozenset().union(*(dims[k] for k in side)) - around for side in two_sides(dims, r.attrs[1]))
    return left, right


def is_contraction(node: Term) -> bool:
    """Whether the node is a sum over a product whose factors do not share all dims."""
    return node.op == "reduce" and node.attrs[0] == "sum" and contracts(node.args[0])


def leading_dims(kernel: Kernel, nodes: Collection[Term]) -> tuple[Dim, ...]:
    """The resident dims of sums of products that have both rows and columns: they come first in every tile.

    Example: a sum over heads of scores [head, row, column].
    """
    columns = {*kernel.columns, *(loop.dim for loop in kernel.loops)}
    placed = {*kernel.grid, kernel.rows, *kernel.around, *columns}
    products = [n for n in nodes if is_contraction(n) and n.attrs[1] not in columns]
    found = {d for n in products if kernel.rows in n.dims and columns & n.dims for d in n.dims - placed}
    return tuple(sorted(found))


def is_product(r: Term) -> bool:
    """Whether a sum is a product of matrices: each side has a dim that the other one lacks."""
    left, right = product_sides(r)
    return bool(left - right) and bool(right - left)


@lru_cache(4096)
def batch_of(r: Term) -> frozenset[Dim]:
    """Free dims of a sum that both sides of its product have: a product of matrices would repeat over them.

    A dim does not count if one side has only its difference to another dim: see relative_index.py.
    """
    left, right = product_sides(r)
    if right <= left or left <= right:
        return frozenset()
    shared, parts, summed = (left & right) - {r.attrs[1]}, sum_factors(r), r.attrs[1]
    relative = lambda d: any(relative_scores(parts, d, other, summed) for other in r.dims - {d})
    return frozenset(d for d in shared if not relative_factors(parts, d, summed) and not relative(d))


def batch_dims(terms: Iterable[Term]) -> set[Dim]:
    """The batch dims of every sum in the terms."""
    return {d for r in reductions(terms) for d in batch_of(r)}


def beside_long(terms: Iterable[Term], held_limit: int) -> set[Dim]:
    """Dims on a side of a product that also has a long dim: tiles of the long one are enough for the other side."""
    pairs = (product_sides(r) for r in reductions(terms) if is_product(r))
    alone = [side for left, right in pairs for side in (left - right, right - left)]
    return {d for side in alone if any(is_long(other, held_limit) for other in side) for d in side}


def cube_work(terms: Iterable[Term], rows: Dim, excluded: set[Dim], least: int) -> float:
    """The work for each row and column of a tile if the rows are a batch of products, which then are not of matrices.

    That is the number of elements of their other dims but the excluded ones (loops, and what is on the grid). It grows
    with the share of a tile of at least `least` rows that would be empty.
    """
    work, size = 0, lambda d: d.size if isinstance(d.size, int) else MAX_CUBE_SIZE
    for left, right in map(product_sides, reductions(terms)):
        if rows in left & right and not right <= left:
            work += prod(size(d) for d in (left | right) - {rows} - excluded)
    return work * max(1.0, least / max(1, size(rows)))


def sides_between(node: Term) -> frozenset[Dim]:
    """The dims that only one side of an operation on pairs has, as in a[i] - b[j]; none for another node.

    No product of matrices computes such an operation.
    """
    if node.op in CONTRACTIBLE or len(node.args) != 2:
        return frozenset()
    one, other = (a.dims for a in node.args)
    return one ^ other if one - other and other - one else frozenset()


def nodes_between(body: Term, dim: Dim) -> list[Term]:
    """The operations on pairs that a reduction over the dim does for each of its elements."""
    return [n for n in subterms(body) if dim in n.dims and dim not in sides_between(n) and sides_between(n)]


def paired_dims(terms: Iterable[Term]) -> set[Dim]:
    """The dims that only one side of some operation on pairs has, in all terms."""
    return {d for term in terms for t in computed(term) for d in sides_between(t)}


def computed(term: Term) -> Iterator[Term]:
    """The term's nodes without those in the indices of loads: indices are no values of a tile."""
    return subterms(term, lambda node: node.op == "load")


def repeated_dims(terms: Sequence[Term], held_limit: int) -> set[Dim]:
    """Dims for each element of which a loop would do again a product that lacks them.

    That is where products of matrices are summed over their batch, Σ_h w[h, e] · Σ_d q[i, h, d] · k[j, h, d]: with e on
    the grid, each sum over h would need the products of all h again.
    """
    found: set[Dim] = set()
    for loop in loop_reductions(terms, held_limit):
        inner = [r for r in reduces(body_of(loop)) if r.attrs[0] == "sum" and loop.attrs[1] in r.dims]
        batch = batch_dims(inner)
        for r in inner:
            if any(batch & {other.attrs[1]} and r in subterms(other.args[0]) for other in inner if other is not r):
                found |= (loop.dims | body_of(loop).dims) - r.dims
    return found


def compared_dims(loops: Iterable[Term]) -> set[Dim]:
    """Dims m of guards index = m around products: on the grid, each place of m would do the products again.

    Nothing else has the dim, and each pair of rows and columns has an index of its own. Example: m in
    Σ_i where(x[i, j] = m, exp(Σ_d q[i, d] · k[j, d]), 0).
    """
    found: set[Dim] = set()
    for nest in map(nest_of, filter(is_sum, loops)):
        products = products_of_pairs(nest.body)
        covered = frozenset().union(*(product.dims for product in products))
        asked = _indices_asked_for(nest.guards)
        pairs = all(sides_of(product) <= index.dims <= covered for product in products for index in asked.values())
        if products and nest.body.dims <= covered and len(asked) == 1 and pairs:
            found |= {*asked} - nest.body.dims - {*nest.dims}
    return found


def _indices_asked_for(guards: Iterable[Term]) -> dict[Dim, Term]:
    """The dims m of guards index = m, with the index; those of other guards are left out."""
    found: dict[Dim, Term] = {}
    others: set[Dim] = set()
    for guard in guards:
        sides = (guard.args, guard.args[::-1]) if guard.op == "eq" else ()
        asked = {one.attrs[0]: index for one, index in sides if one.op == "iota" and "int" in index.dtype}
        asked = {dim: index for dim, index in asked.items() if dim not in index.dims and dim not in found}
        found |= asked
        others |= {*guard.dims} - {*asked}
    return {dim: index for dim, index in found.items() if dim not in others}


@dataclass(frozen=True)
class Compared:
    """A held dim, and the index of each pair of a row and a column that is compared with all of its places."""

    places: Dim
    index: Term


def compared(kernel: Kernel, loop: Loop) -> Compared | None:
    """What a loop's sums of pairs are compared with, place by place: a tile then has two dims, not three."""
    if loop.guard is None or not all(map(_is_plain_sum, loop.accumulators)) or kernel.written_by(loop):
        return None
    own = frozenset().union(*(a.values[0].dims for a in loop.accumulators))
    pair = {kernel.rows, loop.dim}
    asked = _indices_asked_for(operands(loop.guard, "and")) if pair <= own <= pair | {*kernel.grid} else {}
    found = [
        Compared(dim, index)
        for dim, index in asked.items()
        if dim in kernel.held and isinstance(dim.size, int) and pair <= index.dims <= pair | {*kernel.grid}
    ]
    return found[0] if len(found) == 1 and loop.guard.dims & {*kernel.held} == {found[0].places} else None


def _is_plain_sum(accumulator: Accumulator) -> bool:
    return accumulator.monoid == "sum" and accumulator.gauge is None and "float" in accumulator.values[0].dtype


def state_dims(terms: Iterable[Term]) -> set[Dim]:
    """Dims of scores, of guards under reductions, and of the bodies of reductions other than sums.

    A choice among the values of a softmax that does not depend on what is reduced is no guard. Example: the lower or
    the upper half of a byte, by the parity of the column.
    """
    found: set[Dim] = set()
    every = reductions(terms)
    for r in every:
        if r.attrs[0] not in ("sum", "rescaled"):
            found |= r.args[0].dims
        elif r.args[0].op == "scaled":
            found |= r.args[0].args[0].dims
        for t in subterms(r.args[0]):
            if t.op == "where" and (r.args[0].op != "scaled" or r.attrs[1] in t.args[0].dims):
                found |= t.args[0].dims
    return found


def private_dims(terms: Sequence[Term]) -> set[Dim]:
    """Free dims of the terms that only values carry: they are in no state, and in at most one factor of every sum.

    If all factors had the dim, a tile that holds it whole would share no work. If a product inside of a sum had two
    such dims, the tile would be no matrix.
    """
    found = reductions(terms)
    bound = {d for r in found for d in (r.attrs[1], *dims_around(r))}
    every = {d for term in terms for t in subterms(term) for d in t.dims}
    batch = batch_dims(terms)
    taken = bound | batch | state_dims(terms)
    for r in (r for r in found if r.attrs[0] in ("sum", "rescaled")):
        taken |= _in_several_factors(r)
        for inner in reduces(body_of(r)):
            rows = inner.dims - {r.attrs[1]} - batch
            taken |= rows if len(rows) > 1 else frozenset()
    return every - taken


def _in_several_factors(r: Term) -> set[Dim]:
    """The dims that all factors of a sum have, and those of a factor with a product inside that another one has too."""
    parts = sum_factors(r)
    count = Counter(d for part in parts for d in part.dims)
    computed = {d for part in parts if reduces(part) for d in part.dims}
    return {d for d, n in count.items() if n == len(parts) or (n > 1 and d in computed)}


def stepped(kernel: Kernel, nodes: Iterable[Term]) -> set[Dim]:
    """The dims that the kernel reduces step by step: one element after another, in a loop inside of a tile.

    These are dims d of reductions such as Σ_d |a[i, d] - b[j, d]|. Registers then hold one tile of rows and columns,
    whatever the length of d. The planner has unrolled short ones before.
    """
    folds: dict[Dim, list[Term]] = {}
    for node in (n for n in nodes if n.op == "reduce"):
        folds.setdefault(node.attrs[1], []).append(node)
    placed = {*kernel.grid, *kernel.tiled, *kernel.around, *(loop.dim for loop in kernel.loops)}
    kept = {d for store in kernel.stores for d in store.order}
    return {d for d, found in folds.items() if d not in placed | kept and all(_is_stepped(r) for r in found)}


def several_pairs(nodes: Iterable[Term]) -> bool:
    """Whether scores take several operations on pairs that were unrolled."""
    return sum(1 for n in nodes if sides_between(n)) >= SEVERAL_PAIRS


def _is_stepped(r: Term) -> bool:
    """Whether a reduction of floats has operations on pairs for each element of a static dim, and is the innermost."""
    monoid, dim = r.attrs
    if monoid not in ("sum", "max", "min") or "float" not in r.dtype or reduces(r.args[0]):
        return False
    if not isinstance(dim.size, int) or dim.size < MIN_STEPS:
        return False
    return bool(nodes_between(r.args[0], dim)) and only_indexes(r.args[0], dim)


def only_indexes(body: Term, dim: Dim) -> bool:
    """Whether the body uses the dim only as an index of tensors, alone: x[i, d], but not x[i, d + 1] or d · x[i]."""
    inside = [n for n in subterms(body) if dim in n.dims]
    read = [index for n in inside if n.op == "load" for index in n.args if dim in index.dims]
    return all(index.op == "iota" for index in read) and all(n.op != "iota" or n in read for n in inside)
