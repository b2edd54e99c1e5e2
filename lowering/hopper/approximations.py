"""Other ways to compute the same state: when to rescale its totals, exp2, 1 / x, tanh without special functions.

A row names the theorem that makes it legal, or its error. Nothing is chosen here: lowering/gluon/device_math.py writes
the rows, schedules say for how many elements. A test computes coefficients and errors again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log2

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..analysis.product_terms import const_value, scale_split
from ..analysis.softmax_scaling import LOG2_E, exponent_scaling, fixed_scale
from ..plan.records import Kernel, Loop
from .score_offsets import addends


@dataclass(frozen=True)
class Rescaling:
    """bound: the totals are rescaled when the scale grew by more than 2^bound. theorem: file and name in the theory.

    A weight is then at most 2^bound: totals of n elements need a type that holds n · 2^bound times the largest value.
    """

    name: str
    bound: float
    theorem: str


RESCALINGS = (
    Rescaling("eager", 0.0, "Rescaling.eager_rescaling"),
    Rescaling("lazy", 8.0, "Rescaling.lazy_rescaling"),
    Rescaling("at the end", inf, "Rescaling.rescaling_at_the_end"),
)


@dataclass(frozen=True)
class Exponential:
    """2^x by multiply-adds: x + offset is a float between 512 and 1024, whose last `fraction` bits are x's fraction F
    and whose bits before these are its integer. 2^F = 1 + F + Σ coefficients[n] F^(n + 1), which is exact at 0: the sum
    is added to the bits of 1 + F. `error` bounds the relative error, with all roundings, for x from -126 to 126.

    instructions: beyond the one multiply-add and one special function that 2^(s · c - shift) takes in any case; limit:
    one more, where x may lie below -127.
    """

    offset: float
    fraction: int
    coefficients: tuple[float, ...]
    error: float
    instructions: int = 7
    limit: int = 1


@dataclass(frozen=True)
class Reciprocal:
    """1 / (1 + 2^x) by multiply-adds, for x up to `most`: bits `guess` less those of d are a first y, then with
    r = 1 - d y it is y (1 + r + r^2). `error` bounds the relative error; instructions: beyond the special function.
    """

    guess: int
    most: float
    error: float
    instructions: int = 5


@dataclass(frozen=True)
class Near:
    """A polynomial in place of a special function where arguments are as small as most are: for x up to `reach`,
    x Σ coefficients[n] x^(n · step). `error` bounds the relative error, without roundings.
    """

    coefficients: tuple[float, ...]
    step: int
    reach: float
    error: float


# Errors are a twentieth and a fifteenth of a bfloat16's rounding.
EXP2 = Exponential(767.0, 14, (-0.3048832135885988, 0.2276449912116235, 0.07706704198819922), 1.1e-4)
RECIPROCAL = Reciprocal(0x7EF31000, 125.0, 1.4e-4)
# tanh(x), off by twice as much as the unit's own, a quarter of a bfloat16's rounding; x / (1 + x), by a fortieth.
TANGENT = Near((0.999063246, -0.302778846), 2, 0.5, 9.4e-4)
SMALL = Near((0.999948983, -0.992602403, 0.835875542), 1, 0.125, 5.2e-5)


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
    return any(capped(exponent_scaling(a.gauge).raw) for a in bounded) or any(small(n.args[0]) for n in curves)
