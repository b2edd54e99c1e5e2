"""The end of a consumer's item: states are finished, then results are stored, chunk by chunk of the value dim.

Results leave by shared memory where a tensor map takes them, else by pointers. Where warpgroups share the value dim,
the one with the scores gives the rows' vectors to the others, and each stores its own chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ...egraph.terms.ops import iota
from ..analysis.softmax_scaling import any_scale, fixed_scale
from ..codegen.dialect import GLUON
from ..codegen.ops import TileValue, atom, decay_text, joining_text
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import Binding, chunks
from ..plan.device import H200
from ..plan.records import Accumulator, Store
from .expressions import GluonWriter, matrix_in
from .kernel_parts import Buffers, Handed

Finished = tuple[TileValue | None, list[TileValue | None]]  # a state's scale and its vectors, whole


def chunks_of(binding: Binding, config: HopperConfig, warpgroup: int) -> list[tuple[int, int, int]]:
    """(number, start, extent) of the chunks of the value dim that a warpgroup holds: all, or its share of them."""
    found = [(n, *chunk) for n, chunk in enumerate(chunks(binding.wide.size) if binding.wide else [(0, 0)])]
    share = -(-len(found) // (1 + config.value_warpgroups))
    return found[warpgroup * share :][:share] if config.value_warpgroups else found


def zeros(name: str, chunk: int, extent: int) -> str:
    """The line that makes a chunk of an accumulator."""
    return f"{name} = gl.zeros([{H200.product_rows}, {extent}], gl.float32, VALUE{chunk})"


def decayed(names: Iterable[str], decay: str, config: HopperConfig) -> list[str]:
    """The lines that multiply accumulators by the factor of their rows' sums. A lazy factor is 1 for most tiles."""
    function = "rescaled" if config.lazy else "multiplied"
    return [f"{name} = {function}({name}, {decay})" for name in names]


def hand_over(handed: Handed, weights: str, vectors: list[str]) -> list[str]:
    """Lines that give weights, "" for none, and vectors of the rows to other warpgroups, once they have the last."""
    stores = [f"{handed.weights}.store({weights})"] if weights else []
    stores += [f"{handed.vectors}.index({n}).store({vector})" for n, vector in enumerate(vectors)]
    before, after = f"wait({handed.empty}.index(0), handed & 1 ^ 1)", f"arrive({handed.full}.index(0))"
    return [f"mbarrier.{before}", *stores, "fence_async_shared()", f"mbarrier.{after}", "handed += 1"]


class StateNames:
    """Names of one accumulator's parts: its scale, its largest score if needed, a name or chunks per value."""

    def __init__(self, writer: GluonWriter, record: Accumulator, values):
        fresh = writer.names.fresh
        self.record, self.values = record, values
        rescaled = record.gauge is not None
        self.scale = fresh(f"{record.name}_scale") if rescaled else ""
        exact = rescaled and not all(any_scale(store.term, record.reductions) for store in writer.kernel.stores)
        in_pieces = writer.facts.piece > 0  # whose scales are as all kernels of the plan have them
        self.peak = fresh(f"{record.name}_peak") if exact and not in_pieces else ""  # a lazy scale lags behind it
        self.fixed = fixed_scale(writer.kernel, record) if rescaled and not in_pieces else None
        self.parts: list[tuple[str, ...]] = []
        for total, value in zip(record.totals, values, strict=True):
            if total < len(self.parts):  # it is added to the total of a value before it
                self.parts.append(self.parts[total])
                continue
            number = len(chunks(value.matrix.inner.size)) if value.matrix else 1
            self.parts.append(tuple(fresh(f"{record.name}") for _ in range(number)))
        self.pairs = [*zip(values, self.parts, strict=True)]
        self.totals = [pair for n, pair in enumerate(self.pairs) if record.totals[n] == n]  # that are added up


class PieceTotals:
    """The totals of an item whose loop is read in pieces, as piece_states.py has them in Triton: the same operations in
    the same order, so that a row has the same bits.

    A tile's piece has states of its own. Where a tile begins another one, they join the totals. What a matrix adds up
    waits in shared memory, since registers hold the piece. buffers: of that, one a chunk. tiles: of a piece.
    """

    def __init__(self, writer: GluonWriter, state: StateNames, buffers: tuple[str, ...], tiles: int):
        fresh, name = writer.names.fresh, state.record.name
        self.state, self.buffers, self.tiles = state, buffers, tiles
        self.scale, self.begins, self.joined, self.fresh = *map(fresh, (f"{name}_total", "begins", "joined")), fresh
        self.vectors = {names[0]: fresh(f"{name}_total") for value, names in state.totals if value.matrix is None}
        self.sums = [pair for value, names in state.totals if value.matrix for pair in enumerate(names)]  # by chunk

    def cleared(self) -> list[str]:
        """What stands in an item's first tile."""
        rows = f"[{H200.product_rows}]"
        lines = [f'{self.scale} = gl.full({rows}, float("-inf"), gl.float32, ROWS)', f"{self.joined} = 0"]
        return [*lines, *(f"{total} = gl.zeros({rows}, gl.float32, ROWS)" for total in self.vectors.values())]

    def before(self, name: str) -> list[str]:
        """The lines that find whether a tile begins a piece, and the scale that its scores meet."""
        begins = f"{self.begins} = tile % {self.tiles} == 0"
        return [begins, f'{name} = gl.where({self.begins}, float("-inf"), {self.state.scale})']

    def crossing(self) -> list[str]:
        """Where a tile begins a piece, the one before joins the totals, once its products are there."""
        lines, kept, added = self._factors()
        for (chunk, name), buffer in zip(self.sums, self.buffers, strict=True):
            slot, before = f"{buffer}.index(W)", self.fresh("before")
            factors = _by_rows(kept, chunk), f"{name} * {_by_rows(added, chunk)}"
            lines += [f"if {self.joined} > 0:", f"    {before} = {slot}.load(VALUE{chunk})"]
            lines += [f"    {slot}.store({before} * {' + '.join(factors)})"]
            lines += ["else:", f"    {slot}.store(0.0 * {' + '.join(factors)})", self._nothing(name, name, chunk)]
        lines += [f"{self.joined} += 1", *self._joined_vectors(kept, added)]
        zero = [f"{name} = gl.zeros([{H200.product_rows}], gl.float32, ROWS)" for name in self.vectors]
        return [f"if {self.begins}:", *(f"    {line}" for line in [*lines, *zero])]

    def finished(self) -> list[str]:
        """After the item's last product: the last piece joins, and the state's names have the totals."""
        lines, kept, added = self._factors()
        for (chunk, name), buffer in zip(self.sums, self.buffers, strict=True):
            before = self.fresh("before")
            lines += [f"if {self.joined} > 0:", f"    {before} = {buffer}.index(W).load(VALUE{chunk})"]
            lines += ["else:", f"    {self._nothing(before, name, chunk)}"]
            lines += [f"{name} = {before} * {_by_rows(kept, chunk)} + {name} * {_by_rows(added, chunk)}"]
        lines += self._joined_vectors(kept, added)
        return [*lines, *(f"{n} = {total}" for n, total in ((self.state.scale, self.scale), *self.vectors.items()))]

    @staticmethod
    def _nothing(name: str, like: str, chunk: int) -> str:
        return f"{name} = gl.zeros([{H200.product_rows}, {like}.shape[1]], gl.float32, VALUE{chunk})"

    def _factors(self) -> tuple[list[str], str, str]:
        """(lines, the factor of the totals, that of the piece): both are taken to the larger scale."""
        top, shift, kept, added = map(self.fresh, ("joined_top", "shift", "kept", "added"))
        lines = [
            f"{top} = gl.maximum({self.scale}, {self.state.scale})",
            f'{shift} = gl.where({top} == float("-inf"), 0.0, {top})',
            f"{kept} = gl.exp2({joining_text(self.scale, shift)})",
            f"{added} = gl.exp2({joining_text(self.state.scale, shift)})",
            f"{self.scale} = {top}",
        ]
        return lines, kept, added

    def _joined_vectors(self, kept: str, added: str) -> list[str]:
        return [f"{total} = {total} * {kept} + {name} * {added}" for name, total in self.vectors.items()]


def _by_rows(vector: str, chunk: int) -> str:
    """A vector over rows beside a chunk of an accumulator."""
    return f"gl.convert_layout({vector}, gl.SliceLayout(1, VALUE{chunk}))[:, None]"


class StoreWriter:
    """Writes the lines after an item's last product. states: by step, as the steps filled them.

    buffers: with exits, shared memory by result, and entries, what came in there for it. chunks: those of the value dim
    that the warpgroup holds, as `chunks_of` gives them; the one with the first has the scores.
    """

    def __init__(
        self,
        writer: GluonWriter,
        binding: Binding,
        config: HopperConfig,
        states: list[list[StateNames]],
        buffers: Buffers,
        chunks: list[tuple[int, int, int]],
    ):
        self.writer, self.binding, self.rows = writer, binding, binding.kernel.rows
        self.send, self.states, self.handed, self.chunks = config.send, states, buffers.handed, chunks
        self.exits, self.entries = buffers.exits, buffers.entries
        self.given: list[str] = []  # vectors for other warpgroups

    def lines(self) -> list[str]:
        """Finished values, then what is stored, chunk by chunk of the value dim; what lacks that dim, once."""
        writer, wide = self.writer, self.binding.wide
        before = len(writer.outer.lines)
        states = [state for states in self.states for state in states]
        if self.handed and self.chunks[0][0]:
            whole = self._received(states, self.handed)
        else:
            whole = [self._finished(state) for state in states]
            writer.outer.lines += hand_over(self.handed, "", self.given) if self.handed else []
        writer.outer.lines += [f"mbarrier.wait({r.full}.index(W), turn & 1)" for r in self.entries.values()]
        for number, start, extent in self.chunks:
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

    def _finished(self, state: StateNames) -> Finished:
        """The state's scale and its vectors, whole."""
        writer, rows = self.writer, (self.rows,)
        lines, vectors = writer.outer.lines, []
        for value, names in state.pairs:
            if value.matrix is None and state.record.monoid != "max" and not writer.facts.piece:
                lines.append(f"{names[0]} = row_sum({names[0]}, ROWS)")
            vectors.append(TileValue(names[0], rows) if value.matrix is None else None)
        known = [vector.text for vector in vectors if vector is not None]
        if not state.peak:
            self.given += [*([state.scale] if state.scale else []), *known]
            return (TileValue(state.scale, rows) if state.scale else None), vectors
        shift = f'gl.where({state.peak} == float("-inf"), 0.0, {state.peak})'
        scaling = writer.scaling_of(state.record.gauge, state.record.reductions)
        text = f"gl.exp2({decay_text(scaling, state.scale, shift, GLUON)})"
        decay = writer.assign("decay", TileValue(text, rows), writer.outer).text
        for value, names in state.totals:
            lines += self._multiplied(names, decay) if value.matrix else [f"{names[0]} = {names[0]} * {decay}"]
        self.given += [decay, state.peak, *known]
        return TileValue(state.peak, rows), vectors

    def _multiplied(self, names: tuple[str, ...], factor: str) -> list[str]:
        """Lines that multiply this warpgroup's chunks of an accumulator."""
        return [f"{names[k]} = multiplied({names[k]}, {factor})" for k, *_ in self.chunks]

    def _received(self, states: list[StateNames], handed: Handed) -> list[Finished]:
        """As `_finished` for each state, from what the warpgroup with the scores gives."""
        writer, lines, number = self.writer, self.writer.outer.lines, count()
        load = lambda name: f"{name} = {handed.vectors}.index({next(number)}).load(ROWS)"
        found: list[Finished] = []
        lines.append(f"mbarrier.wait({handed.full}.index(0), handed & 1)")
        for state in states:
            decay = writer.names.fresh("decay") if state.peak else ""
            scale = writer.names.fresh("scale") if state.scale else ""
            vectors = [None if value.matrix else TileValue(names[0], (self.rows,)) for value, names in state.pairs]
            lines += [load(name) for name in (decay, scale, *(v.text for v in vectors if v)) if name]
            for value, names in state.totals if decay else ():
                lines += self._multiplied(names, decay) if value.matrix else []
            found.append((TileValue(scale, (self.rows,)) if scale else None, vectors))
        lines += [f"mbarrier.arrive({handed.empty}.index(0))", "handed += 1"]
        return found

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
