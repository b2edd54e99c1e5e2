"""The verdict on a rule: proved, refuted with a counterexample, or unknown with the reason.

A question that cannot be decided is unknown, and unknown is not proved. A verdict names the assumptions under which it
holds. Example: "subtract_zero is proved (cells, 12 ms)".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["proved", "refuted", "unknown"]


@dataclass(frozen=True)
class Counterexample:
    """Where a rule fails: sizes of its dims, values of its variables, values of both sides. `text` has it all."""

    shapes: Mapping[str, int]
    values: Mapping[str, object]
    left: object
    right: object
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Verdict:
    """The verdict on one rule. method: how it was found. seconds: how long it took. reason: why it is not proved."""

    rule: str
    status: Status
    method: str
    seconds: float
    counterexample: Counterexample | None = None
    reason: str = ""
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        under = f", assuming {'; '.join(self.assumptions)}" if self.assumptions else ""
        how = "" if self.method == "none" else f"{self.method}, "
        head = f"{self.rule} is {self.status} ({how}{1000 * self.seconds:.0f} ms){under}"
        return "\n".join(filter(None, [head, self.reason, str(self.counterexample or "")]))
