"""The decorator `@rule`: makes a record of a function that returns the two sides of a law.

The function runs once, at its definition, with pattern variables as arguments. A function that cannot be a rule raises
RuleError with the rule's name, the variable and the line. Example: a function `double(x)` with the docstring
`x + x = 2 · x` that returns `x + x, 2.0 * x`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..terms.ops import terms
from ..terms.term import Term, TermError
from .guard import Guard
from .pattern import is_plain, variable
from .rule import Rule, RuleError, refuse_bad

WRITTEN = "a body is written with the rule's parameters, + - * / ** % // and the functions of onepass.egraph.ops"


def rule(
    function: Callable | None = None,
    *,
    when: Callable | None = None,
    both: bool = False,
    exact: str = "reassociates",
    trust: bool = False,
    device: str | None = None,
    **other: object,
) -> Any:
    """Makes a Rule of a function whose parameters are pattern variables and whose body returns the two sides.

    The variables range over the real numbers and -∞ (an absent score), as far as the assumption of `exact` lets them.
    It makes a PatternRule instead if the left side has constructs of pattern.py, if there are several right sides, if a
    right side is code, or if `device` is given. Without a function it gives a decorator with these options.

    Annotations name the dims a variable is claimed for ("j", "i j", "" for none), or say "constant" for a literal,
    "index" for an integer term, "dtype", "monoid" or "name" for an attribute, "operator" for an operation, "new dim"
    or "new index" for what the right side alone has. `when` gets the same variables and returns a guard or a tuple of
    guards. `exact` is a name of EXACTNESS or ASSUMPTIONS. Raises RuleError naming the rule, the variable and the line.

    >>> import onepass
    >>> from onepass.egraph.ops import sum_over
    >>> @onepass.rule(when=lambda c: onepass.independent(c, of="j"))
    ... def factor_out_of_sum(s: "j", c):
    ...     "Σ_j (s · c) = (Σ_j s) · c"
    ...     return sum_over("j", s * c), sum_over("j", s) * c
    >>> onepass.check(factor_out_of_sum).status
    'proved'
    """
    if function is None:
        return lambda f: rule(f, when=when, both=both, exact=exact, trust=trust, device=device, **other)
    if not hasattr(function, "__code__"):
        raise RuleError(f"{function!r} cannot be a rule: write a function with a name, and the law as its docstring")
    name, line = function.__name__, _where(function)
    with _naming_the_rule(name, line):
        _refuse_options(other, both=both, trust=trust)
        variables = {p.name: _annotation(p) for p in inspect.signature(function).parameters.values()}
        patterns: dict[str, object] = {v: variable(v, kind) for v, kind in variables.items()}
        left, rights = _sides(function(**patterns))
        guards = () if when is None else _guards(when, patterns)
    law = " ".join((inspect.getdoc(function) or "").split())
    declared = tuple(variables.items())
    right = rights[0] if len(rights) == 1 and device is None else None
    if isinstance(right, Term) and is_plain(left) and is_plain(right):
        record = Rule(name, law, left, right, declared, guards, both, exact, line, trust)
        refuse_bad(record)
        return record
    from .pattern_rule import PatternRule

    if both:
        raise RuleError(f"rule {name} ({line}): both=True is for two plain sides: say the other direction as a rule")
    return PatternRule(name, law, left, tuple(rights), declared, guards, exact, line, trust, device)


@contextmanager
def _naming_the_rule(name: str, line: str) -> Iterator[None]:
    """Turns an error of the rule's function or guard into a RuleError that says which rule it is, and where."""
    try:
        yield
    except TermError as error:
        raise RuleError(f"rule {name} ({line}): {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RuleError(f"rule {name} ({line}): {error}; {WRITTEN}") from error


def _refuse_options(other: Mapping[str, object], **flags: object) -> None:
    """Raises TermError for an option that a rule does not have, and for a flag that is no bool."""
    for word in other:
        known = [p.name for p in inspect.signature(rule).parameters.values() if p.kind == p.KEYWORD_ONLY]
        raise TermError(f"a rule has no keyword {word!r}; it has {', '.join(known)}")
    for word, flag in flags.items():
        if not isinstance(flag, bool):
            raise TermError(f"{word} is True or False, not {flag!r}")


def _sides(returned: object) -> tuple[Term, list[Term | Callable]]:
    """The left side that the body of a rule returned, and its right sides, which may be code."""
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
    return left, [s if inspect.isfunction(s) else terms((left, s))[1] for s in rights]


def _guards(when: object, patterns: dict[str, object]) -> tuple[Guard, ...]:
    if not callable(when):
        raise TermError(f"`when` is a function of the rule's variables that gives a guard, not {when!r}")
    parameters = inspect.signature(when).parameters
    for name in parameters:
        if name not in patterns:
            raise TypeError(f"`when` asks for a variable {name!r}; the rule has {', '.join(patterns) or 'none'}")
    guards = when(**{name: patterns[name] for name in parameters})
    guards = guards if isinstance(guards, tuple) else (guards,)
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TypeError(f"`when` gave {guard!r}, which is no Guard: use onepass.independent, onepass.positive, ...")
    return guards


def _where(function: Callable) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _annotation(parameter: inspect.Parameter) -> str:
    """The annotation of a parameter as text. Raises TermError for a parameter that cannot be a pattern variable."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TermError(f"parameter {parameter} stands for several: each pattern variable is a parameter of its own")
    if parameter.default is not parameter.empty:
        raise TermError(f"parameter {parameter.name} has a default: a pattern variable is whatever it matches")
    given = parameter.annotation
    kind = "" if given is parameter.empty else str(given).strip("\"'")
    if not all(word.isidentifier() for word in kind.split()):
        ways = 'dims as "i j", or "constant", "index", "predicate", "dim", "dtype", "monoid", "name", "operator"'
        raise TermError(f"the annotation of {parameter.name} is {kind!r}; it names {ways}")
    return kind
