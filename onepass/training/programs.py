"""The original calls of a region in training: its forward with saved values, its backward by autograd, forward mode.

They run where no plan does. Invariant: each is a Program to a runner, with results and inputs of its own.
Example: `BackwardProgram.of(program, ...).bound(sizes, device)(tensors)` are the gradients that autograd finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..egraph.terms.sizes import value_of
from ..graph.program import Meta, Program

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class ForwardProgram(Program):
    """The region's results, and a place for each saved value: zeros, which a backward by autograd does not read."""

    saved: tuple[Meta, ...] = ()

    @classmethod
    def of(cls, program: Program, saved: tuple[Meta, ...]) -> ForwardProgram:
        """The forward of a region with such saved values."""
        return cls(program.inputs, program.nodes, program.outputs, saved)

    @property
    def output_metas(self) -> tuple[Meta, ...]:
        """What is known of every result, and of every saved value behind them."""
        return (*super().output_metas, *self.saved)

    def bound(self, sizes: Mapping[str, int], device: torch.device) -> Callable[[Tensors], tuple]:
        """A function that runs the original calls for these sizes on this device."""
        run = super().bound(sizes, device)
        shapes = [([value_of(s, sizes) for s in meta.shape], getattr(torch, meta.dtype)) for meta in self.saved]
        return lambda given: (*run(given), *(torch.zeros(s, dtype=dtype, device=device) for s, dtype in shapes))


@dataclass(frozen=True)
class BackwardProgram(Program):
    """The gradients of some inputs. It takes the region's inputs, what the forward kept, and the given cotangents.

    kept: how many tensors the forward kept. needed: whether each input's gradient is a result. given: whether each
    result has a cotangent.
    """

    kept: int = 0
    needed: tuple[bool, ...] = ()
    given: tuple[bool, ...] = ()

    @classmethod
    def of(cls, program: Program, kept: int, needed: tuple[bool, ...], given: tuple[bool, ...]) -> BackwardProgram:
        """The backward of a region."""
        return cls(program.inputs, program.nodes, program.outputs, kept, needed, given)

    @property
    def output_metas(self) -> tuple[Meta, ...]:
        """What is known of every gradient."""
        return tuple(entry.meta for entry, n in zip(self.inputs, self.needed, strict=True) if n)

    def sizes_of(self, tensors: Tensors) -> dict[str, int]:
        """Values of the symbolic sizes that are an axis of one of the region's inputs."""
        return super().sizes_of(tensors[: len(self.inputs)])

    def bound(self, sizes: Mapping[str, int], device: torch.device) -> Callable[[Tensors], tuple]:
        """A function that computes the region again for these sizes on this device, and asks autograd."""
        run, count = super().bound(sizes, device), len(self.inputs)

        def recomputed(tensors: Tensors) -> tuple[torch.Tensor, ...]:
            cotangents = iter(tensors[count + self.kept :])
            each = [next(cotangents) if g else None for g in self.given]
            return tuple(gradients_by_autograd(run, tensors[:count], each, self.needed))

        return recomputed


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
    with torch.inference_mode(False), torch._C._DisableAutocast(), _autograd_again(), torch.no_grad(), _dual_level():
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
    with _dual_level():
        pairs = zip(tensors, tangents, strict=True)
        results = run([t if g is None else torch._VF._make_dual(t, g, level=0) for t, g in pairs])
        found = [(torch._VF._unpack_dual(results[k], level=0)[1], g) for k, g in cotangents.items() if g is not None]
    reached = [(tangent, g) for tangent, g in found if tangent is not None and tangent.requires_grad]
    if not reached:
        return [torch.zeros_like(x) for x in wanted]
    outputs, given = map(list, zip(*reached, strict=True))
    grads = torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=again)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted, strict=True)]


def tangent_gradients_below_autograd(
    run: Callable,
    tensors: Tensors,
    tangents: Sequence[torch.Tensor | None],
    cotangents: Mapping[int, torch.Tensor | None],
    needed: Sequence[bool],
) -> list[torch.Tensor]:
    """`tangent_gradients` inside of an operation, where the dispatcher has switched autograd off."""
    with torch.inference_mode(False), torch._C._DisableAutocast(), _autograd_again():
        both = [*tensors, *(g for g in tangents if g is not None)]
        leaves = [x.detach().requires_grad_(n) for x, n in zip(both, needed, strict=True)]
        given = spread(leaves[len(tensors) :], [g is not None for g in tangents])
        return tangent_gradients(run, leaves[: len(tensors)], given, cotangents, needed, again=False)


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


def gradients_by_autograd(
    run: Callable, tensors: Tensors, cotangents: Sequence[torch.Tensor | None], needed: Sequence[bool]
) -> list[torch.Tensor]:
    """The gradients of the needed tensors, with their strides: zeros where no cotangent reaches them."""
    with torch.inference_mode(False), torch._C._DisableAutocast(), _autograd_again():
        own = [t.clone() if t.is_inference() else t.detach() for t in tensors]
        leaves = [t.requires_grad_(n) for t, n in zip(own, needed, strict=True)]
        wanted = [t for t in leaves if t.requires_grad]
        pairs = zip(run(leaves), cotangents, strict=True)
        reached = [(r, g) for r, g in pairs if r.requires_grad and g is not None]
        if not reached:
            return [torch.zeros_like(t) for t in wanted]
        results, given = zip(*reached, strict=True)
        found = torch.autograd.grad(results, wanted, given, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(t) if g is None else torch.empty_like(t).copy_(g) for g, t in pairs]


class _autograd_again:
    """Records gradients inside of an operation, where the dispatcher has switched autograd off."""

    def __enter__(self):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for name in ("AutogradFunctionality", "AutogradOther", "AutogradCPU", "AutogradCUDA"):
            kind = getattr(torch._C.DispatchKey, name, None)
            excluded = excluded if kind is None else excluded.remove(kind)
        included = torch._C._dispatch_tls_local_include_set()
        self.entered = [torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad()]
        for guard in self.entered:
            guard.__enter__()

    def __exit__(self, *error):
        for guard in reversed(self.entered):
            guard.__exit__(*error)
