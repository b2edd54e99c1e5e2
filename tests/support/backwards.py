"""The plan of a function's backward, made without running anything, and its gradients beside autograd's in float64."""

from math import prod

import torch

import onepass
from onepass.api.backend import Recorder
from onepass.compiler.options import Options
from onepass.lowering.plan.records import Kernel, Plan
from onepass.training import plans


class _Seen(Exception):
    """The graph was looked at; there is no need to run it."""


def leaves(*shapes, dtype=torch.bfloat16):
    """Tensors that need gradients; nothing fills their memory."""
    return [torch.empty(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def backward_of(function, *inputs) -> Plan:
    """The plan of the one region's backward, for all gradients that the inputs need."""
    torch._dynamo.reset()
    plans._KNOWN.clear()
    recorder = Recorder(Options.read({}))

    def backend(graph, given):
        recorder(graph, given)
        raise _Seen

    try:
        torch.compile(function, backend=backend)(*inputs)
    except Exception as error:
        if not recorder.reports:
            raise error
    assert plans._KNOWN, recorder.reports
    (found,) = plans._KNOWN.values()
    assert not isinstance(found, str), found
    return found.every.region.plan


def kernel_of(plan: Plan, name: str) -> Kernel:
    """The kernel that stores a tensor of this name."""
    (found,) = (k for k in plan.kernels if name in {store.output.name for store in k.stores})
    return found


def parts(plan: Plan) -> dict[str, tuple]:
    """What kernels store for each other: the shapes by name."""
    results = {output.name for output in plan.outputs}
    stores = (store for kernel in plan.kernels for store in kernel.stores)
    return {s.output.name: s.output.shape for s in stores if s.output.name not in results}


def part_bytes(plan: Plan) -> int:
    """The memory of what kernels store for each other, where sizes are static."""
    kinds = {s.output.name: s.output.dtype for kernel in plan.kernels for s in kernel.stores}
    return sum(getattr(torch, kinds[name]).itemsize * prod(shape) for name, shape in parts(plan).items())


def drawn(shapes):
    """Random inputs of these shapes; what is a tensor already stays."""
    return [torch.randn(x) if isinstance(x, tuple) else x for x in shapes]


def hold_gradients(function, inputs, executor, allowed=2e-5) -> str:
    """Asserts that the gradients of all floating inputs are those of float64, up to rounding as eager's is.

    The backward must have run by its plan. Returns the line of the report about it.
    """
    torch._dynamo.reset()
    compiled = torch.compile(
        function, backend="onepass", options={"inner": "eager", "strict": True, "executor": executor}
    )
    cotangents: list[torch.Tensor] = []
    found = _gradients(compiled, inputs, cotangents)
    exact = _gradients(function, [x.double() if x.is_floating_point() else x for x in inputs], cotangents)
    eager = _gradients(function, inputs, cotangents)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived") and region.backward_ran == executor, (region.backward, region)
    for ours, right, theirs in zip(found, exact, eager, strict=True):
        assert (ours is None) == (right is None)
        if right is None:
            continue
        number = ~torch.isnan(right)  # eager's own are not, where a row has no key
        near = lambda x, n=number, r=right: (x.double() - r)[n].abs().amax().item() if n.any() else 0.0
        assert near(ours) <= 4 * near(theirs) + allowed * right[number].abs().amax().item()
    return region.backward


def _gradients(function, inputs, kept):
    """The gradients, for cotangents that the first call draws into `kept`."""
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    found = function(*given)
    results = found if isinstance(found, tuple) else (found,)
    if not kept:
        kept.extend(torch.randn_like(r) for r in results)
    wanted = [x for x in given if x.requires_grad]
    cotangents = [g.to(r.dtype) for g, r in zip(kept, results, strict=True)]
    return torch.autograd.grad(results, wanted, cotangents, allow_unused=True)  # a function may detach some
