"""The original calls of a region in forward mode: its results with tangents by dual numbers, and their gradients.

They run where no plan does. Invariant: a TangentProgram is a Program to a runner, with the given tangents as further
inputs. Example: `TangentProgram.of_region(program, ["tangent_q"], (True, False, False), [0])` gives a result and its
tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..graph.program import Meta, Program
from .programs import Tensors, autograd_again


@dataclass(frozen=True)
class TangentProgram(Program):
    """The region's results, and the tangents of some. Its inputs are the region's, and the given tangents behind them.

    given: whether each of the region's inputs has a tangent. of: the numbers of the results with one.
    """

    given: tuple[bool, ...] = ()
    of: tuple[int, ...] = ()

    @classmethod
    def of_region(
        cls, program: Program, names: Sequence[str], given: tuple[bool, ...], of: Sequence[int]
    ) -> TangentProgram:
        """Forward mode of a region; names: of the given tangents."""
        own = (entry for entry, is_given in zip(program.inputs, given, strict=True) if is_given)
        more = [replace(entry, name=name) for entry, name in zip(own, names, strict=True)]
        return cls((*program.inputs, *more), program.nodes, program.outputs, given, tuple(of))

    @property
    def output_metas(self) -> tuple[Meta, ...]:
        """What is known of every result, and of every tangent behind them."""
        metas = super().output_metas
        return (*metas, *(metas[k] for k in self.of))

    def bound(self, sizes: Mapping[str, int], device: torch.device) -> Callable[[Tensors], tuple]:
        """A function that runs the original calls for these sizes on this device, with dual numbers."""
        run, count = super().bound(sizes, device), len(self.given)

        def forward(tensors: Tensors) -> tuple[torch.Tensor, ...]:
            own, given = tensors[:count], tensors[count:]
            results, tangents = by_dual_numbers(lambda duals: run([*duals, *given]), own, spread(given, self.given))
            return (*results, *(_or_zeros(tangents[k], results[k]) for k in self.of))

        return forward


def spread(found: Sequence[torch.Tensor], given: Sequence[bool]) -> list[torch.Tensor | None]:
    """The found tensors at the places that have one, None elsewhere."""
    following = iter(found)
    return [next(following) if g else None for g in given]


def _or_zeros(tangent: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(result) if tangent is None else tangent


def by_dual_numbers(
    run: Callable, tensors: Tensors, tangents: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The results of original calls and their tangents, computed inside of an operation, without autograd."""
    with torch.inference_mode(False), torch._C._DisableAutocast(), autograd_again(), torch.no_grad(), _dual_level():
        own = [t.clone() if t.is_inference() else t.detach() for t in tensors]
        pairs = zip(own, tangents, strict=True)
        duals = [t if g is None else torch._VF._make_dual(t, g, level=0) for t, g in pairs]
        found = [torch._VF._unpack_dual(result, level=0) for result in run(duals)]
    return [primal for primal, _ in found], [tangent for _, tangent in found]


def tangent_gradients(
    run: Callable,
    tensors: Tensors,
    tangents: Sequence[torch.Tensor | None],
    cotangents: Mapping[int, torch.Tensor | None],
    needed: Sequence[bool],
    again: bool = True,
) -> list[torch.Tensor]:
    """The gradients of results' tangents by the needed ones of the tensors and, behind these, of the given tangents.

    cotangents: by the number of the result. again: the gradients have gradients themselves.
    """
    leaves = [*tensors, *(g for g in tangents if g is not None)]
    wanted = [x for x, n in zip(leaves, needed, strict=True) if n]
    asked = {k: g for k, g in cotangents.items() if g is not None}
    found = _tangents_by_jvp(run, tensors, tangents, list(asked)) if asked else ()
    reached = [(tangent, g) for tangent, g in zip(found, asked.values(), strict=True) if tangent.requires_grad]
    if not reached:
        return [torch.zeros_like(x) for x in wanted]
    outputs, given = map(list, zip(*reached, strict=True))
    grads = torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=again)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted, strict=True)]


def _tangents_by_jvp(
    run: Callable, tensors: Tensors, tangents: Sequence[torch.Tensor | None], asked: Sequence[int]
) -> Tensors:
    """The tangents of the asked results. Not by dual numbers alone: with autograd at their level, torch's formula for
    softmax changes in place what autograd has saved."""
    changed = [k for k, g in enumerate(tangents) if g is not None]

    def of_changed(*duals: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run([duals[changed.index(k)] if k in changed else t for k, t in enumerate(tensors)])
        return tuple(results[k] for k in asked)

    primals, changes = tuple(tensors[k] for k in changed), tuple(tangents[k] for k in changed)
    return torch.func.jvp(of_changed, primals, changes)[1]


def tangent_gradients_below_autograd(
    run: Callable,
    tensors: Tensors,
    tangents: Sequence[torch.Tensor | None],
    cotangents: Mapping[int, torch.Tensor | None],
    needed: Sequence[bool],
) -> list[torch.Tensor]:
    """`tangent_gradients` inside of an operation, where the dispatcher has switched autograd off: new tensors."""
    with torch.inference_mode(False), torch._C._DisableAutocast(), autograd_again():
        both = [*tensors, *(g for g in tangents if g is not None)]
        leaves = [x.detach().requires_grad_(n) for x, n in zip(both, needed, strict=True)]
        given = spread(leaves[len(tensors) :], [g is not None for g in tangents])
        found = tangent_gradients(run, leaves[: len(tensors)], given, cotangents, needed, again=False)
    wanted = (x for x, n in zip(leaves, needed, strict=True) if n)
    return [torch.empty_like(x).copy_(g) for g, x in zip(found, wanted, strict=True)]


class _dual_level:
    """A level of dual numbers: the one that is open, or else one that is opened here. torch has one at a time."""

    def __enter__(self):
        self.enabled = torch._C._is_fwd_grad_enabled()
        torch._C._set_fwd_grad_enabled(True)
        try:
            self.level = torch._C._enter_dual_level()
        except RuntimeError:  # one is open
            self.level = None

    def __exit__(self, *error):
        if self.level is not None:
            torch._C._exit_dual_level(level=self.level)
        torch._C._set_fwd_grad_enabled(self.enabled)
