"""What a report says about a derived backward: its kernels with their loops, and the values that are saved for it.

Everything comes from the plans. Example: a kernel's line is `kernel1: grad_q; rows i, loops over j`.
"""

from __future__ import annotations

from ..egraph.terms.term import Tensor
from ..lowering.plan.records import Kernel, Store
from .plans import Training


def backward_line(found: Training) -> str:
    """A line on the whole, and one for each kernel.

    Example of the first: `derived, 2 kernels; saves log float32[b, i]`.
    """
    made = found.every
    saved = [_saved(store) for store in found.stores.saved] or ["nothing"]
    read = [found.captured.results[k].output.name for k in found.stores.read]
    again = f"; reads the result{'s' if len(read) > 1 else ''} {', '.join(read)}" if read else ""
    many = len(made.region.plan.kernels)
    lines = [f"derived, {many} kernel{'s' if many > 1 else ''}; saves {', '.join(saved)}{again}"]
    results = {tensor.name for tensor in made.region.plan.outputs}
    return "\n".join(lines + [_kernel(kernel, results) for kernel in made.region.plan.kernels])


def _saved(store: Store) -> str:
    return f"{store.output.name} {store.output.dtype}[{', '.join(map(str, store.order))}]"


def _kernel(kernel: Kernel, results: set[str]) -> str:
    stored: list[Tensor] = [store.output for store in kernel.stores]
    names = ", ".join(t.name if t.name in results else f"{t.name} (a part)" for t in stored)
    loops = ", ".join(loop.over for loop in kernel.loops) or "nothing"
    return f"{kernel.name}: {names}; rows {kernel.rows}, loops over {loops}"
