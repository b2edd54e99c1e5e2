"""Each row against central differences in float64, and against torch where a derivative is a convention."""

import math

import numpy as np
import pytest
import torch

from onepass.egraph.calculus.partials import PARTIALS, NotDifferentiable, partials
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import OPS, eq, load, make
from onepass.egraph.terms.term import FLOATS, Tensor

DERIVED = [name for name, row in PARTIALS.items() if row.of and OPS[name].arity and name != "cast"]
POINTS = {  # where an operation is defined, and off its steps
    "positive": (0.3, 0.9, 1.7, 2.6, 40.0),
    "any": (-2.3, -0.4, 0.3, 1.7, 6.1),
}
OF_POSITIVE = {"log", "log2", "log1p", "sqrt", "rsqrt", "pow", "mod", "floordiv"}
CONSTANT = {"floor", "floordiv", "finite", "not", "lt", "le", "eq", "and", "or", "uniform"}
STEP = 1e-6


def _operand(number: int, dtype: str = "float64"):
    return load(Tensor(f"x{number}", dtype))


def _node(name: str):
    operands = [_operand(k, "int64" if name == "uniform" else "float64") for k in range(OPS[name].arity)]
    if OPS[name].dtype == "bool":
        operands = [eq(x, x) for x in operands]
    if name == "where":
        operands[0] = eq(operands[0], operands[0])
    return make(name, tuple(operands))


def _value(term, numbers) -> float:
    return float(evaluate(term, {f"x{k}": np.array(x) for k, x in enumerate(numbers)}, ()))


def _differs(row, node, name: str, numbers) -> bool:
    """Whether a row's derivative is not the slope that central differences give."""
    parts = row(node, _operand(9), *node.args)
    given = [*numbers, *[0.0] * (9 - len(numbers)), 1.0]
    for k, part in enumerate(parts):
        if node.args[k].dtype not in FLOATS:
            assert part is None
            continue
        ahead, behind = ([x + s * STEP * (n == k) for n, x in enumerate(numbers)] for s in (1, -1))
        slope = (_value(node, ahead) - _value(node, behind)) / (2 * STEP)
        found = 0.0 if part is None else _value(part, given)
        if not math.isclose(found, slope, rel_tol=1e-5, abs_tol=1e-6):
            return True
    return False


def _cases(name: str):
    points = POINTS["positive" if name in OF_POSITIVE else "any"]
    arity = OPS[name].arity
    return [[points[(k + 2 * n) % len(points)] for n in range(arity)] for k in range(len(points))]


def test_the_table_is_total():
    assert PARTIALS.keys() == OPS.keys()
    assert all(row.of or row.why for row in PARTIALS.values())


@pytest.mark.parametrize("name", DERIVED)
def test_a_row_is_the_slope(name):
    node = _node(name)
    assert not any(_differs(PARTIALS[name].of, node, name, numbers) for numbers in _cases(name))


@pytest.mark.parametrize("name", [n for n in DERIVED if n not in CONSTANT])
@pytest.mark.parametrize("change", [lambda x: -x, lambda x: x * 2.0], ids=["sign", "factor"])
def test_a_wrong_row_is_found(name, change):
    wrong = lambda *a: tuple(p if p is None else change(p) for p in PARTIALS[name].of(*a))
    assert any(_differs(wrong, _node(name), name, numbers) for numbers in _cases(name))


TIES = [
    ("abs", lambda x: torch.abs(x), (0.0,)),
    ("maximum", torch.maximum, (1.5, 1.5)),
    ("minimum", torch.minimum, (1.5, 1.5)),
    ("pow", torch.pow, (0.0, 2.0)),
    ("pow", torch.pow, (0.0, 1.0)),
    ("pow", torch.pow, (0.0, 0.0)),
    ("sqrt", torch.sqrt, (0.0,)),
    ("div", torch.div, (1.0, math.inf)),
    ("tanh", torch.tanh, (math.inf,)),
    ("sigmoid", torch.sigmoid, (-math.inf,)),
    ("exp", torch.exp, (-math.inf,)),
]


@pytest.mark.parametrize("name, function, numbers", TIES)
def test_conventions_are_those_of_torch(name, function, numbers):
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
    expected = torch.autograd.grad(function(*leaves), leaves)
    node = _node(name)
    given = [*numbers, *[0.0] * (9 - len(numbers)), 1.0]
    with np.errstate(all="ignore"):
        found = [_value(part, given) for part in partials(node, _operand(9))]
    assert np.array_equal(found, [float(x) for x in expected], equal_nan=True)


@pytest.mark.parametrize("name", ["scaled", "scale", "mantissa"])
def test_states_are_refused(name):
    x = _operand(0)
    state = make("scaled", (x, x))
    node = state if name == "scaled" else make(name, (state,))
    with pytest.raises(NotDifferentiable, match=f"{name} has no derivative here: states"):
        partials(node, x)
