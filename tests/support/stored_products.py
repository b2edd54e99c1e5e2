"""Plans of gradients of one product's losses, whose scores are stored: what lowering/stages runs in stages."""

import torch

from onepass.egraph.terms.ops import cast, exp, iota, load, make, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import normalised, plan_with, prepared


def gradients(rows=320, columns=640, width=384, dtype="bfloat16", result="bfloat16", offset=0, beside=False):
    """The plan of both gradients of Σ_j exp(x · w), less the scores' diagonal, with stored scores.

    offset: of the diagonal. result: the type of the gradients. beside: of as many rows as columns, the gradients of the
    scores are times r[row] + r[column], and each gradient is less the other factor's matrix.
    """
    i, j, c, o = Dim("i", rows), Dim("j", columns), Dim("c", width), Dim("o", width)
    i2, j2 = Dim("i2", rows), Dim("j2", columns)
    x, w = Tensor("x", dtype, (rows, width)), Tensor("w", dtype, (columns, width))
    r = Tensor("r", "float32", (rows,))
    number = lambda t, *index: cast(load(t, *map(iota, index)), "float32")

    def cotangent(row, column):
        score = sum_over(c, number(x, row, c) * number(w, column, c))
        found = exp(score - 1.0) - where(make("eq", (iota(column), iota(row) + offset)), 1.0, 0.0)
        return score, found * (load(r, iota(row)) + load(r, iota(column))) if beside else found

    score, by_column = cotangent(i, j2)
    _, by_row = cotangent(i2, j)
    grad_x = sum_over(j2, by_column * number(w, j2, o))
    grad_w = sum_over(i2, by_row * number(x, i2, o))
    if beside:
        grad_x, grad_w = grad_x - number(w, i, o), grad_w - number(x, j, o)
    stores = [
        Store(cast(grad_x, result), Tensor("grad_x", result, (rows, width)), (i, o)),
        Store(cast(grad_w, result), Tensor("grad_w", result, (columns, width)), (j, o)),
    ]
    return plan_with(prepared(normalised(stores)), choice=PlanChoice(stored=(score,)))


def given(rows=320, columns=640, width=384, dtype=torch.bfloat16, beside=False):
    """Random tensors of such a plan."""
    torch.manual_seed(rows + columns)
    found = {"x": torch.randn(rows, width).to(dtype), "w": (torch.randn(columns, width) / width).to(dtype)}
    return found | ({"r": torch.randn(rows)} if beside else {})


def right(tensors, offset=0):
    """Both gradients in float64."""
    x, w = tensors["x"].double(), tensors["w"].double()
    places = torch.arange(len(w))[None] == torch.arange(len(x))[:, None] + offset
    cotangent = (x @ w.T - 1).exp() - places.double()
    if "r" not in tensors:
        return cotangent @ w, cotangent.T @ x
    cotangent = cotangent * (tensors["r"][:, None] + tensors["r"]).double()
    return cotangent @ w - w, cotangent.T @ x - x


def off(found, wanted):
    """The largest distance of results, in parts of the norm."""
    pairs = zip(found, wanted, strict=True)
    return max(float((one.double() - other).norm() / other.norm()) for one, other in pairs)
