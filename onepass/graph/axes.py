"""What the axes of a value are made of, followed from a product through views: batch axes, or rows and columns.

An axis is a sequence of parts in row-major order. Where an operation is not understood, nothing is known of its axes.
Example: scores (b, h, n, m) flattened to (b·h, n, m) have two parts in their first axis. From this a mixture is
recognized: a product that only sums over batch axes of what another product made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch
from torch import fx

from .nodes import expression, value_of_node
from .op_kinds import Trait, has_trait, kind_of, name_of, operation_named

AxisSize: TypeAlias = int | sympy.Expr
PERMUTATIONS = Trait.PERMUTES | Trait.MOVES_AXES | Trait.SWAPS_AXES | Trait.TRANSPOSES
MIN_PARTS_OF_A_PAIR = 2  # a row and a column
# Arguments of a convolution with which it takes one position at a time, in the order in which they follow a bias. Only
# aten.convolution has `transposed` and `output_padding`.
DEFAULT_WINDOW = {
    "stride": (1,),
    "padding": (0, "valid", "same"),
    "dilation": (1,),
    "transposed": (False,),
    "output_padding": (0,),
    "groups": (1,),
}


@dataclass(frozen=True)
class AxisPart:
    """A part of an axis. of_pair: only one operand of the product has it, as rows or columns; else it is of a batch."""

    size: AxisSize
    of_pair: bool


Axis = tuple[AxisPart, ...]
Axes = tuple[Axis, ...]
KnownAxes = Mapping[fx.Node, Axes | None]
Subscripts = tuple[str, str, str]  # of the left operand, the right one, and the result


@dataclass(frozen=True)
class Mixture:
    """The axes of a mixture's result, and the sizes that it sums over and adds."""

    axes: Axes
    sizes: tuple[int | torch.SymInt, ...]


# Axes of a result -----------------------------------------------------------------------------------------------------


def product_axes(node: fx.Node, pair_axes: Collection[int] = ()) -> Axes | None:
    """The axes of a product's result.

    pair_axes: positions of rows and columns, for a product that is made of pairs point by point.
    """
    subscripts, sizes = _subscripts(node), _sizes(node)
    if sizes is None:
        return None
    if subscripts is None:  # such as distances: the last two axes are rows and columns
        pair_axes = pair_axes or (len(sizes) - 2, len(sizes) - 1)
        return tuple((AxisPart(n, k in pair_axes),) for k, n in enumerate(sizes))
    left, right, result = subscripts
    return tuple((AxisPart(n, not (c in left and c in right)),) for n, c in zip(sizes, result, strict=True))


def axes_through(node: fx.Node, known: KnownAxes) -> Axes | None:
    """The axes of what a view, a pointwise operation or a reduction that keeps its axes makes."""
    sizes = _sizes(node)
    sources = [n for n in node.all_input_nodes if known.get(n) is not None]
    if sizes is None or not sources:
        return None
    axes = known[sources[0]]
    if has_trait(node, PERMUTATIONS):
        order = permutation(node, sources[0])
        return None if order is None else tuple(axes[k] for k in order)
    if has_trait(node, Trait.KEEPS_ORDER) or (name_of(node) == "getitem" and len(axes) != len(sizes)):
        return regroup(axes, sizes)
    if has_trait(node, Trait.EXPANDS):
        axes = ((),) * (len(sizes) - len(axes)) + axes
        return tuple(axis or _batch_axis(n) for n, axis in zip(sizes, axes, strict=True))
    return _pointwise_axes(sources, known, sizes)


def _pointwise_axes(sources: list[fx.Node], known: KnownAxes, sizes: Sequence[AxisSize]) -> Axes | None:
    """Those of the operand that has the result's shape; of several others, axis by axis."""
    alike = next((n for n in sources if _sizes(n) == sizes), None)
    if alike is None and len(sources) > 1:
        narrower = any(len(known[n]) > len(sizes) for n in sources)  # a loss of scores and targets
        return None if narrower else _broadcast_axes(sources, known, sizes)
    alike = alike or sources[0]
    return tuple(map(_resized, known[alike], _sizes(alike), sizes)) if len(known[alike]) == len(sizes) else None


def _broadcast_axes(sources: list[fx.Node], known: KnownAxes, sizes: Sequence[AxisSize]) -> Axes:
    """Each axis of a pair is that of the operand which has it."""
    missing = [len(sizes) - len(known[n]) for n in sources]
    rows: list[list[tuple[Axis, AxisSize]]] = [
        [((), 1)] * m + list(zip(known[n], _sizes(n), strict=True)) for n, m in zip(sources, missing, strict=True)
    ]
    return tuple(
        next((axis for axis, old in column if old == new and axis), None) or _resized(column[0][0], column[0][1], new)
        for column, new in zip(zip(*rows, strict=True), sizes, strict=True)
    )


def _resized(axis: Axis, old: AxisSize, new: AxisSize) -> Axis:
    """The axis of something joined, sliced, reduced or broadcast."""
    return axis if old == new else () if new == 1 else (AxisPart(new, any(a.of_pair for a in axis)),)


def regroup(axes: Axes, sizes: Sequence[AxisSize]) -> Axes | None:
    """The same parts in order, as axes of these sizes; a part that crosses the end of an axis is divided."""
    parts = [a for axis in axes for a in axis if a.size != 1]
    found: list[Axis] = []
    for rest in sizes:
        axis: list[AxisPart] = []
        while rest != 1:
            if not parts:
                return None
            first = parts.pop(0)
            inside, beyond = _quotient(rest, first.size), _quotient(first.size, rest)
            if inside is None and beyond is None:
                return None
            if inside is None:
                parts.insert(0, AxisPart(beyond, first.of_pair))
                first, inside = AxisPart(rest, first.of_pair), 1
            axis.append(first)
            rest = inside
        found.append(tuple(axis))
    return None if parts else tuple(found)


def _quotient(a: AxisSize, b: AxisSize) -> AxisSize | None:
    """a / b where it is an integer for all values of the symbols; None otherwise, also where b is zero."""
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return None if a % b else a // b
    found = sympy.cancel(sympy.sympify(a) / b)
    is_integer = found.is_polynomial() and found.is_integer
    return int(found) if found.is_Integer else found if is_integer else None


def _batch_axis(size: AxisSize) -> Axis:
    return () if size == 1 else (AxisPart(size, False),)


def _sizes(node: fx.Node) -> tuple[AxisSize, ...] | None:
    value = value_of_node(node)
    return tuple(map(expression, value.shape)) if isinstance(value, torch.Tensor) else None


# Mixtures -------------------------------------------------------------------------------------------------------------


def mixture_of_product(node: fx.Node, known: KnownAxes) -> Mixture | None:
    """A product that sums over batch axes alone of what another product made, and makes a new batch axis."""
    subscripts, operands = _subscripts(node), _operands(node)
    side = _only_known(operands, known)
    if subscripts is None or side is None:
        return None
    source, result = operands[side], subscripts[2]
    own = dict(zip(subscripts[side], known[source], strict=True))
    summed, new = _without(own, result), _without(result, own)
    kept = [own[c] for c in result if c in own]
    if not summed or not new or not _keeps_pairs([own[c] for c in summed], kept):
        return None
    axes = tuple(own.get(c) or _batch_axis(n) for c, n in zip(result, _sizes(node), strict=True))
    shapes = dict(zip(own, value_of_node(source).shape, strict=True))
    shapes |= dict(zip(result, value_of_node(node).shape, strict=True))
    return Mixture(axes, tuple(shapes[c] for c in (*summed, *new)))


def _without(letters: Iterable[str], others: Collection[str]) -> list[str]:
    return [c for c in letters if c not in others]


def _only_known(operands: Sequence[fx.Node], known: KnownAxes) -> int | None:
    """The position of the operand whose axes are known; None if there are several."""
    found = [k for k, n in enumerate(operands) if known.get(n) is not None]
    return found[0] if len(found) == 1 else None


def mixture_of_sum(node: fx.Node, known: KnownAxes) -> Mixture | None:
    """The same, where the elements are multiplied first and then summed over one batch axis."""
    source = node.all_input_nodes[0] if name_of(node) == "sum" else None
    axes, dims = known.get(source), reduced_dims(node)
    if axes is None or not all(isinstance(d, int) for d in dims):
        return None
    summed = {d % len(axes) for d in dims}
    rest = [axis for k, axis in enumerate(axes) if k not in summed]
    if not _keeps_pairs([axes[k] for k in summed], rest):
        return None
    kept = [() if k in summed else axis for k, axis in enumerate(axes)]
    sizes = tuple(value_of_node(source).shape[k] for k in sorted(summed))
    return Mixture(tuple(kept if len(_sizes(node)) == len(axes) else rest), sizes)


def _keeps_pairs(summed: Iterable[Axis], kept: Iterable[Axis]) -> bool:
    """Whether nothing of a row or column is summed over, and a row and a column are left."""
    parts = lambda axes: sum(part.of_pair for axis in axes for part in axis)
    return parts(summed) == 0 and parts(kept) >= MIN_PARTS_OF_A_PAIR


def reduced_dims(node: fx.Node, position: int = 1) -> list:
    """The dims that a reduction is given, by name or as the argument at a position; [None] if it is given none."""
    given = node.kwargs.get("dim", node.args[position] if len(node.args) > position else None)
    return _as_list(given)


# Products as subscripts -----------------------------------------------------------------------------------------------


def batch_sizes(node: fx.Node) -> list[int | torch.SymInt]:
    """The sizes that each operand of a product, or of torch's attention, has along axes of a batch, but for its first.

    None where no notation is known for the product.
    """
    subscripts, operands = _subscripts(node), _operands(node)
    if subscripts is None:
        return [n for x in operands for n in value_of_node(x).shape[1:-2]] if kind_of(node) == "attention" else []
    sides = zip(subscripts, operands, strict=False)
    letters = [(c, n) for side, x in sides for c, n in list(zip(side, value_of_node(x).shape, strict=True))[1:]]
    return [n for c, n in letters if all(c in side for side in subscripts)]


def _operands(node: fx.Node) -> list[fx.Node]:
    """What is multiplied: neither a bias, nor a scale of the result, nor what is added."""
    found = [n for n in node.all_input_nodes if _sizes(n) is not None]
    if has_trait(node, Trait.ADDS):
        return found[1:]
    return found[:2] if has_trait(node, Trait.TAKES_BIAS | Trait.QUANTISED) else found


def _subscripts(node: fx.Node) -> Subscripts | None:
    """A product of two tensors in the notation of einsum: ("bxy", "byz", "bxz") for bmm."""
    operands, sizes = _operands(node), _sizes(node)
    if len(operands) != 2 or sizes is None:
        return None
    rank, ranks = len(sizes), [len(_sizes(n)) for n in operands]
    if name_of(node) == "einsum":
        found = einsum_letters(node.args[0])
        return found if found is not None and len(found) == 3 else None
    if name_of(node) == "linear":
        first = node.args[0] if node.args else node.kwargs.get("input")
        return _linear_subscripts(rank) if ranks == [rank, 2] and operands[0] is first else None
    if is_pointwise_convolution(node):
        return _convolution_subscripts(rank, ranks[1])
    if has_trait(node, Trait.MATRIX_PRODUCT) and min(ranks) >= 2:
        return _matrix_subscripts(rank, ranks)
    return None


def einsum_letters(equation: object) -> tuple[str, ...] | None:
    """Those of each tensor, then those of the result.

    None where the equation has an ellipsis, names no result or has a letter twice in one tensor.
    """
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    operands, _, result = equation.replace(" ", "").partition("->")
    found = (*operands.split(","), result)
    return found if all(len({*part}) == len(part) for part in found) else None


def _linear_subscripts(rank: int) -> Subscripts:
    lead = _alphabet(rank - 1)
    return f"{lead}y", "zy", f"{lead}z"


def _convolution_subscripts(rank: int, kernel_rank: int) -> Subscripts:
    """Positions of the input are m, n, ...; those of the kernel, one each, are M, N, ..."""
    batch, positions = _alphabet(rank - kernel_rank + 1), "".join(chr(ord("m") + k) for k in range(kernel_rank - 2))
    return f"{batch}y{positions}", f"zy{positions.upper()}", f"{batch}z{positions}"


def _matrix_subscripts(rank: int, ranks: Sequence[int]) -> Subscripts:
    lead = _alphabet(rank - 2)
    left, right = (lead[len(lead) - r + 2 :] for r in ranks)
    return f"{left}xy", f"{right}yz", f"{lead}xz"


def _alphabet(count: int) -> str:
    return "".join(chr(ord("A") + k) for k in range(count))


def is_pointwise_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution that sums over channels alone, one position at a time."""
    if not has_trait(node, Trait.CONVOLUTION) or len(node.args) < 2:
        return False
    of_aten = name_of(node) == "convolution"
    names = [n for n in DEFAULT_WINDOW if of_aten or n not in ("transposed", "output_padding")]
    given = dict(zip(names, node.args[3:])) | {n: node.kwargs[n] for n in names if n in node.kwargs}
    kernel = value_of_node(node.args[1])
    return kernel is not None and set(kernel.shape[2:]) <= {1} and has_default_window(given)


def has_default_window(arguments: Mapping[str, object]) -> bool:
    """Whether a convolution has stride 1, no padding, no dilation and one group; other arguments are ignored."""
    each = lambda x: x if isinstance(x, tuple | list) else (x,)
    known = {name: each(arguments[name]) for name in DEFAULT_WINDOW if name in arguments}
    return all(value in DEFAULT_WINDOW[name] for name, values in known.items() for value in values)


# Permutations ---------------------------------------------------------------------------------------------------------


def permutation(node: fx.Node, source: fx.Node) -> list[int] | None:
    """Which axis of the source each axis of the result is."""
    rank = len(_sizes(source))
    given = [*node.args[1:], *node.kwargs.values()]
    if has_trait(node, Trait.MOVES_AXES):
        return _moved(rank, *map(_as_list, given))
    if has_trait(node, Trait.TRANSPOSES):
        attribute = given[0] if name_of(node) == "getattr" else name_of(node)
        of_any_rank = Trait.SWAPS_LAST_AXES in operation_named(attribute).traits
        return _swapped(rank, -2, -1) if rank == 2 or of_any_rank else None
    given = _as_list(given[0]) if len(given) == 1 else given
    if not all(isinstance(k, int) for k in given):
        return None
    if has_trait(node, Trait.PERMUTES):
        return [k % rank for k in given] if len(given) == rank else None
    return _swapped(rank, *given) if len(given) == 2 else None


def _as_list(given) -> list:
    return [*given] if isinstance(given, tuple | list) else [given]


def _moved(rank: int, sources: list, targets: list) -> list[int] | None:
    """The order of axes after some of them were moved to other positions."""
    if not all(isinstance(k, int) for k in (*sources, *targets)):
        return None
    moved = {t % rank: s % rank for s, t in zip(sources, targets, strict=True)}
    rest = iter(k for k in range(rank) if k not in moved.values())
    return [moved[k] if k in moved else next(rest) for k in range(rank)]


def _swapped(rank: int, a: int, b: int) -> list[int]:
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return order
