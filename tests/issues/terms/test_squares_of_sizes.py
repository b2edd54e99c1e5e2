"""A view that merges rows and columns of unknown length was refused: its size, s0**2, was no product and no integer."""

from onepass.egraph.terms.sizes import product, term_of, value_of


def test_a_square_is_a_product():
    assert product(("s1*s0**2", 3)) == product((3, "s0", "s1", "s0")) == (3, ("s0", "s0", "s1"))


def test_a_square_is_an_integer_term():
    assert term_of("s0**2").dtype == "int64" and term_of("s0**2") == term_of("s0*s0")
    assert term_of("s0**0.5").dtype == "float32" and value_of("s0**2", {"s0": 5}) == 25
