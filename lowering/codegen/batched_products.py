"""Products that make a tile of three dims: matrices for each place of a batch, and a matrix that mixes such tiles.

A held dim that rows and columns have beside them leads in every tile, so that a mixture over it is a product of two
matrices, the second with all rows and columns as its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import factors, subterms
from ..analysis.dim_roles import CONTRACTIBLE, is_contraction, sum_factors
from ..analysis.relative_index import folded, picked
from ..plan.dtypes import HALVES, is_integer
from ..plan.records import Kernel, NotPlannable
from .ops import Value

LEAST = 16  # of every dim of a product of matrices


def leading(kernel: Kernel, nodes) -> tuple[Dim, ...]:
    """The held dims of what is summed in a product for rows and columns at once."""
    columns = {*kernel.columns, *(loop.dim for loop in kernel.loops)}
    placed = {*kernel.grid, kernel.rows, *columns}
    products = [n for n in nodes if is_contraction(n) and n.attrs[1] not in columns]
    found = {d for n in products if kernel.rows in n.dims and columns & n.dims for d in n.dims - placed}
    return tuple(sorted(found))


def dims_of_matrices(kernel: Kernel, nodes) -> set[Dim]:
    """Dims of sums that can be products of two matrices in a tile; other dims may be as short there as they are."""
    found: set[Dim] = set()
    for dim, sides in _sums(kernel, nodes):
        if len(sides) == 2 and all(len(key) == 1 for key in sides):
            found |= {dim, *sides[0], *sides[1]}
    return found


def _sums(kernel: Kernel, nodes) -> Iterator[tuple[Dim, list[tuple[Dim, ...]]]]:
    """(the dim, the other dims of the factors that have it, by side) of every sum."""
    for dim, parts in _factored(kernel, nodes):
        free = _by_difference(kernel, dim, parts)
        apart = (p.dims - {dim, *kernel.grid} - free.get(p, set()) for p in parts if dim in p.dims)
        yield dim, [key for key in merged({tuple(sorted(dims)): [] for dims in apart}) if key]


def _factored(kernel: Kernel, nodes) -> list[tuple[Dim, list[Term]]]:
    """(the dim, the factors) of every sum; a gauge counts as one."""
    sums = [(n.attrs[1], sum_factors(n)) for n in nodes if n.op == "reduce"]
    for dim, state in ((loop.dim, state) for loop in kernel.loops for state in loop.accumulators):
        weight = [state.gauge] if state.gauge is not None else []
        sums += [(dim, [*weight, *factors(value)]) for value in state.values]
    return sums


def dims_over_differences(kernel: Kernel, nodes) -> set[Dim]:
    """Dims of sums in which only the difference of rows and columns picks a factor: of loops, weights are skewed."""
    sums = [n for n in nodes if n.op == "reduce" and n.attrs[0] in ("sum", "rescaled")]
    return {dim for dim, parts in _factored(kernel, sums) if _by_difference(kernel, dim, parts)}


def _by_difference(kernel: Kernel, dim: Dim, parts: Sequence[Term]) -> dict[Term, frozenset[Dim]]:
    """For factors of a sum that the difference of rows and columns picks, those of the two that other factors have."""
    rows, loops = kernel.rows, [loop.dim for loop in kernel.loops]
    if dim in loops:
        return dict.fromkeys(picked(parts, rows, dim), frozenset({rows}))
    found = next(filter(None, (folded(parts, rows, loop, dim) for loop in loops)), None)
    if found is None:
        return {}
    others = frozenset().union(*(p.dims for p in found.others)) & {rows, *loops}
    return {p: others for p in parts if p not in found.others}


def merged(groups: dict[tuple[Dim, ...], list]) -> dict[tuple[Dim, ...], list]:
    """Factors by their dims, those whose dims are some of one other's beside that one: it stays one matrix."""
    found: dict[tuple[Dim, ...], list] = {}
    for key, parts in groups.items():
        around = [k for k in groups if {*key} < {*k}]
        found.setdefault(around[0] if len(around) == 1 and key else key, []).extend(parts)
    return found


def has_cubes(kernel: Kernel, roots: Sequence[Term], placed: set[Dim]) -> bool:
    """Whether something but a product of matrices is computed for three dims of a tile at once, as a difference is, or
    a product with what rows and columns have beside the summed dim; `placed` dims have one place in a tile."""
    states = {r for loop in kernel.loops for state in loop.accumulators for r in state.reductions}  # made of the roots
    nodes = {n for root in roots for n in subterms(root, states.__contains__)}
    solid = (n.dims for n in nodes if kernel.rows in n.dims and (n.op not in CONTRACTIBLE or _is_whole(n)))
    sums = ({dim, *sides[0]}.union(*sides) for dim, sides in _sums(kernel, nodes) if any(len(key) > 1 for key in sides))
    return any(len(dims - placed) > 2 for dims in (*solid, *sums))


def _is_whole(node: Term) -> bool:
    """A product of integers, which no matrix unit makes."""
    return node.op == "mul" and is_integer(node.dtype)


def require_halves(kind: str) -> None:
    """Raises NotPlannable for types without a matrix unit: tiles of three dims would take too many registers."""
    if kind not in HALVES:
        raise NotPlannable(f"a product of {kind} with a batch inside of a tile is left to torch")


def batched(left: Value, right: Value, dim: Dim, batch: Dim, dims: tuple[Dim, ...], rest: str) -> Value | None:
    """Σ_dim left · right for each place of the batch; None if the result's dims do not have that order."""
    sides = [next(d for d in v.dims if d not in (dim, batch)) for v in (left, right)]
    if dims != (batch, *sides):
        return None
    texts = [_ordered(left, (batch, sides[0], dim)), _ordered(right, (batch, dim, sides[1]))]
    return Value(f"tl.dot({', '.join(texts)}{rest})", dims)


def mixed(writer, matrix: Value, tile: Value, dim: Dim, dims: tuple[Dim, ...], rest: str) -> Value | None:
    """Σ_dim matrix · tile, over the leading dim of a tile; None if it does not lead there, or not in the result.

    What is folded along columns next is multiplied from the right, with rows and columns as its rows.
    """
    (made,) = (d for d in matrix.dims if d != dim)
    if tile.dims[0] != dim or dims != (made, *tile.dims[1:]):
        return None
    parts = max(1, LEAST // min(int(writer.extent(d)) for d in (made, dim)))
    summed = str(int(writer.extent(dim)) * parts)
    rows, columns = map(writer.extent, tile.dims[1:])
    few = f"{columns} // {parts}" if parts > 1 else columns
    if _folds(writer.kernel):
        small = _diagonal(writer, matrix, (dim, made), parts)
        left = _reshaped(_in_parts(writer, tile, parts, (2, 3, 1, 0)), [f"{rows} * {few}", summed])
        text = _reshaped(f"tl.dot({left}, {small}{rest})", [rows, few, str(parts), writer.extent(made)])
        text = f"tl.trans({text}, 3, 0, 2, 1)"
    else:
        small = _diagonal(writer, matrix, (made, dim), parts)
        right = _reshaped(_in_parts(writer, tile, parts, (0, 1, 2, 3)), [summed, f"{rows} * {few}"])
        text = _reshaped(f"tl.dot({small}, {right}{rest})", [writer.extent(made), str(parts), rows, few])
        text = f"tl.trans({text}, 0, 2, 1, 3)"
    return Value(f"tl.reshape({text}, {writer.shape(dims)})", dims)


def _folds(kernel: Kernel) -> bool:
    return any(state.gauge is not None for loop in kernel.loops for state in loop.accumulators)


def _reshaped(text: str, shape) -> str:
    return f"tl.reshape({text}, [{', '.join(shape)}])"


def _in_parts(writer, tile: Value, parts: int, order: tuple[int, ...]) -> str:
    """The tile with its columns in parts: by (its first dim, part, row, column of a part), in the order asked for."""
    first, rows, columns = map(writer.extent, tile.dims)
    cut = _reshaped(tile.text, [first, rows, str(parts), f"{columns} // {parts}"])
    return f"tl.trans({cut}, {', '.join(str((0, 2, 1, 3)[k]) for k in order)})"


def _diagonal(writer, matrix: Value, dims: tuple[Dim, Dim], parts: int) -> str:
    """The matrix for each part of the columns, repeated along a diagonal, written before the loop.

    A product of matrices takes no fewer places of a dim. Parts of columns, as not a number then stays in its row.
    """
    text = _ordered(matrix, dims)
    if parts == 1:
        return text
    at, whole = f"tl.arange(0, {parts})", [int(writer.extent(d)) * parts for d in dims]
    same = f"({at}[:, None] == {at}[None, :])"
    order = ("[None, :, None, :]", "[:, None, :, None]")[:: -1 if _folds(writer.kernel) else 1]
    chosen = f"tl.where({same}{order[0]}, {text}{order[1]}, 0.0)"
    build = lambda: writer.assign("diagonal", Value(f"tl.reshape({chosen}, {whole})", matrix.dims, matrix.dtype))
    return writer.once(("diagonal", text), matrix.dims, build).text


def _ordered(value: Value, dims: tuple[Dim, ...]) -> str:
    order = tuple(value.dims.index(d) for d in dims)
    return value.text if order == tuple(range(len(dims))) else f"tl.trans({value.text}, {', '.join(map(str, order))})"


def held_dims(kernel: Kernel, nodes) -> list[Dim]:
    """Dims that are whole in a tile: the plan's, and any other that a reduction within a tile binds."""
    placed = {*kernel.grid, *kernel.tiled, *(loop.dim for loop in kernel.loops)}
    bound = {n.attrs[1] for n in nodes if n.op == "reduce"}
    return list(dict.fromkeys([*kernel.held, *sorted(bound - placed - set(kernel.held))]))
