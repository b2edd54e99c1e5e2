"""Certificates: a chain of whole-term rewrites from one term to another, and a checker that trusts no search engine.

Each step names a rule, where it was used and which way; `check` matches again, decides every guard again, and follows
the chain from end to end. It needs rules, matching and positions only: no e-graph. Called by the pipeline and reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .match import Binding, holds, instantiate, match
from .ops import make, var
from .rule import Rule
from .serial import from_json, to_json
from .show import show
from .term import Term, TermError, substitute, subterms

FORWARD, BACKWARD = "forward", "backward"
NAMED_LENGTH = 16  # a subterm that no step touches gets a name in print if its text is longer


class CertificateError(TermError):
    """A derivation that proves nothing: says which step and why. `step` counts from 1; 0 is the chain as a whole."""

    def __init__(self, step: int, why: str):
        super().__init__(f"step {step}: {why}" if step else why)
        self.step = step


@dataclass(frozen=True)
class Step:
    """One rule used once. `position` is the path of argument numbers from the root; `binding` is for readers."""

    rule: str
    direction: str
    position: tuple[int, ...]
    binding: tuple[tuple[str, str], ...]
    before: Term
    after: Term

    @property
    def old(self) -> Term:
        """The subterm that was replaced."""
        return subterm_at(self.before, self.position)

    @property
    def new(self) -> Term:
        """What stands in its place."""
        return subterm_at(self.after, self.position)


@dataclass(frozen=True)
class Derivation:
    """Why `start` equals `goal`: every whole term on the way, each next one by one instance of one rule."""

    start: Term
    goal: Term
    steps: tuple[Step, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use."""
        return tuple(dict.fromkeys(step.rule for step in self.steps))

    def reversed_rules(self, rules: Iterable[Rule]) -> tuple[str, ...]:
        """Rules used from right to left that are not laws of both directions: their left side may be less defined."""
        one_way = {r.name for r in rules if not r.both}
        used = (s.rule for s in self.steps if s.direction == BACKWARD and s.rule in one_way)
        return tuple(dict.fromkeys(used))

    def __str__(self) -> str:
        names = self._names()
        say = lambda t: show(substitute(t, names))
        lines = [f"where {name} = {show(t)}" for t, name in names.items()]
        lines.append(f"    {say(self.start)}")
        for number, step in enumerate(self.steps, 1):
            reverse = "" if step.direction == FORWARD else ", read from right to left"
            lines.append(f"  = {say(step.after)}")
            lines.append(f"        {number}. {step.rule}{reverse}")
        return "\n".join(lines)

    def _names(self) -> dict[Term, Term]:
        """A short name for each largest long subterm that occurs from the first line to the last."""
        wholes = [self.start, *(step.after for step in self.steps)]
        common = set.intersection(*(set(subterms(t)) for t in wholes)) - {self.start}
        inner = {a for t in common for a in subterms(t) if a is not t}
        outer = [t for t in subterms(self.start) if t in common - inner and len(show(t)) > NAMED_LENGTH]
        return {t: var(f"t{n}", t.dtype) for n, t in enumerate(outer)}

    def to_json(self) -> dict:
        """Plain data: the start, the goal, and per step the rule, direction, position, binding and new subterm."""
        steps = [[s.rule, s.direction, list(s.position), list(s.binding), to_json(s.new)] for s in self.steps]
        return {"start": to_json(self.start), "goal": to_json(self.goal), "steps": steps}

    @staticmethod
    def from_json(data) -> Derivation:
        """What `to_json` wrote, a proof only once `check` has passed. Raises TermError for anything else."""
        try:
            current = start = from_json(data["start"])
            steps = []
            for rule, direction, position, binding, new in data["steps"]:
                after = replace_at(current, tuple(position), from_json(new))
                shown = tuple((str(name), str(text)) for name, text in binding)
                steps.append(Step(str(rule), str(direction), tuple(position), shown, current, after))
                current = after
            return Derivation(start, from_json(data["goal"]), tuple(steps))
        except TermError:
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TermError(f"not the text of a derivation: {error}") from error


def subterm_at(root: Term, position: tuple[int, ...]) -> Term:
    """The subterm that a path of argument numbers leads to. Raises IndexError when it leads nowhere."""
    for number in position:
        if number < 0:
            raise IndexError(f"position {position} leads nowhere")
        root = root.args[number]
    return root


def replace_at(root: Term, position: tuple[int, ...], new: Term) -> Term:
    """The term with the subterm at one position replaced; other occurrences stay."""
    if not position:
        return new
    first, rest = position[0], position[1:]
    args = list(root.args)
    args[first] = replace_at(args[first], rest, new)
    return make(root.op, tuple(args), root.attrs)


def binding_text(binding: Binding) -> tuple[tuple[str, str], ...]:
    """A binding for readers: sorted by name, terms as mathematics."""
    return tuple((name, show(v) if isinstance(v, Term) else str(v)) for name, v in sorted(binding.items()))


def check(derivation: Derivation, rules: Iterable[Rule] | Mapping[str, Rule]) -> None:
    """Raises CertificateError unless every step is a true instance of its rule and the chain joins start to goal."""
    named = dict(rules) if isinstance(rules, Mapping) else {r.name: r for r in rules}
    current = derivation.start
    for number, step in enumerate(derivation.steps, 1):
        if step.before is not current:
            raise CertificateError(number, f"starts from {show(step.before)}, but the chain is at {show(current)}")
        _check_step(number, step, named)
        current = step.after
    if current is not derivation.goal:
        raise CertificateError(0, f"the chain ends at {show(current)}, not at the goal {show(derivation.goal)}")


def _check_step(number: int, step: Step, rules: Mapping[str, Rule]) -> None:
    def refuse(why: str):
        raise CertificateError(number, f"{step.rule}: {why}")

    rule = rules.get(step.rule)
    if rule is None:
        refuse("no such rule was given")
    if step.direction not in (FORWARD, BACKWARD):
        refuse(f"{step.direction!r} is no direction")
    try:
        old, new = step.old, step.new
    except IndexError:
        refuse(f"position {step.position} leads nowhere")
    left, right = (old, new) if step.direction == FORWARD else (new, old)
    binding = match(rule.left, left)
    if binding is None:
        refuse(f"{show(left)} is no instance of the left side {show(rule.left)}")
    for guard in rule.guards:
        if not holds(guard, binding):
            refuse(f"guard «{guard}» does not hold for {dict(binding_text(binding))}")
    if instantiate(rule.right, binding) is not right:
        refuse(f"the right side is {show(instantiate(rule.right, binding))}, not {show(right)}")
    if replace_at(step.before, step.position, new) is not step.after:
        refuse("something else changed as well")
    if binding_text(binding) != step.binding:
        refuse("the binding shown to readers is not the one that matches")
