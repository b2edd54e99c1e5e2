"""A certificate's constant folding was evaluated in float64 and in no dtype, so that roundings to half precision and
the wrapping of bytes vanished unsaid. A sum over a dim of unknown size raised instead of getting an answer.
"""

import pytest

from onepass.egraph import Dim
from onepass.egraph.derivation.certificate import FOLDING, CertificateError, Derivation, check
from onepass.egraph.rewrite.serialization import to_json
from onepass.egraph.terms.ops import cast, const, sum_over

ROUNDED = 0.10009765625  # 0.1 in bfloat16


def folded(start, goal) -> None:
    """Checks a certificate that folds one term to another."""
    steps = [[FOLDING, "forward", [], [], to_json(goal), True]]
    check(Derivation.from_json({"start": to_json(start), "goal": to_json(goal), "steps": steps}), ())


@pytest.mark.parametrize(
    "start, goal",
    [
        (cast(const(0.1), "bfloat16"), const(0.1)),
        (cast(const(1e-9), "float16"), const(1e-9)),
        (cast(const(300), "uint8"), const(44)),
        (sum_over(Dim("n", "N"), const(1.0)), const(5.0)),
    ],
    ids=str,
)
def test_a_false_folding_is_refused(start, goal):
    with pytest.raises(CertificateError):
        folded(start, goal)


@pytest.mark.parametrize("start", [cast(const(ROUNDED), "bfloat16"), const(0.25) * const(4 * ROUNDED)], ids=str)
def test_a_true_one_is_accepted(start):
    folded(start, const(ROUNDED))
