"""The end of a consumer's item: states are finished, then results are stored, chunk by chunk of the value dim.

Results leave by shared memory where a tensor map takes them, else by pointers.
"""

from __future__ import annotations

from ...egraph.terms.ops import iota
from ..analysis.softmax_scaling import any_scale, fixed_scale
from ..codegen.ops import TileValue, atom
from ..codegen.tile_writer import decay_text
from ..hopper.kernel_form import Binding, chunks
from ..plan.device import H200
from ..plan.records import Accumulator, Store
from .expressions import GluonWriter, matrix_in


class StateNames:
    """Names of one accumulator's parts: its scale, its largest score if needed, a name or chunks per value."""

    def __init__(self, writer: GluonWriter, record: Accumulator, values):
        fresh = writer.names.fresh
        self.record, self.values = record, values
        rescaled = record.gauge is not None
        self.scale = fresh(f"{record.name}_scale") if rescaled else ""
        exact = rescaled and not all(any_scale(store.term, record.reductions) for store in writer.kernel.stores)
        self.peak = fresh(f"{record.name}_peak") if exact else ""  # a lazy scale lags behind it
        self.fixed = fixed_scale(writer.kernel, record) if rescaled else None
        self.parts: list[tuple[str, ...]] = []
        for number, value in zip(record.totals, values, strict=True):
            if number < len(self.parts):  # it is added to the total of a value before it
                self.parts.append(self.parts[number])
                continue
            count = len(chunks(value.matrix.inner.size)) if value.matrix else 1
            self.parts.append(tuple(fresh(f"{record.name}") for _ in range(count)))


class StoreWriter:
    """Writes the lines after an item's last product. states: by step, as the steps filled them.

    exits: shared memory by result; entries: what came in there for it, by result too.
    """

    def __init__(self, writer: GluonWriter, binding: Binding, send: int, states, exits, entries):
        self.writer, self.binding, self.rows = writer, binding, binding.kernel.rows
        self.send, self.states, self.exits, self.entries = send, states, exits, entries

    def lines(self) -> list[str]:
        """Finished values, then what is stored, chunk by chunk of the value dim; what lacks that dim, once."""
        writer, wide = self.writer, self.binding.wide
        before = len(writer.outer.lines)
        states = [state for states in self.states for state in states]
        whole = [self._finished(state) for state in states]
        writer.outer.lines += [f"mbarrier.wait({r.full}.index(W), turn & 1)" for r in self.entries.values()]
        for number, (start, extent) in enumerate(chunks(wide.size) if wide else [(0, 0)]):
            writer.open_chunk(number, start, extent)
            writer.wide_scope.lines = writer.outer.lines
            for state, vectors in zip(states, whole, strict=True):
                self._remember(state, vectors, number)
            for output, entry in self.entries.items():
                self._enter(entry, self.exits[output], number, extent)
            for store in writer.kernel.stores:
                if store.output in self.exits:
                    writer.outer.lines += self._sent(store, number, start, extent)
                elif wide in store.order or number == 0:
                    writer.outer.lines.append(self._stored(store))
        lines = writer.outer.lines[before:]
        del writer.outer.lines[before:]
        return lines

    def _sent(self, store: Store, number: int, start: int, extent: int) -> list[str]:
        """By shared memory, once what was there before has left. A tensor map cuts off what lies outside."""
        writer, exit, width = self.writer, self.exits[store.output], min(extent, self.send)
        value = writer.spread(writer.value(store.term), writer.sort((self.rows, self.binding.wide)))
        stored = TileValue(f"{atom(value.text)}.to({writer.type_name(store.output.dtype)})")
        value = writer.assign("result", stored, writer.outer)
        lines, parts = self._parted(value.text, extent // width)
        for n, part in enumerate(parts):
            slot = "W" if len(parts) == 1 else f"2 * W + {n % 2}"
            target = f"{exit.buffers[number]}.index({slot})"
            first = {self.rows: writer.starts[self.rows], self.binding.wide: str(start + n * width)}
            where = ", ".join(first[d] if d in first else writer.starts[d] for d in store.order)
            lines += ["tma.store_wait(0)"] if number == n == 0 else ["tma.store_wait(1)"] if n > 1 else []
            lines.append(f"{matrix_in(target, exit.operand, H200.product_rows, width, transposed=False)}.store({part})")
            lines.append("fence_async_shared()")
            lines.append(f"copy_out({exit.maps[number]}, [{where}], {target})")
        return lines

    def _parted(self, value: str, count: int) -> tuple[list[str], list[str]]:
        """Lines that cut a tile's columns into `count` parts, a power of two, and the parts."""
        if count == 1:
            return [], [value]
        left, right = (self.writer.names.fresh("part") for _ in range(2))
        cut, below = [f"{left}, {right} = halves({value})"], [self._parted(x, count // 2) for x in (left, right)]
        return [*cut, *(x for lines, _ in below for x in lines)], [x for _, parts in below for x in parts]

    def _stored(self, store: Store) -> str:
        writer, dims = self.writer, self.writer.sort(store.order)
        value = writer.spread(writer.value(store.term), dims)
        pointer = writer.address(store.output, tuple(iota(d) for d in store.order), dims)
        mask = writer.conjunction(*(writer.padding(d) for d in dims))
        guard = f", mask={writer.align(mask, dims)}" if mask else ""
        return f"gl.store({pointer}, {atom(value.text)}.to({writer.type_name(store.output.dtype)}){guard})"

    def _finished(self, state: StateNames) -> tuple[TileValue | None, list[TileValue | None]]:
        """The state's scale and its vectors, whole."""
        writer, rows = self.writer, (self.rows,)
        lines, vectors = writer.outer.lines, []
        for value, names in zip(state.values, state.parts, strict=True):
            if value.matrix is None and state.record.monoid != "max":
                lines.append(f"{names[0]} = row_sum({names[0]}, ROWS)")
            vectors.append(TileValue(names[0], rows) if value.matrix is None else None)
        if not state.peak:
            return (TileValue(state.scale, rows) if state.scale else None), vectors
        shift = f'gl.where({state.peak} == float("-inf"), 0.0, {state.peak})'
        scaling = writer.scaling_of(state.record.gauge, state.record.reductions)
        text = f"gl.exp2({decay_text(scaling, state.scale, shift)})"
        decay = writer.assign("decay", TileValue(text, rows), writer.outer).text
        own = [pair for n, pair in enumerate(zip(state.values, state.parts)) if state.record.totals[n] == n]
        for value, names in own:
            lines += [f"{n} = {f'multiplied({n}, {decay})' if value.matrix else f'{n} * {decay}'}" for n in names]
        return TileValue(state.peak, rows), vectors

    def _enter(self, entry, exit, number: int, extent: int) -> None:
        """Puts what came in where the writer looks for loads."""
        writer, dims = self.writer, self.writer.sort((self.rows, self.binding.wide))
        place = matrix_in(f"{exit.buffers[number]}.index(W)", exit.operand, H200.product_rows, extent, transposed=False)
        name, dtype = f"{entry.operand.tensor.name}_tile", entry.operand.tensor.dtype
        value = writer.assign(name, TileValue(f"{place}.load({writer.layout(dims)})", dims, dtype), writer.outer)
        writer.scope_of(dims).memo[entry.operand.load] = value

    def _remember(self, state: StateNames, finished, number: int) -> None:
        """Puts the finished values where the writer looks for reductions."""
        writer, (scale, vectors) = self.writer, finished
        score = state.record.gauge
        scaling = writer.scaling_of(score, state.record.reductions) if score is not None else None
        given = zip(state.record.reductions, vectors, state.parts, state.record.totals, strict=True)
        for n, (reduction, vector, names, total) in enumerate(given):
            value = vector or TileValue(names[number], writer.sort((self.rows, self.binding.wide)))
            memo = writer.scope_of(value.dims).memo
            value = value if total == n else TileValue("0.0")
            if scale is None:
                memo[reduction] = value
            else:
                memo["state", reduction] = (scale, value, scaling)
