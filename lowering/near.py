"""Where special functions have a shorter form for the arguments that are the most likely ones.

A kernel holds both forms and each warp branches by what its registers hold (gluon_special.py), so that only its time
depends on the numbers. Called by the writers of Gluon kernels and by the choice of their schedules.
"""

from __future__ import annotations

from math import isfinite, log2

from ..egraph.term import Term, subterms
from .alternatives import SMALL
from .gluon_gauge import addends
from .plan import Kernel, Loop
from .triton_product import const_value, scale_split
from .weighing import LOG2_E, fixed_scale, weighing

LIKELY = 15.0  # times below the reach that a weight is where the score is zero, if it is to count as likely to be below


def multiple(node: Term) -> tuple[Term, float, float]:
    """(term, scale, shift), of which the node is term · scale + shift."""
    scaled, shift = [], 0.0
    for constant, term in addends(node):
        value = const_value(term, None)
        if value is None or not isfinite(value):
            scaled.append((constant, term))
        else:
            shift += constant * float(value)
    if len(scaled) != 1:
        return node, 1.0, 0.0
    ((constant, term),) = scaled
    raw, factor = scale_split(term)
    return raw, constant * factor, shift


def capped(raw: Term) -> tuple[Term, float] | None:
    """(term, scale) of a score that is tanh(term · scale)."""
    if raw.op != "tanh":
        return None
    term, scale, shift = multiple(raw.args[0])
    return None if shift else (term, scale)


def small(inside: Term) -> bool:
    """Whether the logistic curve of this is most likely small: its argument has a number that moves it there."""
    return multiple(inside)[2] * LOG2_E <= log2(SMALL.reach / LIKELY)


def branches(kernel: Kernel, loop: Loop) -> bool:
    """Whether a kernel that spares special functions has a second form of them."""
    rescaled = [a for a in loop.accumulators if a.gauge is not None]
    bodies = [b for a in loop.accumulators for b in (*a.values, *([a.gauge] if a.gauge is not None else []))]
    curves = {n for body in bodies for n in subterms(body) if n.op == "sigmoid" and {kernel.rows, loop.dim} <= n.dims}
    bounded = [a for a in rescaled if fixed_scale(kernel, a) is not None]
    return any(capped(weighing(a.gauge).raw) for a in bounded) or any(small(n.args[0]) for n in curves)
