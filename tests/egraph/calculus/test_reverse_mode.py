"""Gradients of tensors that are read once or several times, each with a dim for each of its axes."""

from onepass.egraph.calculus.reverse_mode import Derivative, Result, differentiated
from onepass.egraph.terms.ops import iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor

I, J, D = Dim("i", 4), Dim("j", 4), Dim("d", 3)
X, Y, G = Tensor("x", "float64", (4, 3)), Tensor("y", "float64", (4, 3)), Tensor("g", "float64", (4, 4))


def reads(tensor, dim):
    return load(tensor, iota(dim), iota(D))


def gradients_of(term, *wanted, simplified=lambda term: term):
    result = Result(term, Tensor("result", "float64", (4, 4)), (I, J), G)
    return differentiated({result: term}, wanted, simplified)


def test_each_tensor_gets_the_sum_over_what_it_is_not_read_by():
    found, _ = gradients_of(sum_over(D, reads(X, I) * reads(Y, J)), "y", "x")
    g = load(G, iota(I), iota(J))
    assert found == [
        Derivative(Y, sum_over(I, g * reads(X, I)), (J, D)),
        Derivative(X, sum_over(J, g * reads(Y, J)), (I, D)),
    ]


def test_two_reads_of_one_tensor_add_up_over_the_first_ones_dims():
    (found,), cotangents = gradients_of(sum_over(D, reads(X, I) * reads(X, J)), "x")
    assert found.term.op == "add" and found.term.dims == {*found.axes} and len(cotangents) == 2


def test_joints_and_gradients_are_simplified():
    asked = []
    found, _ = gradients_of(sum_over(D, reads(X, I) * reads(Y, J)), "x", simplified=lambda t: asked.append(t) or t)
    assert found[0].term in asked and load(G, iota(I), iota(J)) in asked


def test_what_no_result_depends_on_has_no_gradient():
    assert gradients_of(sum_over(D, reads(X, I) * reads(X, J)), "y") == ([], [])
