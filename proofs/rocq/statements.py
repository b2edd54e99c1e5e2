"""Writes the statement of a rule in Rocq, from the record alone: what the verdict claims, and no formula twice.

A variable takes the dims along which it may change as arguments, any range has any size, and guards, assumptions and
what is known of casts are hypotheses. A case is a rule without a variable for a monoid (provers/claims.py). Example:
Σ_j (s · c) = (Σ_j s) · c is about `s : nat -> option R` and `c : option R` where c does not depend on j.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isnan

from ...egraph.rewrite.rule import Restriction, Rule
from ...egraph.terms.ops import MONOIDS
from ...egraph.terms.term import FLOATS, PAIR, Dim, Term
from ...egraph.terms.traversal import all_dims, subterms
from ..provers.case_analysis import VariableFacts
from ..provers.claims import FINITE, cases, constant_along_new_dims, facts_of
from .meanings import (
    EQUAL,
    FOLDS,
    INTEGER,
    NUMBER,
    OPERATIONS,
    REFINES,
    SIGNS,
    SIZES,
    STATE,
    TRUTH,
    TYPES_OF_NUMBERS,
    UNKNOWN,
    WORDS,
)

SEVERAL = "_in_case_"  # before the number of a case, where a law has several statements
NAMES = frozenset(
    word for table in (OPERATIONS, FOLDS) for row in table.values() for name in row.values() for word in name.split()
)
READERS = frozenset(reader for _, reader in TYPES_OF_NUMBERS.values())


class NotStated(Exception):
    """A rule that has no statement in Rocq; the message says which part has no meaning there."""


@dataclass(frozen=True)
class LawStatement:
    """One theorem: its name and its proposition."""

    name: str
    proposition: str


def statements(rule: Rule, nonempty: bool, finite_backward: bool) -> tuple[LawStatement, ...]:
    """Everything that the verdict on a rule claims, one statement for each case and direction.

    nonempty: ranges are assumed not to be empty. finite_backward: a law that is used in both directions and is not
    defined alike holds from right to left for real values only. Raises NotStated.
    """
    found = []
    for case in cases(rule):
        if case.left is case.right:
            continue
        writer = Writer(case, case.restriction, nonempty)
        found.append(writer.proposition(case.left, case.right))
        if case.both and not case.defined_alike:
            writer = Writer(case, FINITE if finite_backward else case.restriction, nonempty)
            found.append(writer.proposition(case.right, case.left))
    if len(found) == 1:
        return (LawStatement(rule.name, found[0]),)
    return tuple(LawStatement(f"{rule.name}{SEVERAL}{n}", text) for n, text in enumerate(found, 1))


class Writer:
    """Writes one case of a rule, for the values that a restriction leaves. also: further terms that it may write."""

    def __init__(self, rule: Rule, restriction: Restriction, nonempty: bool, also: tuple[Term, ...] = ()):
        self.rule, self.nonempty = rule, nonempty
        terms = (rule.left, rule.right, *also)
        self.facts: VariableFacts = facts_of(rule, restriction)
        still = {guard.operands for guard in rule.guards if guard.kind == "independent"}
        still |= {*constant_along_new_dims(rule)}
        self.variables: dict[Term, tuple[Dim, ...]] = {}  # and the dims along which each may change
        for side in terms:
            for variable, dim in _bound(side, ()):
                self.variables.setdefault(variable, ())
                free = dim is None or (variable, dim) in still or variable in self.facts.literals
                if not free and dim not in self.variables[variable]:
                    self.variables[variable] += (dim,)
        self.casts: dict[object, list[Term]] = {}  # dtype: what is cast to it
        for node in (n for side in terms for n in subterms(side) if n.op == "cast"):
            self.casts.setdefault(node.attrs[0], []).append(node.args[0])
        self.names = self._names()

    def _names(self) -> dict[object, str]:
        """A name for every variable, dim and dtype, none of which hides a definition or another name."""
        names: dict[object, str] = {}
        dims = list(dict.fromkeys((*all_dims(self.rule.left), *all_dims(self.rule.right))))
        taken = {*NAMES, *READERS, *WORDS, UNKNOWN, *(f"size_{d}" for d in dims)}
        for thing in (*self.variables, *dims, *self.casts):
            name = thing.attrs[0] if isinstance(thing, Term) else f"to_{thing}" if thing in self.casts else str(thing)
            while name in taken:
                name += "'"
            names[thing] = name
            taken.add(name)
        return names

    # The whole -------------------------------------------------------------------------------------------------------

    def proposition(self, left: Term, right: Term, given: tuple[str, ...] = ()) -> str:
        """The binders, the hypotheses, and that the left side is equal to, or refined by, the right side."""
        alike = self.rule.defined_alike or self.sort(left) != NUMBER
        conclusion = (EQUAL if alike else REFINES).format(self.term(left), self.term(right))
        binders = [*self._sizes(), *self._unknown(conclusion), *map(self._binder, self.variables)]
        binders += [f"({self.names[dtype]} : {NUMBER} -> {NUMBER})" for dtype in self.casts]
        hypotheses = [*self._ranges(left, right), *self._known(), *self._about_casts(), *given]
        whole = f"forall {' '.join(binders)},\n" if binders else ""
        return whole + "".join(f"  {h} ->\n" for h in hypotheses) + f"  {conclusion}"

    def _sizes(self) -> list[str]:
        dims = [d for d in self.names if isinstance(d, Dim)]
        return [f"(size_{self.names[d]} : nat)" for d in dims]

    def _unknown(self, conclusion: str) -> list[str]:
        return [f"({UNKNOWN} : {NUMBER} -> {NUMBER} -> bool)"] if UNKNOWN in conclusion.split() else []

    def _binder(self, variable: Term) -> str:
        arguments = "nat -> " * len(self.variables[variable])
        return f"({self.names[variable]} : {arguments}{self.type_of(variable)[0]})"

    def _ranges(self, left: Term, right: Term) -> Iterator[str]:
        """Coordinates outside of reductions are within their ranges. Ranges may be assumed not to be empty."""
        free = {d for side in (left, right) for d in self._coordinates(side, frozenset())}
        for dim in (d for d in self.names if isinstance(d, Dim)):
            name = self.names[dim]
            if dim in free:
                yield f"forall {name} : nat, ({name} < size_{name})%nat"
            elif self.nonempty:
                yield f"(0 < size_{name})%nat"
        for guard in (g for g in self.rule.guards if g.kind in SIZES):
            whole, *parts = (f"size_{self.names[d]}" for d in guard.operands)
            yield f"{whole} = ({f' {SIZES[guard.kind]} '.join(parts)})%nat"

    def _coordinates(self, node: Term, bound: frozenset[Dim]) -> Iterator[Dim]:
        """The dims of variables that no reduction binds at their place."""
        if node.op == "var":
            yield from (d for d in self.variables[node] if d not in bound)
        for argument in node.args:
            yield from self._coordinates(argument, bound.union(_binds(node)))

    def _known(self) -> Iterator[str]:
        """What the guards say of variables: their signs, and conditions that hold."""
        for variable in self.variables:
            sign = self.facts.signs.get(variable.attrs[0])
            if sign is not None:
                yield SIGNS[self.type_of(variable)[0]][sign].format(self.names[variable])
        for condition in self.facts.assumed:
            yield f"{self.term(condition)} = true"

    def _about_casts(self) -> Iterator[str]:
        """Casts to floating dtypes round, or change nothing; a cast to a dtype that the operand has changes nothing."""
        for dtype, operands in self.casts.items():
            name = self.names[dtype]
            known = dtype in FLOATS or dtype in self.facts.real_casts
            if known and not self.facts.literals.intersection(operands):
                yield f"{'rounds' if self.facts.casts_round else 'changes_nothing'} {name}"
            for operand, own in self.facts.own_casts:
                if own == dtype:
                    over = " ".join(self.names[d] for d in self.variables[operand])
                    value = self.term(operand)
                    yield (f"forall {over}, " if over else "") + f"{name} {value} = {value}"

    # Variables and terms ---------------------------------------------------------------------------------------------

    def type_of(self, variable: Term) -> tuple[str, str]:
        """The type of a variable, and the function from it to its value; "" if it is its own value."""
        name, dtype = variable.attrs
        if dtype in ("int64", "bool"):
            return (INTEGER if dtype == "int64" else TRUTH), ""
        kinds = self.facts.kinds(name)
        if kinds not in TYPES_OF_NUMBERS:
            raise NotStated(f"{name} has the kinds {kinds}")
        return TYPES_OF_NUMBERS[kinds]

    def sort(self, node: Term) -> str:
        """The sort of a term's value."""
        if node.op == "var":
            kind, value = self.type_of(node)
            return STATE if value == "held" else NUMBER if value else kind
        if node.op in ("reduce", "at"):
            return self.sort(node.args[0])
        if node.op == "only":
            return self.sort(node.args[1])
        if node.op == "scaled" or node.dtype.startswith(PAIR):
            return STATE
        return {"int64": INTEGER, "bool": TRUTH}.get(node.dtype, NUMBER)

    def term(self, node: Term) -> str:
        """A term in Rocq, in parentheses if it has arguments. Raises NotStated."""
        if node.op == "var":
            value = " ".join((self.names[node], *(self.names[d] for d in self.variables[node])))
            reader = self.type_of(node)[1]
            argument = f"({value})" if " " in value else value
            return f"({reader} {argument})" if reader else argument
        if node.op == "const":
            return literal(node.attrs[0])
        if node.op in ("iota", "size") and isinstance(node.attrs[0], Dim):
            return f"(Z.of_nat {'size_' * (node.op == 'size')}{self.names[node.attrs[0]]})"
        if node.op == "at":
            value, place = map(self.term, node.args)
            return f"(let {self.names[node.attrs[0]]} := Z.to_nat {place} in {value})"
        if node.op == "cast" and self.sort(node.args[0]) == TRUTH and self.sort(node) == NUMBER:
            return f"(choice {self.term(node.args[0])} {literal(1.0)} {literal(0.0)})"
        if node.op == "cast":
            return f"({self.names[node.attrs[0]]} {self._cast_operand(node)})"
        if node.op == "reduce":
            fold, name = self._meaning(FOLDS, node.attrs[0], node.args[0]), self.names[node.attrs[1]]
            return f"({fold} size_{name} (fun {name} => {self.term(node.args[0])}))"
        meaning = self._meaning(OPERATIONS, node.op, *node.args[-1:])
        return f"({' '.join((meaning, *map(self.term, node.args)))})"

    def _cast_operand(self, node: Term) -> str:
        if self.sort(node) != NUMBER or self.sort(node.args[0]) != NUMBER:
            raise NotStated(f"a cast to or from what is no number: {node}")
        return self.term(node.args[0])

    def _meaning(self, table: dict[str, dict[str, str]], name: object, *operands: Term) -> str:
        sort = self.sort(operands[0]) if operands else NUMBER
        found = table.get(str(name), {}).get(sort)
        if found is None:
            what = "the monoid" if name in MONOIDS else "the operation"
            raise NotStated(f"{what} {name} of {sort} has no meaning in Rocq")
        return found


def _bound(node: Term, dims: tuple[Dim, ...]) -> Iterator[tuple[Term, Dim | None]]:
    """Every variable with each dim that a reduction around it binds, and once with None."""
    if node.op == "var":
        yield node, None
        yield from ((node, dim) for dim in dims)
    for argument in node.args:
        yield from _bound(argument, (*dims, *_binds(node)))


def _binds(node: Term) -> tuple[Dim, ...]:
    """The dim that a reduction binds, or of which a variable is read at another place."""
    return (node.attrs[-1],) if node.op in ("reduce", "at") else ()


def literal(value: float | bool) -> str:
    """A Python number in Rocq: exactly the number that the float is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"({value})%Z"
    if isnan(value):
        return "Undefined"
    if value in (inf, -inf):
        return "Above" if value > 0 else "Below"
    exact = Fraction(value)
    over = f"({exact.numerator})" if exact.numerator < 0 else str(exact.numerator)
    return f"(Number {over})" if exact.denominator == 1 else f"(Number ({over} / {exact.denominator}))"
