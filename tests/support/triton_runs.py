"""One call of a plan by Triton's kernels, on a GPU or in the interpreter."""

import torch

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import Plan
from onepass.lowering.triton.launch import launcher


def run_triton(
    plan: Plan,
    tensors: dict[str, torch.Tensor],
    sizes: dict[str, int] | None = None,
    config: TritonConfig | None = None,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Runs the plan: tensors by name, values of symbolic sizes; the result in a new tensor or in `output`."""
    return launcher(plan, config)(tensors, sizes, output)
