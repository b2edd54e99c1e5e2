"""Asks z3 for values at which the sides of a rule differ, and evaluates both sides there: only that refutes the rule.

The sides are read over the reals and integers, for dims of size 1, where a reduction is its element. A function that
the solver does not know is any function of its arguments, so a model may be none of the rule. z3 is optional. Example:
for where(x + y = 37.5, 0, x) = x it finds x = 37.5 and y = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import ModuleType
from typing import Any

from ..egraph.rewrite.rule import Rule, variables_of
from ..egraph.sampling.compare_sides import difference
from ..egraph.sampling.samples import instance_at
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import subterms
from .refute import counterexample_at
from .verdict import Counterexample

TIMEOUT_MILLISECONDS = 500
MODELS = 4  # that are tried
LITERAL_GUARDS = ("positive", "nonzero")


def counterexample_of_solver(rule: Rule) -> Counterexample | None:
    """A counterexample at a model of the solver, or None."""
    try:
        import z3
    except ImportError:
        return None
    if any(kind == "monoid" for _, kind in rule.variables):
        return None
    for values in _models(rule, z3):
        instance = instance_at(rule, values)
        wrong = difference(instance) if instance is not None else None
        if wrong is not None:
            return counterexample_at(wrong)
    return None


def _models(rule: Rule, z3: ModuleType) -> list[dict[str, float]]:
    """Values of the variables at which the solver thinks that the sides differ."""
    reading = _SideReading(z3)
    try:
        left, right = reading.term(rule.left), reading.term(rule.right)
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MILLISECONDS)
        solver.add(_unequal(left, right), *reading.defined)
        for guard in rule.guards:
            if guard.kind in LITERAL_GUARDS:
                x = reading.term(guard.operands[0])
                solver.add(x > 0 if guard.kind == "positive" or rule.restriction.literals_positive else x != 0)
            if guard.kind == "in_range":
                index, size = map(reading.term, guard.operands)
                solver.add(index >= 0, index < size)
        return _drawn(solver, reading.variables, z3)
    except (z3.Z3Exception, _NotReadable):
        return []


def _drawn(solver: Any, variables: Mapping[str, Any], z3: ModuleType) -> list[dict[str, float]]:
    """A few models, each with other values than the ones before."""
    found: list[dict[str, float]] = []
    while len(found) < MODELS and solver.check() == z3.sat:
        model = solver.model()
        values = {name: model.eval(x, model_completion=True) for name, x in variables.items()}
        found.append({name: _number(value, z3) for name, value in values.items()})
        if not variables:
            break
        solver.add(z3.Or(*(x != values[name] for name, x in variables.items())))
    return found


def _number(value: Any, z3: ModuleType) -> float:
    if z3.is_bool(value):
        return bool(z3.is_true(value))
    if z3.is_int_value(value):
        return int(value.as_long())
    if z3.is_algebraic_value(value):
        value = value.approx(30)
    return float(value.as_fraction())


def _unequal(left: Any, right: Any) -> Any:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return left[0] != right[0]
    return left != right


class _NotReadable(Exception):
    """The rule has a part that the solver cannot read."""


class _SideReading:
    """Translates terms. `defined` has what makes divisions defined, `variables` the variables by name."""

    def __init__(self, z3: ModuleType):
        self.z3 = z3
        self.done: dict[Term, Any] = {}
        self.defined: list = []
        self.variables: dict[str, Any] = {}
        self.meanings = self._meanings()

    def term(self, root: Term) -> Any:
        """The term as an expression of z3, or a pair of them. Raises _NotReadable."""
        for node in subterms(root):
            if node not in self.done:
                self.done[node] = self._node(node, [self.done[a] for a in node.args])
        return self.done[root]

    def _node(self, node: Term, args: list) -> Any:
        z3 = self.z3
        match node.op:
            case "var":
                name, dtype = node.attrs
                made = {"int64": z3.Int, "bool": z3.Bool}.get(dtype, z3.Real)(name)
                return self.variables.setdefault(name, made)
            case "const":
                return self._literal(node.attrs[0])
            case "reduce":
                return args[0]
            case "cast" if not variables_of(node.attrs[0]) and not str(node.attrs[0]).startswith("float"):
                raise _NotReadable
            case "cast":
                return args[0]
        if node.op in self.meanings:
            return self.meanings[node.op](*args)
        if any(isinstance(a, tuple) for a in args):
            raise _NotReadable
        kinds = [a.sort() for a in args]
        return z3.Function(f"{node.op} {node.attrs}", *kinds, z3.RealSort())(*args)

    def _literal(self, value: object) -> Any:
        z3 = self.z3
        if isinstance(value, bool):
            return z3.BoolVal(value)
        if isinstance(value, int):
            return z3.IntVal(value)
        if not isinstance(value, float) or not isfinite(value):
            raise _NotReadable
        return z3.RealVal(value.as_integer_ratio()[0]) / value.as_integer_ratio()[1]

    def _meanings(self) -> dict[str, Any]:
        z3 = self.z3
        return {
            "neg": lambda a: -a,
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "div": self._quotient,
            "floordiv": lambda a, b: self._divided(a, b),
            "mod": lambda a, b: a - self._divided(a, b) * b,
            "abs": lambda a: z3.If(a < 0, -a, a),
            "floor": lambda a: z3.ToReal(z3.ToInt(a)),
            "maximum": lambda a, b: z3.If(a < b, b, a),
            "minimum": lambda a, b: z3.If(a < b, a, b),
            "lt": lambda a, b: a < b,
            "le": lambda a, b: a <= b,
            "eq": lambda a, b: a == b,
            "not": z3.Not,
            "and": z3.And,
            "or": z3.Or,
            "where": z3.If,
            "stored": lambda a: a,
            "finite": lambda a: z3.BoolVal(True),
            "scaled": lambda a, b: (a, b),
            "scale": lambda a: a[0],
            "mantissa": lambda a: a[1],
        }

    def _quotient(self, a: Any, b: Any) -> Any:
        self.defined.append(b != 0)
        return self._real(a) / self._real(b)

    def _divided(self, a: Any, b: Any) -> Any:
        self.defined.append(b != 0)
        return self.z3.ToInt(self._real(a) / self._real(b))

    def _real(self, a: Any) -> Any:
        return self.z3.ToReal(a) if self.z3.is_int(a) else a
