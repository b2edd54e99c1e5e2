"""What can go wrong, as classes. A Refusal is an answer, not a failure: a region stays as the user wrote it, and why.

Everything that onepass raises on purpose is an OnepassError.
"""

from __future__ import annotations


class OnepassError(Exception):
    """Anything that onepass raises on purpose."""


class OptionError(OnepassError, ValueError):
    """An option that onepass does not have, or a value that it does not take."""


class InputError(OnepassError, TypeError):
    """A call of explain whose function is no function, or does not take the inputs that were given."""


class RuleRefuted(OptionError):
    """A rule that was given and is no law. An error of the call that gave it, not of the model."""

    def __init__(self, rule: str, source: str, verdict: str):
        super().__init__(f"rule {rule} ({source}) is no law, and nothing was compiled with it\n{verdict}")
        self.rule, self.source, self.verdict = rule, source, verdict

    def __reduce__(self):
        return type(self), (self.rule, self.source, self.verdict)


class RuleUnproved(OptionError):
    """A rule that was given, could be neither proved nor refuted, and does not say trust=True."""

    def __init__(self, rule: str, source: str, verdict: str):
        advice = "decorate it with @onepass.rule(trust=True) to use it on your word: every report then names it"
        super().__init__(f"rule {rule} ({source}) is neither proved nor refuted; {advice}\n{verdict}")
        self.rule, self.source, self.verdict = rule, source, verdict

    def __reduce__(self):
        return type(self), (self.rule, self.source, self.verdict)


class ProgramError(OnepassError):
    """A stored program that cannot be read or run: bad JSON, an operation outside of ATen, the wrong inputs."""


class Refusal(OnepassError):
    """A region that cannot be done. `kind` is for machines, `reason` a sentence, `where` the user's file:line or ''."""

    def __init__(self, reason: str, where: str = "", kind: str = "unsupported"):
        super().__init__(f"{reason} ({where})" if where else reason)
        self.reason, self.where, self.kind = reason, where, kind

    def __reduce__(self):
        return Refusal, (self.reason, self.where, self.kind)


def no_rule(value) -> str:
    """What a user gave where a rule is asked for, with its place, and what to write instead."""
    code = getattr(value, "__code__", None)
    if code is None:
        return f"{value!r}, which is no rule: decorate a law with @onepass.rule"
    where = f"{code.co_filename}:{code.co_firstlineno}"
    if code.co_name == "<lambda>":
        instead = "write a function under @onepass.rule, with a name, and the law as its docstring"
        return f"a lambda ({where}), which is no rule: {instead}"
    return f"the function {code.co_name} ({where}), which is no rule: decorate it with @onepass.rule"
