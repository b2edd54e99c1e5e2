"""Symbolic sizes, which are texts such as "s0", "4*s0" or "(s0 + 7)//8", as numbers and as terms.

A walk over the syntax tree reads a text; nothing is executed. The same walk gives a number if the symbols have values,
or a Term. Example: value_of("2*s0", {"s0": 5}) is 10.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add, and_, floordiv, mod, mul, neg, sub, truediv

from .ops import cast, const, le, make, sqrt
from .term import Term

Size = int | str


class UnknownSize(ValueError):
    """A size with a symbol that has no value, or with arithmetic that sizes do not have."""


_NUMBERS: dict[object, Callable] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
    ast.Pow: pow,
    ast.USub: neg,
    ast.Div: truediv,
    "FloorDiv": floordiv,
    "Mod": mod,
    "Max": max,
    "Min": min,
    "IntTrueDiv": truediv,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
    "ToFloat": float,
    "FloatTrueDiv": truediv,
    "FloatPow": pow,
    "PowByNatural": pow,
    "sqrt": math.sqrt,
    "log2": math.log2,
}


def _as_float(x: Term, dtype: str) -> Term:
    """x as a floating-point term. A literal stays weak; an integer term is cast to the dtype."""
    return const(float(x.attrs[0])) if x.op == "const" else cast(x, dtype) if x.dtype == "int64" else x


_TERMS: dict[object, Callable] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.USub: lambda a: -a,
    "Mod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "Max": lambda a, b: make("maximum", (a, b)),
    "Min": lambda a, b: make("minimum", (a, b)),
    ("FloorToInt", "IntTrueDiv"): lambda a, b: a // b,
    ("CeilToInt", "IntTrueDiv"): lambda a, b: -(-a // b),
    ("TruncToInt", "IntTrueDiv"): lambda a, b: make("where", (le(const(0), a), a // b, -(-a // b))),
}


def _walk(node, table, name: Callable, number: Callable):
    match node:
        case ast.Constant(value=int() | float() as value):
            return number(value)
        case ast.Name(id=symbol):
            return name(symbol)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in table:
            return table[type(op)](_walk(left, table, name, number), _walk(right, table, name, number))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in table:
            return table[type(op)](_walk(operand, table, name, number))
        case ast.Call(func=ast.Name(id=rounded), args=[ast.Call(func=ast.Name(id=function), args=operands)]) if (
            rounded,
            function,
        ) in table:
            return table[rounded, function](*(_walk(a, table, name, number) for a in operands))
        case ast.Call(func=ast.Name(id=function), args=operands, keywords=[]) if _known(function) in table:
            return table[_known(function)](*(_walk(a, table, name, number) for a in operands))
    raise UnknownSize(f"cannot read the size {ast.unparse(node)!r}")


def _known(function: str) -> str:
    """The name of a function in the tables; sympy has several for one meaning: PythonMod, OpaqueUnaryFn_sqrt, ..."""
    short = function.removeprefix("OpaqueUnaryFn_").removeprefix("Python")
    return {"CleanDiv": "FloorDiv", "_sym_sqrt": "sqrt"}.get(short, short)


def _parse(text: str):
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UnknownSize(f"cannot read the size {text!r}") from error


def symbols(text: Size) -> set[str]:
    """The free symbols of a size."""
    if isinstance(text, int):
        return set()
    tree = _parse(text)
    called = {n.func for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in called}


def resolve(size: Size, sizes: Mapping[str, int]) -> int:
    """The value of a size as an integer. Raises UnknownSize."""
    return size if isinstance(size, int) else int(value_of(size, sizes))


def value_of(text: Size | float, sizes: Mapping[str, int]) -> int | float:
    """The value of a size, from the values of its symbols. Raises UnknownSize: a symbol or the size has no value."""
    if not isinstance(text, str):
        return text
    if text in sizes:
        return sizes[text]

    def name(symbol):
        if symbol not in sizes:
            raise UnknownSize(f"the size {text!r} cannot be computed from {dict(sizes)}: {symbol!r} has no value")
        return sizes[symbol]

    try:
        return _walk(_parse(text), _NUMBERS, name, lambda v: v)
    except ArithmeticError as error:  # a division by a difference of lengths that are equal here
        raise UnknownSize(f"the size {text!r} has no value for {dict(sizes)}: {error}") from error


def term_of(text: Size | float, real: str = "float32") -> Term:
    """A size as a Term: a constant, or an expression over `size` atoms; quotients and roots have the dtype `real`."""
    if not isinstance(text, str):
        return const(text)
    quotient = lambda a, b: _as_float(a, real) / _as_float(b, real)
    whole = lambda n: n.op == "const" and n.attrs[0] in range(1, 9)
    float_power = lambda a, b: make("pow", (_as_float(a, real), _as_float(b, real)))
    power = lambda a, b: reduce(mul, [a] * b.attrs[0]) if whole(b) else float_power(a, b)
    table = _TERMS | {
        **dict.fromkeys((ast.Div, "FloatTrueDiv", "IntTrueDiv"), quotient),
        ast.Pow: power,
        "FloatPow": float_power,
        "ToFloat": lambda a: _as_float(a, real),
        "sqrt": lambda a: sqrt(_as_float(a, real)),
    }
    return _walk(_parse(text), table, lambda symbol: make("size", (), (symbol,)), const)


def product(factors: Iterable[Size]) -> tuple[int, tuple[str, ...]]:
    """A canonical key of a product of sizes: the integer factor, and the symbolic factors in order."""
    number, others = 1, []
    for size in factors:
        for part in [size] if isinstance(size, int) else _factors(_parse(size)):
            if isinstance(part, int):
                number *= part
            else:
                others.append(part)
    return number, tuple(sorted(others))


def of_whole_blocks(key: tuple[int, tuple[str, ...]]) -> tuple[int, tuple[str, ...]]:
    """The key of a product with n · (x // n) replaced by x: a view of x in blocks of n has all elements of x."""
    number, others = key
    found: list[Size] = []
    for text in others:
        match _parse(text):
            case ast.BinOp(left=whole, op=ast.FloorDiv(), right=ast.Constant(value=int(n))) if number % n == 0:
                number //= n
                found += _factors(whole)
            case _:
                found.append(text)
    return product([number, *found])


def _factors(node) -> list[Size]:
    match node:
        case ast.Constant(value=int(number)):
            return [number]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [-1, *_factors(operand)]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _factors(left) + _factors(right)
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(times))):
            return _factors(base) * times  # views that merge rows and columns give n**2
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return _factors_of_sum(list(map(product, _addends(node))))
    return [ast.unparse(node)]


def _addends(node) -> list[list[Size]]:
    """The factors of each addend of a sum."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = [-1] if isinstance(op, ast.Sub) else []
            return [*_addends(left), *([*sign, *addend] for addend in _addends(right))]
    return [_factors(node)]


def _factors_of_sum(addends: list[tuple[int, tuple[str, ...]]]) -> list[Size]:
    """What all addends have in common, then the rest: 8*s - 16 is 8 · (s - 2), the size of s - 2 blocks of 8."""
    number = math.gcd(*(times for times, _ in addends)) or 1
    common = reduce(and_, (Counter(names) for _, names in addends))
    rest = []
    for times, names in addends:
        others = [name if name.isidentifier() else f"({name})" for name in (Counter(names) - common).elements()]
        first = [str(times // number)] if times != number or not others else []
        rest.append("*".join([*first, *others]))
    return [number, *common.elements(), " + ".join(sorted(rest))]
