"""Which elements of each tile a kernel's groups of warps count, at many sizes at once.

A text says it at two places: the condition under which a tile is masked, and the mask. Example: a full tile that is
masked none the less counts the same elements, so both texts count the same.
"""

import ast
from typing import Any, NamedTuple

import numpy as np

from onepass.proofs.kernels.interpreter import Interpreter
from onepass.proofs.texts.check import FAULTS
from tests.proofs.texts.scalar_bounds import Sizes, items, loops_over_items

ABSENT = "float('-inf')"
MASKED = ("0.0", ABSENT)  # what stands for an element that does not count


class Visit(NamedTuple):
    """A tile of every item: which elements count, which exist, and which items have this tile."""

    counts: np.ndarray
    exists: np.ndarray
    running: np.ndarray


def of_tiles(text: str, rows: str, columns: str, sizes: Sizes) -> list[Visit]:
    """The visits of all tiles that have a mask, by both groups of warps."""
    names, count = items(rows, columns, sizes)
    found = []
    for loop in loops_over_items(ast.parse(text)):
        for group in range(2):
            masks = _Masks({**names, "W": group}, count)
            masks.run(loop.body, np.ones(count, bool), np.zeros(count, bool))
            found += masks.visits
    return found


def count_the_same(one: list[Visit], other: list[Visit]) -> bool:
    """Whether the same elements count of those that exist in the first one."""
    if len(one) != len(other):
        return False
    wanted = [(mine.exists & mine.running[:, None, None], mine, theirs) for mine, theirs in zip(one, other)]
    return all(np.array_equal(mine.counts & some, theirs.counts & some) for some, mine, theirs in wanted)


def mask_of(value: ast.expr) -> ast.expr | None:
    """The mask, if a value is a choice of what counts."""
    chosen = isinstance(value, ast.Call) and ast.unparse(value.func) == "gl.where"
    return value.args[0] if chosen and ast.unparse(value.args[2]) in MASKED else None


class _Masks:
    """Runs what depends on integers alone, for all items side by side."""

    def __init__(self, names: dict, count: int):
        self.visits: list[Visit] = []
        self.interpreter = Interpreter("", count)
        self.interpreter.names, self.count = names, count

    def value(self, node: ast.expr) -> Any:
        """The value for every item, or None if it depends on more than its integers."""
        text = ast.unparse(_WithoutLayouts().visit(ast.parse(ast.unparse(node)))).replace("gl.", "tl.")
        try:
            found = np.asarray(self.interpreter.value(ast.parse(text, mode="eval").body))
        except FAULTS:
            return None
        return found if found.dtype.kind in "bi" else None

    def assign(self, name: str, value: Any) -> None:
        self.interpreter.names.pop(name, None)
        if value is not None:
            self.interpreter.names[name] = value

    def run(self, body: list[ast.stmt], running: np.ndarray, unmasked: np.ndarray) -> None:
        """Runs statements. unmasked: the items whose tile is not masked here."""
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    mask = mask_of(value)
                    if mask is not None:
                        self.visit(mask, running, unmasked)
                    self.assign(name, self.value(value))
                case ast.AugAssign(target=ast.Name(id=name)):
                    self.assign(name, None)
                case ast.For(target=ast.Name(id=name), iter=ast.Call(args=[low, high])):
                    low, high = self.value(low), self.value(high)
                    for number in range(0 if high is None or low is None else int(np.max(high))):
                        self.assign(name, np.int32([number]))
                        self.run(statement.body, running & (low <= number) & (number < high), unmasked)
                case ast.If(test=test):
                    taken = self.value(test)
                    if taken is not None:
                        self.run(statement.body, running, unmasked | ~taken)

    def visit(self, mask: ast.expr, running: np.ndarray, unmasked: np.ndarray) -> None:
        counts = self.value(mask)
        if counts is None or counts.ndim != 3:
            return
        exists = np.ones(counts.shape[1:], bool)
        for part in _conditions(mask):
            if "_exists" in ast.unparse(part):
                exists = exists & self.value(part)
        shape = (self.count, *counts.shape[1:])
        self.visits.append(Visit(counts | unmasked[:, None, None], np.broadcast_to(exists, shape), running))


def _conditions(mask: ast.expr) -> list[ast.expr]:
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
        return _conditions(mask.left) + _conditions(mask.right)
    return [mask]


class _WithoutLayouts(ast.NodeTransformer):
    """A layout changes no value."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if k.arg != "layout"]
        return node
