"""Other ways to compute the same state: when to rescale its totals, exp2, 1 / x, tanh without special functions.

A row names the theorem that makes it legal, or its error. Nothing is chosen here: gluon_special.py writes the rows,
schedules say for how many elements. A test computes coefficients and errors again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


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
