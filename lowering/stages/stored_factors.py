"""Computed factors of large products, stored once in half precision, so that the products are plain ones.

A kernel with tiles of columns computes such a factor for each tile of columns again. Where the factor is a function of
a part that the plan stores anyway, a kernel of its own stores it, rounded as the product rounds it, and each product
reads it. Invariant: the results are those of the plan. Example: the gradient of the scores of a layer with its cross
entropy is stored once for the gradients of both factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul

from ...egraph.terms.ops import cast, iota, load, make
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms
from ..analysis.dim_roles import sum_factors, two_sides
from ..analysis.exact_products import native
from ..plan.kernel_edits import with_terms
from ..plan.queries import read_by
from ..plan.records import Kernel, Plan, Store
from ..plan.term_edits import fresh_name, renaming, replace_from_above
from .plain_products import columns_of_product, plain_product, sizes_are_numbers, stores_only, whole_sum


@dataclass(frozen=True)
class StoredFactor:
    """A factor of a product, and the kernel that stores it."""

    term: Term
    kernel: Kernel

    @property
    def store(self) -> Store:
        return self.kernel.stores[0]


def with_stored_factors(plan: Plan) -> Plan:
    """The plan whose large products multiply stored factors; unchanged where none is computed of a stored part."""
    parts = {*plan.parts}
    names = {t.name for k in plan.kernels for t in (*k.inputs, *(store.output for store in k.stores))}
    stored: list[StoredFactor] = []
    kernels: list[Kernel] = []
    for kernel in plan.kernels:
        kernels += _with_factor(kernel, parts, names, stored)
    return replace(plan, kernels=tuple(kernels)) if stored else plan


def _with_factor(
    kernel: Kernel, parts: set[Tensor], names: set[str], stored: list[StoredFactor]
) -> Iterator[Kernel]:
    """The kernel behind the one that stores its factor, where no kernel before has stored it."""
    found = _computed_factor(kernel, parts)
    if found is None:
        yield kernel
        return
    summed, factor, other = found
    known = next(((one, dims) for one in stored if (dims := renaming(one.term, factor)) is not None), None)
    if known is None:
        one = StoredFactor(factor, _storing(factor, other, parts, names))
        stored.append(one)
        yield one.kernel
        known = one, {d: d for d in factor.dims}
    one, renamed = known
    if one.store.output.dtype != _half(other):
        yield kernel
        return
    read = cast(load(one.store.output, *(iota(renamed.get(d, d)) for d in one.store.order)), "float32")
    total = make("reduce", (read * other,), summed.attrs)
    value = kernel.loops[0].accumulators[0].values[0]
    changed = with_terms(kernel, lambda term: replace_from_above(term, {summed: total, value: read * other}))
    yield from _apart(replace(changed, exact=frozenset()), total, names)


def _apart(kernel: Kernel, total: Term, names: set[str]) -> Iterator[Kernel]:
    """A kernel of a sum alone, and one that does with it what the kernel does; the kernel, where it does nothing."""
    (store, *others) = kernel.stores
    if stores_only(kernel, total) or others or total.dims != {*store.order}:
        yield replace(kernel, inputs=read_by(kernel.stores))
        return
    part = Tensor(_unused("sum", names), "float32", tuple(d.size for d in store.order))
    product = replace(kernel, stores=(Store(total, part, store.order),))
    yield replace(product, inputs=read_by(product.stores))
    rest = replace_from_above(store.term, {total: load(part, *map(iota, store.order))})
    yield _of_elements(f"finishing_{store.output.name}", replace(store, term=rest))


def _unused(base: str, names: set[str]) -> str:
    name = fresh_name(base, names)
    names.add(name)
    return name


def _of_elements(name: str, store: Store) -> Kernel:
    """The kernel that stores a term without sums, in tiles of its last two axes."""
    *grid, rows, columns = store.order
    row_tile, inputs = f"{rows.name}_tile", read_by([store])
    return Kernel(name, tuple(grid), rows, row_tile, (), (), (store,), inputs, columns=(columns,))


def _computed_factor(kernel: Kernel, parts: set[Tensor]) -> tuple[Term, Term, Term] | None:
    """The sum of a kernel with its computed factor and the other one; None for another kernel.

    The factor is a function of a stored part that has all of its dims: it takes about as much memory as that.
    """
    state = whole_sum(kernel)
    if state is None or columns_of_product(kernel) is None or state.reductions[0] in kernel.exact:
        return None
    (summed,) = state.reductions
    sides = _sides(summed, kernel.loops[0].dim)
    for factor, other in (sides, sides[::-1]) if sides else ():
        half = native(other)
        computed = native(factor) is None and not any(n.op == "reduce" for n in subterms(factor))
        if computed and half is not None and half.op == "load" and any(_reads_of_all(factor, parts)):
            return summed, factor, other
    return None


def _sides(summed: Term, inner: Dim) -> tuple[Term, Term] | None:
    """The two sides of the product that is summed."""
    found = sum_factors(summed)
    sides = [[found[k] for k in side] for side in two_sides([f.dims for f in found], inner)]
    if not all(sides):
        return None
    one, other = (reduce(mul, side) for side in sides)
    return (one, other) if one.dims - other.dims and other.dims - one.dims else None


def _half(other: Term) -> str:
    half = native(other)
    assert half is not None  # as `_computed_factor` has found
    return half.dtype


def _reads_of_all(factor: Term, parts: set[Tensor]) -> Iterator[Term]:
    """Its reads of a stored part that have an element for each of its own."""
    reads = (n for n in subterms(factor) if n.op == "load" and n.attrs[0] in parts)
    return (n for n in reads if n.dims == factor.dims)


def _storing(factor: Term, other: Term, parts: set[Tensor], names: set[str]) -> Kernel:
    """What stores a factor, in the order of the stored part that it reads."""
    order = tuple(next(iter(index.dims)) for index in next(_reads_of_all(factor, parts)).args)
    output = Tensor(_unused("factor", names), _half(other), tuple(d.size for d in order))
    return _of_elements(f"storing_{output.name}", Store(cast(factor, output.dtype), output, order))


def of_a_library(kernel: Kernel) -> str:
    """What a report says of a large product that torch runs; "" for another kernel, and where a size is a symbol."""
    if not sizes_are_numbers([kernel]):
        return ""
    if plain_product(kernel) is not None:
        return "torch's product of matrices"
    if _computed_factor(kernel, {*kernel.inputs}) is not None:
        return "torch's product of matrices, where a stored part has an element for each of its computed factor"
    return ""
