"""Draws concrete, hostile instances of a rule: values for its variables under which every guard holds.

The caller gives the chooser, from Hypothesis or a random generator. A variable may depend on every dim that the guards
do not forbid, as for the matcher, whatever its annotation says. Example: an instance of x + 0 = x has a dim of size 2
and x = [1.0, -0.0].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, nan, prod
from random import Random

import numpy as np

from ..rewrite.guard import CLASSES, GUARDS, Guard
from ..rewrite.match import binding_of, instantiate
from ..rewrite.pattern_expansion import Reading, readings
from ..rewrite.pattern_rule import MAX_READINGS, PatternRule
from ..rewrite.rule import Rule, variables_of
from ..terms.ops import MONOIDS, const, iota, le, load, scaled
from ..terms.term import FLOATS, PAIR, AttributeVariable, Dim, Tensor, Term, TermError
from ..terms.traversal import all_dims, subterms
from .function_edges import RANGES, around, edges_of, edges_of_cast

PLAIN = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.75, 0.1, -0.3, 3.7)
PROFILES = {  # the elements of one tensor are drawn from one profile; a counterexample shrinks to its first value
    "plain": PLAIN,
    "large": tuple(50 * x for x in PLAIN),
    "ties": (1.0, 2.0),
    "zeros": (0.0, -0.0),
    "tiny": (1e-30, -1e-30, 3e-31),
}
ABSENT = "one absent"  # a plain tensor with one -∞: a masked score
MANTISSAS = "random mantissas"  # numbers that use all bits of a float64, for rules that claim equal bits
SCALES = (0, 0, 0, 13, -13, -22, 125, -125, 1021, -1021)  # powers of 2 of these: near the ends of each floating dtype
MAX_DRAWN_VALUES = 24  # for one tensor
FLOAT_LITERALS = (2.0, 1.0, 0.5, 0.1, 3.7, 50.0, 0.0, -1.0, -2.0, -0.3, -1e9, inf, -inf, nan)
INTEGER_LITERALS = (2, 1, 3, 4, 0, -1, -2)
INTEGERS = range(-3, 7)
SIZES = (1, 2, 2, 3, 3)
LARGER_SIZES = (5, 8, 17)  # of one dim, now and then
LARGEST_SIZE = 40  # that is drawn because it is a constant of the rule, or near one
# Functions with edges over the real numbers; the edges of others, such as exp, come from the range of a dtype.
JUMPS = ("floor", "floordiv", "mod", "log", "log2", "log1p")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool")
NAMES = ("part0", "part1")  # of tensors that are stored between kernels
# Guard: the size of its first dim, from those of the others.
SIZES_OF: dict[str, Callable] = {"in_blocks": prod, "in_two": sum}
OTHER_DIM = "which the rule does not name: a law holds along every other dim, too"


@dataclass(frozen=True)
class Instance:
    """A rule with values for its variables: both sides as terms, the arrays that they load, and the binding.

    >>> import onepass
    >>> from hypothesis import given
    >>> @onepass.rule
    ... def doubled(x):
    ...     "x + x = 2 · x"
    ...     return x + x, 2.0 * x
    >>> @given(onepass.testing.instances(doubled))
    ... def test(instance):
    ...     assert instance.rule is doubled and "x" in instance.binding
    >>> test()
    """

    rule: Rule | PatternRule
    left: Term
    right: Term | TermError
    arrays: dict[str, np.ndarray]
    binding: dict[str, object]

    @property
    def sides(self) -> tuple[Term, Term]:
        """Both sides. Raises the error of a right side that cannot be built."""
        if isinstance(self.right, TermError):
            raise self.right
        return self.left, self.right

    @property
    def further(self) -> tuple[Dim, ...]:
        """The dims that no variable of the rule stands for. Laws hold pointwise along them, too."""
        named = [v for v in self.binding.values() if isinstance(v, Dim)]
        sides = [side for side in (self.left, self.right) if isinstance(side, Term)]
        return tuple(d for d in dict.fromkeys(d for side in sides for d in all_dims(side)) if d not in named)

    def __str__(self) -> str:
        shown = dict(self.binding)
        heads = {name: name for name in self.arrays}
        for name, value in self.binding.items():  # a tensor with the name of its variable is printed once
            if isinstance(value, Term) and value.op == "load" and value.attrs[0].name == name in heads:
                heads[name] = str(shown.pop(name))
        lines = [f"{n} = {v.size if isinstance(v, Dim) else v}" for n, v in sorted(shown.items())]
        lines += [f"{heads[name]} = {a.tolist()}" for name, a in sorted(self.arrays.items())]
        return "\n".join([*lines, *(f"dim {d.name} = {d.size}, {OTHER_DIM}" for d in self.further)])


def drawn_instance(rule: Rule | PatternRule, choose: Callable, array: Callable) -> Instance | None:
    """An instance whose left side matches under every guard, or None. The right side may be a TermError."""
    if isinstance(rule, PatternRule):
        return _drawn_application(rule, choose, array)
    sampler = Sampler(rule, choose, array)
    return _matched(rule, sampler.binding(), sampler.arrays)


def _matched(rule: Rule, binding: Mapping[str, object], arrays: dict[str, np.ndarray]) -> Instance | None:
    """The instance of a binding, if its left side matches under every guard."""
    left = _instantiated(rule.left, binding)
    found = None if isinstance(left, TermError) else binding_of(rule, left, binding)
    if isinstance(left, TermError) or found is None:
        return None
    return Instance(rule, left, _instantiated(rule.right, found), arrays, found)


def instance_at(rule: Rule, values: Mapping[str, float]) -> Instance | None:
    """The instance with these numbers for the variables, on dims of size 1, or None if a guard does not hold."""
    sampler = Sampler(rule, lambda options: options[0], lambda shape, finite: np.zeros(shape))
    binding = sampler.binding()
    for name, value in values.items():
        bound = binding.get(name)
        if isinstance(bound, Term) and bound.op == "const":
            binding[name] = const(type(bound.attrs[0])(value))
        elif isinstance(bound, Term) and bound.op == "load":
            dtype, shape = bound.attrs[0].dtype, bound.attrs[0].shape
            kind = float if dtype in FLOATS else bool if dtype == "bool" else np.int64
            sampler.arrays[name] = np.full(shape, value, kind)
    return _matched(rule, binding, sampler.arrays)


def _drawn_application(rule: PatternRule, choose: Callable, array: Callable) -> Instance | None:
    """An instance of some reading of the pattern, matched by the pattern itself, with one of its right sides."""
    reading = choose(_readings(rule))
    declared = tuple((name, kind) for name, kind in rule.variables if name in variables_of(reading.left))
    plain = Rule(rule.name, rule.law, reading.left, reading.left, declared, reading.guards, False, rule.exact)
    drawn = drawn_instance(plain, choose, array)
    applied = () if drawn is None else rule.applications(drawn.left)
    found = [a for a in applied if isinstance(a.result, Term) and a.result is not drawn.left]
    if not found:
        return None
    chosen = choose(found)
    return Instance(rule, drawn.left, chosen.result, drawn.arrays, chosen.binding)


@lru_cache(64)
def _readings(rule: PatternRule) -> list[Reading]:
    """The readings that are sampled: at most about MAX_READINGS, spread evenly over the first thousands."""
    found = list(readings(rule.left, rule.guards, 64 * MAX_READINGS))
    return found[:: max(1, len(found) // MAX_READINGS)]


def _instantiated(pattern: Term, binding) -> Term | TermError:
    try:
        return instantiate(pattern, binding)
    except TermError as error:
        return error


@lru_cache(256)
def profiles_of(rule: Rule | PatternRule) -> dict[str, tuple[float, ...]]:
    """PROFILES, and more for a rule with constants, and functions or casts with edges: these numbers, if any.

    The profile "constants" has the rule's constants and those 1 above and below, "edges" has numbers around both.
    """
    numbers = _edges_in(rule)
    own = tuple(x for x in (*(n for n in numbers if isfinite(n)), *around(numbers)) if x not in PLAIN)
    near = tuple(x for c in _constants(rule) for x in (c, c, c - 1.0, c + 1.0) if x not in PLAIN)
    found = {**PROFILES, "constants": near} if near else dict(PROFILES)
    return {**found, "edges": own} if own else found


def _constants(rule: Rule | PatternRule) -> tuple[float, ...]:
    """The finite constants of a rule."""
    rights = rule.rights if isinstance(rule, PatternRule) else (rule.right,)
    nodes = [n for side in (rule.left, *rights) if isinstance(side, Term) for n in subterms(side)]
    values = [float(n.attrs[0]) for n in nodes if n.op == "const" and not isinstance(n.attrs[0], bool)]
    return tuple(dict.fromkeys(v for v in values if isfinite(v)))


def _edges_in(rule: Rule | PatternRule) -> list[float]:
    """The constants of a rule and the edges of its functions and casts."""
    rights = rule.rights if isinstance(rule, PatternRule) else (rule.right,)
    nodes = [n for side in (rule.left, *rights) if isinstance(side, Term) for n in subterms(side)]
    constants = [float(n.attrs[0]) for n in nodes if n.op == "const"]
    jumps = edges_of(n.op for n in nodes if n.op in JUMPS)
    targets = [n.attrs[0] if isinstance(n.attrs[0], str) else "float16" for n in nodes if n.op == "cast"]
    return [*constants, *jumps, *(x for target in targets for x in edges_of_cast(target))]


def kinds_of(profiles: Mapping[str, tuple[float, ...]], not_finite: Sequence[str] = ()) -> tuple[str, ...]:
    """The kinds of arrays to choose from, repeated as weights: profiles, and kinds with infinite numbers."""
    return ("plain", "plain", "plain", *profiles, *["edges"] * 2 * ("edges" in profiles), *not_finite)


def _around_integers(rule: Rule) -> tuple[int, ...]:
    """The integers of the rule, their neighbours, halves and doubles, without those in INTEGERS."""
    values = [n.attrs[0] for side in (rule.left, rule.right) for n in subterms(side) if n.op == "const"]
    near = {x for v in values if type(v) is int for x in (v - 1, v, v + 1, v // 2, 2 * v, -v)}
    return tuple(sorted(x for x in near - set(INTEGERS) if -(1 << 63) <= x < 1 << 63))


def random_instance(rule: Rule, generator: Random) -> Instance | None:
    """`drawn_instance` with a random generator, for provers, which do not use Hypothesis."""
    usual = [MANTISSAS] * 8 if rule.exact == "bitwise" else []
    profiles = profiles_of(rule)

    def array(shape: tuple[int, ...], finite: bool) -> np.ndarray:
        profile = generator.choice([*usual, *kinds_of(profiles, () if finite else (ABSENT,))])
        values = np.array([generator.choice(profiles.get(profile, PLAIN)) for _ in range(prod(shape))], dtype=float)
        if profile == MANTISSAS:
            scale = 2.0 ** generator.choice(SCALES)
            values = np.array([generator.uniform(-4.0, 4.0) * scale for _ in range(prod(shape))], dtype=float)
        if profile == ABSENT and values.size:
            values[generator.randrange(values.size)] = -inf
        return values.reshape(shape)

    return drawn_instance(rule, generator.choice, array)


class Sampler:
    """Draws one binding: dims first, then attributes, literals, and terms that load arrays.

    choose: picks one element of a sequence. array: makes a float64 array of (shape, finite), maybe a hostile one.
    """

    def __init__(self, rule: Rule, choose: Callable, array: Callable):
        self.rule, self.choose, self.array = rule, choose, array
        self.arrays: dict[str, np.ndarray] = {}
        self.restriction = rule.restriction
        self.scores = variables_under_exponents(rule.left)
        self.pattern = {n.attrs[0]: n for side in (rule.left, rule.right) for n in subterms(side) if n.op == "var"}
        self.implied = _implied_dtypes(rule.left)
        self.near_integers = _around_integers(rule)
        self.integers = (*INTEGERS, *self.near_integers)
        self.constants = _constants(rule)
        self.bound: dict[str, object] = {}

    def binding(self) -> dict[str, object]:
        """A value for every variable of the rule."""
        self._draw_dims()
        kinds = {name: kind.split() for name, kind in self.rule.variables}
        for name in kinds:
            if name not in self.pattern:
                self.bound[name] = self._attribute(name, kinds[name])
        literal = [name for name in self.pattern if self._is_literal(name, kinds.get(name, []))]
        for name in literal:
            self.bound[name] = self._literal(name)
        for name in self.pattern:
            if name not in literal:
                self.bound[name] = self._term(name)
        return self.bound

    def _draw_dims(self) -> None:
        names = sorted(n for n in variables_of(self.rule.left) if n.startswith("dim "))
        for name in names:
            self.bound[name] = Dim(name.removeprefix("dim "), self.choose(SIZES))
        self._draw_larger(names)
        if len(names) > 1 and self.choose([False] * 7 + [True]):
            self.bound[names[1]] = self.bound[names[0]]  # two variables may stand for one dim
        for name in self.rule.new_dims:
            self.bound[name] = Dim(name.removeprefix("dim "), self.choose(SIZES))
        for guard in (g for g in self.rule.guards if g.kind in SIZES_OF):
            whole, *parts = guard.operands
            size = SIZES_OF[guard.kind](instantiate(part, self.bound).size for part in parts)
            self.bound[f"dim {whole.name}"] = Dim(whole.name, size)
        other = max((n.removeprefix("dim ") for n in names if n.startswith("dim r")), default="") + "r"
        self.batch = Dim(other, self.choose((1, 2)))  # a law holds along dims that it does not name

    def _draw_larger(self, names: list[str]) -> None:
        """Now and then, one dim has a larger size; a size near a constant of the rule, if there is one."""
        near = {int(c) + step for c in self.constants for step in (-1, 0, 1) if abs(c) < LARGEST_SIZE}
        sizes = sorted(n for n in near if max(SIZES) < n)
        if names and self.choose([False] * (3 if sizes else 7) + [True]):
            name = self.choose(names)
            self.bound[name] = Dim(name.removeprefix("dim "), self.choose((*sizes, *LARGER_SIZES)))

    def _guards(self, kind: str, name: str) -> list[Guard]:
        about = (self.pattern.get(name), AttributeVariable(name))
        return [g for g in self.rule.guards if g.kind == kind and g.operands[0] in about]

    def _attribute(self, name: str, kind: list[str]):
        if "monoid" in kind:
            classes = [g.kind for kind in CLASSES for g in self._guards(kind, name)]
            return self.choose([m for m in MONOIDS if all(m in CLASSES[c] for c in classes)])
        if "name" in kind:
            return self.choose(NAMES)
        return self.choose(DTYPES[:4] if self._guards("float_dtype", name) else DTYPES)

    def _is_literal(self, name: str, kind: list[str]) -> bool:
        if any(self._guards(k, name) for k in ("constant", "positive", "nonzero")) or self._is_bound_of_range(name):
            return True
        return "constant" in kind and self.choose((False, True))

    def _is_bound_of_range(self, name: str) -> bool:
        return any(g.kind == "in_range" and g.operands[1] is self.pattern[name] for g in self.rule.guards)

    def _literal(self, name: str) -> Term:
        whole = self.pattern[name].attrs[1] == "int64"
        values = INTEGER_LITERALS if whole else FLOAT_LITERALS
        near = self.near_integers if whole else (*self.constants, *around(self.constants))
        if near and self.choose((False, True)):
            values = (*near, *values)
        tests = [GUARDS[k].holds for k in ("positive", "nonzero") if self._guards(k, name)]
        if self.restriction.literals_positive or self._is_bound_of_range(name):
            tests.append(GUARDS["positive"].holds)
        return const(self.choose([v for v in values if all(test(const(v)) for test in tests)]))

    def _dims(self, name: str) -> tuple[Dim, ...]:
        old = [value for name, value in self.bound.items() if name not in self.rule.new_dims]
        every = dict.fromkeys(v for v in (*old, self.batch) if isinstance(v, Dim))
        forbidden = {instantiate(g.operands[1], self.bound) for g in self._guards("independent", name)}
        needed = {instantiate(g.operands[1], self.bound) for g in self._guards("depends", name)}
        chance = [False, True, True, True, True]
        return tuple(d for d in every if d not in forbidden and (d in needed or self.choose(chance)))

    def _dtype(self, name: str) -> str:
        for guard in self._guards("has_dtype", name):
            return instantiate(guard.operands[1], self.bound)
        monoids = [v for v in self.bound.values() if isinstance(v, str) and v in MONOIDS]
        declared = self.pattern[name].attrs[1]
        if declared == "any" and name in self.implied:
            return self.implied[name]
        if declared == "any" and monoids:
            return {"bool": "bool", PAIR: PAIR}.get(MONOIDS[monoids[0]].dtype, "float32")
        return "float32" if declared == "any" else declared

    def _term(self, name: str) -> Term:
        for guard in self._guards("in_range", name):
            largest = instantiate(guard.operands[1], self.bound).attrs[0]
            return iota(Dim(f"{name}_range", self.choose(range(1, largest + 1))))
        dims, dtype = self._dims(name), self._dtype(name)
        if dtype == PAIR:
            return scaled(self._load(f"{name}_scale", dims, "float32"), self._load(f"{name}_weight", dims, "float32"))
        if dtype == "int64" and dims and self.choose((False, True)):
            return iota(dims[0]) * const(self.choose((1, 2, 3))) + const(self.choose((0, 1, 2)))
        if dtype == "bool" and len(dims) > 1 and self.choose((False, True)):
            return le(iota(dims[1]), iota(dims[0]))
        return self._load(name, dims, dtype)

    def _load(self, name: str, dims: tuple[Dim, ...], dtype: str) -> Term:
        shape = tuple(int(d.size) for d in dims)
        if dtype in FLOATS:
            restricted = self.restriction
            finite = restricted.scores_finite if name in self.scores else restricted.values_finite
            drawn = self.array(shape, finite)
            largest = RANGES[dtype].largest if dtype in RANGES else inf  # no tensor of the dtype holds a larger number
            self.arrays[name] = np.where(np.isinf(drawn), drawn, np.clip(drawn, -largest, largest))
        else:
            element = (False, True) if dtype == "bool" else self.integers
            values = [self.choose(element) for _ in range(int(np.prod(shape)))]
            self.arrays[name] = np.array(values, dtype=bool if dtype == "bool" else np.int64).reshape(shape)
        return load(Tensor(name, dtype, shape), *map(iota, dims))


def _implied_dtypes(left: Term) -> dict[str, str]:
    """The dtypes of variables that are operands of logic, or that are folded by a monoid of one dtype."""
    found: dict[str, str] = {}
    for node in subterms(left):
        monoid = MONOIDS.get(node.attrs[0]) if node.op == "reduce" and isinstance(node.attrs[0], str) else None
        kind = "bool" if node.op in ("and", "or", "not") else monoid.dtype if monoid else "same"
        found |= {a.attrs[0]: kind for a in node.args if a.op == "var" and kind != "same"}
    return found


def variables_under_exponents(left: Term) -> set[str]:
    """The names of scores, the variables in exponents; there -∞ means absent. Other variables are values.

    The first operand of `scaled` is an exponent, because ⟨s, w⟩ means w · e^s.
    """
    exponents = (n.args[0] for n in subterms(left) if n.op in ("exp", "exp2", "scaled"))
    return set().union(*map(variables_of, exponents))
