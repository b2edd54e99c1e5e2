"""A text without what changes nothing: names that nobody reads, and arithmetic of literals.

Two texts with the same plain form compute the same, at all sizes. So a mutant that only changes what is dead is no
mistake, and the check need not find it. Example: `n = 0 // 64` and `n = 0 % 64` are both `n = 0`, and neither stays
where nothing reads n.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

WITHOUT_EFFECT = ("gl.maximum", "gl.minimum", "gl.cdiv", "gl.where", "gl.arange")
FOLDED: dict[type, Callable] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.BitAnd: lambda a, b: a & b,
}
OF_LITERALS: dict[str, Callable] = {
    "gl.maximum": max,
    "gl.minimum": min,
    "gl.cdiv": lambda a, b: -(-a // b),
}


class _Folded(ast.NodeTransformer):
    """Arithmetic of literals done, and what needs no more than the last bit without signs. Divisors are positive in
    texts, so that rounding down is rounding to zero."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numbers, fold = _numbers(node.left, node.right), FOLDED.get(type(node.op))
        if numbers is not None and fold and not (isinstance(node.op, ast.FloorDiv | ast.Mod) and numbers[1] <= 0):
            return ast.Constant(fold(*numbers))
        match node:
            case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=1)):
                return ast.Constant(0)
            case ast.BinOp(op=ast.FloorDiv(), right=ast.Constant(value=1)):
                return node.left
            case ast.BinOp(op=ast.BitAnd(), right=ast.Constant(value=1)):
                return ast.BinOp(_last_bit(node.left), node.op, node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        fold = OF_LITERALS.get(ast.unparse(node.func))
        numbers = _numbers(*node.args) if fold and len(node.args) == 2 else None
        if ast.unparse(node.func) == "warpgroup_mma" and ast.unparse(node.args[2]).startswith("gl.zeros("):
            node.keywords = [k for k in node.keywords if k.arg != "use_acc"]  # the same with 0 added
        return node if numbers is None or fold is None else ast.Constant(fold(*numbers))


def _last_bit(node: ast.expr) -> ast.expr:
    """A sum with the same last bit: of sums and differences, whose signs and order do not matter."""
    parts, odd = [node], 0
    summands: list[ast.expr] = []
    while parts:
        part = parts.pop()
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub):
            parts += [part.left, part.right]
        elif (number := _numbers(part)) is not None:
            odd ^= number[0] & 1
        else:
            summands.append(part)
    summands = sorted(summands, key=ast.unparse) + [ast.Constant(1)] * odd or [ast.Constant(0)]
    found = summands[0]
    for summand in summands[1:]:
        found = ast.BinOp(found, ast.Add(), summand)
    return found


def _numbers(*nodes: ast.AST) -> list[int] | None:
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return found if len(found) == len(nodes) and min(found) >= 0 else None


def _does_nothing(value: ast.AST) -> bool:
    return all(ast.unparse(n.func) in WITHOUT_EFFECT for n in ast.walk(value) if isinstance(n, ast.Call))


def plain_form(text: str) -> str:
    """The plain form of a text."""
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            _make_plain(function)
    return ast.unparse(tree)


def _make_plain(function: ast.FunctionDef) -> None:
    _Folded().visit(function)
    function.body = _alive(function.body, set())[0] or [ast.Pass()]


def _alive(body: list[ast.stmt], after: set[str]) -> tuple[list[ast.stmt], set[str]]:
    """The statements that matter where the names `after` are read behind them, and what is read from there on."""
    kept: list[ast.stmt] = []
    for statement in reversed(body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in after or not _does_nothing(value):
                    kept.append(statement)
                    after = after - {name} | _read(value)
            case ast.For():
                inside, before = _alive(statement.body, after)
                while not before <= after:  # a round may read what the round before left
                    after = after | before
                    inside, before = _alive(statement.body, after)
                statement.body = inside or [ast.Pass()]
                kept.append(statement)
                after = after | _read(statement.iter)
            case ast.If():
                statement.body, one = _alive(statement.body, after)
                statement.orelse, other = _alive(statement.orelse, after)
                statement.body = statement.body or [ast.Pass()]
                kept.append(statement)
                after = one | other | _read(statement.test)
            case ast.Pass():
                pass
            case _:
                kept.append(statement)
                after = after | _read(statement)
    return kept[::-1], after


def _read(node: ast.AST) -> set[str]:
    # A name that is counted up is read, too.
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
