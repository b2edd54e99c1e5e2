"""A consumer's work on one item: the first tile, the loop over the others, what is left of the last one, the store.

A tile has one step per group of states. A step issues its score products, then the value products of the step before,
and updates its states while the latter run; they are waited for before anything that they read or write is reused.
Accumulators in flight are touched by nobody else.
"""

from __future__ import annotations

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..codegen.ops import TileValue, identity
from ..codegen.tile_writer import doublings, factor_text, scale_text
from ..codegen.tiles import Scope
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import Binding, Operand, Step, accumulated, chunks
from ..plan.device import H200
from ..plan.thresholds import HIDDEN
from .epilogue import State, StoreWriter
from .expressions import GluonWriter, Pending, matrix_in, name_products, summed, wait_for
from .scores import in_base_two, weights
from .work_items import Walk

FETCHED = 32  # registers of a thread that may hold what is fetched ahead
LAZY = 8.0  # a scale may lag behind the largest score by 2^8: weights stay below that


class Consumer:
    """Writes the body of the loop over items."""

    def __init__(
        self, writer: GluonWriter, binding: Binding, config: HopperConfig, shape, rings, row_rings, exits, entries
    ):
        self.writer, self.binding, self.config, self.shape = writer, binding, config, shape
        self.rows, self.loop, self.listed = binding.kernel.rows, binding.loop, shape.listed is not None
        self.rings = {r.operand: r for r in rings}
        self.row_rings, self.exits, self.entries = {r.operand: r for r in row_rings}, exits, entries
        self.row_full, self.row_empty = row_rings[0].full, row_rings[0].empty
        self.more, self.words, self.cuts = "", "", (0, 0)
        self.whole = shape.masked == "none" and str(self.loop.dim) in shape.facts.even  # no element is ever absent
        bodies = (b for step in binding.steps for a, _ in step.states for b in (a.gauge, *a.values) if b is not None)
        self.sums = summed(binding.products, bodies)
        self.scores = name_products(writer, binding.products, self.sums)
        self.states = [[State(writer, a, values) for a, values in step.states] for step in binding.steps]
        self.matrices = binding.matrices
        # accumulators, scores and weights of a thread, and a number for each of its columns
        held = accumulated(binding) // 2 + config.loop_tile // 2 + config.loop_tile // 4 + config.loop_tile // 4
        self.kept = held <= config.registers[1] * 9 // 10
        every = [(a, values) for step in binding.steps for a, values in step.states]
        self.bodies = [b for a, values in every for b in (a.gauge, *(f for v in values for f in v.factors)) if b]
        self.pending: list[list[Pending]] = self._plan_pending()
        last = {p.columns: n for n, step in enumerate(binding.steps) for p in step.products}
        self.releases = {n: [o for o, m in last.items() if m == n] for n in range(len(binding.steps))}
        first: dict[Operand, int] = {}
        for n, step in enumerate(binding.steps):
            for p in step.products:
                first.setdefault(p.columns, n)
        self.arrivals = {n: [o for o, m in first.items() if m == n] for n in range(len(binding.steps))}

    def _plan_pending(self) -> list[list[Pending]]:
        """By step, the value products that it leaves to the next one."""
        found, remaining = [], list(self.matrices)
        for states in self.states:
            mine: list[Pending] = []
            for state in states:
                for value, names in zip(state.values, state.parts, strict=True):
                    if value.matrix:
                        remaining.remove(value.matrix)
                        packed = self.writer.names.fresh("packed")
                        mine.append(Pending(packed, value.matrix, names, value.matrix not in remaining))
            found.append(mine)
        return found

    # One item

    def item(self, walk: Walk, entering: list[str]) -> list[str]:
        """The lines of one item; `entering` asks for what its results need, when its first tile is done."""
        s, self.partial = self.config, walk.partial
        prologue = [f"at = turn % {s.row_buffers} * {s.consumers} + W"]
        prologue += [f"mbarrier.wait({self.row_full}.index(at), turn // {s.row_buffers} & 1)"]
        before, after = (self._skip(number) if number else [] for number in (walk.before, walk.after))
        first = self._tile(0, walk.at("0"), f"{walk.count} > 1")
        rest = self._tile(1, walk.at("t"), f"t + 1 < {walk.count}")
        body = [*prologue, *before, *first, *entering]
        body += [f"for t in range(1, {walk.count}):", *(f"    {x}" for x in rest)]
        body += [f"count += {walk.count}", f"mbarrier.arrive({self.row_empty}.index(at))"]
        store = StoreWriter(self.writer, self.binding, s.send, self.states, self.exits, self.entries)
        body += self._drain() + after + store.lines()
        return [*self.writer.outer.lines, *body, "turn += 1"]

    def chained(self, walk: Walk, take: list[str]) -> tuple[list[str], list[str]]:
        """(before the loop over items, its body): an item's first scores are issued with the last products of the item
        before it, and that one's results leave while they run. After the last item they are issued in vain.
        """
        self.more, s, writer = ", pred=more", self.config, self.writer
        self.partial = walk.partial
        before = self._skip(f"({walk.before}) * gl.cast(more, gl.int32)") if walk.before else []
        first = self._tile(0, walk.at("0"), f"{walk.count} > 1")
        rest = self._tile(1, walk.at("t"), f"t + 1 < {walk.count}")
        enter = [*writer.outer.lines, f"at = turn % {s.row_buffers} * {s.consumers} + W"]
        enter += [f"mbarrier.wait({self.row_full}.index(at), turn // {s.row_buffers} & 1, pred=more)", *before]
        issued, waited = self.cuts
        enter, wait, first = [*enter, *first[:issued]], first[issued:waited], first[waited:]
        body = [*first, f"for t in range(1, {walk.count}):", *(f"    {line}" for line in rest)]
        body += [f"count += {walk.count}", "last = count - 1", f"mbarrier.arrive({self.row_empty}.index(at))"]
        pending = self.pending[-1]
        body += self._issue(pending, "last") + self._keep_place()
        body += ["turn += 1", "more = position + 1 < high", *take, *enter]
        body += self._finish(pending, "last", outstanding=len(self.binding.products))
        body += StoreWriter(writer, self.binding, s.send, self.states, self.exits, {}).lines() + wait
        return [*enter, *wait], body

    def _keep_place(self) -> list[str]:
        """Names for where this item is, which its store needs after the next one has begun."""
        writer, lines = self.writer, []
        writer.outer = Scope()
        for dim, start in writer.starts.items():
            if dim != self.loop.dim:
                writer.starts[dim] = writer.names.fresh(f"{dim}_kept")
                lines.append(f"{writer.starts[dim]} = {start}")
        return lines

    def _skip(self, number: str) -> list[str]:
        """Hands back, unread, tiles that this warpgroup's rows have nothing in."""
        lines = []
        for _ in range(len(self.binding.steps) if self.config.turns else 0):
            lines += ["take_turn(W)", f"give_turn((W + 1) % {self.config.consumers})"]
        lines += [f"mbarrier.wait({self._at(ring.full)}, {self._phase()})" for ring in self.rings.values()]
        lines += [f"mbarrier.arrive({self._at(e)})" for e in dict.fromkeys(r.empty for r in self.rings.values())]
        return [f"for t in range(0, {number}):", *(f"    {line}" for line in [*lines, "count += 1"])]

    def _at(self, name: str, count: str = "count") -> str:
        depth = self.config.stages
        slot = f"({count}) & {depth - 1}" if depth & (depth - 1) == 0 else f"({count}) % {depth}"
        return f"{name}.index({slot})"

    def _phase(self, count: str = "count") -> str:
        return f"(({count}) // {self.config.stages}) & 1"

    def _tile(self, number: int, find: list[str], more: str) -> list[str]:
        """A tile's steps: number 0 is the first of an item, which has no value products before it."""
        writer, count = self.writer, "count + t" if number else "count"
        start = writer.names.fresh(f"{self.loop.dim}_start")
        writer.open(self.loop.dim, start, ragged=number == 0 or self.listed)
        lines = writer.inner.lines
        lines += [*find, f"{start} = tile * {self.config.loop_tile}"]
        lines += [f"bits = thread_words({self.words}, tile, {self.config.loop_tile})"] if self.words else []
        self._fetch(number)
        if number == 0:
            lines += self._arrive_at(0, count, "more" if self.more else None)
        for n, step in enumerate(self.binding.steps):
            earlier = self.pending[n - 1] if n or number else []
            self._step(n, step, number, count, earlier, f"{count} - 1" if n == 0 else count, more)
        return writer.close()

    def _fetch(self, number: int) -> None:
        """Asks for what lies along the loop before the products that it waits with; for guards only where needed."""
        writer, guard = self.writer, self.loop.guard
        along = lambda n: n.dims - {*self.binding.kernel.grid} == {self.loop.dim}
        mine = lambda term: [n for n in subterms(term) if n.op == "load" and along(n)]
        always = list(dict.fromkeys(n for body in self.bodies for n in mine(body)))
        branched = number and self.shape.masked == "some"
        tested = mine(guard) if guard is not None and (self.listed or not branched) else []
        tested = [n for n in dict.fromkeys(tested) if n not in always]
        if sum(map(_registers, always + tested)) * self.config.loop_tile // H200.product_rows > FETCHED:
            return
        for node in always:
            writer.value(node)
        writer.readable = TileValue(self.partial) if branched else None
        for node in tested:
            writer.value(node)
        writer.readable = None

    def _arrive_at(self, n: int, count: str, more: str | None) -> list[str]:
        """Waits for the tiles that step n is the first to read."""
        guard = f", pred={more}" if more else ""
        return [
            f"mbarrier.wait({self._at(self.rings[o].full, count)}, {self._phase(count)}{guard})"
            for o in self.arrivals[n]
        ]

    def _step(self, n: int, step: Step, number: int, count: str, earlier, earlier_count: str, more: str) -> None:
        lines, turns = self.writer.inner.lines, self.config.turns and (n or number)
        lines += ["take_turn(W)"] if turns else []
        for product in step.products:
            lines += self._score(product, count)
        issued = self._issue(earlier, earlier_count)
        lines += issued
        lines += [f"give_turn((W + 1) % {self.config.consumers})"] if turns else []
        names = list(dict.fromkeys(self.scores[p] for p in step.products))
        for node, parts in self.sums.items():
            self.writer.inner.memo[node] = TileValue(self.scores[parts[0]], (self.rows, self.loop.dim))
        outstanding = sum(len(p.accumulators) for p in earlier)
        issued_at = len(lines)
        overlays = self._overlays(count) if n == 0 else []
        lines += [] if self.config.deferred else overlays
        for diagonal in self.shape.diagonals if n == 0 else ():
            self.writer.read_diagonal(diagonal)
        lines.append(wait_for(outstanding, names))
        lines += overlays if self.config.deferred else []
        lines += ["fence_async_shared()"] if overlays else []
        more_items = "" if number else self.more
        lines += [f"mbarrier.arrive({self._at(self.rings[o].empty, count)}{more_items})" for o in self.releases[n]]
        self.cuts = (issued_at, len(lines)) if not number else self.cuts
        late = self._states(n, number)
        following = n + 1 if n + 1 < len(self.binding.steps) else 0
        arrive = self._arrive_at(following, count if following else f"{count} + 1", None if following else more)
        finish = self._finish(earlier, earlier_count)
        lines += [*finish, *arrive] if self.config.late else [*arrive, *finish]
        lines += late

    def _overlays(self, count: str) -> list[str]:
        """Takes this warpgroup's part of tiles over rows and loop into registers.

        Before they are handed back there must be a fence, or a load may still be under way when the copy of the next
        tile lands: a barrier orders loads among threads, but not with the copies of another proxy.
        """
        lines, tile, number = [], self.config.loop_tile, self.config.consumers
        for operand in self.shape.overlays:
            ring, name = self.rings[operand], self.writer.names.fresh(f"{operand.tensor.name}_tile")
            slot = f"({count}) % {self.config.stages} * {number} + W"
            part = matrix_in(f"{ring.buffers[0]}.index({slot})", operand, H200.product_rows, tile, transposed=False)
            lines.append(f"mbarrier.wait({self._at(ring.full, count)}, {self._phase(count)})")
            lines.append(f"{name} = {part}.load(SCORE)")
            value = TileValue(name, (self.rows, self.loop.dim), operand.tensor.dtype)
            self.writer.inner.memo[operand.load] = value
        return lines

    def _score(self, product, count: str) -> list[str]:
        """score = rows · columns, a product a chunk of the summed dim; or added to that of products before it."""
        name, lines = self.scores[product], []
        begun = any(product in parts[1:] for parts in self.sums.values())
        rows, columns = self.row_rings[product.rows], self.rings[product.columns]
        tile = self.config.loop_tile
        for k, (_, extent) in enumerate(chunks(product.rows.inner.size)):
            left = matrix_in(f"{rows.buffers[k]}.index(at)", product.rows, H200.product_rows, extent, transposed=False)
            right = matrix_in(self._at(columns.buffers[k], count), product.columns, tile, extent, transposed=True)
            adds = k > 0 or begun
            into = name if adds else f"gl.zeros([{H200.product_rows}, {tile}], gl.float32, SCORE)"
            lines.append(f"{name} = warpgroup_mma({left}, {right}, {into}, use_acc={adds}, is_async=True)")
        return lines

    def _issue(self, earlier: list[Pending], count: str) -> list[str]:
        lines = []
        for matrix in dict.fromkeys(p.matrix for p in earlier):
            lines.append(f"mbarrier.wait({self._at(self.rings[matrix].full, count)}, {self._phase(count)})")
        for p in earlier:
            ring = self.rings[p.matrix]
            for k, (_, extent) in enumerate(chunks(p.matrix.inner.size)):
                right = matrix_in(
                    self._at(ring.buffers[k], count), p.matrix, self.config.loop_tile, extent, transposed=False
                )
                left = p.packed if k == 0 else f"gl.convert_layout({p.packed}, WEIGHT{k})"
                name = p.accumulators[k]
                lines.append(f"{name} = warpgroup_mma({left}, {right}, {name}, is_async=True)")
        return lines

    def _finish(self, earlier: list[Pending], count: str, outstanding: int = 0) -> list[str]:
        """Waits for the value products of the step before; then their matrices' slots are free."""
        if not earlier:
            return []
        names = [a for p in earlier for a in p.accumulators] + [p.packed for p in earlier]
        last = [p.matrix for p in earlier if p.last]
        return [
            wait_for(outstanding, names),
            *(f"mbarrier.arrive({self._at(self.rings[m].empty, count)})" for m in last),
        ]

    def _drain(self) -> list[str]:
        last = self.pending[-1]
        return [*self._issue(last, "count - 1"), *self._finish(last, "count - 1")]

    # States

    def _states(self, n: int, number: int) -> list[str]:
        """Writes a step's pointwise code and its states' scales and sums; the lines for after the wait."""
        late: list[str] = []
        pending = iter(self.pending[n])
        for state in self.states[n]:
            if state.record.gauge is not None:
                weight, decay = self._weigh(state, number)
            else:
                weight, decay = None, None
            for value, names in zip(state.values, state.parts, strict=True):
                if state.record.monoid == "max":
                    self._maximum(state, value, names[0], number)
                    continue
                summand = self._summand(state, value, weight, number)
                if value.matrix is None:
                    self._add(names[0], summand, decay, number)
                    continue
                packed = next(pending).packed
                late += self._rescale(names, decay, number)
                kind = self.writer.type_name(value.matrix.tensor.dtype)
                late.append(f"{packed} = gl.convert_layout(rounded({summand}, {kind}), WEIGHT0)")
        return late

    def _rescale(self, names, decay: str | None, number: int) -> list[str]:
        if number == 0:
            wide = chunks(self.binding.wide.size)
            return [
                f"{name} = gl.zeros([{H200.product_rows}, {extent}], gl.float32, VALUE{k})"
                for k, (name, (_, extent)) in enumerate(zip(names, wide, strict=True))
            ]
        function = "rescaled" if self.config.lazy else "multiplied"
        return [f"{name} = {function}({name}, {decay})" for name in names] if decay else []

    def _weigh(self, state: State, number: int) -> tuple[str, str | None]:
        """Scale and weights of a rescaled state, as lowering/analysis/softmax_scaling.py has them."""
        writer, scale = self.writer, state.scale
        lines, fresh = writer.inner.lines, writer.names.fresh
        how = writer.scaling_of(state.record.gauge, state.record.reductions)
        fixed = [] if number else [f"{scale} = gl.full([{H200.product_rows}], {state.fixed!r}, gl.float32, ROWS)"]
        near = writer.capped(how.raw, factor_text(how), state.fixed) if state.fixed is not None else None
        if near is not None:
            lines += fixed
            return self._masked(near, "0.0", number), None
        found, how, lift = in_base_two(writer, how, self.rows, self.loop.dim, self.kept)
        score = self._masked(writer.spread(found, (self.rows, self.loop.dim)), 'float("-inf")', number)
        if state.fixed is not None and not lift:
            weight, shift = fresh("weight"), repr(state.fixed)
            lines += fixed
            clamped = not self.whole or bool(self.words)
            text = f"bounded_weights({score}, {shift}, {factor_text(how)}, {writer.emulated_eighths}, {clamped})"
            lines.append(f"{weight} = {text}")
            return weight, None
        top = fresh("top")
        lines.append(f"{top} = {scale_text(how, f'row_max({score}, ROWS)')}{f' + {lift}' if lift else ''}")
        if state.peak:
            lines.append(f"{state.peak} = {f'gl.maximum({state.peak}, {top})' if number else top}")
        new, shift, weight, decay = fresh("new_scale"), fresh("shift"), fresh("weight"), fresh("decay")
        lazily = f"gl.where({top} > {scale} + {doublings(how, LAZY)}, {top}, {scale})"
        grown = lazily if self.config.lazy else f"gl.maximum({scale}, {top})"
        lines.append(f"{new} = {grown if number else top}")
        lines.append(f'{shift} = gl.where({new} == float("-inf"), 0.0, {new})')
        exact = bool(state.peak) or writer.needs_exact_scale(state.record.reductions)
        fallen, weighed = weights(how, exact, score, scale, shift, lift)
        lines += [f"{decay} = {fallen}"] if number else []
        lines.append(f"{weight} = {weighed}")
        lines.append(f"{scale} = {new}")
        return weight, decay if number else None

    def _summand(self, state: State, value, weight: str | None, number: int) -> str:
        """weight · factors over a whole tile, zero where an element is absent."""
        writer, tile = self.writer, (self.rows, self.loop.dim)
        if weight is not None and not value.factors:
            return weight
        texts = [weight] if weight is not None else []
        texts += [writer.align(writer.value(f), tile) for f in value.factors]
        product = writer.assign("summand", writer.spread(TileValue(" * ".join(texts) or "1.0", tile), tile))
        return product.text if weight is not None else self._masked(product, "0.0", number)

    def _maximum(self, state: State, value, name: str, number: int) -> None:
        body = state.record.values[0]
        found = self.writer.spread(self.writer.value(body), (self.rows, self.loop.dim))
        found = self._masked(found, identity("max", body.dtype), number)
        text = f"gl.convert_layout(gl.reduce({found}, 1, larger), ROWS)"
        self.writer.inner.lines.append(f"{name} = {f'larger({name}, {text})' if number else text}")

    def _add(self, name: str, summand: str, decay: str | None, number: int) -> None:
        text = f"partial_sum({summand})"
        if number:
            text = f"added({name}, {decay}, {summand})" if decay else f"{name} + {text}"
        self.writer.inner.lines.append(f"{name} = {text}")

    def _masked(self, value: TileValue, absent: str, number: int) -> str:
        """The value's name, `absent` where the guard is false, behind a branch where only some tiles need it."""
        writer, masked = self.writer, self.shape.masked
        value = value if value.text.isidentifier() else writer.assign("found", value)
        ends = not self.words or self.loop.finite_mask  # else the bits say where the loop ends
        padding = writer.padding(self.loop.dim) if number == 0 and ends else None
        guarded = self.loop.guard is not None or self.words
        guarded = guarded and (masked in ("some", "all") or (number == 0 and masked == "first"))
        if not guarded:
            return writer.assign("found", writer.where(padding, value, absent)).text if padding else value.text
        if number == 0 or masked == "all":
            return writer.assign("found", self._present(value, absent, padding)).text
        name = writer.assign("found", value).text
        around = writer.inner
        writer.inner = Scope(memo=dict(around.memo))
        padding = writer.padding(self.loop.dim) if self.listed and ends else None
        text = self._present(TileValue(name, value.dims, value.dtype), absent, padding).text
        branch, writer.inner = [*writer.inner.lines, f"{name} = {text}"], around
        around.lines.append(f"if {self.partial}:")
        around.lines += [f"    {line}" for line in branch]
        return name

    def _present(self, value: TileValue, absent: str, padding: TileValue | None) -> TileValue:
        """The value where the guard holds: by the bits, and by what they lack."""
        below, where = repr(HIDDEN) if self.loop.finite_mask else absent, self.writer.where
        if self.words:
            value = TileValue(f"kept({value.text}, bits, {below})", value.dims, value.dtype)
        guard = self.writer.value(self.loop.guard) if self.loop.guard is not None else None
        if guard is not None and self.loop.finite_mask:
            value, guard = where(guard, value, below), None
        present = self.writer.conjunction(guard, padding)
        return value if present is None else where(present, value, absent)


def _registers(load: Term) -> int:
    """Of a thread, for a vector along 64 columns of scores."""
    return 16 * (2 if load.dtype in ("int64", "float64") else 1)
