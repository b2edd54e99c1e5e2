"""Hypothesis strategies: concrete, hostile instances of a rule, and hostile tensors for functions.

A variable may depend on every dim that the guards do not forbid, whatever its annotation says: that is what the matcher
would accept. Needs hypothesis, so onepass/testing.py imports it late; tests and users may use it directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .egraph.guard import GUARDS, Guard
from .egraph.match import holds, instantiate, match
from .egraph.ops import MONOIDS, const, iota, le, load, scaled
from .egraph.rule import Rule, variables_of
from .egraph.term import FLOATS, PAIR, AttributeVariable, Dim, Tensor, Term, TermError, subterms

PLAIN = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.75, 0.1, -0.3, 3.7)
PROFILES = {  # what the elements of one tensor are drawn from; the first of each is where shrinking goes
    "plain": PLAIN,
    "large": tuple(50 * x for x in PLAIN),
    "ties": (1.0, 2.0),
    "zeros": (0.0,),
    "tiny": (1e-30, -1e-30, 3e-31),
}
ABSENT = "one absent"  # a plain tensor with one -∞: a masked score
FLOAT_LITERALS = (2.0, 1.0, 0.5, 0.1, 3.7, 50.0, 0.0, -1.0, -2.0, -0.3, inf, -inf)
INTEGER_LITERALS = (2, 1, 3, 4, 0, -1, -2)
SIZES = (1, 2, 2, 3, 3)
LONGEST = 24  # values drawn for one tensor
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool")


@dataclass(frozen=True)
class Restriction:
    """What an assumption keeps out of samples: -∞ (everywhere, or outside exponents), literals that are no sizes."""

    scores_finite: bool = False
    values_finite: bool = False
    literals_positive: bool = False


ASSUMPTIONS = {  # the named assumptions of rules; one that is not listed restricts nothing
    "scores are finite": Restriction(scores_finite=True, values_finite=True),
    "masked values are finite": Restriction(values_finite=True),
    "sizes are positive": Restriction(literals_positive=True),
}


@dataclass(frozen=True)
class Instance:
    """A rule with values for its variables: both sides as terms, the arrays they load, what each variable became."""

    rule: Rule
    left: Term
    right: Term | TermError
    arrays: dict[str, np.ndarray]
    binding: dict[str, object]

    def __str__(self) -> str:
        lines = []
        for name, value in sorted(self.binding.items()):
            lines.append(f"{name} = {value.size}" if isinstance(value, Dim) else f"{name} = {value}")
        lines += [f"{name} = {array.tolist()}" for name, array in sorted(self.arrays.items())]
        return "\n".join(lines)


@st.composite
def instances(draw, rule: Rule) -> Instance:
    """Instances of the rule's left side for which every guard holds; the right side may turn out to mean nothing."""
    sampler = _Sampler(draw, rule)
    left = _instantiated(rule.left, sampler.binding())
    assume(isinstance(left, Term))
    found = match(rule.left, left)
    assume(found is not None and all(holds(g, found) for g in rule.guards))
    return Instance(rule, left, _instantiated(rule.right, found), sampler.arrays, found)


def _instantiated(pattern: Term, binding) -> Term | TermError:
    try:
        return instantiate(pattern, binding)
    except TermError as error:
        return error


@st.composite
def hostile_arrays(draw, shape: tuple[int, ...], finite: bool = False) -> np.ndarray:
    """A float64 array of one profile: a short list of values, repeated, so that values and shapes shrink apart."""
    profile = draw(st.sampled_from(["plain", "plain", "plain", *PROFILES, "constant", *([] if finite else [ABSENT])]))
    palette, size = PROFILES.get(profile, PLAIN), int(np.prod(shape))
    longest = 1 if profile == "constant" else max(1, min(size, LONGEST))
    few, many = (st.lists(st.sampled_from(palette), min_size=n, max_size=longest) for n in (1, min(longest, 3)))
    pool = draw(st.one_of(few, many, many, many))  # few is where shrinking goes
    values = np.resize(np.array(pool, dtype=float), size)
    if size > LONGEST:  # repetition would leave large arrays with equal rows
        values = np.random.default_rng(draw(st.integers(0, 2**16))).permutation(values)
    if profile == ABSENT and size:
        values[draw(st.integers(0, size - 1))] = -inf
    return values.reshape(shape)


@st.composite
def named_shapes(draw, names: tuple[str, ...], largest: int = 4) -> tuple[tuple[int, ...], ...]:
    """Shapes for texts such as "i d" and "j d": one size for each letter, digits as they are."""
    words = sorted({w for text in names for w in text.split() if not w.isdigit()})
    sizes = {w: draw(st.integers(1, largest)) for w in words}
    return tuple(tuple(int(w) if w.isdigit() else sizes[w] for w in text.split()) for text in names)


class _Sampler:
    """Draws one binding: dims, attributes, literals, then terms that load arrays."""

    def __init__(self, draw, rule: Rule):
        self.draw, self.rule = draw, rule
        self.arrays: dict[str, np.ndarray] = {}
        self.restriction = ASSUMPTIONS.get(rule.exact, Restriction())
        self.scores = _variables_under_exponents(rule.left)
        self.pattern = {n.attrs[0]: n for side in (rule.left, rule.right) for n in subterms(side) if n.op == "var"}
        self.bound: dict[str, object] = {}

    def binding(self) -> dict[str, object]:
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
            self.bound[name] = Dim(name.removeprefix("dim "), self.draw(st.sampled_from(SIZES)))
        if len(names) > 1 and self.draw(st.sampled_from([False] * 7 + [True])):
            self.bound[names[1]] = self.bound[names[0]]  # two variables may stand for one dim
        self.batch = Dim("r", self.draw(st.integers(1, 2)))  # laws hold pointwise in every dim they do not mention

    def _guards(self, kind: str, name: str) -> list[Guard]:
        about = (self.pattern.get(name), AttributeVariable(name))
        return [g for g in self.rule.guards if g.kind == kind and g.operands[0] in about]

    def _attribute(self, name: str, kind: list[str]):
        if "monoid" in kind:
            return self.draw(st.sampled_from(list(MONOIDS)))
        return self.draw(st.sampled_from(DTYPES[:4] if self._guards("float_dtype", name) else DTYPES))

    def _is_literal(self, name: str, kind: list[str]) -> bool:
        if any(self._guards(k, name) for k in ("constant", "positive", "nonzero")) or self._is_bound_of_range(name):
            return True
        return "constant" in kind and self.draw(st.booleans())

    def _is_bound_of_range(self, name: str) -> bool:
        return any(g.kind == "in_range" and g.operands[1] is self.pattern[name] for g in self.rule.guards)

    def _literal(self, name: str) -> Term:
        values = INTEGER_LITERALS if self.pattern[name].attrs[1] == "int64" else FLOAT_LITERALS
        tests = [GUARDS[k].holds for k in ("positive", "nonzero") if self._guards(k, name)]
        if self.restriction.literals_positive or self._is_bound_of_range(name):
            tests.append(GUARDS["positive"].holds)
        return const(self.draw(st.sampled_from([v for v in values if all(test(const(v)) for test in tests)])))

    def _dims(self, name: str) -> tuple[Dim, ...]:
        every = dict.fromkeys(v for v in (*self.bound.values(), self.batch) if isinstance(v, Dim))
        forbidden = {instantiate(g.operands[1], self.bound) for g in self._guards("independent", name)}
        needed = {instantiate(g.operands[1], self.bound) for g in self._guards("depends", name)}
        chance = st.sampled_from([False, True, True, True, True])
        return tuple(d for d in every if d not in forbidden and (d in needed or self.draw(chance)))

    def _dtype(self, name: str) -> str:
        for guard in self._guards("has_dtype", name):
            return instantiate(guard.operands[1], self.bound)
        monoids = [v for v in self.bound.values() if isinstance(v, str) and v in MONOIDS]
        declared = self.pattern[name].attrs[1]
        if declared == "any" and monoids:
            return {"bool": "bool", PAIR: PAIR}.get(MONOIDS[monoids[0]].dtype, "float32")
        return "float32" if declared == "any" else declared

    def _term(self, name: str) -> Term:
        for guard in self._guards("in_range", name):
            largest = instantiate(guard.operands[1], self.bound).attrs[0]
            return iota(Dim(f"{name}_range", self.draw(st.integers(1, largest))))
        dims, dtype = self._dims(name), self._dtype(name)
        if dtype == PAIR:
            return scaled(self._load(f"{name}_scale", dims, "float32"), self._load(f"{name}_weight", dims, "float32"))
        if dtype == "int64" and dims and self.draw(st.booleans()):
            return iota(dims[0]) * const(self.draw(st.integers(1, 3))) + const(self.draw(st.integers(0, 2)))
        if dtype == "bool" and len(dims) > 1 and self.draw(st.booleans()):
            return le(iota(dims[1]), iota(dims[0]))
        return self._load(name, dims, dtype)

    def _load(self, name: str, dims: tuple[Dim, ...], dtype: str) -> Term:
        shape = tuple(d.size for d in dims)
        if dtype in FLOATS:
            restricted = self.restriction
            finite = restricted.scores_finite if name in self.scores else restricted.values_finite
            self.arrays[name] = self.draw(hostile_arrays(shape, finite))
        else:
            element = st.booleans() if dtype == "bool" else st.integers(-3, 6)
            values = [self.draw(element) for _ in range(int(np.prod(shape)))]
            self.arrays[name] = np.array(values, dtype=bool if dtype == "bool" else np.int64).reshape(shape)
        return load(Tensor(name, dtype, shape), *map(iota, dims))


def _variables_under_exponents(left: Term) -> set[str]:
    """Names of the variables that are exponentiated: scores, for which -∞ means absent; the others are values."""
    return set().union(*(variables_of(n) for n in subterms(left) if n.op in ("exp", "exp2")))
