"""What a user may ask of onepass, checked once: extra rules, strictness, who compiles the rest, who executes.

One frozen record. Compiled graphs carry it as JSON, so it holds data only. Rules are whole records there, never
names of things that another process may not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import cast

from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.rewrite.serialization import digest, rule_from_json, rule_to_json, statement
from ..egraph.search.pattern_grounding import readable
from ..errors import OptionError, no_rule
from ..rules import ALL
from ..tested_versions import warn_of_untested
from .rule_admission import admit
from .rule_plugins import INSTALLED, installed

CHOICES = {
    "inner": ("inductor", "eager"),
    "executor": ("auto", "tiled", "triton", "gluon"),
    "fuse_loads": ("auto", "always", "never"),
    "require": ("nothing", "all"),
    "verify": ("nothing", "kernel"),
    "weights": ("half", "e4m3"),
    "prefer": ("speed", "memory"),
}
KEYWORD_OF_TORCH = "options"  # of torch.compile, which some give to a function of ours

# In a graph, beside rules.
CARRIED = ("strict", "inner", "executor", "libraries", "deterministic", "invariant", "verify", "weights", "prefer",
           "without")  # fmt: skip
IMPLIED_BY_INVARIANT = {"strict": True, "deterministic": True, "libraries": False}  # nobody else runs a region


@dataclass(frozen=True)
class Options:
    """`rules` come after onepass's own, "installed" among them stands for those of other packages.

    `inner` compiles what is not replaced; `inner_options` are for Inductor. `libraries` lets torch's own kernels, and
    the original calls, run a region where they are measured to be faster and the executor is "auto". `fuse_loads`: do
    kernels compute what stands in front of their inputs: where that is estimated to pay, always, or never.
    `require`: "all" raises NotFused where a region that was found is not fused, or where none was found.
    `deterministic`: each call gives the same bits, as where torch.use_deterministic_algorithms(True) holds at the call.
    `invariant`: the bits of a row of a result depend on that row's query and keys alone, not on the batch, on how
    queries are cut in chunks, or on the run. It implies `strict`, `deterministic` and no `libraries`.
    `without`: names of our laws that are not used; `python -m onepass bisect` looks for one that makes a difference.
    `weights`: "e4m3" lets weights of e4m3 values be rounded to e4m3, relative to the largest score of their row so far,
    so that Hopper's products of bytes may multiply them.
    `prefer`: "memory" keeps a region's plan where the original calls, which store more, are faster.
    `verify`: "kernel" holds the text of each kernel against its terms, over exact numbers, before it runs.
    """

    rules: tuple[Rule | PatternRule, ...] = ()
    strict: bool = False
    inner: str = "inductor"
    executor: str = "auto"
    libraries: bool = True
    fuse_loads: str = "auto"
    deterministic: bool = False
    invariant: bool = False
    require: str = "nothing"
    verify: str = "nothing"
    weights: str = "half"
    prefer: str = "speed"
    without: tuple[str, ...] = ()
    inner_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "rules", _rules(self.rules))
        object.__setattr__(self, "without", _laws(self.without))
        _refuse_equal_names(self.rules)
        for name in ("strict", "libraries", "deterministic", "invariant"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is True or False, not {getattr(self, name)!r}")
        for name, value in IMPLIED_BY_INVARIANT.items() if self.invariant else ():
            object.__setattr__(self, name, value)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        _refuse_unread(self.inner, self.inner_options)

    @property
    def required(self) -> str:
        """What a report is held to: `require`, and of an invariant result that what was found is fused."""
        return "found" if self.invariant and self.require == "nothing" else self.require

    @classmethod
    def read(cls, given: Mapping | None) -> Options:
        """The options of torch.compile(..., options={...}), GraphPass or explain; the rules among them are checked.

        Raises OptionError naming what it does not know, RuleRefuted or RuleUnproved for a rule.
        """
        if given is not None and not isinstance(given, Mapping):
            raise OptionError(f"options is a dict of names and values, not {given!r}")
        given = dict(given or {})
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(given) - known)
        if unknown:
            near = get_close_matches(str(unknown[0]), known, 1)
            place = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(known))}"
            if unknown[0] == KEYWORD_OF_TORCH:
                place = "; here each option is a keyword of its own, as inner='eager'"
            elif not near and unknown[0] in _inductors():
                place = f"; write 'inner_options': {{{unknown[0]!r}: ...}}{place}"
            raise OptionError(f"onepass has no option {unknown[0]!r}{place}")
        read = cls(**given)
        admit(read.rules)
        warn_of_untested()
        return read

    @property
    def said(self) -> str:
        """The options that differ from the default, as a user writes them; laws are left out, a report names them."""
        default = Options(self.rules)
        changed = [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(default, name)]
        if self.invariant:
            changed = [name for name in changed if name not in IMPLIED_BY_INVARIANT]
        values = {name: getattr(self, name) for name in changed}
        return f"options={values}" if changed else "the default options"

    @property
    def ordinary_rules(self) -> tuple[Rule, ...]:
        """The rules, of options whose pattern rules have become ordinary ones for a region."""
        return cast("tuple[Rule, ...]", self.rules)

    def carried(self) -> dict:
        """The part that a compiled graph carries, as JSON data; pattern rules have become ordinary ones."""
        rules = [rule_to_json(r) for r in self.ordinary_rules]
        return {"rules": rules, **{name: getattr(self, name) for name in CARRIED}}

    @classmethod
    def from_carried(cls, data: Mapping) -> Options:
        rules = tuple(rule_from_json(r) for r in data["rules"])
        return cls(rules=rules, **{name: data[name] for name in CARRIED})

    def digest(self) -> str:
        """A name for everything that can change what is compiled. Raises OptionError for a rule that has none."""
        rules = [_statement(rule) for rule in self.rules]
        inner = json.dumps(dict(self.inner_options), sort_keys=True, default=str)
        own = (getattr(self, name) for name in (*CARRIED, "fuse_loads", "require"))
        return digest([rules, *own, inner])


def _inductors() -> set[str]:
    import torch._inductor

    return set(torch._inductor.list_options())


def _refuse_unread(inner: str, options) -> None:
    """Raises OptionError for options of Inductor that nobody would read, or that Inductor does not have."""
    if not isinstance(options, Mapping):
        raise OptionError(f"inner_options is a dict of Inductor's options, not {options!r}")
    if not options:
        return
    if inner != "inductor":
        raise OptionError(f"inner_options are Inductor's, and inner={inner!r} leaves Inductor out: none would be read")
    unknown = sorted(map(str, set(options) - _inductors()))
    if unknown:
        raise OptionError(f"inner_options holds {unknown[0]!r}, which Inductor does not have")


def _rules(given) -> tuple[Rule | PatternRule, ...]:
    """The rules of a list. Raises OptionError that says what was given instead, and where it was written."""
    if isinstance(given, Rule | PatternRule):
        raise OptionError(f"rules is a list of rules, not one: write [{given.name}] ({given.source})")
    if isinstance(given, str) and given == INSTALLED:
        given = [INSTALLED]
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        what = no_rule(given) if callable(given) else repr(given)
        raise OptionError(f"rules is a list of rules, or {INSTALLED!r}, not {what}")
    rules: list[Rule | PatternRule] = []
    for rule in given:
        if isinstance(rule, Rule | PatternRule):
            rules.append(rule)
        elif rule == INSTALLED:
            rules += [r for shipped in installed().values() for r in shipped]
        else:
            raise OptionError(f"rules holds {no_rule(rule)}")
    return tuple(rules)


def _laws(given) -> tuple[str, ...]:
    """Names of our laws. Raises OptionError for another name."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"without is a list of names of laws, not {given!r}")
    names, known = tuple(given), [rule.name for rule in ALL]
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            meant = f"did you mean {near[0]!r}?" if near else "`python -m onepass rules` lists them"
            raise OptionError(f"without holds {name!r}, which is no law of onepass; {meant}")
    return names


def _refuse_equal_names(rules: tuple[Rule | PatternRule, ...]) -> None:
    """A name is one law, in certificates and in reports."""
    known = {rule.name: rule for rule in ALL}
    for number, rule in enumerate(rules):
        for other in rules[:number]:
            if other.name == rule.name:
                where = f"{other.source} and {rule.source}"
                raise OptionError(f"two of the rules given are named {rule.name!r} ({where})")
        law = known.get(rule.name)
        if law is not None and (isinstance(rule, PatternRule) or statement(rule) != statement(law)):
            raise OptionError(f"rule {rule.name} ({rule.source}) has the name of a law of onepass that says {law}")


def _statement(rule: Rule | PatternRule) -> list:
    """What a rule says, as data."""
    if isinstance(rule, PatternRule) and not readable(rule):
        raise OptionError(
            f"rule {rule.name} ({rule.source}) is matched on a region's own terms: only its results there are data"
        )
    device, rules = (rule.device, rule.rules) if isinstance(rule, PatternRule) else (None, [rule])
    return [device, [rule_to_json(r) for r in rules]]
