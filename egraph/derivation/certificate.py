"""Certificates: chains of whole-term rewrites from one term to another, and a checker that does not trust the search.

Each step names a rule, a position and a direction. `check` matches every step again, decides every guard again,
evaluates folded literals and compares affine forms again, and follows the chain from start to goal. It needs no
e-graph. Example: x · 1 + y equals x + y by one step, multiply_by_one at the position (0,).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rewrite.match import Binding, binding_of, holds, instantiate, match
from ..rewrite.pattern_expansion import filled
from ..rewrite.rule import Rule
from ..rewrite.serialization import from_json, to_json
from ..terms.affine import affine, bounds, combine, to_term
from ..terms.evaluate import evaluate
from ..terms.ops import OPS, make, var
from ..terms.printing import show
from ..terms.term import FLOATS, Term, TermError
from ..terms.traversal import substitute, subterms

FORWARD, BACKWARD = "forward", "backward"
FOLDING, INDICES = "constant folding", "index arithmetic"
NOT_RULES = {  # steps without a rule, which the checker decides by arithmetic
    FOLDING: "an operation on literals is the literal that it gives",
    INDICES: "equal affine forms of coordinates are equal; a comparison that their ranges decide is decided",
}
MAX_CHAIN_SUBTERMS = 5_000_000  # of all terms of a chain that is read: some ten seconds of checking
MIN_NAMED_CHARACTERS = 17  # a subterm that no step changes gets a name in print if its text is as long


class CertificateError(TermError):
    """A derivation that proves nothing; the message says why. `step` counts from 1; 0 is the chain as a whole."""

    def __init__(self, step: int, why: str):
        super().__init__(f"step {step}: {why}" if step else why)
        self.step = step


@dataclass(frozen=True)
class DerivationStep:
    """One use of one rule. `position` is the path of argument numbers from the root; `binding` is for readers.

    everywhere: the subterm at the position is replaced at all its occurrences.
    """

    rule: str
    direction: str
    position: tuple[int, ...]
    binding: tuple[tuple[str, str], ...]
    before: Term
    after: Term
    everywhere: bool = False

    @property
    def old(self) -> Term:
        """The subterm that was replaced."""
        return subterm_at(self.before, self.position)

    @property
    def new(self) -> Term:
        """The subterm that replaces it."""
        return subterm_at(self.after, self.position)

    @property
    def place(self) -> str:
        """The position in words: the operations around it, from the outside in."""
        around, node = [], self.before
        for number in self.position:
            around.append(f"{node.attrs[0]} over {node.attrs[1]}" if node.op == "reduce" else node.op)
            node = node.args[number]
        return "everywhere" if self.everywhere else f"in {' > '.join(around)}" if around else "at the root"


@dataclass(frozen=True)
class Stretch:
    """Successive steps with names for the long subterms that none of them changes: t0 for one, say."""

    start: Term
    steps: tuple[DerivationStep, ...]
    names: dict[Term, Term]


@dataclass(frozen=True)
class Derivation:
    """A chain of whole terms that shows `start` = `goal`: each step is an instance of one rule."""

    start: Term
    goal: Term
    steps: tuple[DerivationStep, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use."""
        return tuple(dict.fromkeys(step.rule for step in self.steps if step.rule not in NOT_RULES))

    def then(self, further: Derivation) -> Derivation:
        """This chain, continued by another that starts at its goal."""
        return Derivation(self.start, further.goal, self.steps + further.steps)

    def reversed_rules(self, rules: Iterable[Rule]) -> tuple[str, ...]:
        """Rules used from right to left without both=True: there the result may be NaN where the term was a number."""
        one_way = {r.name for r in rules if not r.both}
        used = (s.rule for s in self.steps if s.direction == BACKWARD and s.rule in one_way)
        return tuple(dict.fromkeys(used))

    def __str__(self) -> str:
        return self.explained({})

    def explained(self, laws: Mapping[str, str]) -> str:
        """The chain as mathematics: both ends, and for each step its rule, law, place, and subterm before and after."""
        lines: list[str] = []
        number = 0
        for part in self.stretches():
            lines += [f"where {name} = {show(t)}" for t, name in part.names.items()]
            lines.append(f"  {'=' if number else ' '} {show(substitute(part.start, part.names))}")
            for step in part.steps:
                number += 1
                lines += _step_lines(number, step, laws, part.names)
        return "\n".join([*lines, f"  = {show(substitute(self.goal, part.names))}"])

    def stretches(self) -> Iterator[Stretch]:
        """The chain in at most two parts, each with its own names: the first steps change all occurrences at once."""
        first = next((n for n, step in enumerate(self.steps) if not step.everywhere), len(self.steps))
        current, named = self.start, 0
        for steps in [part for part in (self.steps[:first], self.steps[first:]) if part] or [()]:
            names = _names([current, *(step.after for step in steps)], named)
            yield Stretch(current, steps, names)
            current, named = steps[-1].after if steps else current, named + len(names)

    def to_json(self) -> dict:
        """The chain as plain data. A step has the rule, direction, position, binding, new subterm, and `everywhere`."""
        steps = [
            [s.rule, s.direction, list(s.position), [list(b) for b in s.binding], to_json(s.new), s.everywhere]
            for s in self.steps
        ]
        return {"start": to_json(self.start), "goal": to_json(self.goal), "steps": steps}

    @staticmethod
    def from_json(data: Any) -> Derivation:
        """The chain that `to_json` wrote. It proves nothing before `check` has passed. Raises TermError."""
        try:
            current = start = from_json(data["start"])
            steps = []
            work = 0
            for rule, direction, position, binding, new, everywhere in data["steps"]:
                if not all(type(place) is int for place in position) or type(everywhere) is not bool:
                    raise TermError(f"{position!r}, {everywhere!r}: no position, or not said whether everywhere")
                after = replaced(current, tuple(position), from_json(new), everywhere)
                work += sum(1 for _ in subterms(after))
                if work > MAX_CHAIN_SUBTERMS:
                    raise TermError(f"too long to check: over {MAX_CHAIN_SUBTERMS} subterms in all of its steps")
                shown = tuple((str(name), str(text)) for name, text in binding)
                steps.append(
                    DerivationStep(str(rule), str(direction), tuple(position), shown, current, after, everywhere)
                )
                current = after
            return Derivation(start, from_json(data["goal"]), tuple(steps))
        except TermError:
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TermError(f"not the text of a derivation: {error}") from error


def _names(wholes: list[Term], taken: int) -> dict[Term, Term]:
    """A short name for each largest long subterm that occurs in all of these terms."""
    common = set.intersection(*(set(subterms(t)) for t in wholes)) - {wholes[0]}
    inner = {a for t in common for a in t.args}  # subterms of common terms are common, too
    outer = [t for t in subterms(wholes[0]) if t in common - inner and len(show(t)) >= MIN_NAMED_CHARACTERS]
    return {t: var(f"t{n}", t.dtype) for n, t in enumerate(outer, taken)}


def _step_lines(number: int, step: DerivationStep, laws: Mapping[str, str], names: dict[Term, Term]) -> list[str]:
    reverse = "" if step.direction == FORWARD else ", read from right to left"
    law = laws.get(step.rule) or NOT_RULES.get(step.rule, "")
    old, new = (show(substitute(t, names)) for t in (step.old, step.new))
    return [f"{number:3}. {step.rule}{reverse}{': ' if law else ''}{law}", f"      {step.place}:  {old}  =>  {new}"]


def subterm_at(root: Term, position: tuple[int, ...]) -> Term:
    """The subterm at a path of argument numbers. Raises IndexError for a path that leaves the term."""
    for number in position:
        if number < 0:
            raise IndexError(f"position {position} leads nowhere")
        root = root.args[number]
    return root


def replace_at(root: Term, position: tuple[int, ...], new: Term) -> Term:
    """The term with the subterm at one position replaced. Other occurrences stay."""
    if not position:
        return new
    first, rest = position[0], position[1:]
    args = list(root.args)
    args[first] = replace_at(args[first], rest, new)
    return make(root.op, tuple(args), root.attrs)


def replaced(root: Term, position: tuple[int, ...], new: Term, everywhere: bool) -> Term:
    """The whole term after a step that puts `new` at the position, or at all occurrences of the old subterm."""
    if everywhere:
        return substitute(root, {subterm_at(root, position): new})
    return replace_at(root, position, new)


def binding_text(binding: Binding) -> tuple[tuple[str, str], ...]:
    """A binding as text, sorted by name."""
    return tuple((name, show(v) if isinstance(v, Term) else str(v)) for name, v in sorted(binding.items()))


def check(derivation: Derivation, rules: Iterable[Rule] | Mapping[str, Rule]) -> None:
    """Raises CertificateError unless every step is an instance of its rule and the chain leads from start to goal.

    A step whose check raises any error is rejected.
    """
    named = dict(rules) if isinstance(rules, Mapping) else {r.name: r for r in rules}
    current = derivation.start
    for number, step in enumerate(derivation.steps, 1):
        if step.before is not current:
            raise CertificateError(number, f"starts from {show(step.before)}, but the chain is at {show(current)}")
        try:
            _check_step(number, step, named)
        except CertificateError:
            raise
        except Exception as error:
            why = f"{step.rule}: cannot be decided: {type(error).__name__}: {error}"
            raise CertificateError(number, why) from error
        current = step.after
    if current is not derivation.goal:
        raise CertificateError(0, f"the chain ends at {show(current)}, not at the goal {show(derivation.goal)}")


def _check_step(number: int, step: DerivationStep, rules: Mapping[str, Rule]) -> None:
    try:
        old, new = step.old, step.new
    except IndexError:
        raise CertificateError(number, f"{step.rule}: position {step.position} leads nowhere") from None
    why = _not_arithmetic(step, old, new) if step.rule in NOT_RULES else _not_an_instance(step, old, new, rules)
    if why:
        raise CertificateError(number, f"{step.rule}: {why}")
    if replaced(step.before, step.position, new, step.everywhere) is not step.after:
        raise CertificateError(number, f"{step.rule}: something else changed as well")


def _not_an_instance(step: DerivationStep, old: Term, new: Term, rules: Mapping[str, Rule]) -> str:
    """Why old = new is not an instance of the rule; "" if it is."""
    rule = rules.get(step.rule)
    if rule is None:
        return "no such rule was given"
    if step.direction not in (FORWARD, BACKWARD):
        return f"{step.direction!r} is no direction"
    left, right = (old, new) if step.direction == FORWARD else (new, old)
    binding = match(rule.left, left)
    if binding is None:
        return f"{show(left)} is no instance of the left side {show(rule.left)}"
    if rule.chosen:
        binding = binding_of(rule, left, match(filled(rule.right, binding), right, binding) or {})
        if binding is None:
            return f"{show(right)} has nothing new that fits the right side {show(rule.right)}"
    for guard in rule.guards:
        if not holds(guard, binding):
            return f"guard «{guard}» does not hold for {dict(binding_text(binding))}"
    try:
        promised = instantiate(rule.right, binding)
    except TermError as error:
        return f"the right side means nothing here: {error}"
    if promised is not right:
        return f"the right side is {show(promised)}, not {show(right)}"
    if binding_text(binding) != step.binding:
        return "the binding shown to readers is not the one that matches"
    return ""


# Steps without a rule ------------------------------------------------------------------------------------------------


def _not_arithmetic(step: DerivationStep, old: Term, new: Term) -> str:
    """Why old = new is not a step of constant folding or index arithmetic; "" if it is."""
    if step.direction != FORWARD or step.binding:
        return "arithmetic has one direction and binds nothing"
    equal = _folds if step.rule == FOLDING else _same_indices
    return "" if equal(old, new) else f"{show(old)} is not {show(new)}"


def _folds(old: Term, new: Term) -> bool:
    """Whether the operation `old` on literals gives the literal `new`, rounded and wrapped as in its dtype."""
    pointwise = old.op == "cast" or OPS[old.op].meaning is not None
    if not pointwise or new.op != "const" or not old.args or any(a.op != "const" for a in old.args):
        return False
    if new.dtype != old.dtype and not (new.dtype == "float" and old.dtype in FLOATS):  # a weak literal adapts
        return False
    if old.op in ("floordiv", "mod") and old.args[1].attrs[0] == 0:  # undefined
        return False
    left, right = evaluate(old, {}, rounding="float64"), evaluate(new, {})
    return left.dtype.kind == right.dtype.kind and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def _same_indices(old: Term, new: Term) -> bool:
    if old.dtype == new.dtype == "int64":
        if old.op in ("floordiv", "mod") and new.op == old.op:  # a regrouped dividend
            return old.args[1] is new.args[1] and affine(old.args[0]) == affine(new.args[0])
        return affine(old) == affine(new)
    left, right = _comparison(old), _comparison(new)
    if left is None:
        return False
    if new.op == "const":
        return new.attrs[0] is _decided(*left)
    return right is not None and (left == right or (left[0] == "eq" == right[0] and left[1] == _negated(right[1])))


def _comparison(x: Term):
    """An integer comparison as ("le", f) for f ≤ 0 or ("eq", f) for f = 0, with an affine form f; None for others."""
    if x.op not in ("le", "lt", "eq") or any(a.dtype != "int64" for a in x.args):
        return None
    form = combine(affine(x.args[0]), affine(x.args[1]), -1)
    return ("le", (form[0], form[1] + 1)) if x.op == "lt" else (x.op, form)


def _negated(form):
    return combine(({}, 0), form, -1)


def _decided(op: str, form) -> bool | None:
    """The truth of f ≤ 0 or f = 0, if the bounds decide it; decided here anew, not by `compare` of affine.py."""
    low, high = bounds(to_term(form))
    if op == "le":
        return True if high is not None and high <= 0 else False if low is not None and low > 0 else None
    return True if (low, high) == (0, 0) else None
