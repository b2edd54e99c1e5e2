"""Each row against torch, central differences and sympy, at hostile points; and every mutant of a row is found.

What is compared is the row's text as terms, evaluated in float64. Torch says what a derivative is at ties, zeros and
infinities, and of NaN.
"""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import sympy
import torch

from onepass.egraph.calculus.partials import PARTIALS, NotDifferentiable, partials, written
from onepass.egraph.rewrite.rule import Rule
from onepass.egraph.sampling.mutants import mutants
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import OPS, cast, load, make, var
from onepass.egraph.terms.term import FLOATS, Tensor, Term

DERIVED = [name for name, row in PARTIALS.items() if row.of and OPS[name].arity]
CONSTANT = {"floor", "floordiv", "finite", "order", "not", "lt", "le", "eq", "and", "or", "uniform"}
SMOOTH = [name for name in DERIVED if name not in CONSTANT and name != "cast"]
COTANGENT = 3.0
COTANGENTS = (COTANGENT, math.inf, math.nan)
HOSTILE = (0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.5, 3.0, 1e-300, 1e200, -1e200, math.inf, -math.inf, math.nan)
TORCH = {
    "neg": torch.neg, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "abs": torch.abs, "add": torch.add, "sub": torch.sub,
    "mul": torch.mul, "div": torch.div, "pow": torch.pow, "mod": torch.remainder, "maximum": torch.maximum,
    "minimum": torch.minimum, "where": torch.where, "stored": torch.clone,
}  # fmt: skip
SYMPY = {
    "neg": lambda x: -x, "exp": sympy.exp, "exp2": lambda x: 2**x, "log": sympy.log,
    "log2": lambda x: sympy.log(x, 2), "log1p": lambda x: sympy.log(1 + x), "sqrt": sympy.sqrt,
    "rsqrt": lambda x: 1 / sympy.sqrt(x), "tanh": sympy.tanh, "sigmoid": lambda x: 1 / (1 + sympy.exp(-x)),
    "erf": sympy.erf, "sin": sympy.sin, "cos": sympy.cos, "abs": sympy.Abs, "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "pow": lambda x, y: x**y,
    "maximum": sympy.Max, "minimum": sympy.Min, "stored": lambda x: x,
    "where": lambda p, x, y: sympy.Piecewise((x, p > 0), (y, True)),
}  # fmt: skip
WITHOUT_SYMPY = {"mod": "sympy leaves the derivative of Mod unevaluated"}
POINTS = {  # where an operation is defined, and off its steps
    "positive": (1e-6, 0.3, 0.9, 1.7, 2.6, 40.0, 1e4),
    "any": (-30.0, -2.3, -0.4, 1e-6, 0.3, 1.7, 6.1, 20.0),
}
OF_POSITIVE = {"log", "log2", "log1p", "sqrt", "rsqrt", "pow", "mod", "floordiv"}


def _variables(name: str) -> list[Term]:
    dtypes = {"where": ("bool", "float64", "float64"), "not": ("bool",), "order": ("float32",)}
    dtypes |= dict.fromkeys(("and", "or"), ("bool", "bool")) | {"uniform": ("int64",) * OPS["uniform"].arity}
    return [var(f"x{k}", d) for k, d in enumerate(dtypes.get(name, ("float64",) * OPS[name].arity))]


def _node(name: str) -> Term:
    given = _variables(name)
    return cast(given[0], "float32") if name == "cast" else make(name, tuple(given))


def _value(term: Term, numbers, dtypes, g: float = COTANGENT) -> float:
    given = {f"x{k}": np.array(x, bool if d == "bool" else float) for k, (x, d) in enumerate(zip(numbers, dtypes))}
    with np.errstate(all="ignore"):
        return float(evaluate(term, given | {"g": np.array(g)}, ()))


def _row(name: str) -> list[Term | None]:
    """The row's terms, for a cotangent g."""
    return list(partials(_node(name), var("g", "float64")))


@cache
def _torchs(name: str) -> list[tuple[tuple[float, ...], float, tuple[float, ...]]]:
    """At each hostile point, for each cotangent, the derivatives by the floating operands, as autograd has them."""
    found = []
    variables = _variables(name)
    points = itertools.product(*[(False, True) if x.dtype == "bool" else HOSTILE for x in variables])
    for numbers, g in itertools.product(points, COTANGENTS):
        if name == "div" and g == math.inf and abs(numbers[1]) == 1e200:
            continue  # the two divide in another order, and one underflows
        leaves = [torch.tensor(x, dtype=getattr(torch, v.dtype)) for x, v in zip(numbers, variables, strict=True)]
        wanted = [leaf.requires_grad_() for leaf in leaves if leaf.dtype == torch.float64]
        right = torch.autograd.grad(TORCH[name](*leaves), wanted, torch.tensor(g, dtype=torch.float64))
        found.append((numbers, g, tuple(map(float, right))))
    return found


def _is_torchs(name: str, number: int, part: Term) -> bool:
    """Whether one term of a row is torch's derivative at all hostile points. number: among the floating operands."""
    dtypes = [v.dtype for v in _variables(name)]
    same = lambda x, y: np.isclose(x, y, rtol=1e-12, atol=0, equal_nan=True)
    return all(same(_value(part, numbers, dtypes, g), right[number]) for numbers, g, right in _torchs(name))


def _floating(name: str) -> list[Term]:
    """The terms of a row for floating operands."""
    return [part for part, x in zip(_row(name), _node(name).args, strict=True) if x.dtype in FLOATS]


def test_the_table_is_total():
    assert PARTIALS.keys() == OPS.keys()
    assert all(row.of or row.why for row in PARTIALS.values())
    assert {*SMOOTH} == {*TORCH} == {*SYMPY, *WITHOUT_SYMPY}


def test_what_is_piecewise_constant_has_no_derivative():
    assert all(part is None for name in CONSTANT for part in _row(name))


def test_a_cast_rounds_the_cotangent_to_its_operands_type():
    (part,) = _row("cast")
    assert part == cast(var("g", "float64"), "float64") and part.dtype == "float64"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_row_is_torchs_at_ties_zeros_infinities_and_nan(name):
    assert all(_is_torchs(name, number, part) for number, part in enumerate(_floating(name)))


@pytest.mark.parametrize("name", [n for n in SMOOTH if n != "where"])
def test_a_row_is_the_slope(name):
    points = POINTS["positive" if name in OF_POSITIVE else "any"]
    dtypes = [v.dtype for v in _variables(name)]
    for numbers in itertools.product(points, repeat=len(dtypes)):
        if len(set(numbers)) < len(numbers) or (name == "mod" and (numbers[0] / numbers[1]) % 1 < 1e-3):
            continue  # a tie, or a step
        if not math.isfinite(_value(_node(name), numbers, dtypes)):
            continue
        for k, part in enumerate(_row(name)):
            step = 1e-6 * abs(numbers[k])
            ahead, behind = ([x + s * step * (n == k) for n, x in enumerate(numbers)] for s in (1, -1))
            values = [_value(_node(name), given, dtypes) for given in (ahead, behind)]
            slope = COTANGENT * (values[0] - values[1]) / (ahead[k] - behind[k])
            lost = 1e-15 * max(map(abs, values)) / step * COTANGENT  # of the difference, to rounding
            assert _value(part, numbers, dtypes) == pytest.approx(slope, rel=1e-5, abs=10 * lost + 1e-300), numbers


@pytest.mark.parametrize("name", [n for n in SMOOTH if n not in WITHOUT_SYMPY])
def test_a_row_is_sympys_derivative(name):
    variables = _variables(name)
    symbols = sympy.symbols([v.attrs[0] for v in variables], real=True)
    points = POINTS["positive" if name in OF_POSITIVE else "any"]
    exact = [sympy.diff(SYMPY[name](*symbols), symbol) for symbol in symbols]
    for numbers in itertools.product(*[(False, True) if v.dtype == "bool" else points for v in variables]):
        if len(set(numbers)) < len(numbers):
            continue
        given = {s: sympy.Float(float(x), 40) for s, x in zip(symbols, numbers, strict=True)}
        for part, derivative, x in zip(_row(name), exact, variables, strict=True):
            if x.dtype != "bool":
                right = COTANGENT * float(derivative.subs(given).evalf(30))
                assert _value(part, numbers, [v.dtype for v in variables]) == pytest.approx(right, rel=1e-10, abs=1e-13)


# Mutants --------------------------------------------------------------------------------------------------------------


def _wrong(name: str) -> list[tuple[str, int, Term]]:
    """Wrong terms of a row: a sign, a factor, an operand, an operation or a constant is another."""
    found = []
    node = _node(name)
    g = var("g", "float64")
    left = node + g  # all variables, of the row's type
    for number, part in enumerate(_floating(name)):
        found += [("a sign", number, -part), ("a factor", number, part * 2.0), ("g twice", number, part * g)]
        found += [("nothing", number, part * 0.0)]
        rule = Rule(name, name, left, part, ())
        found += [(m.name, number, m.right) for m in mutants(rule) if m.left == left and m.right.dtype in FLOATS]
    return found


@pytest.mark.parametrize("name", SMOOTH)
def test_every_mutant_of_a_row_is_found(name):
    wrong = _wrong(name)
    survivors = [(what, str(part)) for what, number, part in wrong if _is_torchs(name, number, part)]
    assert len(wrong) > 3 and not survivors


@pytest.mark.parametrize("name", ["scaled", "scale", "mantissa"])
def test_states_are_refused(name):
    x = load(Tensor("x", "float64"))
    state = make("scaled", (x, x))
    node = state if name == "scaled" else make(name, (state,))
    with pytest.raises(NotDifferentiable, match=f"{name} has no derivative here: states"):
        partials(node, x)


def test_every_row_is_written_as_mathematics():
    texts = {op: written(op) for op in PARTIALS}
    assert texts["mul"] == "mul(x, y): g · y, g · x"
    assert texts["where"] == "where(p, x, y): -, where(p, g, 0), where(p, 0, g)"
    assert all(f"{op}: no derivative" in texts[op] for op in CONSTANT)
    assert len({*texts.values()}) == len(texts) and all("g" in texts[op].partition(":")[2] for op in SMOOTH)
