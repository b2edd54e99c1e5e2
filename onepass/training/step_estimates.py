"""Whether the plans of a training step may take less time than the step that Inductor compiles, by estimates.

Inductor stores what a product makes; a plan multiplies again. Which is less goes by the product's inner size: a loss
over 16384 x 16384 similarities of 128 numbers is faster as a plan, a layer of 2048 numbers with its cross entropy is
not. Invariant: estimates only say what is tried; who runs is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..compiler.traffic import least_bytes, product_bytes, product_flops, reductions_of_products
from ..egraph.terms.sizes import UnknownSize
from ..graph.program import Program
from ..lowering.executors import triton_missing
from ..lowering.plan.device import H200
from .plans import Training

MAX_TIMES = 1.3  # of Inductor's estimated time, that a plan's may take to be tried: estimates are off by some tenths
MOST_TIMES_FOR_MEMORY = 4.0  # of Inductor's estimated time, that a plan may take where less memory is preferred
SHORT_STEP = 2e-3  # seconds, of which launches may be most
PRODUCTS_OF_A_STEP = 3  # the product itself, and one for the gradient of each factor
TIMES_MOVED = 3  # the least bytes of a forward: the backward reads the product, and stores and reads its cotangent
TIMES_REDUCED = 4  # what a product makes, for each further reduction of it; fitted to losses that reduce both axes


def may_beat_inductor(made: Training, sizes: Mapping[str, int]) -> bool:
    """Whether the plans of a region's forward and backward are worth a measurement on a GPU."""
    found = _seconds_of_both(made, sizes)
    return found is not None and found[0] <= MAX_TIMES * found[1]


def takes_far_longer(made: Training, sizes: Mapping[str, int]) -> bool:
    """Whether the plans would take so much longer than Inductor's step that no saved memory is worth it."""
    found = _seconds_of_both(made, sizes)
    return found is not None and found[0] > max(SHORT_STEP, MOST_TIMES_FOR_MEMORY * found[1])


def _seconds_of_both(made: Training, sizes: Mapping[str, int]) -> tuple[float, float] | None:
    """The estimated times of the plans, and of the step that Inductor compiles; None where one is not known."""
    if triton_missing():
        return None
    from ..lowering.cost.plan_cost import seconds

    taken = [seconds(plan, sizes) for plan in (made.forward.plan, made.every.region.plan)]
    compiled = seconds_of_compiled_step(made.found.program, sizes)
    known = [one for one in taken if one is not None]
    return None if compiled is None or len(known) < len(taken) else (sum(known), compiled)


def seconds_of_compiled_step(program: Program, sizes: Mapping[str, int]) -> float | None:
    """Forward and backward of the original calls as Inductor compiles them, at an H200's rates; None if a size is not
    known."""
    from ..lowering.cost.plan_cost import LIBRARY_FLOPS

    try:
        more = TIMES_REDUCED * max(0, reductions_of_products(program, sizes) - 1) * product_bytes(program, sizes)
        moved = (TIMES_MOVED * least_bytes(program, sizes) + more) / H200.memory_bytes
    except UnknownSize:
        return None
    flops = product_flops(program, sizes)
    return None if flops is None else PRODUCTS_OF_A_STEP * flops / LIBRARY_FLOPS + moved
