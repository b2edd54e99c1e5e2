"""A dim in parts: kernels run for a part of it, after one another, so that what is stored between them stays small.

Tensors with the dim as an axis are read and written in part; sums over the dim are added up, part by part. The law is
that of every monoid: ⊕_j x is ⊕_p ⊕_(j in p) x. Invariant: a part computes what all would, since its coordinates begin
where the part does. Example: the scores of a layer with its cross entropy take 64 MiB for a part of the words, where
all of them take 500.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...egraph.terms.ops import iota, load, make
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rename_dims, subterms
from ..plan.kernel_edits import with_terms
from ..plan.records import Kernel, Loop, Plan
from .plain_products import EVERY, plain_product

START = Tensor("start_of_part", "int64", ())


@dataclass(frozen=True)
class DimParts:
    """Which axis of each tensor is cut, by name, and the dim that goes along it in each kernel, by name.

    before, parts, after: kernels that run before all parts, for each of them, and after them. summed: results of
    `parts` that are added over parts.
    """

    size: int
    axes: Mapping[str, int]
    dims: Mapping[str, Dim]
    before: tuple[Kernel, ...]
    parts: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    summed: frozenset[str]


def dim_parts(plan: Plan, tensor: Tensor, axis: int) -> DimParts | None:
    """The plan with the dim along an axis of a tensor in parts; None where it cannot run so."""
    size = tensor.shape[axis]
    found = _axes_and_dims(plan, tensor.name, axis)
    if found is None or not isinstance(size, int):
        return None
    axes, dims = found
    inside = tuple(kernel for kernel in plan.kernels if kernel.name in dims)
    summed = frozenset(_made(inside, dims))
    after = _readers(plan, summed)
    before = tuple(k for k in plan.kernels if k.name not in dims and k not in after)
    in_order = dims.keys().isdisjoint(k.name for k in after) and not {*before} & {*_readers(plan, _made(inside))}
    if not in_order or not all(_may_be_cut(kernel, dims[kernel.name]) for kernel in inside):
        return None
    return DimParts(size, axes, dims, before, inside, after, summed)


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

    cut = parts.axes.get
    smaller = lambda t: replace(t, shape=tuple(size if cut(t.name) == n else s for n, s in enumerate(t.shape)))
    changed = _with_tensors(with_terms(kernel, change), smaller)
    reads = any(START in _loaded(store.term) for store in changed.stores)
    swap = lambda one: dim if one == before else one
    return replace(
        changed,
        grid=tuple(map(swap, kernel.grid)),
        rows=None if kernel.rows is None else swap(kernel.rows),
        held=tuple(map(swap, kernel.held)),
        columns=tuple(map(swap, kernel.columns)),
        loops=tuple(replace(loop, dim=swap(loop.dim)) for loop in changed.loops),
        stores=tuple(replace(store, order=tuple(map(swap, store.order))) for store in changed.stores),
        inputs=(*(smaller(t) for t in kernel.inputs), *([START] if reads else [])),
    )


def _loaded(term: Term) -> set[Tensor]:
    return {n.attrs[0] for n in subterms(term) if n.op == "load"}


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


def _with_tensors(kernel: Kernel, change) -> Kernel:
    """The kernel that reads and writes other tensors in place of its own."""

    def loads(term: Term) -> Term:
        done: dict[Term, Term] = {}
        for node in subterms(term):
            args = tuple(done[a] for a in node.args)
            tensor = change(node.attrs[0]) if node.op == "load" else None
            attrs = node.attrs if tensor is None else (tensor, *node.attrs[1:])
            done[node] = node if args == node.args and attrs == node.attrs else make(node.op, args, attrs)
        return done[term]

    changed = with_terms(kernel, loads)
    return replace(changed, stores=tuple(replace(s, output=change(s.output)) for s in changed.stores))


def _axes_and_dims(plan: Plan, name: str, axis: int) -> tuple[dict[str, int], dict[str, Dim]] | None:
    """The axes that go along one dim, by tensor, and that dim in each kernel; None where a tensor or a kernel has two.

    A kernel's dim goes along an axis by which it reads or writes a tensor.
    """
    axes, known = {name: axis}, -1
    dims: dict[str, Dim] = {}
    while known != len(axes) + len(dims):
        known = len(axes) + len(dims)
        for kernel in plan.kernels:
            places = [*_places(kernel)]
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
    reads = {n for store in kernel.stores for t in (store.term, *_of_loops(kernel)) for n in subterms(t)}
    loads = [n for n in reads if n.op == "load"]
    found = [(n.attrs[0].name, k, _coordinate(a)) for n in loads for k, a in enumerate(n.args)]
    return found + [(s.output.name, k, d) for s in kernel.stores for k, d in enumerate(s.order)]


def _of_loops(kernel: Kernel) -> list[Term]:
    return [t for loop in kernel.loops for a in loop.accumulators for t in (*a.values, *a.reductions)]


def _coordinate(index: Term) -> Dim | None:
    return index.attrs[0] if index.op == "iota" else None


def _may_be_cut(kernel: Kernel, dim: Dim) -> bool:
    """Whether the kernel can run for a part of the dim: its results have it, or it is a plain product that sums it."""
    if any(s.places or s.adds for s in kernel.stores) or not all(map(_is_whole, kernel.loops)):
        return False
    if all(dim in store.order for store in kernel.stores):
        return dim not in {loop.dim for loop in kernel.loops}
    product = plain_product(kernel)
    return product is not None and product.inner == dim


def _is_whole(loop: Loop) -> bool:
    """Whether a loop goes through all of its dim, whatever the coordinates are."""
    return loop.guard is None and loop.map is None and loop.part is None and not loop.outer and loop.ranges == EVERY


def _readers(plan: Plan, names: Collection[str]) -> tuple[Kernel, ...]:
    """The kernels that need these tensors, through one another."""
    known, found = set(names), []
    for kernel in plan.kernels:
        if any(t.name in known for t in kernel.inputs):
            found.append(kernel)
            known |= {store.output.name for store in kernel.stores}
    return tuple(found)


def stored_between(plan: Plan) -> Sequence[Tensor]:
    """What kernels store for one another."""
    results = {t.name for t in plan.outputs}
    return [s.output for k in plan.kernels for s in k.stores if s.output.name not in results]
