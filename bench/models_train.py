"""A training step of a model: a forward, the mean square of its first output off a random target, and a backward.

Each contestant has a model of its own, with the same weights, in training mode without dropout. Gradients of all
parameters are compared with those of eager in float32, each by its relative norm; allowed is what eager in bfloat16 is
off, twice, and a hundredth. There is no optimizer, and no gradient is kept from one step to the next. A model lies on
the CPU until it is timed. Example: `Step(model, compiled, inputs, target)()` gives the gradients by parameters' names.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from side_by_side import Memory
from torch import Tensor

import onepass
from onepass.bench.timing import said

ELEMENTS = 2**28  # of all scores of a layer, for which eager runs the batch at once; else in chunks
BASE = 8 * 2**30  # bytes for weights, gradients, and what a step keeps besides scores
BYTES = {"compile": 14}  # for a score of each layer, in bfloat16 with softmax in float32; others keep none
FLOOR = 1e-3  # of the largest gradient's norm: smaller ones (keys' biases, which softmax ignores) count as that large
SLACK = 0.01  # of a relative norm


@dataclass(frozen=True)
class Step:
    """model: whose parameters; call: what runs it."""

    model: torch.nn.Module
    call: Callable
    inputs: dict
    target: Tensor

    def __call__(self) -> dict[str, Tensor | None]:
        return gradients(self.model, self.call, self.inputs, self.target)


@dataclass(frozen=True)
class Reference:
    """Gradients in float32 on the CPU, by names; and how far off eager in bfloat16 is, relatively."""

    target: Tensor
    exact: dict[str, Tensor]
    own: dict[str, float]

    def errors(self, found: dict[str, Tensor | None]) -> dict[str, float]:
        """Relative norms of what each gradient is off; infinite where it is missing or not finite."""
        norms = {name: x.norm().item() for name, x in self.exact.items()}
        floor = FLOOR * max(norms.values())
        off = {name: (found[name].float().cpu() - x).norm().item() / max(norms[name], floor)
               if found.get(name) is not None else math.inf for name, x in self.exact.items()}  # fmt: skip
        return {name: error if math.isfinite(error) else math.inf for name, error in off.items()}

    def said_of(self, found: dict[str, Tensor | None]) -> dict[str, str]:
        """The worst parameter's error, eager's in brackets, and which it is; a note if it is off by too much."""
        errors = self.errors(found)
        name = max(errors, key=lambda name: errors[name] / self.allowed(name))
        error = f"{errors[name]:.3g} ({self.own[name]:.3g})"
        wrong = "" if errors[name] <= self.allowed(name) else "wrong: "
        return {"error": error, "note": f"{wrong}worst is {name}"}

    def allowed(self, name: str) -> float:
        return 2 * self.own[name] + SLACK


def gradients(model: torch.nn.Module, call: Callable, inputs: dict, target: Tensor, share: float = 1.0) -> dict:
    """Of the mean square off the target, times `share`; None for a parameter that the output does not depend on."""
    named = {name: x for name, x in model.named_parameters() if x.requires_grad}
    loss = (call(**inputs)[0].float() - target).square().mean() * share
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def reference(build: Callable[[str], torch.nn.Module], inputs: dict, batch: int, chunk: int) -> Reference:
    """In chunks of the batch, whose gradients add up: eager keeps scores in float32."""
    model = build("eager")
    parts = [_part(inputs, slice(n, n + chunk)) for n in range(0, batch, chunk)]
    with torch.no_grad():
        shape = model(**parts[0])[0].shape
    seeded = torch.Generator("cpu").manual_seed(1)
    target = torch.randn(batch, *shape[1:], generator=seeded).to(next(model.parameters()).device)
    rounded = _summed(model, parts, target)
    wide = [{k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in x.items()} for x in parts]
    exact = _summed(model.float(), wide, target)
    known = Reference(target, exact, {})
    return Reference(target, exact, known.errors(rounded))


def _part(inputs: dict, rows: slice) -> dict:
    return {name: x[rows] if torch.is_tensor(x) else x for name, x in inputs.items()}


def _summed(model: torch.nn.Module, parts: list[dict], target: Tensor) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    first = 0
    for part in parts:
        many = next(len(x) for x in part.values() if torch.is_tensor(x))
        found = gradients(model, model, part, target[first : first + many], many / len(target))
        first += many
        for name, x in found.items():
            if x is not None:
                sums[name] = sums[name] + x.float() if name in sums else x.float()
    return {name: x.cpu() for name, x in sums.items()}


def prepared(
    name: str, build: Callable[[str], torch.nn.Module], inputs: dict, batch: int, scores: int, depth: int,
    contestants: dict[str, tuple], memory: Memory,
) -> tuple[dict[str, Step], dict[str, dict]]:  # fmt: skip
    """The contestants whose step runs, compiled and moved to the CPU, and what is known of each. scores: of a layer."""
    chunk = max(1, int(batch * min(1.0, ELEMENTS / scores)))
    with memory.reserved(BASE + 4 * (3 * depth + 8) * scores * chunk / batch):
        right = reference(build, inputs, batch, chunk)
    steps, found = {}, {}
    for each, (attention, backend) in contestants.items():
        started = time.perf_counter()
        try:
            with memory.reserved(BASE + BYTES.get(each, 0) * depth * scores):
                model = build(attention)
                compiled = torch.compile(model, backend=backend, dynamic=False)
                steps[each] = Step(model, compiled, inputs, right.target)
                found[each] = right.said_of(steps[each]())
                steps[each]()
                model.to("cpu")
        except Exception as failure:
            steps.pop(each, None)
            found[each] = {"note": said(failure)}
        print(name, each, f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return steps, found


def told() -> str:
    """Of each region: how many there are, who ran its backward, and what is said of it; what stayed as written."""
    regions = [region for report in onepass.reports() for region in report.regions]
    lines = [f"{r.count} by {r.ran or 'nobody'}, backward by {r.backward_ran or 'nobody'}: "
             f"{(r.backward or 'none').splitlines()[0]}" for r in regions]  # fmt: skip
    notes = [note for region in regions for note in region.notes]
    left = [text for report in onepass.reports() for text in (*report.failures, *(r.reason for r in report.refusals))]
    return "; ".join(dict.fromkeys([*(lines or ["no region"]), *left, *notes]))
