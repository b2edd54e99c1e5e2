"""How each operation and each monoid is written in Triton: one row each, templates over the operands' texts.

Operands are given as atoms (names, calls, or parenthesised). Operations whose text depends on more than their operands
(load, iota, reduce, cast, ...) are written by tile_writer.py and listed here as STRUCTURAL, so that the table is total.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from keyword import kwlist
from math import frexp, inf, isfinite, ldexp, log2
from struct import pack, unpack

from ...egraph.terms.affine import bounds
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..analysis.value_bounds import positive, reads
from ..plan.dtypes import is_integer, literal
from ..plan.records import NotPlannable

STRUCTURAL = ("const", "iota", "load", "var", "size", "cast", "reduce", "scaled", "scale", "mantissa", "pow")
LEADING = 12  # bits of a float32's 24: so many of either factor make an exact product
TEMPLATES = {
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log1p": "log_of_one_plus({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "tanh": "hyperbolic_tangent({0})",
    "sigmoid": "logistic({0})",
    "erf": "tl.erf({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "abs": "tl.abs({0})",
    "floor": "tl.floor({0})",
    "finite": 'tl.abs({0}) < float("inf")',
    "not": "{0} == 0",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "where": "tl.where({0}, {1}, {2})",
}
INTEGER_TEMPLATES = {"floordiv": "floor_divide({0}, {1})", "mod": "floor_modulo({0}, {1})", "floor": "{0}"}
INTEGER_TEMPLATES |= {"maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})"}
BY_BITS = {  # by a power of two: two's complement makes these the floor of negative numbers too
    "floordiv": lambda x, n: f"{x} >> {n.bit_length() - 1}",
    "mod": lambda x, n: f"{x} & {n - 1}",
}
FLOAT_TEMPLATES = {"floordiv": "tl.floor({0} / {1})", "mod": "{0} - tl.floor({0} / {1}) * {1}"}
HELPERS = {  # small device functions that a kernel's text brings along when it calls them
    "exp2_in_parts": "return tl.exp2({x} * {y}) * tl.exp2({x} * {z})",
    "log_of_one_plus": "u = 1.0 + {x}\n    return tl.where(u == 1.0, {x}, tl.log(u) * ({x} / (u - 1.0)))",
    "hyperbolic_tangent": (
        "e = tl.exp(-2.0 * tl.abs({x}))\n    t = (1.0 - e) / (1.0 + e)\n    return tl.where({x} < 0, -t, t)"
    ),
    "coarse_tangent": (  # by one instruction; its relative error is up to 2^-11, a quarter of a bfloat16's rounding
        'return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [{x}], tl.float32, True, 1)'
    ),
    "logistic": "return 1.0 / (1.0 + tl.exp(-{x}))",  # tl.sigmoid, which Gluon lacks
    "floor_modulo": "r = {x} % {y}\n    return tl.where((r != 0) & ((r < 0) != ({y} < 0)), r + {y}, r)",
    "floor_divide": "r = {x} % {y}\n    return ({x} - r) // {y} - ((r != 0) & ((r < 0) != ({y} < 0))).to(tl.int32)",
    "larger": "return tl.maximum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)",
    "smaller": "return tl.minimum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)",
    "product": "return {x} * {y}",
    "power": (  # no & of both operands: of a number and a tile the interpreter does not know it
        "size = tl.where(tl.abs({x}) == 1, 1.0, tl.exp2(tl.log2(tl.abs({x})) * {y}))\n"
        "    half = {y} * 0.5\n"
        "    whole = tl.floor({y}) == {y}\n"
        "    odd = whole & (tl.floor(half) != half)\n"
        "    signed = tl.where({x} < 0, tl.where(whole, tl.where(odd, -size, size), float('nan')), size)\n"
        "    return tl.where({y} == 0, 1.0, tl.where({x} == 1, 1.0, signed))"
    ),
}


@dataclass(frozen=True)
class Value:
    """A Triton expression and its tile dims in the writer's order."""

    text: str
    dims: tuple[Dim, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True)
class Fold:
    """A monoid in Triton: its identity, how two values combine, and how one tile folds along an axis."""

    identity: object
    combine: str
    tile: str


FOLDS = {
    "sum": Fold(0.0, "{0} + {1}", "tl.sum({0}, axis={axis})"),
    "prod": Fold(1.0, "{0} * {1}", "tl.reduce({0}, {axis}, product)"),
    "max": Fold(-inf, TEMPLATES["maximum"], "tl.reduce({0}, {axis}, larger)"),
    "min": Fold(inf, TEMPLATES["minimum"], "tl.reduce({0}, {axis}, smaller)"),
    "any": Fold(False, "{0} | {1}", "(tl.max({0}.to(tl.int32), axis={axis}) != 0)"),
    "all": Fold(True, "{0} & {1}", "(tl.min({0}.to(tl.int32), axis={axis}) != 0)"),
}
TYPES = {"bool": "tl.int1", "float": "tl.float32"}
INTEGER_LIMITS = {-inf: -(2**31), inf: 2**31 - 1}


def helpers(text: str) -> str:
    """The definitions of the helper functions that the text calls."""
    used = [name for name in HELPERS if re.search(rf"\b{name}\b", text)]
    return "".join(_helper(name) for name in used)


def _helper(name: str) -> str:
    arguments = [x for x in "xyz" if f"{{{x}}}" in HELPERS[name]]
    body = HELPERS[name].format(**dict(zip(arguments, arguments)))
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n    {body}\n\n\n"


def type_name(dtype: str) -> str:
    return TYPES.get(dtype, f"tl.{dtype}")


def identity(monoid: str, dtype: str) -> str:
    """The absent element, in the type of what is folded."""
    value = FOLDS[monoid].identity
    if is_integer(dtype):
        value = INTEGER_LIMITS.get(value, value)
        return repr(int(value))
    return literal(value)


def operation(node: Term, texts: list[str], machine: str = "") -> str:
    """A pointwise operation over its operands' texts, each an atom."""
    if node.op == "pow":
        return _power(node, texts)
    if node.op == "tanh" and machine.startswith("sm_") and halves_below([node]) == {"bfloat16"}:
        return f"coarse_tangent({texts[0]})"
    template = TEMPLATES[node.op]
    if is_integer(node.dtype) and node.op in BY_BITS and _power_of_two(node.args[1]):
        return BY_BITS[node.op](texts[0], int(node.args[1].attrs[0]))
    if is_integer(node.dtype):
        plain = node.op in ("floordiv", "mod") and _never_negative(node)
        template = template if plain else INTEGER_TEMPLATES.get(node.op, template)
    elif node.op in FLOAT_TEMPLATES:
        template = FLOAT_TEMPLATES[node.op]
    return template.format(*texts)


def halves_below(parts: list[Term]) -> set[str]:
    """The half types of all floating loads under the factors; "float32" among them where one is not half."""
    loads = [n for p in parts for n in subterms(p) if n.op == "load"]
    return {n.dtype for n in loads if n.dtype not in ("bool",) and not n.dtype.startswith(("int", "uint"))}


def _power_of_two(node: Term) -> bool:
    return node.op == "const" and node.attrs[0] > 0 and int(node.attrs[0]).bit_count() == 1


def _never_negative(node: Term) -> bool:
    low, least = bounds(node.args[0])[0], bounds(node.args[1])[0]
    return low is not None and low >= 0 and least is not None and least >= 0


def _power(node: Term, texts: list[str]) -> str:
    """Small whole exponents as products; by a logarithm a constant fraction and what has no hostile base or exponent;
    the rest by a helper."""
    exponent = node.args[1].attrs[0] if node.args[1].op == "const" else None
    if exponent is not None and float(exponent).is_integer() and 0 < abs(exponent) <= 8:
        product = " * ".join([texts[0]] * int(abs(exponent)))
        return product if exponent > 0 else f"1.0 / ({product})"
    if is_integer(node.dtype):
        raise NotPlannable("an integer power with a varying or large exponent has no Triton form yet")
    if exponent == 0:
        return f"tl.where({texts[0]} == {texts[0]}, 1.0, 1.0)"
    fraction = exponent is not None and isfinite(exponent) and not float(exponent).is_integer()
    usual = exponent is None and positive(node.args[0]) and not reads(node.args[1])
    if usual and node.args[0].op == "const":
        return _power_of_literal(float(node.args[0].attrs[0]), node.dtype, texts[1])
    if fraction or usual:
        return f"tl.exp2(tl.log2({texts[0]}) * {texts[1]})"
    if exponent is not None:  # a tile, as the helper expects
        texts = [texts[0], f"tl.where({texts[0]} == {texts[0]}, {literal(exponent)}, {literal(exponent)})"]
    return f"power({', '.join(texts)})"


def _power_of_literal(base: float, dtype: str, exponent: str) -> str:
    """By the base's logarithm: in float32 its leading 12 bits, which a whole exponent multiplies exactly, and the rest.

    A device's own logarithm would be off by 2^-22, and the power by that times the exponent.
    """
    if dtype == "float64":
        return f"tl.exp2({exponent} * {log2(base)!r})"
    logarithm = log2(unpack("f", pack("f", base))[0])
    fraction, power = frexp(logarithm)
    leading = ldexp(round(ldexp(fraction, LEADING)), power - LEADING)
    return f"exp2_in_parts({exponent}, {leading!r}, {logarithm - leading!r})"


def is_atom(text: str) -> bool:
    """True for a name, a number, or one call or parenthesis: what can be indexed and multiplied as it stands."""
    if re.fullmatch(r"[\w.]+", text):
        return True
    if not re.match(r"[\w.]*\(", text) or not text.endswith(")"):
        return False
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter in ")]" and position < len(text) - 1:
            return False
    return True


def wrapped(text: str, width: int = 116, indent: int = 4, further: int = 4) -> str:
    """Code over lines that break at its blanks only: a name longer than a line stays whole."""
    starts = {"initial_indent": " " * indent, "subsequent_indent": " " * further}
    return textwrap.fill(text, width, **starts, break_long_words=False, break_on_hyphens=False)


def remarks(facts: Iterable[str]) -> str:
    """Lines of comments at the head of a kernel's text."""
    return "".join(textwrap.fill(x, 118, initial_indent="# ", subsequent_indent="#   ") + "\n" for x in facts)


def atom(text: str) -> str:
    return text if is_atom(text) else f"({text})"


class Names:
    """Python identifiers for things named by the plan, each given out once."""

    def __init__(self):
        self.taken = {"tl", "triton", *kwlist, *HELPERS}

    def fresh(self, hint: str) -> str:
        base = re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "x"
        base = f"_{base}" if base[0].isdigit() else base
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name
