"""The original calls of a region in training: its forward with saved values, and its backward by autograd.

They run where no plan does. Invariant: each is a Program to a runner, with results and inputs of its own.
Example: `BackwardProgram.of(program, ...).bound(sizes, device)(tensors)` are the gradients that autograd finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..egraph.terms.sizes import value_of
from ..graph.program import Meta, Program

Tensors = Sequence[torch.Tensor]
# Keys of the dispatcher that are off inside of an operation, below autograd or under a mode of torch's dispatcher.
SWITCHED_OFF = (
    *("AutogradFunctionality", "AutogradOther", "AutogradCPU", "AutogradCUDA", "ZeroTensor"),
    *("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchGradWrapper"),
)


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


def gradients_by_autograd(
    run: Callable, tensors: Tensors, cotangents: Sequence[torch.Tensor | None], needed: Sequence[bool]
) -> list[torch.Tensor]:
    """The gradients of the needed tensors, with their strides: zeros where no cotangent reaches them."""
    with torch.inference_mode(False), torch._C._DisableAutocast(), autograd_again():
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


def recorded_gradients(
    run: Callable, tensors: Tensors, cotangents: Sequence[torch.Tensor | None], needed: Sequence[bool]
) -> list[torch.Tensor]:
    """The gradients of the needed tensors, computed by calls that autograd sees: they have derivatives themselves.

    A cotangent may be a batch of them, and anything may carry a tangent. Each input is read through a view of its own,
    because one input may be computed from another.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch._C._DisableAutocast():
        own = [t.clone() if t.is_inference() else t.view_as(t) for t in tensors]
        wanted = [t if t.requires_grad else t.requires_grad_() for t, n in zip(own, needed, strict=True) if n]
        pairs = zip(run(own), cotangents, strict=True)
        reached = [(r, g) for r, g in pairs if r.requires_grad and g is not None]
        if not (reached and wanted):
            return [torch.zeros_like(t) for t in wanted]
        results, given = zip(*reached, strict=True)
        found = torch.autograd.grad(results, wanted, given, create_graph=again, allow_unused=True)
    return [torch.zeros_like(t) if g is None else _laid_out_as(t, g) for g, t in zip(found, wanted, strict=True)]


def _laid_out_as(tensor: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with the strides that are said of it, which are those of a new tensor like the input."""
    strides = torch.empty_like(tensor, device="meta").stride()
    if gradient.stride() == strides:
        return gradient
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    places = sorted(range(tensor.dim()), key=order.__getitem__)
    return gradient.permute(order).contiguous().permute(places)


class autograd_again:
    """Records gradients inside of an operation, where the dispatcher has switched autograd and transforms off."""

    def __enter__(self):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for name in SWITCHED_OFF:
            kind = getattr(torch._C.DispatchKey, name, None)
            excluded = excluded if kind is None else excluded.remove(kind)
        included = torch._C._dispatch_tls_local_include_set()
        self.entered = [torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad()]
        for guard in self.entered:
            guard.__enter__()

    def __exit__(self, *error):
        for guard in reversed(self.entered):
            guard.__exit__(*error)
