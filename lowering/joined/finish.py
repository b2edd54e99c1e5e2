"""The last kernel of a joined plan: results from sums that lie in memory in the order of registers.

The kernel is a plain Triton kernel whose row tile is 64, the block in which sums lie. Invariant: only the load of the
sums differs from what the plan says. Example: the gradient of queries is a sum times a scale, rounded to bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import subterms
from ..codegen.ops import TileValue
from ..codegen.signature import Source
from ..codegen.tiles import Skewing
from ..plan.device import H200
from ..plan.launch_facts import Facts
from ..plan.queries import roots
from ..plan.records import Kernel, Plan
from ..triton.kernel import IMPORTS, TritonKernelWriter


@triton.jit
def in_rows(x, EXTENT: tl.constexpr, PIECES: tl.constexpr):
    """A block of 64 rows, from the order in which `add_in_order` of device_functions.py adds pieces of its columns."""
    COLUMNS: tl.constexpr = EXTENT // PIECES // 8
    parts = tl.reshape(x, [PIECES, COLUMNS, 4, 8, 4, 2, 2])
    return tl.reshape(tl.permute(parts, [2, 5, 3, 0, 1, 4, 6]), [64, EXTENT])


def emit_finish(kernel: Kernel, plan: Plan, facts: Facts, sums: Mapping[Tensor, tuple[int, int, int]]) -> Source:
    """The kernel's Triton source. sums: by tensor, the columns of a block, in how many pieces these lie, and how far
    apart blocks are."""
    return FinishWriter(kernel, facts, sums).source(plan)


class FinishWriter(TritonKernelWriter):
    """Writes a kernel whose loads of sums read blocks in the order of registers."""

    imports = IMPORTS.rstrip() + "\n\nfrom onepass.lowering.joined.finish import in_rows\n\n\n"

    def __init__(self, kernel: Kernel, facts: Facts, sums: Mapping[Tensor, tuple[int, int, int]]):
        super().__init__(kernel, facts, Skewing())
        self.blocks_of_sums = sums

    def _coordinates(self) -> None:
        super()._coordinates()
        loads = [n for root in roots(self.kernel) for n in subterms(root) if n.op == "load"]
        for node in dict.fromkeys(n for n in loads if n.attrs[0] in self.blocks_of_sums):
            self._read(node)

    def _read(self, node: Term) -> None:
        """Reads this program's block of the sums."""
        tiles, rows = self.tiles, self.kernel.rows
        extent, pieces, step = self.blocks_of_sums[node.attrs[0]]
        point = "0"
        for index, size in zip(node.args, node.attrs[0].shape, strict=True):
            if index.dims <= {*self.kernel.grid}:
                count = size if isinstance(size, int) else tiles.scalars[size]
                point = f"({point} * {count} + {tiles.value(index).text})"
        blocks = f"2 * tl.cdiv({tiles.sizes[rows]}, {2 * H200.product_rows})"
        block = f"(tl.cast({point}, tl.int64) * ({blocks}) + {tiles.starts[rows]} // {H200.product_rows})"
        size = H200.product_rows * extent
        pointer, _ = tiles.pointers[node.attrs[0]]
        text = f"in_rows(tl.load({pointer} + {block} * {step} + tl.arange(0, {size})), {extent}, {pieces})"
        dims = tiles.sort(node.dims)
        tiles.outer.memo[node] = tiles.assign(f"{node.attrs[0].name}_tile", TileValue(text, dims, "float32"))
