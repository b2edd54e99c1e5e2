"""What a gauge is over one tile: scores that differ everywhere, one number a column, one number a row.

A multiple of a sum of coordinates is split at the tile's start: its column part is the same for all tiles, its row part
leaves the tile's maximum and joins the row's shift. A score costs one multiply-add for all of it, and the numbers stay
as small as a tile is wide. Nothing is known of what the sums are for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from ...egraph.terms.affine import Affine, affine, combine, to_term
from ...egraph.terms.ops import cast, iota
from ...egraph.terms.term import Dim, Term
from ..analysis.softmax_scaling import LOG2_E, Weighing
from ..codegen.ops import Value, is_integer, literal
from ..codegen.products import const_value, factors, product, scale_split


@dataclass(frozen=True)
class Slope:
    """constant · Π others · (step · loop coordinate + rest): the others know neither the rows nor the loop."""

    constant: float
    others: tuple[Term, ...]
    step: int
    rest: Affine


@dataclass(frozen=True)
class Gauge:
    """scores + Σ slopes + Σ constant · rows; `scores` are (constant, term) pairs, never none."""

    scores: tuple[tuple[float, Term], ...]
    slopes: tuple[Slope, ...]
    rows: tuple[tuple[float, Term], ...]


def split(gauge: Term, rows: Dim, loop: Dim) -> Gauge | None:
    """The gauge's parts, None where it has no column or row part worth a place of its own."""
    if gauge.dtype != "float32":
        return None
    scores, slopes, lifted = [], [], []
    for constant, term in addends(gauge):
        slope = _slope(constant, term, rows, loop)
        if slope is not None:
            slopes.append(slope)
        elif loop not in term.dims:
            lifted.append((constant, term))
        else:
            scores.append((constant, term))
    return Gauge(tuple(scores), tuple(slopes), tuple(lifted)) if scores and (slopes or lifted) else None


def addends(node: Term, constant: float = 1.0) -> list[tuple[float, Term]]:
    """node · constant as a sum of constant · term."""
    if node.op in ("add", "sub"):
        right = constant if node.op == "add" else -constant
        return [*addends(node.args[0], constant), *addends(node.args[1], right)]
    if node.op in ("mul", "neg", "div"):
        parts = factors(node)
        rest = [p for p in parts if p.op != "const"]
        for part in parts:
            constant *= float(const_value(part, 1.0))
        if len(rest) == 1 and rest[0] is not node and isfinite(constant):  # a quotient is no product of others
            return addends(rest[0], constant)
        return [(constant, product(rest))] if rest and isfinite(constant) else [(1.0, node)]
    return [(constant, node)]


def _slope(constant: float, term: Term, rows: Dim, loop: Dim) -> Slope | None:
    parts = factors(term)
    inside = [p for p in parts if loop in p.dims]
    others = tuple(p for p in parts if loop not in p.dims)
    form = _counted(inside[0]) if len(inside) == 1 else None
    if form is None or any(rows in p.dims for p in others) or any(p.dtype == "float64" for p in parts):
        return None
    coefficients, base = dict(form[0]), form[1]
    step = coefficients.pop(iota(loop), 0)
    if not step or any(loop in atom.dims for atom in coefficients):
        return None
    return Slope(constant, others, step, (coefficients, base))


def _counted(node: Term) -> Affine | None:
    """A float that is a sum of multiples of integers."""
    if node.op == "cast" and node.dtype == "float32" and is_integer(node.args[0].dtype):
        return affine(node.args[0])
    if node.op in ("add", "sub"):
        left, right = map(_counted, node.args)
        return None if left is None or right is None else combine(left, right, 1 if node.op == "add" else -1)
    if node.op == "neg":
        inner = _counted(node.args[0])
        return None if inner is None else combine(({}, 0), inner, -1)
    value = const_value(node, None)
    return ({}, int(value)) if isinstance(value, int | float) and isfinite(value) and value == int(value) else None


def in_base_two(writer, how: Weighing, rows: Dim, loop: Dim, kept: bool) -> tuple[Value, Weighing, str]:
    """(scores, how these are weighed, lift): the lift is a number a row in base 2 that is missing in them, or "".

    kept: registers hold what columns are worth. Scores that may be large stay whole: they are weighed by differences.
    """
    parts = None if how.apart else split(how.gauge, rows, loop)
    if parts is None:
        return writer.value(how.raw), how, ""
    lift = " + ".join([*(_lift(writer, s) for s in parts.slopes), *(_scaled(writer, *r) for r in parts.rows)])
    lift = writer.assign("lift", Value(lift, (rows,)), writer.inner).text
    column = _column(writer, parts.slopes, loop, kept)
    positive = len(parts.scores) == 1 and parts.scores[0][0] > 0
    if column is None and positive:
        ((constant, term),) = parts.scores
        raw, factor = scale_split(term)
        return writer.value(raw), replace(how, raw=raw, natural=factor * constant), lift
    summed = [writer.align(v, (rows, loop)) for v in (_whole(writer, *s) for s in parts.scores)]
    summed += [writer.align(column, (rows, loop))] if column is not None else []
    return Value(" + ".join(summed), (rows, loop)), replace(how, natural=1.0, within=1.0), lift


def weights(how: Weighing, exact: bool, score: str, scale: str, shift: str, lift: str) -> tuple[str, str]:
    """(decay, weights): the factor for what was weighed relative to the scale before, and a tile's weights. Scores that
    may be large take one multiply-add where nothing but ratios leave, so that their scale need not be exact."""
    if how.apart and not exact:
        unit = f"unit_of({shift})"
        return f"decay_of({scale}, {shift})", f"gl.exp2({score} * {unit}[:, None] - level_of({shift})[:, None])"
    below = f"({shift} - {lift})" if lift else shift
    return f"gl.exp2({how.decay(scale, shift)})", f"gl.exp2({how.exponent(score, f'{below}[:, None]')})"


def _whole(writer, constant: float, term: Term) -> Value:
    raw, factor = scale_split(term)
    value = writer.value(raw)
    return Value(f"({writer.align(value, value.dims)} * {literal(constant * factor * LOG2_E)})", value.dims)


def _scaled(writer, constant: float, term: Term) -> str:
    """A row's number in base 2."""
    value = writer.value(term)
    text = f"{writer.align(value, value.dims)} * {literal(constant * LOG2_E)}"
    return writer.assign("row_part", Value(text, value.dims), writer.outer).text


def _unit(writer, slope: Slope) -> str:
    """What one step of the slope's sum is worth, in base 2."""
    texts = [writer.align(writer.value(o), ()) for o in slope.others]
    text = " * ".join([*texts, literal(slope.constant * LOG2_E)])
    return writer.once(("unit", text), (), lambda: writer.assign("unit", Value(text), writer.outer)).text


def _column(writer, slopes: tuple[Slope, ...], loop: Dim, kept: bool) -> Value | None:
    """The slopes along the loop from the tile's start: the same for all tiles."""
    if not slopes:
        return None
    text = " + ".join(f"{_unit(writer, s)} * {float(s.step)}" for s in slopes)
    step = writer.once(("step", text), (), lambda: writer.assign("step", Value(text), writer.outer)).text
    at = writer.range_of(loop).text
    if not kept:
        return writer.assign("column", Value(f"ramp({at}, {step})", (loop,)))
    value = Value(f"counted({at}) * {step}", (loop,))
    return writer.once(("column", text), (), lambda: writer.assign("column", value, writer.outer))


def _lift(writer, slope: Slope) -> str:
    """The slope's value in the tile's first column."""
    start = f"gl.cast({writer.starts[writer.loop]}, gl.float32) * {float(slope.step)}"
    if slope.rest[0] or slope.rest[1]:
        start += f" + {writer.value(cast(to_term(slope.rest), 'float32')).text}"
    return f"({start}) * {_unit(writer, slope)}"
