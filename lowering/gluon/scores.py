"""Scores of a tile in base 2, and their weights. A bias that is linear in the column is split at the tile's start.

Scores that may be large stay whole. Example: with ALiBi a score costs one multiply-add for its bias and its scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...egraph.terms.affine import to_term
from ...egraph.terms.ops import cast
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces
from ..analysis.product_terms import product, scale_split, signed_factors
from ..analysis.softmax_scaling import LOG2_E, ExponentScaling
from ..codegen.dialect import GLUON
from ..codegen.ops import TileValue, atom, decay_text, doublings, exponent_text, factor_text, scale_text
from ..hopper.score_offsets import Slope, split
from ..plan.dtypes import literal
from .expressions import GluonWriter

MINUS_INFINITY = 'float("-inf")'


@dataclass(frozen=True)
class Scores:
    """Scores of a tile, and how they become weights.

    lift: a number for each row, in base 2, that the scores lack; "" for none. hidden: what an absent score is.
    """

    value: TileValue
    scaling: ExponentScaling
    lift: str = ""
    hidden: str = MINUS_INFINITY

    def largest(self, score: str) -> str:
        """The largest scores of the rows, in the unit of scales."""
        return scale_text(self.scaling, f"row_max({score}, ROWS)") + (f" + {self.lift}" if self.lift else "")

    def doublings(self, count: float) -> float:
        """So many doublings of a weight, in the unit of scales."""
        return doublings(self.scaling, count)

    def weights(self, exact: bool, score: str, scale: str, shift: str) -> tuple[str, str]:
        """(decay, weights): the factor of sums relative to the scale before, and a tile's weights.

        Scores that may be large take one multiply-add where results are ratios: their scale need not be exact then.
        """
        scaling = self.scaling
        if scaling.apart and not exact:
            unit = f"unit_of({shift})"
            return f"decay_of({scale}, {shift})", f"gl.exp2({score} * {unit}[:, None] - level_of({shift})[:, None])"
        below = f"({shift} - {self.lift})" if self.lift else shift
        weight = exponent_text(scaling, score, f"{below}[:, None]", GLUON)
        return f"gl.exp2({decay_text(scaling, scale, shift, GLUON)})", f"gl.exp2({weight})"


@dataclass(frozen=True)
class StretchedScores(Scores):
    """Scores that are raw · stretch in base 2. stretch: the name of one number for the item, which is never 0.

    Where it is below 0, the largest score is that of the least raw one.
    """

    stretch: str = ""

    def largest(self, score: str) -> str:
        return f"stretched_max({score}, {self.stretch}, ROWS)"

    def weights(self, exact: bool, score: str, scale: str, shift: str) -> tuple[str, str]:
        return f"gl.exp2({scale} - {shift})", f"gl.exp2({score} * {self.stretch} - {shift}[:, None])"


def stretched(writer: GluonWriter, scaling: ExponentScaling, rows: Dim, loop: Dim) -> Scores | None:
    """The scores without the factors that are one number for all of an item; None where there are none.

    An exponent is one multiply-add anyway, so that these factors cost nothing for each score. Example: attention with a
    scale for each head. Scores that may be large are multiplied first.
    """
    parts = [] if scaling.apart else signed_factors(scaling.raw)
    alike = [p for p in parts if not p.dims & {rows, loop} and not any(reduces(p))]
    raw, factor = product(p for p in parts if p not in alike), product(alike)
    if raw is None or factor is None or all(p.op == "const" for p in alike):
        return None
    text = f"nonzero({atom(writer.value(factor).text)} * {factor_text(scaling)})"
    stretch = writer.once((text,), (), lambda: writer.assign("stretch", TileValue(text), writer.outer)).text
    hidden = f'gl.where({stretch} < 0, float("inf"), {MINUS_INFINITY})'
    return StretchedScores(writer.value(raw), scaling, "", hidden, stretch)


def in_base_two(
    writer: GluonWriter, scaling: ExponentScaling, rows: Dim, loop: Dim, keeps_columns: bool
) -> Scores:
    """The scores as a multiply-add has them.

    keeps_columns: registers hold a number for each column. Scores that may be large stay whole.
    """
    parts = None if scaling.apart else split(scaling.gauge, rows, loop)
    if parts is None:
        return Scores(writer.value(scaling.raw), scaling)
    lift = " + ".join([*(_lift(writer, s) for s in parts.slopes), *(_scaled(writer, *r) for r in parts.rows)])
    lift = writer.assign("lift", TileValue(lift, (rows,)), writer.inner).text
    column = _column(writer, parts.slopes, loop, keeps_columns)
    positive = len(parts.scores) == 1 and parts.scores[0][0] > 0
    if column is None and positive:
        ((constant, term),) = parts.scores
        raw, factor = scale_split(term)
        return Scores(writer.value(raw), replace(scaling, raw=raw, natural=factor * constant), lift)
    summed = [writer.align(v, (rows, loop)) for v in (_whole(writer, *s) for s in parts.scores)]
    summed += [writer.align(column, (rows, loop))] if column is not None else []
    value = TileValue(" + ".join(summed), (rows, loop))
    return Scores(value, replace(scaling, natural=1.0, within=1.0), lift)


def _whole(writer: GluonWriter, constant: float, term: Term) -> TileValue:
    raw, factor = scale_split(term)
    value = writer.value(raw)
    return TileValue(f"({writer.align(value, value.dims)} * {literal(constant * factor * LOG2_E)})", value.dims)


def _scaled(writer: GluonWriter, constant: float, term: Term) -> str:
    """A row's number in base 2."""
    value = writer.value(term)
    text = f"{writer.align(value, value.dims)} * {literal(constant * LOG2_E)}"
    return writer.assign("row_part", TileValue(text, value.dims), writer.outer).text


def _unit(writer: GluonWriter, slope: Slope) -> str:
    """The value of one step along the slope, in base 2."""
    texts = [writer.align(writer.value(o), ()) for o in slope.others]
    text = " * ".join([*texts, literal(slope.constant * LOG2_E)])
    return writer.once(("unit", text), (), lambda: writer.assign("unit", TileValue(text), writer.outer)).text


def _column(writer: GluonWriter, slopes: tuple[Slope, ...], loop: Dim, keeps_columns: bool) -> TileValue | None:
    """The slopes along the loop from the tile's start: the same for all tiles."""
    if not slopes:
        return None
    text = " + ".join(f"{_unit(writer, s)} * {float(s.step)}" for s in slopes)
    step = writer.once(("step", text), (), lambda: writer.assign("step", TileValue(text), writer.outer)).text
    at = writer.range_of(loop).text
    if not keeps_columns:
        return writer.assign("column", TileValue(f"ramp({at}, {step})", (loop,)))
    value = TileValue(f"counted({at}) * {step}", (loop,))
    return writer.once(("column", text), (), lambda: writer.assign("column", value, writer.outer))


def _lift(writer: GluonWriter, slope: Slope) -> str:
    """The slope's value at the tile's first column."""
    start = f"gl.cast({writer.starts[writer.loop]}, gl.float32) * {float(slope.step)}"
    if slope.rest[0] or slope.rest[1]:
        start += f" + {writer.value(cast(to_term(slope.rest), 'float32')).text}"
    return f"({start}) * {_unit(writer, slope)}"
