"""Examples of what operations mean, from float64: the meanings in theory/Values.v are proved to give the same values.

An operation is evaluated by its meaning in egraph/terms/ops.py at every combination of a few numbers, infinities and
NaN. Results that are simple fractions, infinite or undefined become statements for Rocq; a division by zero is
undefined there. So an edit of one table that is not made in the other fails `make theory`. Example: "maximum" of -∞ and
2 is 2, and `larger Below (Number 2) = Number 2` is proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf, isnan, nan

import numpy as np

from ...egraph.terms.ops import MONOIDS, OPS
from .compiler import compile_file, write
from .meanings import FOLDS, INTEGER, NUMBER, OPERATIONS, STATE, UNKNOWN
from .statements import literal

VALUES = (nan, inf, -inf, -2.0, 0.0, 0.5, 1.0, 2.0)
INTEGERS = (-7, -2, 0, 2, 3, 7)
ROWS = ((), (1.0,), (-inf, -inf), (-inf, 2.0), (2.0, -2.0, 0.5), (inf, 1.0), (inf, -inf), (nan, -inf), (0.0, inf))
STATES = (((-inf, 3.0), (-inf, 4.0)), ((1.0, 2.0), (-inf, 4.0)), ((1.0, 2.0), (1.0, 0.5)), ((nan, 1.0), (1.0, 2.0)))
DIVIDES = {"div", "floordiv", "mod"}
HEAD = """From Coq Require Import Reals ZArith.
From Onepass Require Import Values Folds Totals Tactics.
Open Scope R_scope.
"""


def _simple(value: float) -> bool:
    """Whether a result is exact: infinite, undefined, or a multiple of 1/4 that is small."""
    return not np.isfinite(value) or (float(value) * 4).is_integer()


def _written(value: float | np.generic | np.ndarray) -> str:
    return literal(value.item() if isinstance(value, np.generic | np.ndarray) else value)


def _divides_by_zero(name: str, first: float, second: float = 0.0) -> bool:
    if first == 0.0 and (name == "rsqrt" or (name == "pow" and second < 0.0)):
        return True
    return name in DIVIDES and second == 0.0


def of_numbers() -> Iterator[str]:
    """Equations about operations of numbers."""
    for name, row in OPERATIONS.items():
        op = OPS[name]
        if NUMBER not in row or op.meaning is None or name in ("where", "scaled"):
            continue
        for operands in product(VALUES, repeat=op.arity):
            compares = UNKNOWN in row[NUMBER].split()
            if compares and any(map(isnan, operands)):
                continue  # unknown
            with np.errstate(all="ignore"):
                value = op.meaning(*map(np.float64, operands))
            if _divides_by_zero(name, *operands):
                value = nan  # undefined here, ±∞ by the sign of the zero in floating point
            if isinstance(value, np.bool_) or _simple(value):
                meaning = row[NUMBER].replace(UNKNOWN, "(fun _ _ => true)")
                yield f"{meaning} {' '.join(map(literal, operands))} = {_written(value)}"


def of_integers() -> Iterator[str]:
    """Equations about operations of integers."""
    for name, row in OPERATIONS.items():
        op = OPS[name]
        if INTEGER not in row or op.meaning is None or name == "where":
            continue
        for operands in product(INTEGERS, repeat=op.arity):
            if not (name in DIVIDES and operands[1] == 0):
                value = op.meaning(*operands)
                yield f"{row[INTEGER]} {' '.join(map(literal, operands))} = {_written(value)}"


def of_folds() -> Iterator[str]:
    """Equations about reductions of numbers and of states."""
    for name, row in FOLDS.items():
        for values in ROWS if NUMBER in row else ():
            if values:
                with np.errstate(all="ignore"):
                    value = MONOIDS[name].fold(np.array(values), 0)[0]
            else:
                value = MONOIDS[name].identity
            yield f"{row[NUMBER]} {len(values)} {_listed(map(literal, values))} = {literal(float(value))}"
        for states in STATES if STATE in row else ():
            scale, weight = map(np.array, zip(*states))
            with np.errstate(all="ignore"):
                top, whole = MONOIDS[name].fold((scale, weight), 0)
            folded = f"({row[STATE]} {len(states)} {_listed(f'(scaled {literal(s)} {literal(w)})' for s, w in states)})"
            yield f"scale_of {folded} = {literal(float(top[0]))}"
            present = nan if top[0] == -inf else float(whole[0])
            yield f"mantissa_of {folded} = {literal(present)}"


def _listed(values) -> str:
    """A function from the numbers 0, 1, ... to values."""
    cases = "".join(f"| {n}%nat => {value} " for n, value in enumerate(values))
    return f"(fun j : nat => match j with {cases}| _ => {'None' if 'scaled' in cases else 'Undefined'} end)"


def check() -> int:
    """The number of equations, all of which Rocq proves. Raises TheoryError."""
    equations = [*of_numbers(), *of_integers(), *of_folds()]
    write("Examples", HEAD + "".join(f"Goal {e}.\nProof. timeout 20 example. Qed.\n" for e in equations))
    compile_file("Examples")
    return len(equations)
