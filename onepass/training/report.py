"""What a report says of derivatives: their kernels with their loops, and the values that are saved for a backward.

Everything comes from the plans. Example: a kernel's line is `kernel1: grad_q; rows i, loops over j`.
"""

from __future__ import annotations

from ..compiler.compiled_region import Fused
from ..egraph.terms.term import Tensor
from ..lowering.plan.records import Kernel, Plan, Store
from .plans import Training
from .tangent_plans import TangentPlan


def backward_line(found: Training) -> str:
    """A line on the whole, and one for each kernel.

    Example of the first: `derived, 2 kernels; saves log float32[b, i]; deterministic unless joined`. Where a Hopper GPU
    runs two kernels as one, sums are in an order of chance, unless a deterministic result is asked for.
    """
    made = found.every
    saved = [_saved(store) for store in found.stores.saved] or ["nothing"]
    read = [found.captured.results[k].output.name for k in found.stores.read]
    again = f"; reads the result{'s' if len(read) > 1 else ''} {', '.join(read)}" if read else ""
    plan = made.region.plan
    first = f"derived, {_counted(plan)}; saves {', '.join(saved)}{again}; {_repeats(made.region)}"
    return "\n".join([first, *_kernels(plan)])


def forward_mode_line(plan: TangentPlan | str) -> str:
    """A line on forward mode, and one for each kernel; or why the original calls carry the tangents.

    Example of the first: `forward mode: derived, 1 kernel`.
    """
    if isinstance(plan, str):
        return f"forward mode: the original calls ({plan})"
    found = plan.region.plan
    return "\n".join([f"forward mode: derived, {_counted(found)}", *_kernels(found)])


def _counted(plan: Plan) -> str:
    many = len(plan.kernels)
    return f"{many} kernel{'s' if many > 1 else ''}"


def _kernels(plan: Plan) -> list[str]:
    """A line for each kernel."""
    results = {tensor.name for tensor in plan.outputs}
    return [_kernel(kernel, results) for kernel in plan.kernels]


def _repeats(region: Fused) -> str:
    """Whether each run gives the same bits, as far as the plan says."""
    if not region.plan.deterministic:
        return "not deterministic"
    one = region.options.deterministic or len([k for k in region.plan.kernels if k.loops]) < 2
    return "deterministic" if one else "deterministic unless joined"


def _saved(store: Store) -> str:
    return f"{store.output.name} {store.output.dtype}[{', '.join(map(str, store.order))}]"


def _kernel(kernel: Kernel, results: set[str]) -> str:
    stored: list[Tensor] = [store.output for store in kernel.stores]
    names = ", ".join(t.name if t.name in results else f"{t.name} (a part)" for t in stored)
    loops = ", ".join(loop.over for loop in kernel.loops) or "nothing"
    return f"{kernel.name}: {names}; rows {kernel.rows}, loops over {loops}"
