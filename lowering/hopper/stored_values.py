"""Matrices of one byte, stored once more before the loop that multiplies them: as Hopper's products take them.

A product of bytes takes its second factor only along the summed dim, and weights of one byte only in the order of
registers. Where weights are to be e4m3, their values are stored so; other matrices in half precision. Invariant: the
results are those of the plan, up to the rounding of weights. Example: v[b, h, j, e] becomes `v_turned`[b, h, e, p],
where column j stands at place p = `register_place`(j).

Whether it pays depends on sizes. Those of symbols are given beside the plan, and the kernels stay those of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...egraph.terms.ops import cast, iota, load
from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import substitute, subterms
from ..analysis.exact_products import as_stored
from ..plan.dtypes import BYTES, E4M3, HALVES
from ..plan.kernel_edits import with_terms
from ..plan.records import Kernel, Plan, Store
from .kernel_form import Binding, Operand, bind
from .register_order import GROUP, column_at, register_place

Sizes = Mapping[str, int] | None

MIN_READS = 512  # rows that read each value: with fewer, to store the values again takes more time than it saves
WIDENED = "bfloat16"  # holds every number of a byte, as float16 does
# Columns that factors of int8 have at least, for products of bytes to pay. Measured on one H200 for 64 and 128 columns:
# they take 1.13 of the time of the same numbers in bfloat16, since whole numbers have to become floats.
MIN_COLUMNS_OF_WHOLE_NUMBERS = 256


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix that is stored again: the store, its load in place of the first one, and the dims of a tile of it."""

    store: Store
    before: Term
    after: Term
    rows: Dim
    inner: Dim

    @property
    def kernel(self) -> Kernel:
        """What stores it, tile by tile of the loop's columns."""
        grid = tuple(d for d in self.store.order if d not in (self.rows, self.inner))
        name, tile = f"storing_{self.store.output.name}", f"{self.rows.name}_tile"
        return Kernel(name, grid, self.rows, tile, (self.inner,), (), (self.store,), (self.before.attrs[0],))


def with_stored_values(plan: Plan, sizes: Sizes = None) -> Plan:
    """The plan in which kernels store each matrix of bytes as products take it; unchanged without one.

    sizes: of symbols. Where a size is not known, nothing is stored; without any, unknown sizes are taken to suit.
    """
    kernels: list[Kernel] = []
    for kernel in plan.kernels:
        kernels += _with_values(kernel, plan, kernels, sizes)
    return plan if tuple(kernels) == plan.kernels else replace(plan, kernels=tuple(kernels))


def needs_sizes(plan: Plan) -> bool:
    """Whether it depends on sizes of symbols what is stored: the launch gives them."""
    sizes = [size for tensor in plan.inputs for size in tensor.shape]
    return not plan.piece and any(t.dtype in BYTES for t in plan.inputs) and not all(isinstance(n, int) for n in sizes)


def bind_as_run(kernel: Kernel, weights: str = "half") -> Binding | str:
    """The parts of a kernel as it runs, behind those that store its matrices, at sizes that suit; or the reason why it
    has no such form."""
    if not any(tensor.dtype in BYTES for tensor in kernel.inputs):
        return bind(kernel)
    outputs = tuple(store.output for store in kernel.stores)
    found = bind(with_stored_values(Plan((kernel,), kernel.inputs, outputs, weights=weights)).kernels[-1])
    return why_unstored(found) if isinstance(found, Binding) and not found.is_stored else found


def why_unstored(binding: Binding, sizes: Sizes = None) -> str:
    """Why the matrices of a kernel are not stored as products take them."""
    narrow = [o for o in (*binding.widened, *binding.matrices) if o.is_narrow]
    few = any(not _is_read_enough(binding.kernel, o, sizes) for o in narrow)
    why = f"fewer than {MIN_READS} rows read them" if few else "they are read at computed places"
    return f"its matrices of bytes are not stored as products take them: {why}"


def _with_values(kernel: Kernel, plan: Plan, before: Sequence[Kernel], sizes: Sizes) -> Iterator[Kernel]:
    """The kernel behind those that store its matrices. before: kernels that run earlier, and may store the same."""
    binding = bind(kernel)
    wanted = {} if isinstance(binding, str) else _wanted(binding, plan.weights, sizes)
    fits = lambda o: _may_be_stored(o) and _is_read_enough(kernel, o, sizes)
    found = [_stored(o, kind) for o, kind in wanted.items() if fits(o)]
    if not found or any(_is_taken(one, plan, before) for one in found):
        yield kernel
        return
    read = {one.before: one.after for one in found}
    tensors = {one.before.attrs[0]: one.after.attrs[0] for one in found}
    changed = with_terms(kernel, lambda term: substitute(term, read | _images(term, read)))
    yield from (one.kernel for one in found if one.kernel not in before)
    yield replace(changed, inputs=tuple(dict.fromkeys(tensors.get(t, t) for t in kernel.inputs)))


def _images(term: Term, read: Mapping[Term, Term]) -> dict[Term, Term]:
    """The float images of loads in a term, as images of those that are read instead. Example: float32(int64(k[j]))."""
    found = ((node, as_stored(node)) for node in subterms(term) if node.op == "cast" and "float" in node.dtype)
    return {node: cast(read[source], node.dtype) for node, source in found if source in read}


def _is_taken(matrix: StoredMatrix, plan: Plan, before: Sequence[Kernel]) -> bool:
    """Whether another tensor has the name that the matrix would have."""
    others = [kernel for kernel in (*plan.kernels, *before) if kernel != matrix.kernel]
    tensors = [t for kernel in others for t in (*kernel.inputs, *(store.output for store in kernel.stores))]
    mine = matrix.store.output
    return any(t.name == mine.name for t in plan.inputs) or any(t.name == mine.name and t != mine for t in tensors)


def _wanted(binding: Binding, weights: str, sizes: Sizes) -> dict[Operand, str]:
    """Operands that are to be stored, and as which type: values and, where rows are halves, columns."""
    halves = [o.tensor.dtype for o in binding.row_operands if o.tensor.dtype in HALVES]
    half = halves[0] if halves else WIDENED
    groups = lambda o: _suits(lambda known: resolve(o.across.size, known) % GROUP == 0, sizes)
    turned = {o for o in binding.weighted if groups(o) and o.tensor.dtype == E4M3} if weights == "e4m3" else set()
    narrow = [o for o in binding.matrices if o.is_narrow and not o.in_register_order]
    kinds = {o: E4M3 if o in turned else half for o in narrow}
    kinds = kinds if turned.issuperset(kinds) else dict.fromkeys(kinds, half)
    return binding.widened | dict.fromkeys(_short_whole_factors(binding, sizes), half) | kinds


def _short_whole_factors(binding: Binding, sizes: Sizes) -> list[Operand]:
    """Factors of int8 whose products are faster in halves, where all of them can be stored."""
    factors = [o for p in binding.products if p.is_whole for o in (p.rows, p.columns)]
    short = all(resolve(o.inner.size, {}) < MIN_COLUMNS_OF_WHOLE_NUMBERS for o in factors)
    fits = all(_may_be_stored(o) and _is_read_enough(binding.kernel, o, sizes) for o in factors)
    return factors if short and fits else []


def _may_be_stored(operand: Operand) -> bool:
    """Whether the loop reads all places of the tensor's axis by its coordinate."""
    along, sizes = operand.axes.index(operand.across), operand.tensor.shape
    return operand.load.args[along] is iota(operand.across) and sizes[along] == operand.across.size


def _is_read_enough(kernel: Kernel, operand: Operand, sizes: Sizes) -> bool:
    """Whether so many rows read each element that storing it again pays."""
    dims = [*kernel.grid, *([kernel.rows] if kernel.rows is not None else [])]
    points = [operand.tensor.shape[n] for n, dim in enumerate(operand.axes) if dim is None]

    def reads(known: Mapping[str, int]) -> int:
        return prod(resolve(d.size, known) for d in dims) // max(1, prod(resolve(size, known) for size in points))

    return _suits(lambda known: reads(known) >= MIN_READS, sizes)


def _suits(holds: Callable[[Mapping[str, int]], bool], sizes: Sizes) -> bool:
    """Whether it holds at these sizes. A size that is not known suits if there are no sizes, and else does not."""
    try:
        return holds(sizes or {})
    except UnknownSize:
        return sizes is None


def _stored(operand: Operand, kind: str) -> StoredMatrix:
    """The matrix in half precision; of e4m3 with its columns last and in the order of registers."""
    tensor, across = operand.tensor, operand.axes.index(operand.across)
    dims = tuple(Dim(f"{'along' if n == across else 'axis'}{n}", size) for n, size in enumerate(tensor.shape))
    if kind == E4M3:
        order = (*(d for d in dims if d != dims[across]), dims[across])
        term = load(tensor, *(column_at(iota(d)) if d == dims[across] else iota(d) for d in dims))
        output = Tensor(f"{tensor.name}_turned", E4M3, tuple(d.size for d in order))
        others = [index for n, index in enumerate(operand.load.args) if n != across]
        after = load(output, *others, register_place(iota(operand.across)))
    else:
        order, term = dims, cast(load(tensor, *map(iota, dims)), kind)
        output = replace(tensor, name=f"{tensor.name}_{kind}", dtype=kind)
        after = load(output, *operand.load.args)
    rows, inner = dims[across], dims[operand.axes.index(operand.inner)]
    return StoredMatrix(Store(term, output, order), operand.load, after, rows, inner)
