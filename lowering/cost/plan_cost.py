"""The time of a plan: its kernels one after the other, each with the schedule that an executor gives it.

Example: on an H200 causal attention of (4, 32, 4096, 64) is one kernel of about 0.54 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import TermError
from ...rules.demotion import reduction_in_parts
from ..analysis.dim_roles import sum_factors
from ..analysis.exact_products import native
from ..gluon.launch import RATE_OF_TRITON, RefusedLaunch, fits, fitting
from ..hopper.config import HopperConfig
from ..hopper.split_states import parts_by_states
from ..hopper.stored_values import bind_as_run
from ..launch.split_loops import enough_programs, split_kernel, wanted_chunks
from ..plan.device import H200, HopperGpu
from ..plan.records import Kernel, NotPlannable, Plan
from ..schedule.kernel_time import Config, Sizes
from ..stages.stored_factors import of_a_library
from ..triton.default_config import cut_to_sizes, default_for, of_few_rows, widest
from .kernel_cost import TIMING, UNITS, Estimate, estimate

ARCHITECTURE = "sm_90"
HALF_BYTES = 2
LIBRARY_FLOPS = 7e14  # per second, of a library's products of large matrices of halves on an H200


@dataclass(frozen=True)
class KernelEstimate:
    """A kernel as it is launched, with its schedule, and what that takes. sizes: with the number of parts of a loop."""

    kernel: Kernel
    config: Config
    estimate: Estimate
    sizes: dict


def plan_estimate(
    plan: Plan, sizes: Sizes | None = None, device: HopperGpu = H200, kept: float = 1.0, hopper: bool = True
) -> tuple[KernelEstimate, ...]:
    """What each launch of a plan takes. hopper: kernels that have the warp-specialised form run in it. kept: as in
    `estimate`. Raises NotPlannable and UnknownSize.
    """
    return tuple(one for k in plan.kernels for one in kernel_estimates(k, sizes or {}, device, kept, hopper))


def kernel_estimates(
    kernel: Kernel,
    sizes: Sizes,
    device: HopperGpu = H200,
    kept: float = 1.0,
    hopper: bool = True,
    parts: bool = True,
) -> tuple[KernelEstimate, ...]:
    """What each launch of a kernel takes. parts: its loops are shared out over programs where these are few. Other
    arguments and errors as for `plan_estimate`.
    """
    return _kernel_estimates(kernel, tuple(sizes.items()), device, kept, hopper, parts)


@lru_cache(1024)
def _kernel_estimates(
    kernel: Kernel, sizes: tuple[tuple[str, int], ...], device: HopperGpu, kept: float, hopper: bool, parts: bool
) -> tuple[KernelEstimate, ...]:
    """Memoised, because the plans that are tried, and the two forms that are compared, have most kernels in common."""
    if of_a_library(kernel):
        return (_by_library(kernel, dict(sizes), device, kept),)
    found = []
    for part in parts_by_states(kernel, fits) if hopper else [kernel]:
        for one, configs, known in scheduled(part, dict(sizes), device, hopper, parts):
            tried = (KernelEstimate(one, c, estimate(one, c, known, device, kept), known) for c in configs)
            first = next(tried)
            found.append(first if not first.estimate.why else next((t for t in tried if not t.estimate.why), first))
    return tuple(found)


def _by_library(kernel: Kernel, sizes: dict, device: HopperGpu, kept: float) -> KernelEstimate:
    """A large product that torch runs. What is computed for it is stored and read once more, in half precision."""
    _, configs, _ = next(iter(scheduled(kernel, sizes, device, hopper=False)))
    own, product = estimate(kernel, configs[-1], sizes, device, kept), kernel.loops[0].accumulators[0].reductions[0]
    numbers = lambda dims: prod(resolve(d.size, sizes) for d in dims)
    computed = [part for part in sum_factors(product) if native(part) is None]
    again = sum(2 * HALF_BYTES * numbers(part.dims) for part in computed)
    moved = (sum(one.distinct for one in own.traffic) + again) / device.memory_bytes
    multiplied = 2 * numbers(product.args[0].dims) / LIBRARY_FLOPS
    parts = {UNITS["tensor"]: multiplied, "memory": moved, "launch": TIMING.launch}
    found = replace(own, seconds=TIMING.launch + multiplied + moved, parts=parts, why="")
    return KernelEstimate(kernel, configs[-1], found, sizes)


def described(plan: Plan, kernel: Kernel, sizes: Sizes | None = None, device: HopperGpu = H200) -> str:
    """A kernel's time and its bound, for the report; "" where a size is not known, or what a tile holds has none.

    Example: "0.55 ms on an H200, bound by special functions (0.27 ms at peak rate)".
    """
    try:
        found = plan_estimate(replace(plan, kernels=(kernel,)), sizes, device)
        whole = kernel_estimates(kernel, sizes or {}, device, parts=False)
    except (NotPlannable, UnknownSize, TermError):  # the last is of a limit that reads such a size
        return ""
    longest = max((one.estimate for one in found), key=lambda one: one.seconds)
    if longest.why:
        return longest.why
    total, peak = (f"{1e3 * s:.2g} ms" for s in (sum(e.estimate.seconds for e in found), longest.parts[longest.bound]))
    every = " if the mask leaves out no tile" if any(loop.map is not None for loop in kernel.loops) else ""
    bound = "most of it the launch"
    if longest.bound != "launch":
        bound = f"bound by {longest.bound} ({peak} at peak rate)"
    return f"{total} on an {device.name}{every}, {bound}{_saved_by_parts(found, whole)}"


def _saved_by_parts(found: Sequence[KernelEstimate], whole: Sequence[KernelEstimate]) -> str:
    """In how many parts a kernel does its loops, by which law, and what that saves; "" of one that runs whole."""
    counts = [resolve(loop.part.size, one.sizes) for one in found for loop in one.kernel.loops if loop.part]
    if not counts:
        return ""
    share = 0.0 if any(one.estimate.why for one in whole) else total_seconds(whole) / total_seconds(found)
    times = f": in one it would take {share:.3g} times as long" if share > 1 else ""
    return f"; in {max(counts)} parts by the law {reduction_in_parts.name}{times}"


def total_seconds(launches: Sequence[KernelEstimate]) -> float:
    """The time of launches one after the other: all but the first are launched while another one runs."""
    hidden = (TIMING.launch - TIMING.next_launch) * max(0, len(launches) - 1)
    return sum(one.estimate.seconds for one in launches) - hidden


def seconds(plan: Plan, sizes: Sizes | None = None, device: HopperGpu = H200) -> float | None:
    """The time of a plan, kernel after kernel; None where a size is not known, or a kernel cannot run as scheduled."""
    try:
        found = plan_estimate(plan, sizes, device)
    except (NotPlannable, UnknownSize, TermError):
        return None
    return None if any(one.estimate.why for one in found) else sum(one.estimate.seconds for one in found)


def scheduled(
    kernel: Kernel, sizes: dict, device: HopperGpu, hopper: bool, in_parts: bool = True
) -> Iterable[tuple[Kernel, tuple[Config, ...], dict]]:
    """The launches of a kernel with the schedules that each tries in turn, and the sizes with the number of parts of
    its loops, if it may be done in parts.
    """
    rows = resolve(kernel.rows.size, sizes) if kernel.rows is not None else 0
    plain = cut_to_sizes(default_for(kernel, ARCHITECTURE, rows), kernel, sizes)
    hopper_config = _hopper_config(kernel, sizes, device) if hopper else None
    wide = hopper_config is not None and hopper_config.value_warpgroups > 0  # then parts have this form, too
    busy = enough_programs(kernel, sizes) * (1.0 if hopper_config is None or wide else RATE_OF_TRITON)
    count = wanted_chunks(kernel, plain, sizes, device.multiprocessors, busy)
    parts = split_kernel(kernel) if in_parts and count > 1 else None
    if parts is None:
        return [(kernel, (hopper_config,) if hopper_config else (plain, *plain.smaller()), sizes)]
    known = {**sizes, str(parts.chunk.size): count}
    merging = replace(of_few_rows(*widest(parts.last)), stages=1)
    first = hopper_config if hopper_config is not None and wide else plain
    return [(parts.first, (first,), known), (parts.last, (cut_to_sizes(merging, parts.last, known),), known)]


def _hopper_config(kernel: Kernel, sizes: dict, device: HopperGpu) -> HopperConfig | None:
    binding = bind_as_run(kernel)
    if isinstance(binding, str) or not fits(binding) or resolve(kernel.rows.size, sizes) < device.product_rows:
        return None
    try:
        return fitting(binding, sizes, binding.overlays)
    except (RefusedLaunch, NotPlannable):
        return None
