"""The integers by which a kernel's groups of warps loop and copy, at many sizes at once.

Where they are equal, two texts do the same with them. Example: a smaller bound that another one exceeds anyway changes
no integer at any size."""

import ast
from itertools import product
from typing import Any

import numpy as np

from onepass.proofs.kernels.interpreter import Interpreter
from onepass.proofs.texts.plain_form import plain_form

HEADS, BATCHES, ROWS = 3, 2, 128
INTEGER_CALLS = ("gl.maximum", "gl.minimum", "gl.cdiv", "gl.where", "quotient", "item_at")
Found = list[str]
Sizes = tuple[tuple[int, ...], tuple[int, ...]]


def of_items(text: str, rows: str, columns: str, sizes: Sizes) -> Found:
    """By function that has items, and by warpgroup: what it does with an item, where each integer of the item stands as
    its values at these sizes of rows and columns, for which the text is the same. Last, all that is no item."""
    names, count = items(rows, columns, sizes)
    found: Found = []
    tree = ast.parse(plain_form(text))
    for loop in loops_over_items(tree):
        found += [_of_group(loop.body, {**names, "W": group}, count) for group in range(2)]
        loop.body = [ast.Pass()]
    return [*found, ast.unparse(tree)]


def loops_over_items(tree: ast.Module) -> list[ast.For]:
    """The loops of functions that take items."""
    loops = [next((s for s in getattr(f, "body", ()) if isinstance(s, ast.For)), None) for f in tree.body]
    return [loop for loop in loops if loop is not None and "item_at" in ast.unparse(loop)]


def items(rows: str, columns: str, sizes: Sizes) -> tuple[dict, int]:
    """Names that have a value for every item at every size, and how many these are."""
    lanes = [(r, c, item) for r, c in product(*sizes) for item in range(BATCHES * HEADS * -(-r // ROWS))]
    table = np.array(lanes, np.int32).T
    blocks = -(-table[0] // ROWS)
    names = {rows: table[0], columns: table[1], "position": np.int32([0]), "h_size": np.int32([HEADS])}
    names |= {"h_multiplier": names["h_size"], f"{rows.removesuffix('_size')}_multiplier": blocks}
    names |= {"quotient": lambda item, divisor, shift: item // np.maximum(divisor, 1)}
    names |= {"item_at": lambda *given: table[2]}
    names |= dict.fromkeys(("i_shift", "j_shift", "h_shift", "items"), 0)
    return names, len(lanes)


def _of_group(body: list[ast.stmt], names: dict, count: int) -> str:
    interpreter = Interpreter("", count)
    interpreter.names = dict(names)
    end = next((n for n, s in enumerate(body) if not (isinstance(s, ast.Assign) and _is_integer(s))), len(body))
    for statement in body[:end]:
        list(interpreter._statement(ast.parse(ast.unparse(statement).replace("gl.", "tl.")).body[0]))
    rest = ast.parse(ast.unparse(body[end:]))
    assigned = {n.id for n in ast.walk(rest) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    known = {name for name, value in interpreter.names.items() if name not in assigned and not callable(value)}
    return ast.unparse(_Evaluated(interpreter, known, count).visit(rest))


def _is_integer(node: ast.AST) -> bool:
    return all(ast.unparse(n.func) in INTEGER_CALLS for n in ast.walk(node) if isinstance(n, ast.Call))


class _Evaluated(ast.NodeTransformer):
    """Each integer of an item that stands in the rest, as its values; loops without a round are left out."""

    def __init__(self, interpreter: Interpreter, known: set[str], count: int):
        self.interpreter, self.known, self.count = interpreter, known, count

    def value(self, node: ast.expr) -> np.ndarray | None:
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if not names - {"gl"} <= self.known or not names - {"gl"} or not _is_integer(node):
            return None
        tree: Any = ast.parse(ast.unparse(node).replace("gl.", "tl."), mode="eval")
        return np.broadcast_to(np.asarray(self.interpreter.value(tree.body)).astype(np.int64), self.count)

    def visit_For(self, node: ast.For) -> ast.AST:
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
            values = [self.value(a) if not isinstance(a, ast.Constant) else a.value for a in node.iter.args]
            if len(values) == 2 and all(v is not None for v in values) and np.all(values[1] <= values[0]):
                return ast.Pass()
        return self.generic_visit(node)

    def visit(self, node: ast.AST) -> ast.AST:
        loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if loaded and isinstance(node, ast.BinOp | ast.Compare | ast.Name) and (value := self.value(node)) is not None:
            return ast.Constant(hash(value.tobytes()))
        return super().visit(node)
