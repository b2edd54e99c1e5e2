"""A rule is one frozen record: name, pattern variables, two sides, guards, exactness, source line.

`@rule` reads a small decorated function once, at definition, and refuses a bad one by name. Matcher, egglog, property
test, obligation and catalogue all consume this same record; nothing about a rule is stated twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..terms.ops import terms
from ..terms.term import AttributeVariable, Dim, Term, TermError, subterms
from .guard import Guard
from .pattern import is_plain, variable

EXACTNESS = ("bitwise", "reassociates")


@dataclass(frozen=True)
class Restriction:
    """What an assumption keeps out of values: -∞ (everywhere, or outside exponents), literals that are no sizes.

    defines_more: under it the right side may still be a number where the left is none, as in laws that reassociate.
    """

    scores_finite: bool = False
    values_finite: bool = False
    literals_positive: bool = False
    defines_more: bool = False


ASSUMPTIONS = {  # every one that a law may name; the last four are about floats, which proofs over the reals do not see
    "scores are finite": Restriction(scores_finite=True, values_finite=True),
    "masked values are finite": Restriction(values_finite=True),
    "sizes are positive": Restriction(literals_positive=True),
    "excess precision": Restriction(),
    "a zero has no sign": Restriction(),
    "nothing overflows before it is divided": Restriction(defines_more=True),
    "half inputs are finite and rounded": Restriction(scores_finite=True, values_finite=True),
}
WRITTEN = "a body is written with the rule's parameters, + - * / ** % // and the functions of onepass.egraph.ops"
LAMBDA = "<lambda>"
UNSAID = ("the docstring must state the law in one line", "a lambda has no docstring to state the law in: write a def")


class RuleError(TermError):
    """A rule that cannot be a law: unbound or unused variable, equal sides, ill-typed sides. Says which and where."""


@dataclass(frozen=True)
class Rule:
    """A law `left = right` for all values of its variables for which every guard holds.

    variables: name -> dims that the law claims it for, as the signature wrote them. exact: "bitwise", "reassociates",
    or an assumption of ASSUMPTIONS. both: also used from right to left.
    """

    name: str
    law: str
    left: Term
    right: Term
    variables: tuple[tuple[str, str], ...]
    guards: tuple[Guard, ...] = ()
    both: bool = False
    exact: str = "reassociates"
    source: str = ""
    trusted: bool = False

    def __str__(self) -> str:
        guards = f"   when {', '.join(map(str, self.guards))}" if self.guards else ""
        return f"{self.name}: {self.left} = {self.right}{guards}"

    def reversed(self) -> Rule:
        """The same law read from right to left."""
        from dataclasses import replace

        return replace(self, left=self.right, right=self.left)

    @property
    def assumption(self) -> str | None:
        """The named assumption under which the law holds, if it is more than reassociation."""
        return None if self.exact in EXACTNESS else self.exact

    @property
    def defined_alike(self) -> bool:
        """Whether both sides are numbers at the same places; else the right side may be one where the left is none."""
        return defined_alike(self.exact)

    @property
    def restriction(self) -> Restriction:
        """What that assumption keeps out of the variables' values."""
        return ASSUMPTIONS.get(self.exact, Restriction())


def defined_alike(exact: str) -> bool:
    """Whether the sides of a law of this exactness are numbers at the same places."""
    return exact != "reassociates" and not ASSUMPTIONS.get(exact, Restriction()).defines_more


def rule(
    function: Callable | None = None,
    *,
    when: Callable | None = None,
    both=False,
    exact="reassociates",
    trust=False,
    device: str | None = None,
    **other,
):
    """Makes a Rule of a function whose parameters are pattern variables and whose body returns the two sides.

    The variables range over the real numbers and -∞ (an absent score), as far as the assumption of `exact` lets them.
    With more than that (a left side with constructs of pattern.py, several right sides, code for one, a device) it
    makes a PatternRule.

    Annotations name the dims a variable is claimed for ("j", "i j", "" for none), or say "constant" for a literal,
    "index" for an integer term, "dtype" or "monoid" for an attribute, "operator" for an operation. `when` gets the same
    variables and returns a guard or a tuple of guards. `exact` is a name of EXACTNESS or ASSUMPTIONS.
    Raises RuleError naming the rule, the variable and the line.
    """
    if function is None:
        return lambda f: rule(f, when=when, both=both, exact=exact, trust=trust, device=device, **other)
    if not hasattr(function, "__code__"):
        raise RuleError(f"{function!r} cannot be a rule: write a function with a name, and the law as its docstring")
    name, line = function.__name__, _where(function)
    try:
        for word in other:
            known = [p.name for p in inspect.signature(rule).parameters.values() if p.kind == p.KEYWORD_ONLY]
            raise TermError(f"a rule has no keyword {word!r}; it has {', '.join(known)}")
        for word, flag in (("both", both), ("trust", trust)):
            if not isinstance(flag, bool):
                raise TermError(f"{word} is True or False, not {flag!r}")
        variables = {p.name: _annotation(p) for p in inspect.signature(function).parameters.values()}
    except TermError as error:
        raise RuleError(f"rule {name} ({line}): {error}") from error
    patterns = {v: variable(v, kind) for v, kind in variables.items()}
    try:
        left, *rights = _sides(function(**patterns))
        guards = () if when is None else _guards(when, patterns)
    except TermError as error:
        raise RuleError(f"rule {name} ({line}): {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RuleError(f"rule {name} ({line}): {error}; {WRITTEN}") from error
    law = " ".join((inspect.getdoc(function) or "").split())
    declared = tuple(variables.items())
    if device is None and len(rights) == 1 and all(isinstance(x, Term) and is_plain(x) for x in (left, *rights)):
        record = Rule(name, law, left, *rights, declared, guards, both, exact, line, trust)
        refuse_bad(record)
        return record
    from .pattern_rule import PatternRule

    if both:
        raise RuleError(f"rule {name} ({line}): both=True is for two plain sides: say the other direction as a rule")
    return PatternRule(name, law, left, tuple(rights), declared, guards, exact, line, trust, device)


def _sides(returned) -> list[Term | Callable]:
    """What the body of a rule returned: the left side, then the right sides, of which some may be code."""
    if not isinstance(returned, tuple) or len(returned) < 2:
        what = "nothing" if returned is None else "..." if returned is ... else f"{returned!r}"
        raise TermError(f"the body returns the two sides, `return left, right`; this one returns {what}")
    left, *rights = returned
    if not isinstance(left, Term):
        compared = ": == compares here and now, eq of onepass.egraph.ops is a term" if isinstance(left, bool) else ""
        raise TermError(f"the left side is {left!r}, which is no term{compared}: build it from the variables")
    for side in rights:
        if not isinstance(side, Term | int | float) and not inspect.isfunction(side):
            raise TermError(f"the right side is {side!r}, which is no term: build it from the variables")
    return [s if inspect.isfunction(s) else terms((left, s))[1] for s in returned]


def _guards(when: Callable, patterns: dict[str, object]) -> tuple[Guard, ...]:
    asked = inspect.signature(when).parameters
    for name in asked:
        if name not in patterns:
            raise TypeError(f"`when` asks for a variable {name!r}; the rule has {', '.join(patterns) or 'none'}")
    guards = when(**{name: patterns[name] for name in asked})
    guards = guards if isinstance(guards, tuple) else (guards,)
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TypeError(f"`when` gave {guard!r}, which is no Guard: use onepass.independent, onepass.positive, ...")
    return guards


def _where(function: Callable) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _annotation(parameter: inspect.Parameter) -> str:
    """What the parameter says of its variable. Raises TermError for what no pattern variable can have."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TermError(f"parameter {parameter} stands for several: each pattern variable is a parameter of its own")
    if parameter.default is not parameter.empty:
        raise TermError(f"parameter {parameter.name} has a default: a pattern variable is whatever it matches")
    given = parameter.annotation
    kind = "" if given is parameter.empty else str(given).strip("\"'")
    if not all(word.isidentifier() for word in kind.split()):
        ways = 'dims as "i j", or "constant", "index", "predicate", "dim", "dtype", "monoid", "operator"'
        raise TermError(f"the annotation of {parameter.name} is {kind!r}; it names {ways}")
    return kind


def variables_of(x) -> set[str]:
    """Names of all variables in a pattern: terms, dims (as "dim j") and attributes alike."""
    if isinstance(x, Term):
        names = {node.attrs[0] for node in subterms(x) if node.op == "var"}
        return names.union(*(variables_of(a) for node in subterms(x) for a in node.attrs), set())
    if isinstance(x, Dim) and x.size is None:
        return {f"dim {x.name}"}
    return {x.name} if isinstance(x, AttributeVariable) else set()


def unknown_exactness(exact) -> Iterator[str]:
    """What is wrong with `exact`, if anything: an assumption that nothing knows would be met by nobody."""
    known = (*EXACTNESS, *ASSUMPTIONS)
    if exact not in known:
        yield f"exact is one of {', '.join(map(repr, known))}, not {exact!r}"


def refuse_bad(r: Rule) -> None:
    """Raises RuleError for a record that cannot be a law; `rule` and every reader of records call it."""

    def refuse(why: str):
        raise RuleError(f"rule {r.name} ({r.source}): {why}")

    left, right = variables_of(r.left), variables_of(r.right)
    declared = {v for v, _ in r.variables}
    for why in unknown_exactness(r.exact):
        refuse(why)
    if r.left is r.right:
        refuse("both sides are the same term")
    if not r.law:
        refuse(UNSAID[r.name == LAMBDA])
    for unused in sorted(declared - left - right):
        refuse(f"variable {unused!r} is declared and never used")
    for unbound in sorted(right - left):
        refuse(f"variable {unbound!r} of the right side is not bound by the left side")
    for unbound in sorted(left - right) if r.both else ():
        refuse(f"variable {unbound!r} of the left side is not bound by the right side (both=True)")
    for guard in r.guards:
        for unbound in sorted(set().union(*(variables_of(o) for o in guard.operands)) - left):
            refuse(f"guard «{guard}» mentions {unbound!r}, which the left side does not bind")
    if "any" not in (r.left.dtype, r.right.dtype) and not {r.left.dtype, r.right.dtype} & {"float"}:
        if r.left.dtype != r.right.dtype:
            refuse(f"the left side is {r.left.dtype}, the right side {r.right.dtype}")
    if r.left.op == "var":
        refuse("the left side is a bare variable: it would match everything")
