"""What can go wrong, as classes. A Refusal is an answer, not a failure: a region stays as the user wrote it, and why.

Everything that onepass raises on purpose is an OnepassError. Used by capture, replacement and the reports.
"""

from __future__ import annotations


class OnepassError(Exception):
    """Anything that onepass raises on purpose."""


class OptionError(OnepassError, ValueError):
    """An option that onepass does not have, or a value that it does not take."""


class ProgramError(OnepassError):
    """A stored program that cannot be read or run: bad JSON, an operation outside of ATen, the wrong inputs."""


class Refusal(OnepassError):
    """A region that cannot be done. `kind` is for machines, `reason` a sentence, `where` the user's file:line or ''."""

    def __init__(self, reason: str, where: str = "", kind: str = "unsupported"):
        super().__init__(f"{reason} ({where})" if where else reason)
        self.reason, self.where, self.kind = reason, where, kind

    def __reduce__(self):
        return Refusal, (self.reason, self.where, self.kind)
