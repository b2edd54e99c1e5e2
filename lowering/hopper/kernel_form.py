"""Which plans fit the Hopper skeleton, and as what: products of rows by columns, states between, products by values.

A kernel binds when its one loop is score products -> pointwise code -> states -> value products; otherwise `bind` says
why not. Nothing is known by what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import gcd
from typing import Protocol

from ...egraph.forks import cached_property
from ...egraph.terms.affine import affine
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import iota, load
from ...egraph.terms.sizes import Size, resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import reduces, substitute, subterms
from ..analysis.data_indices import is_block_number, reads_memory
from ..analysis.exact_products import as_stored
from ..analysis.product_terms import const_value, signed_factors
from ..masks.loop_ranges import end_of_rows, why_apart
from ..plan.dtypes import BYTES, HALVES, INT8, MULTIPLIED
from ..plan.queries import roots
from ..plan.records import Accumulator, Kernel, Loop, NotPlannable
from ..plan.thresholds import MAX_OPERAND_WIDTH
from .register_order import register_place

MAX_OWN_COLUMNS = 256  # of accumulators that one warpgroup holds
NARROW_BITS = 13  # of a sum of products of e4m3, measured on an H200: an error of 2^-12 of the sum of their sizes
LEAST_COPIED = 16  # columns of one copy: smaller ones take longer to start than to use
PRODUCT_BYTES = 32  # of a row or column, whose products one instruction adds up


@dataclass(frozen=True)
class Operand:
    """A two-dimensional tile of a tensor: `across` is rows or the loop dim, `inner` the summed or the value dim.

    axes[n] is the tile dim that the n-th index runs over, or None where the index is one number for all of the tile.
    gathered: no tensor map describes it, and it is read by pointers: rows of queries may lie anywhere.
    Example: keys[table[b, j // 64], j % 64, d], of which a tile of 64 columns is one page.
    """

    load: Term
    across: Dim
    inner: Dim
    axes: tuple[Dim | None, ...]
    gathered: bool = False

    @property
    def tensor(self) -> Tensor:
        return self.load.attrs[0]

    @property
    def is_narrow(self) -> bool:
        """Whether its elements are bytes."""
        return self.tensor.dtype in BYTES

    @property
    def in_register_order(self) -> bool:
        """Whether the places along `across` are those of registers, as `register_place` has them."""
        return register_place(iota(self.across)) in self.load.args

    @cached_property
    def step_in_row(self) -> int:
        """Elements of which each tile begins at a multiple in its row, as far as its index says.

        Example: 1 for x[i, d + 1], 8 for x[i, 24 h + d]; 0, a multiple of everything, for x[i, d].
        """
        parts, constant = affine(self.load.args[-1])
        return gcd(constant, *(c for atom, c in parts.items() if self.axes[-1] not in atom.dims))

    @property
    def across_first(self) -> bool:
        return self.axes.index(self.across) < self.axes.index(self.inner)

    @property
    def pages(self) -> frozenset[int]:
        """Numbers of columns n that indices divide the loop's coordinate by: a tile must not reach beyond n."""
        indices = [index for index in self.load.args if index is not register_place(iota(self.across))]
        nodes = (n for index in indices for n in subterms(index) if _is_place_in_page(n) or is_block_number(n))
        return frozenset(n.args[1].attrs[0] for n in nodes if n.args[0] is iota(self.across))


@dataclass(frozen=True)
class Product:
    """Σ_inner rows[i, inner] · columns[j, inner]; `node` is the reduction, `factor` its constant."""

    node: Term
    rows: Operand
    columns: Operand

    @property
    def is_whole(self) -> bool:
        """Whether it adds up whole numbers, exactly."""
        return self.rows.tensor.dtype == INT8


@dataclass(frozen=True)
class StateValue:
    """One value of a state: weight · factors, summed over the loop, as a matrix with `matrix` or as a vector."""

    factors: tuple[Term, ...]
    matrix: Operand | None


@dataclass(frozen=True)
class LoopStep:
    """What runs between two waits: score products, then the states that need them."""

    products: tuple[Product, ...]
    states: tuple[tuple[Accumulator, tuple[StateValue, ...]], ...]


@dataclass(frozen=True)
class Diagonal:
    """A load over rows and loop that depends on their difference alone: one index holds step · (loop - rows) + ..."""

    load: Term
    axis: int
    step: int

    @property
    def tensor(self) -> Tensor:
        return self.load.attrs[0]


class WarpBinding(Protocol):
    """What the text of any warp-specialised kernel asks of its parts."""

    @property
    def kernel(self) -> Kernel:
        """The kernel."""

    @property
    def loop(self) -> Loop:
        """Its loop."""

    @property
    def wide(self) -> Dim | None:
        """The value dim of its results."""

    @property
    def row_operands(self) -> list[Operand]:
        """What is copied once for a tile of rows."""

    @property
    def streams(self) -> list[Operand]:
        """What the loop reads tile by tile."""


@dataclass(frozen=True)
class Binding:
    """A kernel as the skeleton's parts. `wide` is the value dim, None if no state has a matrix; `overlays` are tensors
    read along rows and loop, which can be copied as score tiles are (`across` is the rows, `inner` the loop); `entries`
    are read by what is stored alone, along rows and the value dim.
    """

    kernel: Kernel
    loop: Loop
    steps: tuple[LoopStep, ...]
    wide: Dim | None
    overlays: tuple[Operand, ...] = ()
    diagonals: tuple[Diagonal, ...] = ()
    entries: tuple[Operand, ...] = ()

    @property
    def products(self) -> list[Product]:
        return [p for step in self.steps for p in step.products]

    @property
    def row_operands(self) -> list[Operand]:
        return list(dict.fromkeys(p.rows for p in self.products))

    @property
    def streams(self) -> list[Operand]:
        """What the loop reads tile by tile, in the order of first use."""
        return list(dict.fromkeys([p.columns for p in self.products] + self.matrices))

    @property
    def columns(self) -> list[Operand]:
        return list(dict.fromkeys(p.columns for p in self.products))

    @property
    def matrices(self) -> list[Operand]:
        return [v.matrix for step in self.steps for _, values in step.states for v in values if v.matrix]

    @property
    def pages(self) -> frozenset[int]:
        """Numbers of columns that no tile of the loop may reach beyond a multiple of."""
        return frozenset[int]().union(*(operand.pages for operand in self.streams))

    @property
    def widened(self) -> dict[Operand, str]:
        """Operands of bytes in products with halves, and the type that they have to be stored in before."""
        return {p.columns: p.rows.tensor.dtype for p in self.products if p.columns.is_narrow and not p.rows.is_narrow}

    @property
    def weighted(self) -> set[Operand]:
        """Matrices that nothing but a softmax's weight multiplies: of anything else, e4m3 may not hold the size."""
        states = [pair for step in self.steps for pair in step.states]
        every = [(v.matrix, state.gauge is not None and not v.factors) for state, vs in states for v in vs if v.matrix]
        return {matrix for matrix, alone in every if alone} - {matrix for matrix, alone in every if not alone}

    @property
    def is_stored(self) -> bool:
        """Whether its matrices of bytes are stored as products take them."""
        return not self.widened and all(o.in_register_order for o in self.matrices if o.is_narrow)

    @property
    def has_narrow_scores(self) -> bool:
        """Whether the factors of scores are bytes."""
        return any(p.rows.is_narrow for p in self.products)

    @property
    def has_narrow_values(self) -> bool:
        """Whether weights and values are e4m3."""
        return any(operand.is_narrow for operand in self.matrices)

    @property
    def is_wide(self) -> bool:
        """Whether one warpgroup has too few registers for the accumulators of one matrix."""
        return self.wide is not None and _exceeds_registers(self.wide)


@lru_cache(256)
def bind(kernel: Kernel) -> Binding | str:
    """The kernel's parts, or the reason why it has no such form. Memoised, because estimates and launches ask often."""
    try:
        return _bind(kernel)
    except NotPlannable as reason:
        return str(reason)


def _bind(kernel: Kernel) -> Binding:
    if objection := next(_objections(kernel), None):
        raise NotPlannable(objection)
    (loop,) = kernel.loops
    matcher = ProductMatcher(kernel.rows, loop.dim, *_inner_dims(kernel))
    steps = _steps(loop, matcher)
    if not all(step.products for step in steps):
        raise NotPlannable("a state of its loop takes in no product of rows and columns")
    if kernel.exact & {r for state in loop.accumulators for r in state.reductions}:
        raise NotPlannable("what multiplies the values must not be rounded to their type, and this form rounds it")
    if matcher.wide is not None and _exceeds_registers(matcher.wide):
        steps = _sharing_tiles(steps)
    loads = _loads_of(loop)
    diagonals = tuple(d for d in (_diagonal(node, kernel.rows, loop.dim) for node in loads) if d is not None)
    found = Binding(kernel, loop, steps, matcher.wide, matcher.overlays(loads), diagonals, matcher.entries(kernel))
    if objection := next(chain(_objections_to_pages(found), _objections_to_bytes(found)), None):
        raise NotPlannable(objection)
    return found


def _objections_to_pages(binding: Binding) -> Iterator[str]:
    """Reasons why tiles cannot be copied from the pages that they lie in.

    A tile of which nothing is kept must not be copied: its page may be anything.
    """
    loop = binding.loop
    if not binding.pages:
        return
    if outside := [page for page in binding.pages if page % LEAST_COPIED]:
        yield f"{LEAST_COPIED} columns, the fewest that are copied at once, are not in one page of {min(outside)}"
    if loop.map is not None or len(loop.ranges) != 1:
        yield "a list of tiles names some that no element keeps, whose pages may be anything"
    if loop.guard is not None and not loop.limits_only:
        yield "its guard may keep no element of a tile, whose page may be anything then"
    rows = binding.kernel.rows
    uppers = [limit for limit in loop.uppers if rows in limit.bound.dims and end_of_rows(limit, rows, loop.dim) is None]
    if reason := why_apart(uppers, loop.lowers, rows, loop.dim):
        yield f"{reason}, and a page that no row keeps may be anything"


def _objections_to_bytes(binding: Binding) -> Iterator[str]:
    """Reasons why its tiles of bytes have no product here: all scores have one kind of factors, and so have all values.

    Sums of products of e4m3 have few bits, and weights of e4m3 fewer: results in half precision do not show the former.
    """
    mixed = lambda operands: len({o.tensor.dtype if o.is_narrow else "half" for o in operands}) > 1
    if mixed(binding.row_operands) or mixed(binding.matrices):
        yield "of its scores, or of its values, some are products of bytes and some of half precision, or other bytes"
    if any(extent % PRODUCT_BYTES for extent in _narrow_extents(binding)):
        yield f"its products of bytes add up numbers of columns that are no multiples of {PRODUCT_BYTES}"
    if _shows_few_bits(binding):
        yield f"it stores float32, and products of e4m3 are added up with {NARROW_BITS} bits"
    if binding.is_wide and any(o.is_narrow for o in binding.streams):
        yield f"its matrices of bytes have more than {MAX_OWN_COLUMNS} columns"


def _shows_few_bits(binding: Binding) -> bool:
    """Whether sums of products of e4m3 become float32 results whose weights are no rougher."""
    stored = {store.output.dtype for store in binding.kernel.stores}
    rounded = any(p.rows.is_narrow and not p.is_whole for p in binding.products)
    return rounded and not binding.has_narrow_values and not stored <= {*HALVES}


def _narrow_extents(binding: Binding) -> list[int]:
    """How many columns products of bytes add up for scores, chunk by chunk."""
    narrow = [o for p in binding.products for o in (p.rows, p.columns) if p.rows.is_narrow]
    return [extent for o in narrow for _, extent in chunks(o.inner.size)]


def _is_place_in_page(node: Term) -> bool:
    """Whether a term is j % n for a coordinate j and a number n."""
    return node.op == "mod" and node.args[0].op == "iota" and node.args[1].op == "const"


def _loads_of(loop: Loop) -> list[Term]:
    """The loads of all states of a loop."""
    bodies = [body for a in loop.accumulators for body in (a.gauge, *a.values) if body is not None]
    return list(dict.fromkeys(n for body in bodies for n in subterms(body) if n.op == "load"))


def draws_numbers(kernel: Kernel) -> bool:
    """Whether the kernel computes random numbers."""
    return any(node.op == "uniform" for root in roots(kernel) for node in subterms(root))


def _objections(kernel: Kernel) -> Iterator[str]:
    """Reasons why the kernel has no such form, as far as its loops, tensors and stores say."""
    if len(kernel.loops) != 1:
        yield f"it has {len(kernel.loops)} loops; the form has one"
    if kernel.rows is None:
        yield "it has no rows"
    if kernel.columns:
        yield "its programs have tiles of columns; those of the form hold whole rows"
    if kernel.inputs and not any(t.dtype in MULTIPLIED for t in kernel.inputs):
        kinds = ", ".join(dict.fromkeys(t.dtype for t in kernel.inputs))
        yield f"its tensors are {kinds}; the form multiplies half precision and bytes"
    if draws_numbers(kernel):
        yield "it draws random numbers, which take registers that the form's warps lack"
    (loop,) = kernel.loops
    if kernel.written_by(loop):
        yield "its loop writes what other kernels read"
    if loop.outer:
        yield f"its loop runs again for each {' and '.join(map(str, loop.outer))}; that of the form runs once"
    if loop.guard is not None and reduces(loop.guard):
        yield "the guard of its loop holds a reduction"


def _inner_dims(kernel: Kernel) -> tuple[set[Dim], Dim | None]:
    """The dims that are summed inside a tile, and the value dim: the one dim of results that a tile holds whole."""
    stored = dict.fromkeys(d for store in kernel.stores for d in store.order)
    wide = [d for d in stored if d not in kernel.grid and d != kernel.rows]
    if len(wide) > 1:
        raise NotPlannable(f"more than one dim is held of what is stored: {', '.join(map(str, wide))}")
    return set(kernel.held) - set(stored), wide[0] if wide else None


def _diagonal(node: Term, rows: Dim, loop: Dim) -> Diagonal | None:
    """The load as a diagonal, None if it is none."""
    moving = [axis for axis, index in enumerate(node.args) if index.dims & {rows, loop}]
    if len(moving) != 1 or node.dtype not in (*HALVES, "float32"):
        return None
    coefficients, _ = affine(node.args[moving[0]])
    step = coefficients.pop(iota(loop), 0)
    if not step or coefficients.pop(iota(rows), 0) != -step or any(a.dims & {rows, loop} for a in coefficients):
        return None
    return Diagonal(node, moving[0], step)


class ProductMatcher:
    """Finds operands and products by their dims."""

    def __init__(
        self,
        rows: Dim,
        loop: Dim,
        inside: set[Dim],
        wide: Dim | None,
        most_columns: int = MAX_OPERAND_WIDTH,
        by_data: bool = True,
    ):
        """by_data: whether tiles of the loop may begin, and rows may lie, at places that are read from memory."""
        self.rows, self.loop, self.inside, self.wide = rows, loop, inside, wide
        self.most_columns, self.by_data = most_columns, by_data
        self.tile_dims = {rows, loop, *inside, *([wide] if wide else [])}

    def operand(self, node: Term, across: Dim, inner: Dim) -> Operand:
        """The load as a tile [across, inner]. Raises NotPlannable where no tensor map describes it."""
        tensor = node.attrs[0]
        axes = tuple(self._axis(tensor, index) for index in node.args)
        if len(axes) > 5:
            raise NotPlannable(f"{tensor.name} has more than five axes")
        if sorted(filter(None, axes)) != sorted((across, inner)):
            raise NotPlannable(f"{tensor.name} is not indexed once by each of {across} and {inner}")
        if inner != self.loop and (not isinstance(inner.size, int) or inner.size > self.most_columns):
            raise NotPlannable(f"dim {inner} of {tensor.name} is wider than {self.most_columns} or of unknown size")
        return Operand(node, across, inner, axes)

    def _axis(self, tensor: Tensor, index: Term) -> Dim | None:
        if index is self._place_in_registers:
            return self.loop
        coefficients, _ = affine(index)
        pages = [atom for atom in coefficients if self.by_data and self._is_one_number(atom)]
        moving = [atom for atom in coefficients if atom.dims & self.tile_dims and atom not in pages]
        if not moving:
            return None
        dim = self._coordinate_of(moving[0])
        if len(moving) > 1 or dim is None or coefficients[moving[0]] != 1 or any(map(reads_memory, pages)):
            raise NotPlannable(f"an index of {tensor.name} is no start plus a coordinate")
        return dim

    @cached_property
    def _place_in_registers(self) -> Term:
        return register_place(iota(self.loop))

    def _coordinate_of(self, atom: Term) -> Dim | None:
        """The dim whose coordinate an atom is, or its place in a page; None if it is neither."""
        (dim,) = atom.dims if len(atom.dims) == 1 else (None,)
        in_page = self.by_data and dim == self.loop and _is_place_in_page(atom)
        return dim if dim is not None and (in_page or atom is iota(dim)) else None

    def _is_one_number(self, atom: Term) -> bool:
        """Whether part of an index has the loop's coordinate j, but as j // n alone."""
        found = [*subterms(atom, is_block_number)]
        numbers = [n for n in found if is_block_number(n) and n.args[0] is iota(self.loop)]
        return atom.dims & self.tile_dims == {self.loop} and bool(numbers) and iota(self.loop) not in found

    def overlays(self, loads: list[Term]) -> tuple[Operand, ...]:
        """Floating loads over rows and loop that a tensor map describes; the others are read by pointers."""
        found = []
        for node in loads:
            if node.dims >= {self.rows, self.loop} and node.dtype in (*HALVES, "float32"):
                with suppress(NotPlannable):
                    found.append(self.operand(node, self.rows, self.loop))
        return tuple(operand for operand in found if not operand.pages)

    def entries(self, kernel: Kernel) -> tuple[Operand, ...]:
        """Half-precision loads over rows and the value dim, of what is stored, that a tensor map describes."""
        states = {r for loop in kernel.loops for state in loop.accumulators for r in state.reductions}
        nodes = [n for s in kernel.stores for n in subterms(s.term, states.__contains__) if n.op == "load"]
        found = []
        for node in dict.fromkeys(nodes):
            plain = all(not index.dims & self.tile_dims or index.op == "iota" for index in node.args)
            if self.wide is not None and node.dims >= {self.rows, self.wide} and node.dtype in HALVES and plain:
                with suppress(NotPlannable):
                    found.append(self.operand(node, self.rows, self.wide))
        return tuple(found)

    def product(self, node: Term) -> Product:
        """A sum within a tile as a matrix product of rows and columns."""
        monoid, inner = node.attrs
        loads = [as_stored(p) for p in signed_factors(node.args[0]) if p.op != "const"]
        if monoid != "sum" or len(loads) != 2 or any(x is None for x in loads):
            raise NotPlannable(f"the {monoid} over {inner} is not of two half-precision tensors as they are stored")
        sides = self._sides(loads)
        if sides is None:
            raise NotPlannable(f"the sum over {inner} does not multiply rows by columns")
        return Product(node, self._rows_of(sides[0], inner), self.operand(sides[1], self.loop, inner))

    def _rows_of(self, node: Term, inner: Dim) -> Operand:
        """The load as a tile of rows, which a tensor map describes, or pointers. Raises NotPlannable for neither."""
        try:
            return self.operand(node, self.rows, inner)
        except NotPlannable:
            columns = [index for index in node.args if inner in index.dims]
            if not self.by_data or node.dtype not in HALVES or not self._is_run(columns, inner):
                raise
            if not isinstance(inner.size, int) or inner.size > self.most_columns:
                raise
            return Operand(node, self.rows, inner, (self.rows, inner), gathered=True)

    @staticmethod
    def _is_run(indices: list[Term], inner: Dim) -> bool:
        """Whether one index alone has the dim, as a number of columns behind it, such as d + 512."""
        return len(indices) == 1 and simplify_index(indices[0] - iota(inner)).op == "const"

    def _sides(self, loads: list[Term]) -> tuple[Term, Term] | None:
        """Two loads as that of rows and that of columns, if they are of one type, or can be made so."""
        left = [x for x in loads if self.rows in x.dims and self.loop not in x.dims]
        right = [x for x in loads if self.loop in x.dims and self.rows not in x.dims]
        if len(left) != 1 or len(right) != 1:
            return None
        stored_before = BYTES if left[0].dtype in HALVES else ()
        return (left[0], right[0]) if right[0].dtype in (left[0].dtype, *stored_before) else None

    def value(self, body: Term) -> StateValue:
        """A state's value: at most one factor has the value dim, and that one is a stored matrix."""
        if body.dims & self.inside:
            raise NotPlannable(f"a state has dim {min(body.dims & self.inside)}, which is summed behind the loop")
        parts = signed_factors(body)
        broad = [p for p in parts if self.wide in p.dims]
        rest = tuple(p for p in parts if p not in broad and const_value(p, 0) != 1)
        if not broad:
            return StateValue(rest, None)
        matrix = as_stored(broad[0])
        if len(broad) > 1 or matrix is None or self.rows in matrix.dims:
            raise NotPlannable(
                "a value is not one half-precision tensor as it is stored, times factors without its dim"
            )
        return StateValue(rest, self.operand(matrix, self.loop, self.wide))


def _steps(loop: Loop, matcher: ProductMatcher) -> tuple[LoopStep, ...]:
    """States that share products share a step; the others follow one another."""
    groups: list[tuple[dict[Term, Product], list]] = []
    for state in loop.accumulators:
        values = _values(state, loop, matcher)
        needed = _products_of(state, values, matcher)
        meeting = [g for g in groups if g[0].keys() & needed.keys()] if needed else groups[:1]
        merged, states = dict(needed), [(state, values)]
        for products, others in reversed(meeting):
            merged, states = {**products, **merged}, [*others, *states]
        groups = [g for g in groups if g not in meeting] + [(merged, states)]
    return tuple(LoopStep(tuple(products.values()), tuple(states)) for products, states in groups)


def _exceeds_registers(wide: Dim) -> bool:
    """Whether a warpgroup has too few registers for 64 rows of so many columns."""
    return isinstance(wide.size, int) and wide.size > MAX_OWN_COLUMNS


def _sharing_tiles(steps: tuple[LoopStep, ...]) -> tuple[LoopStep, ...]:
    """The steps with the columns of a product as the matrix of values where both are one tile, which is copied once.

    Only for wide values: a tile is kept until its value products are done, which narrower kernels have measured
    settings without. Example: the latents of MLA are its keys and its values.
    """
    columns = [p.columns for step in steps for p in step.products]
    shared = lambda v: replace(v, matrix=next((c for c in columns if _is_one_tile(c, v.matrix)), v.matrix))
    of_state = lambda values: tuple(shared(v) if v.matrix else v for v in values)
    return tuple(replace(s, states=tuple((state, of_state(values)) for state, values in s.states)) for s in steps)


def _is_one_tile(one: Operand, other: Operand) -> bool:
    """Whether two operands of the loop read the same elements in the same places."""
    renamed = substitute(other.load, {iota(other.inner): iota(one.inner)})
    return one.inner.size == other.inner.size and renamed == one.load


def _values(state: Accumulator, loop: Loop, matcher: ProductMatcher) -> tuple[StateValue, ...]:
    """The values of a state. Raises NotPlannable for a monoid that has no place in the form."""
    values = tuple(matcher.value(v) for v in state.values)
    if state.monoid not in ("rescaled", "sum", "max"):
        raise NotPlannable(f"a {state.monoid} over {loop.dim} has no place in the form")
    if state.monoid == "max" and values[0].matrix is not None:
        raise NotPlannable(f"a maximum over {loop.dim} of a matrix")
    return values


def _products_of(state: Accumulator, values: tuple[StateValue, ...], matcher: ProductMatcher) -> dict[Term, Product]:
    """The score products that a state needs. Raises NotPlannable if a score depends on the value dim."""
    bodies = [state.gauge] if state.gauge is not None else []
    bodies += [f for v in values for f in v.factors]
    needed = {r: matcher.product(r) for body in bodies for r in reduces(body) if r.attrs[1] in matcher.inside}
    if any(matcher.wide in n.dims for body in bodies for n in subterms(body)):
        raise NotPlannable(f"a score depends on {matcher.wide}")
    return needed


def chunks(columns: Size) -> list[tuple[int, int]]:
    """(start, extent) of the tiles that cover columns: powers of two from 16 to 256, few, with little waste.

    Raises UnknownSize for a symbolic number of columns.
    """
    size = resolve(columns, {})
    padded = max(16, 1 << (size - 1).bit_length())
    found, start = [], 0
    while start < size:
        extent = min(MAX_OWN_COLUMNS, max(16, 1 << ((size - start).bit_length() - 1)))
        found.append((start, extent))
        start += extent
    return found if start + 16 < padded or padded > MAX_OWN_COLUMNS else [(0, padded)]


def sent(binding: Binding) -> tuple[Operand, ...]:
    """What is stored over rows and the value dim in half precision, as tiles that shared memory can send."""
    rows, wide, found = binding.kernel.rows, binding.wide, []
    for store in binding.kernel.stores:
        if wide in store.order and store.output.dtype in HALVES and len(store.order) <= 5:
            axes = tuple(d if d in (rows, wide) else None for d in store.order)
            found.append(Operand(load(store.output, *(iota(d) for d in store.order)), rows, wide, axes))
    return tuple(found)


def entered(binding: Binding, exits: tuple[Operand, ...], send: int) -> tuple[tuple[Operand, Operand], ...]:
    """Pairs of what is read along rows and value dim for a result, and that result, whose way out it can come in by."""
    if not binding.wide or any(extent > send for _, extent in chunks(binding.wide.size)):
        return ()
    stores = {s.output: s.term for s in binding.kernel.stores}
    found: dict = {}
    for exit in exits:
        mine = [e for e in binding.entries if e.load in set(subterms(stores[exit.tensor])) and e not in found]
        mine = [e for e in mine if e.tensor.dtype == exit.tensor.dtype and e.across_first == exit.across_first]
        found |= {entry: exit for entry in mine[:1]}
    return tuple(found.items())
