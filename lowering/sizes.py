"""Symbolic sizes as numbers: "s0", "4*s0", "(s0 + 7)//8" are read by a small walk over Python's syntax tree, never run.

Every executor resolves the sizes of dims and tensors here, so that a plan runs for any sizes that satisfy it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from operator import add, floordiv, mod, mul, neg, sub, truediv

OPERATIONS: dict[type | str, Callable] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
    ast.Pow: pow,
    ast.USub: neg,
    "FloorDiv": floordiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": max,
    "Min": min,
    "IntTrueDiv": truediv,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
}


class UnknownSize(ValueError):
    """A size that mentions a symbol without a value, or arithmetic that sizes do not use."""


def resolve(size: int | str, sizes: Mapping[str, int]) -> int:
    """The number that a size stands for."""
    if isinstance(size, int):
        return size
    if size in sizes:
        return int(sizes[size])
    try:
        return int(_walk(ast.parse(size, mode="eval").body, sizes))
    except (KeyError, SyntaxError) as error:
        raise UnknownSize(f"the size {size!r} cannot be computed from {dict(sizes)}: {error!r}") from error


def _walk(node: ast.AST, sizes: Mapping[str, int]):
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATIONS[type(op)](_walk(left, sizes), _walk(right, sizes))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATIONS[type(op)](_walk(operand, sizes))
        case ast.Call(func=ast.Name(id=name), args=args):
            return OPERATIONS[name](*(_walk(a, sizes) for a in args))
    raise SyntaxError(ast.dump(node))
