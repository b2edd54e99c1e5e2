"""Rules that other packages ship: entry points of group `onepass.rules`, each a rule or a list of rules.

They are used only where they are asked for, `options={"rules": "installed"}`: installing a package changes nothing of
what is compiled. A broken entry point is refused with its package's name.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..errors import OptionError

GROUP = "onepass.rules"
INSTALLED = "installed"


def installed() -> dict[str, tuple[Rule | PatternRule, ...]]:
    """Package name -> its rules, in order of names. Raises OptionError naming package, entry point and the fault."""
    points = {(_package(point), point.name): point for point in entry_points(group=GROUP)}
    found: dict[str, tuple[Rule | PatternRule, ...]] = {}
    owner: dict[str, str] = {}
    for (package, _), point in sorted(points.items()):
        for rule in _loaded(package, point):
            if owner.setdefault(rule.name, package) != package:
                raise OptionError(f"packages {owner[rule.name]} and {package} both have a rule {rule.name!r}")
            found[package] = (*found.get(package, ()), rule)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "(unknown)"


def _loaded(package: str, point: EntryPoint) -> tuple[Rule | PatternRule, ...]:
    said = f"package {package}, entry point {point.name} = {point.value} of group {GROUP}"
    try:
        value = point.load()
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise OptionError(f"{said}, does not load: {type(error).__name__}: {text}") from error
    rules = (value,) if isinstance(value, Rule | PatternRule) else value
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule | PatternRule) for rule in rules):
        raise OptionError(f"{said}, is {value!r}: neither a rule nor a list of rules")
    return tuple(rules)
