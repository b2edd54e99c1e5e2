"""Straight-line programs over tiles: the terms of one scope in order, each computed once, temporaries freed or reused.

Invariant: only a value that this block made and that nobody reads later is overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from ...egraph.terms.ops import make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import factors, subterms
from ..analysis.product_terms import product, sides
from ..analysis.relative_index import RelativeProduct, relative_scores
from ..plan.dtypes import HALVES, adapting
from . import tile_ops
from .tile_ops import Frame

Pair = tuple[Dim, Dim] | None
# Their values may share memory with another's.
_BORROWED = ("load", "iota", "const", "size", "cast", "scale", "scaled", "unskew")


def scale_early(roots: tuple[Term, ...], stays: Callable[[Term], bool], moving: Dim | None) -> dict[Term, Term]:
    """Each root with (Σ_d x · y) · c as Σ_d (x · c) · y where x and c do not move with the loop: c is applied once."""
    uses = Counter(a for t in dict.fromkeys(t for root in roots for t in subterms(root)) for a in t.args)
    done: dict[Term, Term] = {}

    def visit(node: Term) -> Term:
        if node not in done:
            args = node.args if stays(node) else tuple(map(visit, node.args))
            done[node] = _scaled_early(node.op, args, uses, node, moving) or (
                node if args == node.args else make(node.op, args, node.attrs)
            )
        return done[node]

    return {root: visit(root) for root in roots}


def _scaled_early(op: str, args: tuple[Term, ...], uses: Counter, node: Term, moving: Dim | None) -> Term | None:
    if op not in ("mul", "div"):
        return None
    for k in (0, 1) if op == "mul" else (0,):
        total, factor, old = args[k], args[1 - k], node.args[k]
        if total.op == "reduce" and total.attrs[0] == "sum" and uses[old] == 1 and moving not in factor.dims:
            operands = sides(total.args[0], total.attrs[1])
            for n in (0, 1) if operands and moving in total.dims else ():
                if moving not in operands[n].dims and factor.dims <= operands[n].dims - {total.attrs[1]}:
                    early = make(op, (operands[n], factor))
                    return make("reduce", (make("mul", (early, operands[1 - n])),), total.attrs)
    return None


def over_differences(node: Term, pair: Pair) -> RelativeProduct | None:
    """A sum that is a product over differences of the pair, which are rows and a loop's dim."""
    if pair is None or node.op != "reduce" or node.attrs[0] != "sum":
        return None
    rows, loop = pair
    return relative_scores(factors(node.args[0]), rows, loop, node.attrs[1])


def as_stored(factor: Term) -> Term:
    """A factor of a product without a cast of halves to float32, which a product does anyway."""
    is_widened = factor.op == "cast" and factor.dtype == "float32" and factor.args[0].dtype in HALVES
    return factor.args[0] if is_widened else factor


class TileStep:
    """One operation: which terms it reads, and which of these it is the last to read. pair: rows and the loop's dim."""

    def __init__(self, node: Term, pair: Pair = None):
        self.node, self.kind, self.args, self.pair = node, node.op, node.args, pair
        self.across = over_differences(node, pair)
        if self.across:
            operands = (product(self.across.others), product(self.across.values))
            self.kind, self.args = "unskew", tuple(map(as_stored, operands))
        elif node.op == "reduce":
            operands = sides(node.args[0], node.attrs[1]) if node.attrs[0] == "sum" else None
            self.kind, self.args = ("contract", tuple(map(as_stored, operands))) if operands else ("fold", node.args)
        elif node.op == "load":
            self.general = [None if tile_ops.affine_index(a) else a for a in node.args]
            self.args = tuple(dict.fromkeys(a for a in self.general if a is not None))
        self.last: list[bool] = [False] * len(self.args)
        self.mine: list[bool] = [False] * len(self.args)
        adapts = adapting(self.args)
        self.adapts = adapts if any(adapts) else []  # of few steps, and each tile would ask

    def value(self, args: list, frame: Frame) -> tile_ops.TileValue:
        return frame.settled(self._computed(self._adapted(args) if self.adapts else args, frame), self.node)

    def _adapted(self, args: list) -> list:
        """The operands, those that adapt in float32: torch would compute with both in float64."""
        wide = [a and isinstance(x, torch.Tensor) and x.dim() > 0 for a, x in zip(self.adapts, args, strict=True)]
        return [x.float() if w and x.dtype == torch.float64 else x for x, w in zip(args, wide, strict=True)]

    def _computed(self, args: list, frame: Frame):
        node = self.node
        match self.kind:
            case "const":
                return torch.full((), node.attrs[0], device=frame.device, dtype=_CONSTANTS.get(type(node.attrs[0])))
            case "iota":
                return frame.coordinates(node.attrs[0])
            case "size":
                return torch.tensor(tile_ops.resolve(node.attrs[0], frame.sizes), device=frame.device)
            case "cast":
                return tile_ops.cast(args[0], node.attrs[0])
            case "load":
                values = dict(zip(self.args, args))
                return tile_ops.load(node, [values.get(a) for a in self.general], frame)
            case "uniform":
                return tile_ops.uniform(node, args, frame)
            case "contract":
                return tile_ops.contract(args[0], args[1], node.attrs[1], frame)
            case "unskew":
                rows, loop = self.pair
                (kept,) = self.args[0].dims & {rows, loop}
                made = tile_ops.contract(args[0], args[1], node.attrs[1], frame)
                return tile_ops.unskew(made, rows, loop, self.across.dim, kept, frame)
            case "fold":
                return tile_ops.fold(node.attrs[0], args[0], node.attrs[1], frame)
        return tile_ops.apply(self.kind, args, self.mine, frame.invariant)


_CONSTANTS = {
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
}  # of rank 0: torch lets them adapt, as weak ones must


class TileBlock:
    """Computes `roots`; terms for which `given` holds are not looked into but read from the environment. pair: rows and
    the loop's dim, where a product over their differences is one."""

    def __init__(self, roots: Iterable[Term], given: Callable[[Term], bool], pair: Pair = None):
        self.roots, self.pair = tuple(dict.fromkeys(roots)), pair
        self.steps: list[TileStep] = []
        self.inputs: dict[Term, None] = {}
        self._schedule(given)
        self._find_last_uses()

    def _schedule(self, given: Callable[[Term], bool]) -> None:
        seen: set[Term] = set()

        def visit(node: Term) -> None:
            if node in seen:
                return
            seen.add(node)
            if given(node):
                self.inputs[node] = None
                return
            step = TileStep(node, self.pair)
            for a in step.args:
                visit(a)
            self.steps.append(step)

        for root in self.roots:
            visit(root)

    def _find_last_uses(self) -> None:
        made = {step.node for step in self.steps if step.kind not in _BORROWED}
        made -= {a for step in self.steps if step.kind in _BORROWED for a in step.args}
        local = {step.node for step in self.steps}
        later = set(self.roots)
        for step in reversed(self.steps):
            for k, a in enumerate(step.args):
                step.last[k] = a in local and a not in later and a not in step.args[:k]
                step.mine[k] = step.last[k] and a in made and step.args.count(a) == 1
            later.update(step.args)
        self.owned = frozenset(made & set(self.roots))

    def run(self, environment: Mapping[Term, torch.Tensor], frame: Frame) -> dict[Term, torch.Tensor]:
        """The values of the roots."""
        values: dict[Term, torch.Tensor] = {}
        for step in self.steps:
            args = [values[a] if a in values else environment[a] for a in step.args]
            for a, last in zip(step.args, step.last):
                if last:
                    del values[a]
            values[step.node] = step.value(args, frame)
        return {root: values[root] if root in values else environment[root] for root in self.roots}
