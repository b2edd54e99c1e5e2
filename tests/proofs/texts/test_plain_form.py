"""Texts that differ in what nobody reads, or in how a literal is written, have one plain form; others have two."""

import pytest

from onepass.proofs.texts.plain_form import plain_form

TEXT = "def f(x, size):\n    n = {n}\n    m = gl.minimum(n, size)\n    {rest}\n"


def form(n="0 // 64", rest="g(x)"):
    return plain_form(TEXT.format(n=n, rest=rest))


@pytest.mark.parametrize("n", ["0 % 64", "gl.cdiv(0, 64)", "gl.maximum(0, 0)", "5", "x + 1"])
def test_a_name_that_nobody_reads_does_not_count(n):
    assert form(n) == form() == "def f(x, size):\n    g(x)"


@pytest.mark.parametrize("n", ["0 % 64", "0 * 64", "gl.cdiv(0, 65)"])
def test_arithmetic_of_literals_is_done(n):
    assert form(n, "g(m)") == form(rest="g(m)") != form("1", "g(m)")


def test_a_call_that_may_do_something_stays():
    assert "wait(x)" in form("wait(x)") and "m = " not in form("wait(x)")


def test_what_divides_by_zero_stays():
    assert "0 // 0" in form("0 // 0", "g(m)")
