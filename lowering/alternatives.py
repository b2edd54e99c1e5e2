"""Other ways to compute the same state: when to rescale its totals, and exp2 without the special-function unit.

A row names the theorem that makes it legal, or its error. Nothing is chosen here: the solver's problems and the tuner
weigh the rows, the emitters write one. Rates and coefficients are data; a test computes the coefficients again.
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
class Polynomial:
    """2^x on [-1/2, 1/2] as Σ coefficients[n] x^n; `error` bounds its relative error there, without rounding.

    2^y for any y: x is y less its nearest integer, which is added to the exponent's bits. Costs one multiply-add for
    each degree, two to split y, one to add the exponent; the special-function unit has none.
    """

    coefficients: tuple[float, ...]
    error: float

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    @property
    def instructions(self) -> int:
        return self.degree + 3


# By degree: the least relative error of all polynomials of that degree.
EXP2 = {
    3: Polynomial((0.9999280735404955, 0.6932609854573362, 0.24261112219433054, 0.05517166907486375), 7.49e-05),
    4: Polynomial(
        (0.9999992614457144, 0.6931218147367708, 0.2402474482794417, 0.05591786031930335, 0.00957010190807398), 2.6e-06
    ),
    5: Polynomial(
        (
            1.0000000716546822,
            0.6931469670647327,
            0.24022119723848925,
            0.05550713273544091,
            0.009675541334196121,
            0.0013276471978923515,
        ),
        7.5e-08,
    ),
}
