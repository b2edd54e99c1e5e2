"""Operations and monoids as text: one row each, templates over the operands' texts, for every language of kernels.

Operands are atoms: names, calls or texts in parentheses. `{lang}` is the language's module, `tl` or `gl`.
Operations whose text needs more than the operands' texts (load, reduce, cast, ...) have rows in tile_writer.py.
Example: `exp(x)` becomes `tl.exp(x)`.
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
from ...egraph.terms.ops import LAST_PLACE
from ...egraph.terms.philox import BITS, KEY_STEPS, MULTIPLIERS, ROUNDS, UNIT
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..analysis.softmax_scaling import LOG2_E, MAX_MODERATE_SCORE, ExponentScaling
from ..analysis.value_bounds import positive, reads
from ..plan.dtypes import E4M3, HALVES, is_integer, literal
from ..plan.records import NotPlannable
from . import byte_conversions
from .dialect import Dialect

LEADING_BITS = 12  # of a float32's 24: the product of two factors with so many bits is exact
LARGEST_WRITTEN_EXPONENT = 8  # x^8 is written as a product of eight factors, x^9 as a call
LINE_WIDTH = 116
MAX_LAG = 8.0  # doublings: a lazy scale may lag behind the largest score, so weights stay below 2^8
REMARK_WIDTH = 118
TEMPLATES = {
    "neg": "-{0}",
    "exp": "{lang}.exp({0})",
    "exp2": "{lang}.exp2({0})",
    "log": "{lang}.log({0})",
    "log2": "{lang}.log2({0})",
    "log1p": "log_of_one_plus({0})",
    "sqrt": "{lang}.sqrt({0})",
    "rsqrt": "{lang}.rsqrt({0})",
    "tanh": "hyperbolic_tangent({0})",
    "sigmoid": "logistic({0})",
    "erf": "{lang}.erf({0})",
    "sin": "{lang}.sin({0})",
    "cos": "{lang}.cos({0})",
    "abs": "{lang}.abs({0})",
    "floor": "{lang}.floor({0})",
    "finite": '{lang}.abs({0}) < float("inf")',
    "order": "order_of({0})",
    "not": "{0} == 0",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "{lang}.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "{lang}.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "where": "{lang}.where({0}, {1}, {2})",
    "uniform": "uniform_at({0}, {1}, {2}, {3}, {4})",
}
INTEGER_TEMPLATES = {"floordiv": "floor_divide({0}, {1})", "mod": "floor_modulo({0}, {1})", "floor": "{0}"}
INTEGER_TEMPLATES |= {"maximum": "{lang}.maximum({0}, {1})", "minimum": "{lang}.minimum({0}, {1})"}
BY_POWER_OF_TWO = {  # in two's complement these give the floor of negative numbers too
    "floordiv": lambda x, n: f"{x} >> {n.bit_length() - 1}",
    "mod": lambda x, n: f"{x} & {n - 1}",
}
DOUBLE_TEMPLATES = {"rsqrt": "1.0 / {lang}.sqrt({0})"}  # Triton's own is a GPU's first guess, of float32's precision
FLOAT_TEMPLATES = {"floordiv": "{lang}.floor({0} / {1})", "mod": "{0} - {lang}.floor({0} / {1}) * {1}"}


def random_number() -> str:
    """The body of `uniform` (egraph/terms/philox.py): v is the seed, w the offset, x, y and z the place.

    Products and keys are in 64 bits, which no mode of a compiler checks for overflow; a GPU multiplies so in one step.
    The compiler computes the words once for the places of a thread that share them.
    """
    halved = "{lang}.cast((({0} >> 4) << 3) | ({0} & 7), {lang}.uint32)"
    lines = [
        f"word_0, word_1 = {halved.replace('{0}', '{z}')}, {halved.replace('{0}', '{y}')}",
        "word_2, word_3 = {lang}.cast({x}, {lang}.uint32), {lang}.cast({w}, {lang}.uint32)",
        f"for n in {{lang}}.static_range({ROUNDS}):",
        f"    one = {{lang}}.cast(word_0, {{lang}}.uint64) * {MULTIPLIERS[0]}",
        f"    two = {{lang}}.cast(word_2, {{lang}}.uint64) * {MULTIPLIERS[1]}",
        f"    key_0 = {{lang}}.cast({{v}} + n * {KEY_STEPS[0]}, {{lang}}.uint32)",
        f"    key_1 = {{lang}}.cast(({{v}} >> 32) + n * {KEY_STEPS[1]}, {{lang}}.uint32)",
        "    word_0 = {lang}.cast(two >> 32, {lang}.uint32) ^ word_1 ^ key_0",
        "    word_2 = {lang}.cast(one >> 32, {lang}.uint32) ^ word_3 ^ key_1",
        "    word_1, word_3 = {lang}.cast(two, {lang}.uint32), {lang}.cast(one, {lang}.uint32)",
        "first, second = {lang}.where(({z} & 8) == 0, word_0, word_1), {lang}.where(({z} & 8) == 0, word_2, word_3)",
        f"bits = {{lang}}.where(({{y}} & 8) == 0, first, second) >> {32 - BITS}",
        f"return {{lang}}.cast({{lang}}.cast(bits, {{lang}}.int32), {{lang}}.float32) * {UNIT!r}",
    ]
    return "\n    ".join(lines)


TRAP = "{{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.u32 $0, $1; }}"  # stops a kernel of NVIDIA's
HELPERS = {  # small device functions; a kernel's text defines those that it calls
    "exp2_in_parts": "return {lang}.exp2({x} * {y}) * {lang}.exp2({x} * {z})",
    "log_of_one_plus": "u = 1.0 + {x}\n    return {lang}.where(u == 1.0, {x}, {lang}.log(u) * ({x} / (u - 1.0)))",
    "hyperbolic_tangent": (
        "e = {lang}.exp(-2.0 * {lang}.abs({x}))\n    t = (1.0 - e) / (1.0 + e)\n    return {lang}.where({x} < 0, -t, t)"
    ),
    "coarse_tangent": (  # one instruction, with a relative error up to 2^-11: a quarter of a bfloat16's rounding
        'return {lang}.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [{x}], {lang}.float32, True, 1)'
    ),
    "logistic": "return 1.0 / (1.0 + {lang}.exp(-{x}))",  # Gluon has no function `sigmoid`
    "floor_modulo": "r = {x} % {y}\n    return {lang}.where((r != 0) & ((r < 0) != ({y} < 0)), r + {y}, r)",
    "floor_divide": "r = {x} % {y}\n    return ({x} - r) // {y} - ((r != 0) & ((r < 0) != ({y} < 0))).to({lang}.int32)",
    "order_of": (  # the sum makes -0 a 0; the bits of a negative number fall as it rises
        "bits = ({x} + 0.0).to({lang}.int32, bitcast=True)\n"
        f"    place = {{lang}}.where({{x}} == {{x}}, bits ^ ((bits >> 31) & {LAST_PLACE}), {LAST_PLACE})\n"
        "    return place.to({lang}.int64)"
    ),
    # Two numbers at a time, so that the sum's bits depend on no layout. Columns that a thread has come first.
    "sum_in_pairs": (
        "for _ in {lang}.static_range(20):\n"
        "        if {x}.shape[1] > 8:\n"
        "            {x} = {lang}.sum({lang}.reshape({x}, [{x}.shape[0], 2, {x}.shape[1] // 2]), 1)\n"
        "    {x} = {lang}.sum({lang}.reshape({x}, [{x}.shape[0], 2, 2, 2]), 3)\n"
        "    return {lang}.sum({lang}.sum({x}, 1), 1)"
    ),
    "uniform_at": random_number(),
    "larger": "return {lang}.maximum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)",
    "smaller": "return {lang}.minimum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)",
    "product": "return {x} * {y}",
    "rounded_to_e4m3": (  # torch gives NaN beyond its numbers, where a GPU would give the largest one
        "return {lang}.where({lang}.abs({x}) <= 464.0, {x}, float('nan')).to({lang}.float8e4nv)"
    ),
    "sum_of_bytes": f"return {{x}}.to({{lang}}.float32, bitcast=True) - {float(3 << 22)}",
    "power": (  # no `&` of x and y: the interpreter has none of a number and a tile
        "size = {lang}.where({lang}.abs({x}) == 1, 1.0, {lang}.exp2({lang}.log2({lang}.abs({x})) * {y}))\n"
        "    half = {y} * 0.5\n"
        "    whole = {lang}.floor({y}) == {y}\n"
        "    odd = whole & ({lang}.floor(half) != half)\n"
        "    signed = {lang}.where({x} < 0, {lang}.where(whole, {lang}.where(odd, -size, size), float('nan')), size)\n"
        "    return {lang}.where({y} == 0, 1.0, {lang}.where({x} == 1, 1.0, signed))"
    ),
    "stop_where": (  # a function that is called, as an assertion's is, would make matrix products wait for each other
        "return {lang}.inline_asm_elementwise("
        f'"{TRAP}", "=r,r", [{{lang}}.where({{x}}, 1, 0)], {{lang}}.int32, False, 1)'
    ),
    **byte_conversions.HELPERS,
}


@dataclass(frozen=True)
class TileValue:
    """An expression of a kernel's text and its tile dims, in the writer's order. Without dims it is a scalar."""

    text: str
    dims: tuple[Dim, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True)
class Fold:
    """A monoid as text: its identity, how two values combine, and how a tile folds along an axis."""

    identity: float | bool
    combine: str
    tile: str


FOLDS = {
    "sum": Fold(0.0, "{0} + {1}", "{lang}.sum({0}, axis={axis})"),
    "prod": Fold(1.0, "{0} * {1}", "{lang}.reduce({0}, {axis}, product)"),
    "max": Fold(-inf, TEMPLATES["maximum"], "{lang}.reduce({0}, {axis}, larger)"),
    "min": Fold(inf, TEMPLATES["minimum"], "{lang}.reduce({0}, {axis}, smaller)"),
    "any": Fold(False, "{0} | {1}", "({lang}.max({0}.to({lang}.int32), axis={axis}) != 0)"),
    "all": Fold(True, "{0} & {1}", "({lang}.min({0}.to({lang}.int32), axis={axis}) != 0)"),
}
INTEGER_LIMITS = {-inf: -(2**31), inf: 2**31 - 1}
WIDE_LIMITS = {-inf: -(2**63), inf: 2**63 - 1}


def helpers(text: str, dialect: Dialect) -> str:
    """The definitions of the helper functions that the text calls."""
    words = {*re.findall(r"\w+", text)}
    used = [name for name in HELPERS if name in words]
    return "".join(_helper(name, dialect) for name in used)


def _helper(name: str, dialect: Dialect) -> str:
    parameters = [x for x in "vwxyz" if f"{{{x}}}" in HELPERS[name]]
    body = dialect.fill(HELPERS[name], **{x: x for x in parameters})
    return f"@{dialect.jit}\ndef {name}({', '.join(parameters)}):\n    {body}\n\n\n"


def rounded_to_bytes(value: TileValue, kind: str, dialect: Dialect) -> TileValue:
    """A tile rounded to eight-bit floats. Raises NotPlannable for those beyond whose numbers are infinities: a GPU
    rounds to none."""
    if kind != E4M3 or not value.dims:
        raise NotPlannable(f"a rounding to {kind} has no text of its own")
    single = value.text if value.dtype == "float32" else f"{atom(value.text)}.to({dialect.type_name('float32')})"
    return TileValue(f"rounded_to_e4m3({single})", value.dims, kind)


def identity(monoid: str, dtype: str) -> str:
    """The monoid's identity as a literal. A fold takes it for absent elements."""
    value = FOLDS[monoid].identity
    if is_integer(dtype):
        value = (WIDE_LIMITS if dtype == "int64" else INTEGER_LIMITS).get(value, value)
        return repr(int(value))
    return literal(value)


def operation(node: Term, texts: list[str], dialect: Dialect, machine: str = "") -> str:
    """A pointwise operation over its operands' texts, each an atom. machine: the architecture, "sm_90" for example."""
    if node.op in SPECIAL_FORMS:
        return SPECIAL_FORMS[node.op](node, texts, dialect)
    if node.op == "tanh" and machine.startswith("sm_") and floating_loads_below([node]) == {"bfloat16"}:
        return f"coarse_tangent({texts[0]})"
    if is_integer(node.dtype) and node.op in BY_POWER_OF_TWO and _is_power_of_two(node.args[1]):
        return BY_POWER_OF_TWO[node.op](texts[0], int(node.args[1].attrs[0]))
    return dialect.fill(_template(node), *texts)


def _template(node: Term) -> str:
    plain = TEMPLATES[node.op]
    if node.dtype == "float64":
        plain = DOUBLE_TEMPLATES.get(node.op, plain)
    if not is_integer(node.dtype):
        return FLOAT_TEMPLATES.get(node.op, plain)
    return plain if node.op in ("floordiv", "mod") and _never_negative(node) else INTEGER_TEMPLATES.get(node.op, plain)


def floating_loads_below(terms: Iterable[Term]) -> set[str]:
    """The dtypes of all floating loads in the terms, and the half types that integers become."""
    nodes = [n for term in terms for n in subterms(term)]
    loads = {n.dtype for n in nodes if n.op == "load" and n.dtype != "bool" and not is_integer(n.dtype)}
    return loads | {n.dtype for n in nodes if n.op == "cast" and n.dtype in HALVES and is_integer(n.args[0].dtype)}


def _is_power_of_two(node: Term) -> bool:
    return node.op == "const" and node.attrs[0] > 0 and int(node.attrs[0]).bit_count() == 1


def _never_negative(node: Term) -> bool:
    lows = [bounds(operand)[0] for operand in node.args]
    return all(low is not None and low >= 0 for low in lows)


# Powers


def _power(node: Term, texts: list[str], dialect: Dialect) -> str:
    """Small whole exponents as products, others by a logarithm, and by a helper what a logarithm cannot do."""
    exponent = node.args[1].attrs[0] if node.args[1].op == "const" else None
    form = _varying_power if exponent is None else _constant_power
    return form(node, texts, dialect)


def _constant_power(node: Term, texts: list[str], dialect: Dialect) -> str:
    base, exponent = texts[0], node.args[1].attrs[0]
    is_whole = float(exponent).is_integer()
    if is_whole and 0 < abs(exponent) <= LARGEST_WRITTEN_EXPONENT:
        product = " * ".join([base] * int(abs(exponent)))
        return product if exponent > 0 else f"1.0 / ({product})"
    _refuse_integer_power(node)
    same = f"{base} == {base}"
    if exponent == 0:
        return dialect.call("where", same, 1.0, 1.0)
    if isfinite(exponent) and not is_whole:
        return _power_by_logarithm(texts, dialect)
    tile = dialect.call("where", same, literal(exponent), literal(exponent))  # the helper takes no number
    return f"power({base}, {tile})"


def _varying_power(node: Term, texts: list[str], dialect: Dialect) -> str:
    """By a logarithm where the base is positive and the exponent is not read from memory, where it may be infinite."""
    _refuse_integer_power(node)
    base, exponent = node.args
    if not positive(base) or reads(exponent):
        return f"power({', '.join(texts)})"
    if base.op == "const":
        return _power_of_literal(float(base.attrs[0]), node.dtype, texts[1], dialect)
    return _power_by_logarithm(texts, dialect)


def _refuse_integer_power(node: Term) -> None:
    if is_integer(node.dtype):
        raise NotPlannable("an integer power with a varying or large exponent has no Triton form yet")


def _power_by_logarithm(texts: list[str], dialect: Dialect) -> str:
    return dialect.call("exp2", f"{dialect.call('log2', texts[0])} * {texts[1]}")


def _power_of_literal(base: float, dtype: str, exponent: str, dialect: Dialect) -> str:
    """Splits the base's logarithm in two: its leading bits, which a whole exponent multiplies exactly, and the rest.

    A device's own logarithm would be off by 2^-22. The power would be off by that times the exponent.
    """
    if dtype == "float64":
        return dialect.call("exp2", f"{exponent} * {log2(base)!r}")
    logarithm = log2(unpack("f", pack("f", base))[0])
    fraction, power = frexp(logarithm)
    leading = ldexp(round(ldexp(fraction, LEADING_BITS)), power - LEADING_BITS)
    return f"exp2_in_parts({exponent}, {leading!r}, {logarithm - leading!r})"


SPECIAL_FORMS = {"pow": _power}  # operations whose text depends on what their operands are

# Texts


def is_atom(text: str) -> bool:
    """True for a name, a number, a call or a text in parentheses: it can be indexed and multiplied as it is."""
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


def atom(text: str) -> str:
    """The text, in parentheses if it is no atom."""
    return text if is_atom(text) else f"({text})"


def wrapped(text: str, width: int = LINE_WIDTH, indent: int = 4, further: int = 4) -> str:
    """Code over several lines, broken at blanks only: a name longer than a line stays whole."""
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def remarks(facts: Iterable[str]) -> str:
    """The facts as comment lines."""
    fill = textwrap.TextWrapper(REMARK_WIDTH, initial_indent="# ", subsequent_indent="#   ").fill
    return "".join(f"{fill(fact)}\n" for fact in facts)


class Names:
    """Python identifiers for things named by the plan. Each is given out once."""

    def __init__(self) -> None:
        self.taken = {"tl", "triton", *kwlist, *HELPERS}

    def fresh(self, hint: str) -> str:
        """The hint, or the hint with a number: `score`, `score_2`, ..."""
        base = re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "x"
        base = f"_{base}" if base[0].isdigit() else base
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name


# Exponents of weights, in base 2. A weight is exp2(exponent) of a score and a shift, the largest score so far. Scales
# are kept in base 2, or, where they must be exact or are those of pieces, in the scores' own unit.


def factor_text(scaling: ExponentScaling) -> str:
    """The number that makes a raw score an exponent."""
    return literal(scaling.natural * scaling.within)


def scale_text(scaling: ExponentScaling, top: str) -> str:
    """The scale of the largest raw score."""
    if scaling.in_pieces:
        return top if scaling.natural == 1.0 else f"{top} * {literal(scaling.natural)}"
    return top if scaling.apart else f"{top} * {factor_text(scaling)}"


def exponent_text(scaling: ExponentScaling, score: str, shift: str, dialect: Dialect) -> str:
    """The exponent of a raw score, from a shift in the unit of scales.

    In pieces, all kernels of a plan round it once, whatever a compiler contracts: their bits are the same then.
    """
    if scaling.apart:
        return f"({score} - {shift}) * {factor_text(scaling)}"
    if scaling.in_pieces:
        near, level = _subtracted(scaling, score, shift, dialect)
        return dialect.call("fma", near, factor_text(scaling), f"-({level})")
    return f"{score} * {factor_text(scaling)} - {shift}"


def decay_text(scaling: ExponentScaling, before: str, shift: str, dialect: Dialect) -> str:
    """The exponent of the factor that takes sums from an earlier scale to a later one."""
    if scaling.in_pieces and not scaling.apart:  # as weights of the earlier and of the later scale were rounded
        near, level = _subtracted(scaling, before, shift, dialect)
        return f"{_level(near)} - {level}"
    return f"({before} - {shift}) * {factor_text(scaling)}" if scaling.apart else f"{before} - {shift}"


def joining_text(before: str, shift: str) -> str:
    """The exponent of the factor of a whole piece's sums, from its scale: also of a piece that was stored."""
    return f"({before} - {shift}) * {literal(LOG2_E)}"


def _subtracted(scaling: ExponentScaling, score: str, shift: str, dialect: Dialect) -> tuple[str, str]:
    """(what becomes base 2, what is subtracted then): a row with a large shift has it subtracted first, which is exact.

    Other rows have the bits of a kernel whose shifts are never large.
    """
    if not scaling.far:
        return score, _level(shift)
    large = f"{dialect.call('abs', shift)} > {literal(MAX_MODERATE_SCORE)}"
    first, then = dialect.call("where", large, shift, "0.0"), dialect.call("where", large, "0.0", _level(shift))
    return f"({score} - {first})", then


def _level(scale: str) -> str:
    """A scale of pieces in base 2."""
    return f"{scale} * {literal(LOG2_E)}"


def natural_scale_text(scaling: ExponentScaling, scale: str) -> str:
    """The largest score itself."""
    return scale if scaling.apart or scaling.in_pieces else f"{scale} * {literal(1 / LOG2_E)}"


def lagging_text(scaling: ExponentScaling, before: str, top: str, dialect: Dialect) -> str:
    """A scale that only grows where it lags far behind the largest score: most times, totals need no factor then."""
    return dialect.call("where", f"{top} > {before} + {doublings(scaling, MAX_LAG)}", top, before)


def doublings(scaling: ExponentScaling, count: float) -> float:
    """So many doublings of a weight, in the unit of scales."""
    return count / LOG2_E if scaling.apart or scaling.in_pieces else count
