"""Two kernels that compute the same tiles, one by rows and one by columns, as one kernel.

One kernel has rows j and a loop over i, the other has rows i and a loop over j. The joined kernel has rows j and a
loop over i. It keeps the sums over i, as the first kernel does. A sum over j is a store that adds: each program adds
the sum over its own rows to memory. A last kernel makes results of finished sums. Invariant: the joined plan computes
what the plan computes, with each product of a tile done once. Example: the weights of all pairs of q[i, d] and k[j, d]
are computed once; the gradient of k sums them over i, that of q over j.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import permutations, product
from math import prod
from operator import add

from ...egraph.terms.affine import length
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import const, iota, load, make, sum_over, where
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, at_place, rebuild, rename_dims, subterms, tensors
from ..analysis.product_terms import const_value
from ..analysis.softmax_scaling import LOG2_E
from ..hopper.score_offsets import addends
from ..masks.loop_ranges import block_map, conjunction, conjuncts, ranges
from ..plan.records import Kernel, Loop, Plan, Store
from ..plan.term_edits import replace_from_above


@dataclass(frozen=True)
class Joined:
    """The plan with two of its kernels joined. main: the joined kernel. sums: what it adds to; finish: the kernel that
    reads these."""

    plan: Plan
    main: Kernel
    sums: tuple[Tensor, ...]
    finish: Kernel


def join(plan: Plan, with_pairs: bool = False, with_diagonals: bool = False) -> Joined | None:
    """The plan with the first pair of kernels joined that can be; None if there is none.

    What a loop stores for each row and column has a kernel of its own then. with_pairs: the joined kernel stores it;
    with_diagonals: also what is summed along diagonals. None if there is nothing that it can store so.
    """
    parts = [tuple(_with_pairs_apart(kernel)) for kernel in plan.kernels]
    plan = replace(plan, kernels=tuple(kernel for found in parts for kernel in found))
    pair = _matching(plan)
    if pair is None:
        return None
    kept, turned = (plan.kernels[number] for number in pair)
    if not with_pairs:
        return _joined(plan, kept, turned)
    others = {own: tuple(kernels) for own, *kernels in parts}
    written = _chosen(others[kept], with_diagonals), _chosen(others[turned], with_diagonals)
    stores = [kernel.stores[0] for kernels in written for kernel in kernels]
    missing = not any(store.places for store in stores) if with_diagonals else not stores
    return None if missing else _joined(plan, kept, turned, written)


@lru_cache(256)
def _matching(plan: Plan) -> tuple[int, int] | None:
    """The numbers of the kernels that can be joined. Memoised, because a launch tries several forms of them."""
    kernels = dict(enumerate(plan.kernels))
    pairs = [(m, n) for m, n in permutations(kernels, 2) if _mirror(kernels[m], kernels[n]) is not None]
    matching = [pair for pair in pairs if _independent(plan, *(kernels[n] for n in pair))]
    return max(matching, key=lambda pair: len(kernels[pair[0]].loops[0].accumulators), default=None)


def _chosen(kernels: Iterable[Kernel], with_diagonals: bool) -> tuple[Kernel, ...]:
    """Those of these kernels of rows and columns that the joined kernel is to replace."""
    return tuple(kernel for kernel in kernels if with_diagonals or not kernel.stores[0].places)


def _with_pairs_apart(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel without what its only loop stores, and for each of these stores a kernel of rows and columns."""
    if len(kernel.loops) != 1 or kernel.columns:
        yield kernel
        return
    (loop,) = kernel.loops
    written, stores = kernel.written_by(loop), kernel.written_by(None)
    if written and stores:
        bounds = (limit.bound for limit in loop.limits)
        terms = [*(s.term for s in stores), *bounds, *([] if loop.guard is None else [loop.guard])]
        inputs = tuple(dict.fromkeys(t for term in terms for t in tensors(term)))
        kernel = replace(kernel, stores=tuple(stores), inputs=inputs)
    yield kernel
    for number, store in enumerate(written if stores else ()):
        yield _of_pairs(kernel, store, f"{kernel.name}_pairs{number or ''}")


def _of_pairs(kernel: Kernel, store: Store, name: str) -> Kernel:
    """A kernel of rows and columns for what the kernel's loop stores."""
    rows, columns = (d for d in store.order if d in (kernel.rows, kernel.loops[0].dim))
    held = tuple(d for d in all_dims(store.term) if d not in (*kernel.grid, rows, columns))
    tile, inputs = f"{rows.name}_tile", tuple(tensors(store.term))
    return Kernel(name, kernel.grid, rows, tile, held, (), (store,), inputs, kernel.exact, columns=(columns,))


# Which kernels can be joined


@dataclass(frozen=True)
class _Turn:
    """Dims of one kernel by those of another: its rows are the other's loop, its loop the other's rows.

    dims: these two. places: a dim of its grid that is two dims in the other kernel, a group and the members of it that
    the other's loop goes around for.
    """

    dims: dict[Dim, Dim]
    places: dict[Dim, tuple[Dim, Dim]]

    def term(self, term: Term) -> Term:
        """A term of the kernel in dims of the other one."""
        for dim, (group, member) in self.places.items():
            place = iota(member) if group.size == 1 else iota(group) * length(member) + iota(member)
            term = _with_short_indices(at_place(term, dim, place))
        return rename_dims(term, self.dims)

    def store(self, store: Store) -> Store:
        """A store of the kernel in dims of the other one, in which an axis is one dim."""
        return replace(
            store, term=self.term(store.term), order=self.order(store.order), places=tuple(map(self.term, store.places))
        )

    def order(self, order: Iterable[Dim]) -> tuple[Dim, ...]:
        """Axes in dims of the other kernel; an axis may be two."""
        return tuple(d for dim in order for d in self.places.get(dim, (self.dims.get(dim, dim),)))

    def indices(self, order: Iterable[Dim]) -> list[Term]:
        """The index along each of these axes, in dims of the kernel itself."""
        found: list[Term] = []
        for dim in order:
            size = length(self.places[dim][1]) if dim in self.places else None
            found += [iota(dim)] if size is None else [iota(dim) // size, iota(dim) % size]
        return found


def _with_short_indices(term: Term) -> Term:
    """The term with the indices of loads simplified: (g · n + m) // n is g."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        args = tuple(map(simplify_index, args)) if node.op == "load" else args
        return node if args == node.args else make(node.op, args, node.attrs)

    return rebuild(term, change)


def _mirror(kept: Kernel, turned: Kernel) -> _Turn | None:
    """The dims of `turned` by those of `kept`, if one's rows are the other's loop and both keep the same pairs.

    The loop of `kept` may have dropped what a guard says of its rows alone: its results say that.
    """
    if not (_sums_in_one_loop(kept) and _sums_in_one_loop(turned)) or turned.around:
        return None
    (one,), (other,) = kept.loops, turned.loops
    places = _places(kept, turned)
    if places is None or (kept.rows.size, one.dim.size) != (other.dim.size, turned.rows.size):
        return None
    turn = _Turn({turned.rows: one.dim, other.dim: kept.rows}, places)
    taken = {*turn.dims.values(), *(d for pair in places.values() for d in pair)}
    if taken & ({d for s in turned.stores for d in all_dims(s.term)} - {*turn.dims}):
        return None
    mine, theirs = {*_kept_pairs(one, None)}, {*_kept_pairs(other, turn)}
    same = mine <= theirs and all(_is_behind(kept, part) for part in theirs - mine)
    shared = {*_products(kept, None)} & {*_products(turned, turn)}
    return turn if same and shared else None


def _is_behind(kernel: Kernel, part: Term) -> bool:
    """Whether the kernel's results are 0 where this part of a guard, which lacks the loop's dim, is false."""
    return kernel.loops[0].dim not in part.dims and all(part in _guards_behind(store) for store in kernel.stores)


def _guards_behind(store: Store) -> tuple[Term, ...]:
    """What a result is 0 without."""
    term = store.term
    while term.op == "cast":
        term = term.args[0]
    return conjuncts(term.args[0]) if term.op == "where" and const_value(term.args[2], None) == 0 else ()


def _places(kept: Kernel, turned: Kernel) -> dict[Dim, tuple[Dim, Dim]] | None:
    """The dims of one grid that are two dims of the other kernel; None if the grids do not match."""
    own, long = {*turned.grid}, lambda dims: {d for d in dims if d.size != 1}
    points = long((*kept.grid, *kept.around)) | (own & {*kept.grid, *kept.around})
    pairs = list(product(sorted({*kept.grid} - own), sorted({*kept.around} - own)))
    found = {dim: next((p for p in pairs if _is_two(dim, *p)), None) for dim in sorted(own - points)}
    known = {dim: pair for dim, pair in found.items() if pair is not None}
    matched = {d for pair in known.values() for d in pair}
    fits = len(known) == len(found) and len(matched) == 2 * len(found) and long(matched) == long(points - own)
    return known if fits else None


def _is_two(dim: Dim, group: Dim, member: Dim) -> bool:
    """Whether a dim is as long as groups of members are together."""
    sizes = (dim.size, group.size, member.size)
    return all(isinstance(size, int) for size in sizes) and prod(sizes[1:]) == dim.size


def _sums_in_one_loop(kernel: Kernel) -> bool:
    if len(kernel.loops) != 1 or kernel.rows is None or kernel.columns or kernel.exact:
        return False
    (loop,) = kernel.loops
    sums = all(a.monoid == "sum" and len(a.values) == 1 for a in loop.accumulators)
    return sums and not loop.finite_mask and loop.part is None and not kernel.written_by(loop)


def _kept_pairs(loop: Loop, turn: _Turn | None) -> list[Term]:
    parts = [] if loop.guard is None else conjuncts(loop.guard)
    return [part if turn is None else turn.term(part) for part in parts]


def _products(kernel: Kernel, turn: _Turn | None) -> Iterator[Term]:
    """The sums over rows and loop inside of the accumulators' values, under comparable names."""
    (loop,) = kernel.loops
    tile = {kernel.rows, loop.dim}
    tile = tile if turn is None else {turn.dims[d] for d in tile}
    for accumulator in loop.accumulators:
        value = accumulator.values[0] if turn is None else turn.term(accumulator.values[0])
        yield from (n for n in subterms(_comparable(value)) if n.op == "reduce" and tile <= n.dims)


def _independent(plan: Plan, kept: Kernel, turned: Kernel) -> bool:
    """Whether nothing between the two kernels, and neither of them, reads what the first of them stores."""
    first, last = sorted((plan.kernels.index(kept), plan.kernels.index(turned)))
    stored = {store.output.name for store in plan.kernels[first].stores}
    return all(stored.isdisjoint(t.name for t in k.inputs) for k in plan.kernels[first + 1 : last + 1])


# The joined plan


def _joined(
    plan: Plan, kept: Kernel, turned: Kernel, written: tuple[tuple[Kernel, ...], tuple[Kernel, ...]] = ((), ())
) -> Joined | None:
    """written: kernels of rows and columns that the joined kernel replaces, by whose loop stored their results."""
    turn = _mirror(kept, turned)
    assert turn is not None, "the pair was chosen because it mirrors"
    whole = _with_guard_of(kept, turn, turned, plan)
    plan = replace(plan, kernels=tuple(whole if kernel is kept else kernel for kernel in plan.kernels))
    kept = whole
    if written[1] and turn.places:
        return None  # an axis is two dims in the joined kernel
    stores = [*_stores(written[0]), *map(turn.store, _stores(written[1]))]
    plan = replace(plan, kernels=_without(plan.kernels, (*written[0], *written[1])))
    names = {t.name for k in plan.kernels for t in (*k.inputs, *(s.output for s in k.stores))}
    last = max(plan.kernels.index(kept), plan.kernels.index(turned))
    before = _without(plan.kernels[:last], (kept, turned))
    values = [a.values[0] for a in kept.loops[0].accumulators]
    turned_values = [turn.term(a.values[0]) for a in turned.loops[0].accumulators]
    terms, vectors = _rewritten((values, turned_values, [s.term for s in stores]), before, (kept, turned), names)
    sums, added = _added(turned, turn, terms[1], names)
    main = _main(kept, terms[0], [replace(s, term=t) for s, t in zip(stores, terms[2], strict=True)], added)
    finish = _finish(turned, sums)
    kernels = (*_with_vectors(before, kept, vectors), main, finish, *plan.kernels[last + 1 :])
    return Joined(replace(plan, kernels=_needed(kernels, plan)), main, tuple(s.output for s in added), finish)


def _with_guard_of(kept: Kernel, turn: _Turn, turned: Kernel, plan: Plan) -> Kernel:
    """The kept kernel with all that the turned one's guard keeps in its own: sums over its rows need that.

    Example: of padded keys as rows. Their gradients are set to 0 behind the loop over queries.
    """
    (loop,), parts = kept.loops, _kept_pairs(turned.loops[0], turn)
    if len(parts) == len(_kept_pairs(loop, None)):
        return kept
    guard = conjunction(parts)
    made = [store.output.name for kernel in plan.kernels for store in kernel.stores]
    points = (*kept.grid, *loop.outer)
    loop = replace(
        loop,
        guard=guard,
        ranges=ranges(guard, loop.dim, kept.rows, kept.held),
        map=block_map(guard, loop.dim, kept.rows, points, made, finite_mask=False),
    )
    return replace(kept, loops=(loop,))


def _stores(kernels: Iterable[Kernel]) -> list[Store]:
    return [store for kernel in kernels for store in kernel.stores]


def _without(kernels: Iterable[Kernel], others: Collection[Kernel]) -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in kernels if kernel not in others)


def _rewritten(
    terms: tuple[list[Term], list[Term], list[Term]],
    before: Sequence[Kernel],
    pair: tuple[Kernel, Kernel],
    names: set[str],
) -> tuple[list[list[Term]], dict[Term, Term]]:
    """The terms of the joined kernel, and what is to be stored before it, with the loads that read it.

    terms: the sums of the kept kernel, those of the turned one, and what is stored for rows and columns. What earlier
    kernels store is read.
    """
    kept, _ = pair
    stored = _stored(before, *pair)
    mine, theirs, others = ([_in_base_two(_read(_comparable(t), stored), kept) for t in found] for found in terms)
    vectors = _vectors([*mine, *theirs], kept, names)
    return [[replace_from_above(t, vectors) for t in found] for found in (mine, theirs, others)], vectors


def _needed(kernels: Sequence[Kernel], plan: Plan) -> tuple[Kernel, ...]:
    """The kernels that store a result, or what a later one reads."""
    read, found = {t.name for t in plan.outputs}, []
    for kernel in reversed(kernels):
        if not read.isdisjoint(s.output.name for s in kernel.stores):
            found.append(kernel)
            read.update(t.name for t in kernel.inputs)
    return tuple(reversed(found))


def _stored(kernels: Iterable[Kernel], kept: Kernel, turned: Kernel) -> dict[Term, Term]:
    """What these kernels store for rows or columns, each with the load that reads it."""
    stores = [s for k in kernels for s in k.stores if not s.places]
    tiles = [{k.rows, k.loops[0].dim} for k in (kept, turned)]
    apart = [s for s in stores if not any(tile <= {*s.order} for tile in tiles)]
    return {_comparable(s.term): load(s.output, *map(iota, s.order)) for s in apart}


def _read(term: Term, stored: dict[Term, Term]) -> Term:
    """The term with what an earlier kernel stores read from there."""
    return replace_from_above(term, {t: read for t, read in stored.items() if t.op not in ("load", "const")})


@lru_cache(1024)
def _comparable(term: Term) -> Term:
    """The term with the dims that its inner sums bind named by what they are axes of: equal sums are one term then."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op != "reduce":
            return made
        (monoid, dim), body = made.attrs, made.args[0]
        loads = [t for t in subterms(body) if t.op == "load"]
        axes = [(t.attrs[0].name, axis) for t in loads for axis, index in enumerate(t.args) if index is iota(dim)]
        fresh = Dim("{}.{}".format(*min(axes)), dim.size) if axes else dim
        if fresh == dim or fresh in body.dims or any(r.attrs[1] == fresh for r in subterms(body) if r.op == "reduce"):
            return made
        return make("reduce", (at_place(body, dim, iota(fresh)),), (monoid, fresh))

    return rebuild(term, change)


def _in_base_two(term: Term, kernel: Kernel) -> Term:
    """exp(x) of rows and columns as exp2(x · log2 e), with the factor in the constants of the addends of x.

    What depends on the loop alone is one addend, which an earlier kernel can store.
    """
    loop = kernel.loops[0].dim

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op != "exp" or made.dtype != "float32" or not {kernel.rows, loop} <= made.dims:
            return made
        parts = [t * const(c * LOG2_E) for c, t in addends(made.args[0])]
        alone = [p for p in parts if kernel.rows not in p.dims]
        ordered = [*(p for p in parts if p not in alone), *([reduce(add, alone)] if alone else [])]
        return make("exp2", (reduce(add, ordered),))

    return rebuild(term, change)


def _vectors(values: Sequence[Term], kernel: Kernel, names: set[str]) -> dict[Term, Term]:
    """What depends on the loop alone and is computed, each with the load that reads it where it is stored before."""
    loop, found = kernel.loops[0].dim, {}
    apart = {*kernel.grid, *kernel.around, loop}
    for term in dict.fromkeys(t for value in values for t in _largest_over(value, loop, apart)):
        order = tuple(d for d in (*kernel.grid, *kernel.around, loop) if d in term.dims)
        output = Tensor(_fresh("vector", names), "float32", tuple(d.size for d in order))
        found[term] = load(output, *map(iota, order))
    return found


def _largest_over(term: Term, loop: Dim, apart: set[Dim]) -> Iterator[Term]:
    """The largest float32 parts that have no other dims than these, where they are more than a load or coordinates."""
    if loop not in term.dims or term.op in ("load", "iota"):
        return
    if term.dims <= apart and term.dtype == "float32" and not (term.op == "cast" and term.args[0].op == "load"):
        if tensors(term):
            yield term
        return
    for a in term.args:
        yield from _largest_over(a, loop, apart)


def _fresh(base: str, names: set[str]) -> str:
    name = next(n for k in range(len(names) + 1) if (n := f"{base}{k}") not in names)
    names.add(name)
    return name


def _with_vectors(kernels: Sequence[Kernel], kept: Kernel, vectors: dict[Term, Term]) -> list[Kernel]:
    """The kernels that run before, and what stores the vectors: one of these, if it has the same rows and grid."""
    stores = tuple(
        Store(term, read.attrs[0], tuple(index.attrs[0] for index in read.args)) for term, read in vectors.items()
    )
    if not stores:
        return list(kernels)
    axes = {dim for store in stores for dim in store.order}
    rows, grid = kept.loops[0].dim, tuple(d for d in (*kept.grid, *kept.around) if d.size != 1 or d in axes)
    fitting = [k for k in kernels if _stores_rows(k, rows, grid)] if _made(kernels).isdisjoint(_inputs(stores)) else []
    if not fitting:
        return [*kernels, _storing(f"{kept.name}_before", grid, rows, stores)]
    mine = fitting[0]
    return [_storing(f"{kept.name}_before", grid, rows, (*mine.stores, *stores)) if k is mine else k for k in kernels]


def _stores_rows(kernel: Kernel, rows: Dim, grid: Sequence[Dim]) -> bool:
    """Whether a kernel without a loop has these rows and this grid."""
    return not kernel.loops and not kernel.columns and kernel.rows == rows and {*kernel.grid} == {*grid}


def _storing(name: str, grid: tuple[Dim, ...], rows: Dim, stores: tuple[Store, ...]) -> Kernel:
    """A kernel without a loop."""
    held = tuple(d for d in _dims(s.term for s in stores) if d not in (*grid, rows))
    return Kernel(name, grid, rows, f"{rows.name}_tile", held, (), stores, _inputs(stores))


def _made(kernels: Iterable[Kernel]) -> set[Tensor]:
    return {store.output for kernel in kernels for store in kernel.stores}


def _inputs(stores: Iterable[Store]) -> tuple[Tensor, ...]:
    return tuple(dict.fromkeys(t for s in stores for t in tensors(s.term)))


def _dims(terms: Iterable[Term]) -> list[Dim]:
    return list(dict.fromkeys(d for term in terms for d in all_dims(term)))


def _added(
    turned: Kernel, turn: _Turn, values: Sequence[Term], names: set[str]
) -> tuple[dict[Term, Term], list[Store]]:
    """(each finished sum of the turned kernel with the load that reads it, the stores that add to it)."""
    (loop,), read, added = turned.loops, {}, []
    stored = _dims(s.term for s in turned.stores)
    for accumulator, value in zip(loop.accumulators, values, strict=True):
        (reduction,) = accumulator.reductions
        inside = [d for d in stored if d in reduction.dims]
        order = (*(d for d in turned.grid if d in inside), *(d for d in inside if d not in turned.grid))
        axes = turn.order(order)
        output = Tensor(_fresh("sums", names), "float32", tuple(d.size for d in axes))
        read[reduction] = load(output, *turn.indices(order))
        added.append(Store(value, output, axes, combine="add"))
    return read, added


def _main(kept: Kernel, values: Sequence[Term], written: Sequence[Store], added: Sequence[Store]) -> Kernel:
    (loop,) = kept.loops
    pairs = list(zip(loop.accumulators, values, strict=True))
    sums = {a.reductions[0]: _summed(loop, value) for a, value in pairs}
    accumulators = tuple(replace(a, values=(value,), reductions=(sums[a.reductions[0]],)) for a, value in pairs)
    results = (*(replace(s, term=replace_from_above(s.term, sums)) for s in kept.stores), *written)
    bounds = [limit.bound for limit in loop.limits]
    terms = [*(s.term for s in (*results, *added)), *([loop.guard] if loop.guard is not None else [])]
    placed = {*kept.grid, kept.rows, *kept.around, loop.dim}
    held = tuple(d for d in dict.fromkeys((*_dims(terms), *kept.held)) if d not in placed)
    inputs = tuple(dict.fromkeys(t for term in (*terms, *bounds) for t in tensors(term)))
    loops = (replace(loop, accumulators=accumulators),)
    return replace(kept, held=held, loops=loops, stores=(*results, *added), inputs=inputs)


def _summed(loop: Loop, value: Term) -> Term:
    total = value if loop.guard is None else where(loop.guard, value, const(0.0))
    for dim in (*loop.outer[::-1], loop.dim):
        total = sum_over(dim, total)
    return total


def _finish(turned: Kernel, read: dict[Term, Term]) -> Kernel:
    stores = tuple(replace(s, term=replace_from_above(s.term, read)) for s in turned.stores)
    held = tuple(d for d in _dims(s.term for s in stores) if d not in (*turned.grid, turned.rows))
    held = tuple(dict.fromkeys((*held, *(d for s in stores for d in s.order if d not in (*turned.grid, turned.rows)))))
    inputs = tuple(dict.fromkeys(t for s in stores for t in tensors(s.term)))
    return replace(turned, held=held, loops=(), stores=stores, inputs=inputs)
