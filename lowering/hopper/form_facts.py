"""What settings depend on of a bound kernel: widths, accumulators, and what stands between its products.

Nothing here asks what a kernel is for. Example: `accumulated(binding)` of attention is the columns of its values.
"""

from __future__ import annotations

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces, subterms
from ..analysis.data_indices import is_block_number
from ..analysis.product_terms import signed_factors
from ..plan.dtypes import HALVES
from ..plan.thresholds import MAX_COLUMNS_OF_TOTALS
from .config import HopperConfig
from .kernel_form import Binding, Diagonal, Operand, WarpBinding, chunks
from .score_offsets import Gauge, split


def accumulated(binding: Binding) -> int:
    """Columns of all accumulators together: 64 rows of 128 threads keep half as many registers a thread."""
    states = [pair for step in binding.steps for pair in step.states]
    own = [v.matrix for record, values in states for n, v in enumerate(values) if record.totals[n] == n]
    return sum(extent for operand in own if operand for _, extent in chunks(operand.inner.size))


def crowded(binding: Binding, diagonals: tuple[Diagonal, ...] = (), masked: bool = True) -> bool:
    """Whether the code between the products has coordinates or tensors over rows and loop: those take registers.

    So do numbers of columns that multiply scores, as a scale for each key. Sums of coordinates that a gauge adds are
    numbers of rows and columns, not of scores; diagonals are read by one address. masked: the guard counts, where
    limits of the loop do not say all of it.
    """
    loop, rows = binding.loop, binding.kernel.rows
    bodies = [f for step in binding.steps for _, values in step.states for v in values for f in v.factors]
    scores = [term for gauge, parts in gauges(binding) for term in _terms(gauge, parts)]
    tested = masked and loop.guard is not None and not all(r.exact for r in loop.ranges)
    if tested or any(_scaled_by_columns(score, loop.dim, rows) for score in scores):
        return True
    known = {diagonal.load for diagonal in diagonals}
    return any(_fills(body, loop.dim, {rows, loop.dim}, known) for body in (*bodies, *scores))


def gauges(binding: Binding) -> list[tuple[Term, Gauge | None]]:
    """Of every state that has one, and its parts where it has parts of its own for columns or rows."""
    found = [a.gauge for step in binding.steps for a, _ in step.states if a.gauge is not None]
    return [(gauge, split(gauge, binding.kernel.rows, binding.loop.dim)) for gauge in found]


def sloped(binding: Binding) -> bool:
    """Whether a gauge has sums of coordinates that are numbers of columns."""
    return any(parts is not None and parts.slopes for _, parts in gauges(binding))


def _fills(node: Term, dim: Dim, dims: set[Dim], known: set[Term]) -> bool:
    """Whether a term has a coordinate along the dim, or a load along all of these, that lies in no reduction."""
    if dim not in node.dims or node.op == "reduce" or node in known:
        return False
    if node.op in ("iota", "load"):
        return node.op == "iota" or dims <= node.dims
    return any(_fills(a, dim, dims, known) for a in node.args)


def _terms(gauge: Term, parts: Gauge | None) -> list[Term]:
    """The scores of a gauge, without numbers of rows and columns that it adds."""
    return [gauge] if parts is None else parts.terms


def _scaled_by_columns(score: Term, loop: Dim, rows: Dim | None) -> bool:
    """Whether a product is multiplied by what is read for each column, and is not one number for many of them."""
    factors = [f for f in signed_factors(score) if rows not in f.dims] if reduces(score) else []
    loads = [n for f in factors for n in subterms(f) if n.op == "load" and loop in n.dims]
    return any(not any(map(is_block_number, subterms(n))) for n in loads)


def may_emulate(binding: WarpBinding) -> bool:
    """Whether special functions may be off by a small part of a half's rounding: every result is rounded to a half."""
    stored = {s.output.dtype for s in binding.kernel.stores}
    return stored <= set(HALVES) and {o.tensor.dtype for o in (*binding.row_operands, *binding.streams)} <= set(HALVES)


def width(binding: Binding) -> int:
    """The widest operand's columns."""
    return max(sum(e for _, e in chunks(o.inner.size)) for o in (*binding.row_operands, *binding.streams))


def why_not_in_pieces(binding: Binding) -> str:
    """Why a loop in pieces has no such form; "" if it has: one product of scores, and one softmax that weighs one
    matrix, so that a tile's sums are those of plain Triton to the bit.
    """
    states = [pair for step in binding.steps for pair in step.states]
    if len(binding.products) != 1 or len(states) != 1 or len(binding.loop.ranges) != 1:
        return "it has several products, states or ranges"
    ((record, values),) = states
    apart = record.totals == tuple(range(len(values)))  # no value is added to the total of another one
    plain = record.gauge is not None and apart and not any(v.factors for v in values)
    if not plain or len(binding.matrices) != 1 or {o.tensor.dtype for o in binding.streams} - set(HALVES):
        return "its loop has more than weights of one matrix and their sum"
    wide = width(binding) > MAX_COLUMNS_OF_TOTALS
    return f"it has matrices of more than {MAX_COLUMNS_OF_TOTALS} columns" if wide else ""


def chains(binding: Binding, config: HopperConfig, overlays: tuple[Operand, ...]) -> bool:
    """Whether an item's first scores are issued with the last products of the item before it."""
    copied = not overlays and not any(operand.gathered for operand in binding.row_operands)
    return config.chained and config.row_buffers > 1 and len(binding.steps) == 1 and copied


def readers_of_columns(binding: Binding) -> tuple[list[list[Operand]], list[list[Operand]]]:
    """By step, the columns of score products that it is the first to read, and those that it is the last to read."""
    first: dict[Operand, int] = {}
    last: dict[Operand, int] = {}
    for n, step in enumerate(binding.steps):
        for product in step.products:
            first.setdefault(product.columns, n)
            last[product.columns] = n
    last = {operand: n for operand, n in last.items() if operand not in binding.matrices}
    steps = range(len(binding.steps))
    by_step = lambda readers: [[operand for operand, m in readers.items() if m == n] for n in steps]
    return by_step(first), by_step(last)
