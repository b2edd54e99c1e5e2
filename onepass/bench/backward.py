"""The backward of a problem alone: each contestant's forward runs once, and what is timed computes gradients.

All contestants get the same gradients of the results. They are compared with float64, summed over a problem's parts.
Invariant: a call computes the gradients of `leaves`, in their order. Example: backward(problem, "attention") is about
the gradients of q, k and v; "all" adds those of a learned bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .problems import BenchProblem
from .timing import Call, Expected, allowance, tensors

WORK = 2.5  # times the forward's: five products of rows and columns, not two
ORDER = 16 * torch.finfo(torch.float32).eps  # of the largest gradient: what sums in another order may differ by
ATTENTION = 3  # arguments that come first: queries, keys and values


@dataclass(frozen=True)
class BackwardProblem:
    """leaves: the arguments that get gradients. cotangents: the gradients of the results; None where one needs none."""

    problem: BenchProblem
    leaves: tuple[Tensor, ...]
    cotangents: tuple[Tensor | None, ...]

    def way(self, build: Callable[[], Call]) -> Callable[[], Call]:
        """A contestant's builder: of a call that computes the gradients of one result, each time again."""

        def built() -> Call:
            with torch.enable_grad(), torch._functorch.config.patch(donated_buffer=False):  # the graph is kept
                results = tensors(build()())
            outputs, given = self._with_cotangents(results, ())
            return lambda: torch.autograd.grad(outputs, self.leaves, given, retain_graph=True)

        return built

    def _with_cotangents(self, results: Sequence[Tensor], place: tuple) -> tuple[list[Tensor], list[Tensor]]:
        """The results that have cotangents, and these. place: of the results among those of the whole problem."""
        pairs = [(r, c) for r, c in zip(results, self.cotangents, strict=True) if c is not None]
        return [r for r, _ in pairs], [c[place].to(r.dtype) for r, c in pairs]

    def expected(self) -> Expected:
        """All gradients in float64. Allowed is what eager's error allows, and 16 roundings for any order."""
        exact, eager = ([torch.zeros_like(x, dtype=torch.float64) for x in self.leaves] for _ in range(2))
        for number in range(self.problem.parts):
            for sums, dtype in ((exact, torch.float64), (eager, None)):
                for total, part in zip(sums, self._of_part(number, dtype), strict=True):
                    view, gradient = part
                    total.as_strided(view.shape, view.stride(), view.storage_offset()).add_(gradient)
        rounded = (x.to(leaf.dtype) for x, leaf in zip(eager, self.leaves, strict=True))
        orders = (ORDER * x.abs().max().item() for x in exact)
        allowed = tuple(allowance(x, y) + order for x, y, order in zip(rounded, exact, orders, strict=True))
        return Expected(((),), (tuple(exact),), allowed)

    def _of_part(self, number: int, dtype: torch.dtype | None) -> list[tuple[Tensor, Tensor]]:
        """(what the part sees of a leaf, the gradient of that), for each leaf; computed in `dtype`, or in their own."""
        arguments, place = self.problem.cut(number)
        owned = {x.untyped_storage().data_ptr(): n for n, x in enumerate(self.leaves)}
        seen: dict[int, tuple[Tensor, Tensor]] = {}
        own = []
        for x in arguments:
            made = x.detach().to(dtype) if dtype is not None and x.is_floating_point() else x.detach()
            if (leaf := owned.get(x.untyped_storage().data_ptr())) is not None:
                seen[leaf] = (x.detach(), made := made.clone().requires_grad_())
            own.append(made)
        with torch.enable_grad():
            results = tensors(self.problem.plain(*own))
        outputs, given = self._with_cotangents(results, place)
        order = [seen[n] for n in range(len(self.leaves))]
        found = torch.autograd.grad(outputs, [made for _, made in order], given)
        return [(view, gradient) for (view, _), gradient in zip(order, found, strict=True)]


def backward(problem: BenchProblem, which: str) -> BackwardProblem:
    """The gradients of "attention", the first three arguments, or of "all" numbers that a result depends on."""
    first = problem.arguments[: ATTENTION if which == "attention" else None]
    wanted = {n for n, x in enumerate(first) if x.is_floating_point()}
    shapes = [x.detach().to("meta").requires_grad_(n in wanted) for n, x in enumerate(problem.arguments)]
    with torch.enable_grad():
        results = tensors(problem.plain(*shapes))
    given = [r for r in results if r.requires_grad]
    found = torch.autograd.grad(given, [shapes[n] for n in sorted(wanted)], given, allow_unused=True)
    leaves = tuple(first[n].requires_grad_() for n, g in zip(sorted(wanted), found, strict=True) if g is not None)
    make = lambda shape: torch.randn(shape.shape, device=leaves[0].device, dtype=shape.dtype)
    return BackwardProblem(problem, leaves, tuple(make(r) if r.requires_grad else None for r in results))
