"""What the axes of a graph's values are made of, through views: the batch of a contraction, or a place in its result.

Invariant: an axis is a sequence of atoms in row-major order; where an operation is not understood, nothing is known.
Tells which contractions only mix what others made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import fx

from .nodes import expression, value_of_node
from .op_kinds import Trait, has_trait, name_of, operation_named

Size = int | sympy.Expr
PERMUTATIONS = Trait.PERMUTES | Trait.MOVES_AXES | Trait.SWAPS_AXES | Trait.TRANSPOSES
# Arguments of a convolution with which it takes one place at a time, in the order in which they follow a bias. Only
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
class Atom:
    """`place`: one operand of the contraction alone had it, as rows and columns; otherwise it is of a batch."""

    size: Size
    place: bool


Axes = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class Mixture:
    """The axes of what a mixture makes, and the sizes that it sums over and makes anew."""

    axes: Axes
    sizes: tuple[int | torch.SymInt, ...]


def made(node: fx.Node, places: Collection[int] = ()) -> Axes | None:
    """The axes of a contraction's result; places: those of what is made of pairs."""
    letters, sizes = _letters(node), _sizes(node)
    if letters is None:  # of distances, for one: the last two
        places = places or [k + len(sizes or ()) for k in (-2, -1)]
        return sizes and tuple((Atom(n, k in places),) for k, n in enumerate(sizes))
    left, right, result = letters
    return tuple((Atom(n, not (letter in left and letter in right)),) for n, letter in zip(sizes, result, strict=True))


def carried(node: fx.Node, known: dict[fx.Node, Axes | None]) -> Axes | None:
    """The axes of what a view, a pointwise operation or a reduction that keeps its axes makes."""
    sizes = _sizes(node)
    sources = [n for n in node.all_input_nodes if known.get(n) is not None]
    if sizes is None or not sources:
        return None
    axes = known[sources[0]]
    if has_trait(node, PERMUTATIONS):
        order = _order(node, sources[0])
        return None if order is None else tuple(axes[k] for k in order)
    if has_trait(node, Trait.KEEPS_ORDER) or (name_of(node) == "getitem" and len(axes) != len(sizes)):
        return regrouped(axes, sizes)
    if has_trait(node, Trait.EXPANDS):
        axes = ((),) * (len(sizes) - len(axes)) + axes
        return tuple(axis or _batch(n) for n, axis in zip(sizes, axes, strict=True))
    alike = next((n for n in sources if _sizes(n) == sizes), None)
    if alike is None and len(sources) > 1:
        return _joined(sources, known, sizes)
    alike = alike or sources[0]
    return tuple(map(_resized, known[alike], _sizes(alike), sizes)) if len(known[alike]) == len(sizes) else None


def _joined(sources: list[fx.Node], known: dict[fx.Node, Axes | None], sizes: Sequence[Size]) -> Axes:
    """The axes of pairs: each is that of the operand which has it."""
    missing = [len(sizes) - len(known[n]) for n in sources]
    rows = [[((), 1)] * m + list(zip(known[n], _sizes(n), strict=True)) for n, m in zip(sources, missing, strict=True)]
    return tuple(
        next((axis for axis, old in column if old == new and axis), None) or _resized(*column[0], new)
        for column, new in zip(zip(*rows, strict=True), sizes, strict=True)
    )


def _resized(axis: tuple[Atom, ...], old: Size, new: Size) -> tuple[Atom, ...]:
    """The axis of something joined, sliced, reduced or broadcast."""
    return axis if old == new else () if new == 1 else (Atom(new, any(a.place for a in axis)),)


def mixture(node: fx.Node, known: dict[fx.Node, Axes | None]) -> Mixture | None:
    """A sum over a batch alone of what comes from a contraction, whose result has all of its places."""
    letters, operands = _letters(node), _operands(node)
    if letters is None:
        return None
    sources = [known.get(n) for n in operands]
    if sum(axes is not None for axes in sources) != 1:
        return None
    side = 0 if sources[0] is not None else 1
    own, result = dict(zip(letters[side], sources[side], strict=True)), letters[2]
    summed = [letter for letter in own if letter not in result]
    places = [[a for letter in among for a in own[letter] if a.place] for among in (own, filter(own.get, result))]
    new = [letter for letter in result if letter not in own]
    if not summed or not new or any(a.place for letter in summed for a in own[letter]) or len(places[1]) < 2:
        return None
    axes = tuple(own[c] if own.get(c) else _batch(n) for c, n in zip(result, _sizes(node), strict=True))
    shapes = dict(zip(letters[side], value_of_node(operands[side]).shape, strict=True))
    shapes |= dict(zip(result, value_of_node(node).shape, strict=True))
    return Mixture(axes, tuple(shapes[letter] for letter in (*summed, *new)))


def folded(node: fx.Node, place: int = 1) -> list:
    """The dims that a fold is given, by name or as the argument in this place; [None] for none."""
    given = node.kwargs.get("dim", node.args[place] if len(node.args) > place else None)
    return [*given] if isinstance(given, tuple | list) else [given]


def totalled(node: fx.Node, known: dict[fx.Node, Axes | None]) -> Mixture | None:
    """The same, where the products are made first and summed over one axis."""
    source = node.all_input_nodes[0] if name_of(node) == "sum" else None
    axes, dims = known.get(source), folded(node)
    if axes is None or not all(isinstance(d, int) for d in dims):
        return None
    summed = {d % len(axes) for d in dims}
    rest = [axis for k, axis in enumerate(axes) if k not in summed]
    if any(a.place for k in summed for a in axes[k]) or sum(a.place for axis in rest for a in axis) < 2:
        return None
    kept = [() if k in summed else axis for k, axis in enumerate(axes)]
    sizes = tuple(value_of_node(source).shape[k] for k in sorted(summed))
    return Mixture(tuple(kept if len(_sizes(node)) == len(axes) else rest), sizes)


def regrouped(axes: Axes, sizes: Sequence[Size]) -> Axes | None:
    """The same atoms in order, as axes of these sizes; one that lies across a border is divided."""
    atoms = [a for axis in axes for a in axis if a.size != 1]
    found = []
    for rest in sizes:
        axis = []
        while rest != 1:
            if not atoms:
                return None
            first = atoms.pop(0)
            inside, beyond = _quotient(rest, first.size), _quotient(first.size, rest)
            if inside is None and beyond is None:
                return None
            if inside is None:
                atoms.insert(0, Atom(beyond, first.place))
                first, inside = Atom(rest, first.place), 1
            axis.append(first)
            rest = inside
        found.append(tuple(axis))
    return None if atoms else tuple(found)


def _quotient(a: Size, b: Size) -> Size | None:
    """a / b where that is whole for every value of the symbols; None where nothing is to be divided by."""
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return None if a % b else a // b
    found = sympy.cancel(sympy.sympify(a) / b)
    whole = found.is_polynomial() and found.is_integer
    return int(found) if found.is_Integer else found if whole else None


def _batch(size: Size) -> tuple[Atom, ...]:
    return () if size == 1 else (Atom(size, False),)


def _sizes(node: fx.Node) -> tuple[Size, ...] | None:
    value = value_of_node(node)
    return tuple(map(expression, value.shape)) if isinstance(value, torch.Tensor) else None


def _operands(node: fx.Node) -> list[fx.Node]:
    """What is multiplied: a layer's bias is left out."""
    found = [n for n in node.all_input_nodes if _sizes(n) is not None]
    if has_trait(node, Trait.ADDS):
        return found[1:]
    return found[:2] if has_trait(node, Trait.TAKES_BIAS) else found


def _letters(node: fx.Node) -> tuple[str, str, str] | None:
    """A contraction of two as subscripts of the operands and the result."""
    operands, name, own = _operands(node), name_of(node), _sizes(node)
    if len(operands) != 2 or own is None:
        return None
    if name == "einsum" and isinstance(node.args[0], str):
        subscripts, arrow, result = node.args[0].replace(" ", "").partition("->")
        parts = (*subscripts.split(","), result)
        known = arrow and "." not in node.args[0] and len(parts) == 3 and all(len({*p}) == len(p) for p in parts)
        return parts if known else None
    ranks = [len(_sizes(n)) for n in operands]
    if name == "linear":
        lead = _alphabet(len(own) - 1)
        return (f"{lead}y", "zy", f"{lead}z") if ranks == [len(own), 2] and operands[0] is node.args[0] else None
    if is_pointwise_convolution(node):
        batch, places = _alphabet(len(own) - ranks[1] + 1), [chr(ord("m") + k) for k in range(ranks[1] - 2)]
        one = "".join(places)
        return f"{batch}y{one}", f"zy{one.upper()}", f"{batch}z{one}"
    if not has_trait(node, Trait.MATRIX_PRODUCT) or min(ranks) < 2:
        return None
    lead = _alphabet(len(own) - 2)
    left, right = (lead[len(lead) - rank + 2 :] for rank in ranks)
    return f"{left}xy", f"{right}yz", f"{lead}xz"


def _alphabet(count: int) -> str:
    return "".join(chr(ord("A") + k) for k in range(count))


def _moved(rank: int, sources: list, targets: list) -> list[int] | None:
    """The order in which axes stand after some were moved to other places."""
    if not all(isinstance(k, int) for k in (*sources, *targets)):
        return None
    places = {t % rank: s % rank for s, t in zip(sources, targets, strict=True)}
    rest = iter(k for k in range(rank) if k not in places.values())
    return [places[k] if k in places else next(rest) for k in range(rank)]


def _order(node: fx.Node, source: fx.Node) -> list[int] | None:
    """Which axis of the source each axis of a permutation is."""
    rank, name = len(_sizes(source)), name_of(node)
    given = [*node.args[1:], *node.kwargs.values()]
    if has_trait(node, Trait.MOVES_AXES):
        return _moved(rank, *(list(g) if isinstance(g, tuple | list) else [g] for g in given))
    given = [*given[0]] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    if has_trait(node, Trait.TRANSPOSES):
        attribute = given[0] if name == "getattr" else name
        any_rank = Trait.SWAPS_LAST_AXES in operation_named(attribute).traits
        given = [-2, -1] if rank == 2 or any_rank else []
    if not all(isinstance(k, int) for k in given) or len(given) != (rank if name == "permute" else 2):
        return None
    order = [k % rank for k in given]
    if name == "permute":
        return order
    a, b = order
    return [b if k == a else a if k == b else k for k in range(rank)]


def is_pointwise_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution that sums over channels alone, one place at a time."""
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
