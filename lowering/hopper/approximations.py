"""Other ways to compute the same values: when totals are rescaled, and special functions by multiply-adds.

A row names the theorem that makes it legal, or bounds its error; a test computes coefficients and errors again. A
small-argument form replaces a special function where arguments are small, which most are. A kernel then holds both
forms, and each warp branches by what its registers hold, so that only its time depends on the numbers. Example: tanh(x)
is x · (0.999 - 0.303 x²) for x up to 0.5.
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
class SmallArgumentForm:
    """A polynomial in place of a special function for x up to `reach`: x Σ coefficients[n] x^(n · step).

    `error` bounds the relative error, without roundings.
    """

    coefficients: tuple[float, ...]
    step: int
    reach: float
    error: float


# Errors are a twentieth and a fifteenth of a bfloat16's rounding.
EXP2 = Exponential(767.0, 14, (-0.3048832135885988, 0.2276449912116235, 0.07706704198819922), 1.1e-4)
RECIPROCAL = Reciprocal(0x7EF31000, 125.0, 1.4e-4)
# tanh(x), off by twice as much as the unit's own, a quarter of a bfloat16's rounding; x / (1 + x), by a fortieth.
TANGENT = SmallArgumentForm((0.999063246, -0.302778846), 2, 0.5, 9.4e-4)
SMALL = SmallArgumentForm((0.999948983, -0.992602403, 0.835875542), 1, 0.125, 5.2e-5)
# A logistic curve is taken to be small if its value at a score of zero is this many times below the reach of the
# small-argument form. Example: sigmoid(score - log(128)) is 1 / 129 at zero, more than 15 times below 0.125.
MARGIN_OF_SMALL_VALUES = 15.0


def linear_form(node: Term) -> tuple[Term, float, float]:
    """(term, scale, shift) of a node that is term · scale + shift."""
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


def argument_of_tanh(raw: Term) -> tuple[Term, float] | None:
    """(term, scale) of a score that is tanh(term · scale); None for another score."""
    if raw.op != "tanh":
        return None
    term, scale, shift = linear_form(raw.args[0])
    return None if shift else (term, scale)


def is_mostly_small(inside: Term) -> bool:
    """Whether the logistic curve of an argument is small for most scores: a constant moves the argument down."""
    return linear_form(inside)[2] * LOG2_E <= log2(SMALL.reach / MARGIN_OF_SMALL_VALUES)


def branches(kernel: Kernel, loop: Loop) -> bool:
    """Whether a kernel that emulates special functions has a small-argument form beside the general one."""
    rescaled = [a for a in loop.accumulators if a.gauge is not None]
    bodies = [b for a in loop.accumulators for b in (*a.values, *([a.gauge] if a.gauge is not None else []))]
    curves = {n for body in bodies for n in subterms(body) if n.op == "sigmoid" and {kernel.rows, loop.dim} <= n.dims}
    bounded = [a for a in rescaled if fixed_scale(kernel, a) is not None]
    scores = (exponent_scaling(a.gauge).raw for a in bounded)
    return any(map(argument_of_tanh, scores)) or any(is_mostly_small(n.args[0]) for n in curves)
