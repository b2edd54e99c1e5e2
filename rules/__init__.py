"""The laws, grouped by modules; README.md says how to write one.

NORMAL rewrites terms from left to right. PHASES saturate the e-graph one after another; gradients, which read what the
forward saves of its softmax, are searched by the first of them, and by WEIGHTED. ADDED are the laws of NORMAL that
treat an added -∞ as an absent element. OPTIONAL are used only if a user gives them. DEMOTION is not searched with:
plans are read back by it. No law mentions attention.
"""

from . import demotion, exponentials, layout, mask, matmul, quotients, reductions, scalar, softmax, streaming

LAYOUT = layout.NORMAL
NORMAL = (*layout.NORMAL, *scalar.NORMAL, *mask.NORMAL, *reductions.NORMAL, *softmax.NORMAL)
ADDED = mask.ADDED
PHASES = {"algebra": (*matmul.ALGEBRA, *reductions.ALGEBRA, *scalar.ALGEBRA), "streaming": streaming.STREAMING}
WEIGHTED = reductions.WEIGHTED
OPTIONAL = softmax.OPTIONAL
DEMOTION = demotion.DEMOTION
# A score that is shifted twice, by a maximum and by a maximum of what is left, is shifted by one.
SHIFTED_ONCE = (reductions.difference_out_of_max, scalar.shift_out_of_maximum, scalar.shifts_cancel)
# Three more directed sets, each used together with NORMAL. SHIFT_FREE takes the shifts out of all exponents of a term.
# GATHERED brings the exponentials and the divisors of each product together. SEPARATED does so, too, and gives each
# addend a sum and a quotient of its own.
DIVISORS_OUT = (*quotients.DIVISORS_OUT, matmul.quotient_times, reductions.divisor_out_of_sum)
SHIFT_FREE = (
    *mask.CHOSEN_BY_TRUTH,
    *exponentials.TAKEN_APART,
    *exponentials.EXPONENTS,
    scalar.shifts_cancel,
    quotients.quotients_add,
    *DIVISORS_OUT,
    *quotients.CANCELLED,
    reductions.weighted_sum_of_quotient_plus,
    reductions.weighted_sum_of_quotient_minus,
    reductions.twice_weighted_sum_of_quotient_plus,
    reductions.twice_weighted_sum_of_quotient_minus,
)
# NORMALISED does so, too, but leaves each exponential over its sum with the sum's logarithm in its exponent.
NORMALISED = (*exponentials.OVER_THEIR_SUM, *SHIFT_FREE)
GATHERED = (
    *exponentials.TOGETHER,
    *exponentials.EXPONENTS,
    quotients.quotients_add,
    *DIVISORS_OUT,
    *quotients.SUMS,
    *quotients.DIFFERENCES,
    *quotients.CANCELLED,
    mask.constant_out_of_masked_sum,
)
SEPARATED = (
    *exponentials.TOGETHER,
    *exponentials.EXPONENTS,
    *exponentials.OUT_OF_SUMS,
    quotients.exponential_divides_addends,
    *DIVISORS_OUT,
    *quotients.SUMS,
    *quotients.CANCELLED,
    reductions.sum_of_sum,
    mask.masked_sum_of_sum,
    mask.constant_out_of_masked_sum,
)
# Where it is shown what a named value is, sums are taken apart as well: by SPREAD, and by TURNED from right to left.
SPREAD = (reductions.sum_of_sum, mask.masked_sum_of_sum)
TURNED = (exponentials.exponential_leaves_addends,)
# WEIGHTS_FIRST multiplies by what is at most 1 before what may be as large as a mask's number, and subtracts such
# numbers from one another first.
WEIGHTS_FIRST = (*exponentials.BEFORE_FACTORS, *scalar.LARGE_ONES_MEET)
DIRECTED = (*NORMALISED, *GATHERED, *SEPARATED, *WEIGHTS_FIRST)
SEARCHED = (*PHASES["algebra"], *PHASES["streaming"], *WEIGHTED)
ALL = tuple(dict.fromkeys((*NORMAL, *SEARCHED, *OPTIONAL, *DIRECTED, *DEMOTION)))
