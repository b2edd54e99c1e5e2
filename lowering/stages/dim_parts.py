"""A dim in parts: kernels run for a part of it, after one another, so that what is stored between them stays small.

Tensors with the dim as an axis are read and written in part; sums over the dim are added up, part by part. The law is
that of every monoid: ⊕_j x is ⊕_p ⊕_(j in p) x. Invariant: a part computes what all would, since its coordinates begin
where the part does. Example: the scores of a layer with its cross entropy take 64 MiB for a part of the words, where
all of them take 500.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...egraph.terms.ops import iota, load, make
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rebuild, rename_dims, subterms
from ..plan.kernel_edits import with_terms
from ..plan.queries import read_by
from ..plan.records import Kernel, Plan
from .plain_products import is_whole, plain_product

START = Tensor("start_of_part", "int64", ())


@dataclass(frozen=True)
class DimParts:
    """Which axis is cut of each tensor that kernels store, by name, and the dim along it in each kernel, by name.

    inputs: names and axes of the plan's inputs that are read by the dim. The same input may be read whole as well.
    before, parts, after: kernels that run before all parts, for each of them, and after them, as what no product needs
    does. summed: results of `parts` that are added over parts.
    """

    size: int
    axes: Mapping[str, int]
    inputs: frozenset[tuple[str, int]]
    dims: Mapping[str, Dim]
    before: tuple[Kernel, ...]
    parts: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    summed: frozenset[str]


def dim_parts(plan: Plan, tensor: Tensor, axis: int) -> DimParts | None:
    """The plan with the dim along an axis of a tensor in parts; None where it cannot run so."""
    size = tensor.shape[axis]
    last = _behind_products(plan)
    found = _axes_and_dims([kernel for kernel in plan.kernels if kernel not in last], tensor.name, axis)
    if found is None or not isinstance(size, int):
        return None
    axes, dims = found
    inside = tuple(kernel for kernel in plan.kernels if kernel.name in dims)
    if not all(_may_be_cut(kernel, dims[kernel.name]) for kernel in inside):
        return None
    summed = frozenset(_made(inside, dims))
    around = _around(plan, inside, {*last, *_readers(plan, summed)})
    inputs = frozenset(place for place in _read_along(inside, dims) if place[0] not in axes)
    return None if around is None else DimParts(size, axes, inputs, dims, around[0], inside, around[1], summed)


def _around(
    plan: Plan, inside: Sequence[Kernel], readers: set[Kernel]
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]] | None:
    """The kernels before and after all parts; None where one of a part would need what a later one gives."""
    after = tuple(kernel for kernel in plan.kernels if kernel in readers)
    before = tuple(kernel for kernel in plan.kernels if kernel not in readers and kernel not in inside)
    in_order = readers.isdisjoint(inside) and {*before}.isdisjoint(_readers(plan, _made(inside)))
    return (before, after) if in_order else None


def _read_along(kernels: Sequence[Kernel], dims: Mapping[str, Dim]) -> Iterator[tuple[str, int]]:
    """The tensors that kernels read along their dim, with the axis."""
    for kernel in kernels:
        yield from ((t, n) for t, n, dim in _places(kernel) if dim == dims[kernel.name])


def _made(kernels: Sequence[Kernel], without: Mapping[str, Dim] | None = None) -> set[str]:
    """The names of what kernels store. without: only results that lack the dim of their kernel."""
    lacks = lambda kernel, store: without is None or without[kernel.name] not in store.order
    return {store.output.name for kernel in kernels for store in kernel.stores if lacks(kernel, store)}


def part_of(kernel: Kernel, parts: DimParts, size: int) -> Kernel:
    """The kernel for a part of so many elements. Coordinates begin at what START holds; loads are of the part."""
    before = parts.dims[kernel.name]
    dim = Dim(before.name, size)

    def change(term: Term) -> Term:
        return rename_dims(_moved(term, before), {before: dim})

    smaller = lambda t: _cut(t, parts.axes[t.name], size) if t.name in parts.axes else t

    def read(node: Term) -> Tensor:
        tensor: Tensor = node.attrs[0]
        along = [n for n, index in enumerate(node.args) if (tensor.name, n) in parts.inputs and index is iota(dim)]
        if not along:
            return smaller(tensor)
        return replace(_cut(tensor, along[0], size), name=name_of_part(tensor.name, along[0]))

    changed = _with_reads(with_terms(kernel, change), read)
    swap = lambda one: dim if one == before else one
    stores = tuple(replace(s, output=smaller(s.output), order=tuple(map(swap, s.order))) for s in changed.stores)
    return replace(
        changed,
        grid=tuple(map(swap, kernel.grid)),
        rows=None if kernel.rows is None else swap(kernel.rows),
        held=tuple(map(swap, kernel.held)),
        columns=tuple(map(swap, kernel.columns)),
        loops=tuple(replace(loop, dim=swap(loop.dim)) for loop in changed.loops),
        stores=stores,
        inputs=read_by(stores),
    )


def name_of_part(name: str, axis: int) -> str:
    """The name of an input's part along an axis: the input may be read whole in the same kernel."""
    return f"{name}__along{axis}"


def _cut(tensor: Tensor, axis: int, size: int) -> Tensor:
    return replace(tensor, shape=tuple(size if n == axis else s for n, s in enumerate(tensor.shape)))


def _moved(term: Term, dim: Dim) -> Term:
    """The term with the dim's coordinates behind the start of a part, but for those by which tensors are read."""
    done: dict[Term, Term] = {iota(dim): iota(dim) + load(START)}

    def visit(node: Term) -> Term:
        if dim not in node.dims and not any(r.op == "reduce" and r.attrs[1] == dim for r in subterms(node)):
            return node
        if node not in done:
            args = tuple(a if node.op == "load" and a is iota(dim) else visit(a) for a in node.args)
            done[node] = node if args == node.args else make(node.op, args, node.attrs)
        return done[node]

    return visit(term)


def _with_reads(kernel: Kernel, read: Callable[[Term], Tensor]) -> Kernel:
    """The kernel whose loads are of other tensors."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "load":
            return load(read(node), *args)
        return node if args == node.args else make(node.op, args, node.attrs)

    return with_terms(kernel, lambda term: rebuild(term, change))


def _behind_products(plan: Plan) -> set[Kernel]:
    """The kernels that no plain product needs."""
    needed: set[str] = set()
    found: set[Kernel] = set()
    for kernel in reversed(plan.kernels):
        if plain_product(kernel) is not None or needed & {store.output.name for store in kernel.stores}:
            needed |= {t.name for t in kernel.inputs}
        else:
            found.add(kernel)
    return found


def _axes_and_dims(kernels: Sequence[Kernel], name: str, axis: int) -> tuple[dict[str, int], dict[str, Dim]] | None:
    """The axes that go along one dim, by the tensors that kernels store, and that dim in each kernel; None where a
    tensor or a kernel has two.

    A kernel's dim goes along an axis by which it reads or writes such a tensor.
    """
    made = _made(kernels)
    axes, known = {name: axis}, -1
    dims: dict[str, Dim] = {}
    while known != len(axes) + len(dims):
        known = len(axes) + len(dims)
        for kernel in kernels:
            places = [place for place in _places(kernel) if place[0] in made]
            for tensor, number, dim in places:
                if axes.get(tensor) == number and (dim is None or dims.setdefault(kernel.name, dim) != dim):
                    return None
            for tensor, number, dim in places:
                if dim is not None and dims.get(kernel.name) == dim and axes.setdefault(tensor, number) != number:
                    return None
    return axes, dims


def _places(kernel: Kernel) -> list[tuple[str, int, Dim | None]]:
    """Each tensor of a kernel with the number of each axis, and the dim whose coordinate is its index; None for another
    index."""
    loads = {n for store in kernel.stores for n in _loads(store.term)}
    found = [(n.attrs[0].name, k, _coordinate(a)) for n in loads for k, a in enumerate(n.args)]
    return found + [(s.output.name, k, d) for s in kernel.stores for k, d in enumerate(s.order)]


def _loads(term: Term) -> list[Term]:
    return [node for node in subterms(term) if node.op == "load"]


def _coordinate(index: Term) -> Dim | None:
    return index.attrs[0] if index.op == "iota" else None


def _may_be_cut(kernel: Kernel, dim: Dim) -> bool:
    """Whether the kernel can run for a part of the dim: its results have it, or it is a plain product that sums it."""
    if any(s.places or s.adds for s in kernel.stores) or not all(map(is_whole, kernel.loops)):
        return False
    if any([_coordinate(a) for a in n.args].count(dim) > 1 for s in kernel.stores for n in _loads(s.term)):
        return False  # the diagonal of a tensor
    if all(dim in store.order for store in kernel.stores):
        return dim not in {loop.dim for loop in kernel.loops}
    product = plain_product(kernel)
    return product is not None and product.inner == dim


def _readers(plan: Plan, names: Collection[str]) -> tuple[Kernel, ...]:
    """The kernels that need these tensors, through one another."""
    known, found = set(names), []
    for kernel in plan.kernels:
        if any(t.name in known for t in kernel.inputs):
            found.append(kernel)
            known |= {store.output.name for store in kernel.stores}
    return tuple(found)
