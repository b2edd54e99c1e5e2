"""Some functions of an undefined value are defined: x^0 is 1 for a NaN, too, and a cast of a NaN to bool is true.

Provers took both for undefined, where a law promises nothing, so false laws were proved of them; the random search for
counterexamples hid it. `python -m tests.proofs.fuzz --seed 3` found the power, as claim 422.
"""

from math import nan
from time import thread_time

import pytest
import torch

from onepass import rule
from onepass.egraph.terms.ops import cast, const, eq, where
from onepass.proofs.check import check, prove


@rule
def power_of_undefined(x):
    """(x / x)^0 = where(x = 0, 5, 1). Wrong: x = 0"""
    return (x / x) ** 0.0, where(eq(x, const(0.0)), const(5.0), const(1.0))


@rule
def one_to_an_undefined_power(x):
    """1^(x / x) = where(x = 0, 5, 1). Wrong: x = 0"""
    return const(1.0) ** (x / x), where(eq(x, const(0.0)), const(5.0), const(1.0))


@rule
def truth_of_undefined(y, z):
    """where(bool(y / (z - z)), y, z) = z. Wrong: bool(0 / 0) is true"""
    return where(cast(y / (z - z), "bool"), y, z), z


@pytest.mark.parametrize("law", [power_of_undefined, one_to_an_undefined_power, truth_of_undefined], ids=str)
def test_provers_alone_do_not_prove_it(law):
    assert not prove(law, thread_time() + 4.0).holds
    assert check(law).status == "refuted"


@rule
def power_of_anything(x):
    """(x / x)^0 = 1, undefined values included"""
    return (x / x) ** 0.0, const(1.0)


def test_what_is_true_of_undefined_values_is_proved():
    assert check(power_of_anything).status == "proved"
    assert torch.tensor(nan) ** 0.0 == 1.0 and torch.tensor(1.0) ** torch.tensor(nan) == 1.0
    assert torch.tensor(nan).bool()
