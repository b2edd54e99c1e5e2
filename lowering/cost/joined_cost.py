"""The time of a plan with two of its kernels joined: products of matrices at a measured rate, or what memory takes.

The warp-specialised kernel that computes gradients has no model of its stages here. Its products of tiles ran at 0.41
to 0.62 of the peak rate for widths of 64 to 256, and one rate stands for all. Example: the gradients of full attention
of (4, 32, 4096, 64), five products, are about 2.8 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ..joined.config import JoinedConfig
from ..joined.form import JoinedBinding, LoopSum, RowSum
from ..joined.launch import FORMS, joined_form
from ..plan.device import H200, HopperGpu
from ..plan.kernel_config import TritonConfig
from ..plan.records import Kernel, Plan
from ..schedule.kernel_time import Sizes, steps
from ..schedule.pipeline_time import corner
from .kernel_cost import TIMING, UNITS, Estimate
from .traffic import ProgramTiles, traffic

SUMS_AND_PRODUCTS = ("add", "sub", "mul", "neg", "cast")
WARPS = 8  # that compute
RATE = 0.5  # of the peak rate of products: what kernels of gradients reach


@dataclass(frozen=True)
class JoinedKernels:
    """A plan with two kernels joined. main: the joined one, with its parts and its settings."""

    plan: Plan
    main: Kernel
    binding: JoinedBinding
    config: JoinedConfig

    @property
    def tiles(self) -> TritonConfig:
        """Its tiles, as estimates of plain kernels have them."""
        return TritonConfig(self.config.row_tile, self.config.loop_tile, WARPS, 1)

    @property
    def needs_tiles(self) -> bool:
        """Whether no law of sums saves a tile: it drops pairs, or a weight is no polynomial of products.

        Example: of q · k · v without a softmax, k · v can be multiplied first.
        """
        factors = {factor for weight in self.binding.weights for factor in weight.factors}
        return self.binding.loop.guard is not None or not all(map(self._is_polynomial, factors))

    def _is_polynomial(self, node: Term) -> bool:
        """Whether what depends on rows and columns is made of products of matrices by sums and products."""
        if not {self.main.rows, self.binding.loop.dim} <= node.dims:
            return True
        if any(node is product.node for product in self.binding.products):
            return True
        return node.op in SUMS_AND_PRODUCTS and all(map(self._is_polynomial, node.args))


@lru_cache(256)
def joined_kernels(plan: Plan) -> JoinedKernels | None:
    """The plan with two kernels joined, as a launch would have it; None if it has none that can be. Memoised, because a
    gradient's plan is estimated when it is made, and again beside a plan of another form.
    """
    for form in FORMS:
        found = joined_form(plan, *form)
        if not isinstance(found, str):
            joined, binding, config = found
            return JoinedKernels(joined.plan, joined.main, binding, config)
    return None


def joined_estimate(joined: JoinedKernels, sizes: Sizes, device: HopperGpu = H200) -> Estimate:
    """The time of the joined kernel alone. Raises UnknownSize."""
    kernel, loop, config = joined.main, joined.binding.loop, joined.config
    points = prod(resolve(d.size, sizes) for d in kernel.grid)
    taken = steps(kernel, loop, joined.tiles, sizes)
    programs, ran = max(1, points * len(taken)), points * int(taken.sum())  # with nominal sizes, one may be 0
    launch = ProgramTiles(kernel, sizes, config.row_tile, config.loop_tile, (ran,), programs, device.multiprocessors)
    moved = tuple(traffic(launch, device))
    multiplied = 2 * ran * config.row_tile * config.loop_tile * sum(_inner_sizes(joined.binding))
    rounds = max(1.0, programs / device.multiprocessors)
    waves = (rounds if config.persistent else ceil(rounds)) * device.multiprocessors / programs
    parts = {
        UNITS["tensor"]: multiplied / (device.tensor_flops * device.multiprocessors * device.clock),
        "memory": sum(t.memory for t in moved) / device.memory_bytes,
        "launch": TIMING.launch,
    }
    computing = waves * parts[UNITS["tensor"]] / RATE
    total = corner(TIMING.corner, computing, parts["memory"])
    return Estimate(TIMING.launch + total, parts, moved)


def _inner_sizes(binding: JoinedBinding) -> Iterator[int]:
    """For each product of a tile, the size of the dim that is neither its rows nor its columns."""
    sums: list[LoopSum | RowSum] = [*binding.loop_sums, *binding.row_sums]
    matrices = [s.matrix for s in sums if s.matrix is not None]
    yield from (_static(p.rows.inner) for p in binding.products)
    yield from (_static(matrix.inner) for matrix in matrices)


def _static(dim: Dim) -> int:
    assert isinstance(dim.size, int), f"{dim} is as wide as a tile"
    return dim.size
