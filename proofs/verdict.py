"""What a prover says of a rule: proved, refuted with a counterexample, or unknown with the reason.

Three answers and no fourth: what cannot be decided is unknown, and unknown is not proved. A verdict names the
assumptions under which it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["proved", "refuted", "unknown"]


@dataclass(frozen=True)
class Counterexample:
    """Where a rule fails: sizes of its dims, values of its variables, what both sides become. `text` says it all."""

    shapes: Mapping[str, int]
    values: Mapping[str, object]
    left: object
    right: object
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Verdict:
    """The answer for one rule. method: how it was found; seconds: what it took; reason: why not proved, else empty."""

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
