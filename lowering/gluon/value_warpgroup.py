"""A warpgroup without scores: it adds up some chunks of the columns of wide values, and stores them.

Of each tile it waits for the weights and the factor of its rows' sums, which the warpgroup with the scores gives it.
Invariant: it runs as many tiles as that one, in the same order, and hands back each tile of values once.
Example: of 512 columns of latents, it adds up the last 256 while the scores of the next tile are computed.
"""

from __future__ import annotations

from ..hopper.config import HopperConfig
from ..hopper.kernel_form import Binding
from .epilogue import StateNames, StoreWriter, chunks_of, decayed, zeros
from .expressions import GluonWriter, matrix_in, wait_for
from .kernel_parts import Buffers, phase_of, slot_of
from .work_items import Walk


class ValueWarpgroup:
    """Writes the body of its loop over items."""

    def __init__(self, writer: GluonWriter, binding: Binding, config: HopperConfig, buffers: Buffers):
        assert buffers.handed is not None
        self.writer, self.binding, self.config = writer, binding, config
        self.buffers, self.handed = buffers, buffers.handed
        self.chunks = chunks_of(binding, config, 1)
        self.states = [[StateNames(writer, a, values) for a, values in step.states] for step in binding.steps]
        ((self.state, self.matrix, self.names),) = [
            (state, value.matrix, names)
            for states in self.states
            for state in states
            for value, names in state.totals
            if value.matrix
        ]

    def item(self, walk: Walk) -> list[str]:
        """The lines of one item."""
        opening = [zeros(self.names[k], k, extent) for k, _, extent in self.chunks]
        body = [*opening, *self._tile("count", True)]
        body += [f"for t in range(1, {walk.count}):", *(f"    {line}" for line in self._tile("count + t", False))]
        store = StoreWriter(self.writer, self.binding, self.config, self.states, self.buffers, self.chunks)
        return [*self.writer.outer.lines, *body, f"count += {walk.count}", *store.lines()]

    def _tile(self, count: str, first: bool) -> list[str]:
        """The value products of one tile."""
        handed, ring, stages = self.handed, self.buffers.ring(self.matrix), self.config.stages
        own = [self.names[k] for k, *_ in self.chunks]
        lines = [f"mbarrier.wait({slot_of(ring.full, count, stages)}, {phase_of(count, stages)})"]
        lines.append(f"mbarrier.wait({handed.full}.index(0), handed & 1)")
        if not first and self.state.record.gauge is not None and self.state.fixed is None:
            decay = self.writer.names.fresh("decay")
            lines += [f"{decay} = {handed.vectors}.index(0).load(ROWS)", *decayed(own, decay, self.config)]
        for k, _, extent in self.chunks:
            tile = slot_of(ring.buffers[k], count, stages)
            right = matrix_in(tile, self.matrix, self.config.loop_tile, extent, transposed=False)
            name = self.names[k]
            lines.append(f"{name} = warpgroup_mma({handed.weights}, {right}, {name}, is_async=True)")
        lines.append(wait_for(0, own))
        lines += [f"mbarrier.arrive({handed.empty}.index(0))", "handed += 1"]
        return [*lines, f"mbarrier.arrive({slot_of(ring.empty, count, stages)})"]
