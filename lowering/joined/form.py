"""Which joined kernels fit the joined skeleton, and as what: products of rows by columns, weights, and sums of them.

The skeleton computes tiles of weights from products. A weight times a matrix is summed over the loop, in registers, or
over the rows, in memory. Nothing is known by what it is for. Example: in the gradient of attention, keys are rows; the
weights are those of the values and their cotangents; the sums are the gradients of values, keys and queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces, rename_dims, subterms
from ..analysis.exact_products import native
from ..analysis.product_terms import const_value, signed_factors
from ..hopper.kernel_form import MAX_OWN_COLUMNS, Operand, Product, ProductMatcher, draws_numbers
from ..masks.loop_ranges import conjuncts
from ..plan.dtypes import HALVES
from ..plan.queries import diagonal
from ..plan.records import Accumulator, Kernel, Loop, NotPlannable, Store


@dataclass(frozen=True)
class Start:
    """A product's accumulator begins at `vector` times `sign`, a number for each column: `node` is that whole sum."""

    node: Term
    vector: Term
    sign: int


@dataclass(frozen=True)
class Weight:
    """A tile over rows and loop: the product of factors. early: it needs no product but those issued a tile ahead."""

    factors: tuple[Term, ...]
    early: bool


@dataclass(frozen=True)
class LoopSum:
    """Σ over the loop of a weight, times a matrix over the loop and a wide dim, which stays in registers."""

    accumulator: Accumulator
    weight: int
    matrix: Operand | None


@dataclass(frozen=True)
class RowSum:
    """Σ over the rows of a weight times a matrix over the rows and a wide dim, which is added to memory."""

    store: Store
    weight: int
    matrix: Operand


@dataclass(frozen=True)
class PairStore:
    """A weight that is stored for each row and column, as it is rounded for a sum over the rows."""

    store: Store
    weight: int
    operand: Operand


@dataclass(frozen=True)
class DiagonalSum:
    """A weight that is summed along diagonals, in memory."""

    store: Store
    weight: int


@dataclass(frozen=True)
class JoinedBinding:
    """A joined kernel as the skeleton's parts.

    ahead: the products that are issued for the next tile while sums of this one run. late: the others. starts: by
    product, what its accumulator begins at. vectors: loads along the loop alone, which are copied with the tiles.
    overlays: tensors over rows and loop, of which a tile may be copied as those of the loop are. pairs: what is stored
    for each row and column. diagonal_sums: what is summed along diagonals.
    """

    kernel: Kernel
    loop: Loop
    ahead: tuple[Product, ...]
    late: tuple[Product, ...]
    starts: dict[Product, Start]
    weights: tuple[Weight, ...]
    loop_sums: tuple[LoopSum, ...]
    row_sums: tuple[RowSum, ...]
    vectors: tuple[Term, ...]
    overlays: tuple[Operand, ...] = ()
    pairs: tuple[PairStore, ...] = ()
    diagonal_sums: tuple[DiagonalSum, ...] = ()
    wide: Dim | None = None  # the writer sets it for each result in turn

    @property
    def products(self) -> tuple[Product, ...]:
        """All products, in the order in which they are issued."""
        return (*self.ahead, *self.late)

    @property
    def row_operands(self) -> list[Operand]:
        """What is held of the rows, each tile of memory once."""
        return distinct([p.rows for p in self.products] + [s.matrix for s in self.row_sums])

    @property
    def streams(self) -> list[Operand]:
        """What the loop reads tile by tile, in the order of first use, each tile of memory once."""
        matrices = [s.matrix for s in self.loop_sums if s.matrix is not None]
        return distinct([p.columns for p in self.products] + matrices)


def late_factors(binding: JoinedBinding, number: int) -> list[Term]:
    """The factors of a weight in which there is a late product."""
    late = {product.node for product in binding.late}
    return [f for f in binding.weights[number].factors if not late.isdisjoint(reduces(f))]


def early_parts(binding: JoinedBinding) -> dict[int, tuple[Term, ...]]:
    """By number of a weight with late products, the factors without these; only where there are any."""
    found = {}
    for number, weight in enumerate(binding.weights):
        late = Counter(late_factors(binding, number))
        rest = tuple((Counter(weight.factors) - late).elements())
        if late and rest:
            found[number] = rest
    return found


def no_split_by_products(binding: JoinedBinding) -> str | None:
    """Why one warpgroup cannot have the products ahead and the other the late ones; None if they can."""
    ahead, numbers = {p.node for p in binding.ahead}, range(len(binding.weights))
    if binding.pairs or binding.diagonal_sums:
        return "one of them alone has what is stored for each row and column"
    if not binding.late:
        return "it has no late products"
    if any(not ahead.isdisjoint(reduces(f)) for n in numbers for f in late_factors(binding, n)):
        return "a factor takes in products of both warpgroups"
    if any(binding.weights[s.weight].early for s in binding.row_sums):
        return "what is summed over the rows needs no late product"
    return "a result takes in sums of both warpgroups" if any(_takes_in_both(binding)) else None


def _takes_in_both(binding: JoinedBinding) -> Iterator[bool]:
    """For each result, whether it takes in sums with and without late products."""
    early, late = ({s.accumulator.reductions[0] for s in sums} for sums in early_and_late(binding))
    for store in binding.kernel.stores:
        found = {*reduces(store.term)}
        yield not store.adds and not early.isdisjoint(found) and not late.isdisjoint(found)


def early_and_late(binding: JoinedBinding) -> tuple[list[LoopSum], list[LoopSum]]:
    """The sums over the loop whose weight is known under the late products, and the others."""
    weights, sums = binding.weights, binding.loop_sums
    return [s for s in sums if weights[s.weight].early], [s for s in sums if not weights[s.weight].early]


def tile_key(operand: Operand) -> Term:
    """What of memory an operand is, whatever its inner dim is called."""
    return rename_dims(operand.load, {operand.inner: Dim("inner", operand.inner.size)})


def distinct(operands: Iterable[Operand]) -> list[Operand]:
    """Operands that are different tiles of memory."""
    return list({tile_key(o): o for o in reversed(list(operands))}.values())[::-1]


def bind_joined(kernel: Kernel) -> JoinedBinding | str:
    """The kernel's parts, or the reason why it has no such form."""
    try:
        return _bind(kernel)
    except NotPlannable as reason:
        return str(reason)


@dataclass(frozen=True)
class _Body:
    """What a sum adds up: the factors of a weight, and the matrix it is multiplied by. across: the dim of the sum."""

    factors: tuple[Term, ...]
    matrix: Term | None
    across: Dim


def _bind(kernel: Kernel) -> JoinedBinding:
    if objection := next(_objections(kernel), None):
        raise NotPlannable(objection)
    (loop,) = kernel.loops
    matcher = ProductMatcher(kernel.rows, loop.dim, {*kernel.held}, None, MAX_OWN_COLUMNS, by_data=False)
    adding = [store for store in kernel.stores if store.adds]
    written = [store for store in kernel.written_by(loop) if not store.adds]
    bodies = _bodies(kernel, adding, written)
    products = _products([f for body in bodies for f in body.factors], matcher)
    weights, numbers = _weights([body.factors for body in bodies])
    ahead, late = _ahead_and_late(weights, products)
    parts = list(zip(numbers, (_matrix(body, matcher) for body in bodies), strict=True))
    count = len(loop.accumulators)
    end = count + len(adding)
    row_sums = tuple(_row_sum(store, *part) for store, part in zip(adding, parts[count:end], strict=True))
    others = zip(written, numbers[end:], strict=True)
    pairs, along = _stored_weights(others, row_sums, matcher, loop.outer)
    return JoinedBinding(
        kernel=kernel,
        loop=loop,
        ahead=ahead,
        late=late,
        starts=_starts(late, weights, kernel.rows, loop.dim),
        weights=tuple(Weight(w, not _needed(w, late)) for w in weights),
        loop_sums=tuple(LoopSum(a, *part) for a, part in zip(loop.accumulators, parts[:count], strict=True)),
        row_sums=row_sums,
        vectors=_vectors(weights, loop.dim, {*kernel.grid, *kernel.around}),
        overlays=matcher.overlays(_loads(weights)),
        pairs=pairs,
        diagonal_sums=along,
    )


def _bodies(kernel: Kernel, adding: Iterable[Store], written: Iterable[Store]) -> list[_Body]:
    """The parts of what is summed over the loop, of what is summed over the rows, and of what is stored for both."""
    (loop,) = kernel.loops
    found = [_body(a.values[0], sorted(a.reductions[0].dims), loop.dim, kernel) for a in loop.accumulators]
    found += [_body(store.term, store.order, kernel.rows, kernel) for store in adding]
    return found + [_body(_unrounded(store.term, loop), (), kernel.rows, kernel) for store in written]


def _objections(kernel: Kernel) -> Iterator[str]:
    """Reasons why the kernel has no such form, as far as its tensors, terms and loop say."""
    (loop,) = kernel.loops
    if not any(t.dtype in HALVES for t in kernel.inputs):
        yield "no tensor is in half precision"
    if draws_numbers(kernel):
        yield "it draws random numbers, which take registers that its warps lack"
    if any(_reads_around(loop)):
        yield "which tiles its loop runs depends on a dim around it"


def _reads_around(loop: Loop) -> Iterator[bool]:
    """Whether what says which tiles run reads a dim around the loop: of each limit, and of the block map."""
    around = {*loop.outer}
    yield from (bool(limit.bound.dims & around) for limit in loop.limits)
    yield loop.map is not None and bool(around & {*loop.map.dims})


def _body(term: Term, dims: Sequence[Dim], across: Dim, kernel: Kernel) -> _Body:
    """The parts of what a sum over `across` adds up. dims: of the sum."""
    factors, matrix = _split(term, _wide_dim(dims, kernel))
    return _Body(factors, matrix, across)


def _ahead_and_late(
    weights: Sequence[tuple[Term, ...]], products: Sequence[Product]
) -> tuple[tuple[Product, ...], tuple[Product, ...]]:
    """The products of the weight that needs the fewest, and the others: sums of this weight run under the latter."""
    needed = [found for w in weights if (found := _needed(w, products))]
    if not needed:
        raise NotPlannable("no weight takes in a product of rows and columns")
    ahead = min(needed, key=lambda found: (len(found), [products.index(p) for p in found]))
    return tuple(ahead), tuple(p for p in products if p not in ahead)


def _wide_dim(dims: Sequence[Dim], kernel: Kernel) -> Dim | None:
    """The dim of a sum that a tile holds whole; None if there is none."""
    found = [d for d in dims if d not in (*kernel.grid, *kernel.around, kernel.rows, kernel.loops[0].dim)]
    if len(found) > 1:
        raise NotPlannable(f"a sum has more than one dim of its own: {', '.join(map(str, found))}")
    if found and (not isinstance(found[0].size, int) or found[0].size > MAX_OWN_COLUMNS):
        raise NotPlannable(f"dim {found[0]} is wider than {MAX_OWN_COLUMNS} or of unknown size")
    return found[0] if found else None


def _split(body: Term, wide: Dim | None) -> tuple[tuple[Term, ...], Term | None]:
    """The factors of a weight, and the matrix that has the wide dim."""
    parts = [p for p in signed_factors(body) if const_value(p, 0) != 1]
    broad = [p for p in parts if wide is not None and wide in p.dims]
    if not broad:
        return tuple(parts), None
    matrix = native(broad[0])
    if len(broad) > 1 or matrix is None or matrix.op != "load":
        raise NotPlannable("a weight is multiplied by more than one half-precision tensor as it is stored")
    return tuple(p for p in parts if p not in broad), matrix


def _products(factors: Sequence[Term], matcher: ProductMatcher) -> list[Product]:
    """The products of rows by columns in the factors, each once."""
    inner = [r for f in dict.fromkeys(factors) for r in reduces(f)]
    found = [matcher.product(r) for r in dict.fromkeys(inner)]
    if any(o.is_narrow for p in found for o in (p.rows, p.columns)):
        raise NotPlannable("its products are of half precision, and a tensor has one byte for an element")
    return found


def _weights(parts: Sequence[tuple[Term, ...]]) -> tuple[list[tuple[Term, ...]], list[int]]:
    """Distinct weights, and for each part the number of its weight: the order of factors does not matter."""
    keys = [tuple(sorted(factors, key=hash)) for factors in parts]
    distinct_keys = list(dict.fromkeys(keys))
    return [parts[keys.index(k)] for k in distinct_keys], [distinct_keys.index(k) for k in keys]


def _needed(factors: Iterable[Term], products: Sequence[Product]) -> list[Product]:
    inside = {r for f in factors for r in reduces(f)}
    return [p for p in products if p.node in inside]


def _matrix(body: _Body, matcher: ProductMatcher) -> Operand | None:
    matrix = body.matrix
    if matrix is None:
        return None
    if body.across not in matrix.dims:
        raise NotPlannable(f"a matrix lacks {body.across}, over which it is summed")
    inner = [d for d in matrix.dims if d in matcher.inside]
    if len(inner) != 1:
        raise NotPlannable("a matrix has no wide dim of its own")
    return matcher.operand(matrix, body.across, inner[0])


def _row_sum(store: Store, weight: int, matrix: Operand | None) -> RowSum:
    if matrix is None:
        raise NotPlannable("what is added to memory is no product of a weight and a matrix")
    return RowSum(store, weight, matrix)


def _unrounded(term: Term, loop: Loop) -> Term:
    """What a stored term rounds to half precision, where the loop's guard keeps it."""
    if loop.guard is not None and term.op == "where" and const_value(term.args[2], None) == 0:
        term = term.args[1] if {*conjuncts(term.args[0])} == {*conjuncts(loop.guard)} else term
    return term.args[0] if term.op == "cast" and term.dtype in HALVES else term


def _stored_weights(
    others: Iterable[tuple[Store, int]], row_sums: Sequence[RowSum], matcher: ProductMatcher, outer: Sequence[Dim]
) -> tuple[tuple[PairStore, ...], tuple[DiagonalSum, ...]]:
    """What is stored for each row and column, and what is summed along diagonals: weights that are summed over rows.

    others: the stores, with the numbers of their weights. outer: dims around the loop.
    """
    pairs: list[PairStore] = []
    along: list[DiagonalSum] = []
    for store, number in others:
        kinds = {s.matrix.tensor.dtype for s in row_sums if s.weight == number}
        if outer:
            raise NotPlannable("what is stored for each row and column depends on a dim around the loop")
        if not kinds:
            raise NotPlannable("what is stored for each row and column is not what is summed over the rows")
        if store.places:
            diagonal(store)  # raises for other places
            along.append(DiagonalSum(store, number))
            continue
        if any(pair.weight == number for pair in pairs):
            raise NotPlannable("a tile that is stored for each row and column leaves for one tensor only")
        if store.output.dtype not in kinds:
            raise NotPlannable("what is stored for each row and column is rounded to another type than for sums")
        stored = load(store.output, *map(iota, store.order))
        pairs.append(PairStore(store, number, matcher.operand(stored, matcher.rows, matcher.loop)))
    return tuple(pairs), tuple(along)


def _starts(
    products: Iterable[Product], weights: Iterable[tuple[Term, ...]], rows: Dim, loop: Dim
) -> dict[Product, Start]:
    """Products whose only reader adds a number for each column to them, or subtracts one."""
    nodes = {n for w in weights for f in w for n in subterms(f)}
    found = {}
    for product in products:
        readers = [n for n in nodes if product.node in n.args]
        if len(readers) == 1 and (start := _start(readers[0], product, rows, loop)) is not None:
            found[product] = start
    return found


def _start(reader: Term, product: Product, rows: Dim, loop: Dim) -> Start | None:
    """The start of a product whose only reader is this one."""
    if reader.op not in ("add", "sub") or reader.args[0] is not product.node:
        return None
    other = reader.args[1]
    if any(part.op == "const" for part in signed_factors(product.node.args[0])):
        return None  # the constant is multiplied behind the product
    if loop not in other.dims or rows in other.dims or reduces(other):
        return None
    return Start(reader, other, 1 if reader.op == "add" else -1)


def _loads(weights: Iterable[tuple[Term, ...]]) -> list[Term]:
    """The loads of all weights."""
    return list(dict.fromkeys(n for w in weights for f in w for n in subterms(f) if n.op == "load"))


def _vectors(weights: Iterable[tuple[Term, ...]], loop: Dim, grid: set[Dim]) -> tuple[Term, ...]:
    """float32 loads along the loop alone, whose axes are dims of the grid and then the loop."""
    return tuple(
        n
        for n in _loads(weights)
        if n.dtype == "float32"
        and loop in n.dims
        and n.dims <= {*grid, loop}
        and all(index.op == "iota" for index in n.args)
        and n.args[-1] is iota(loop)
    )
