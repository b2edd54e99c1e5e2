"""Who works at a loop on one multiprocessor, and in which order: the instructions of warps, as the kernels' texts have
them.

A warp-specialised kernel has a warp that copies and warpgroups that compute (gluon/consumer.py writes them); in a plain
one each warpgroup does all, and the next tiles are under way meanwhile. Invariant: products, waits and signals are in
the order of the emitted text. Example: with one step a tile, the scores of tile 2 are issued before the value products
of tile 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from ..hopper.config import HopperConfig
from ..hopper.kernel_form import Binding, Operand
from ..plan.kernel_config import TritonConfig
from ..schedule.problem import Operation, Problem
from .simulation import Await, Instruction, Raise, Work

TENSOR, VECTOR, COPY, STORE = "tensor", "vector", "copy", "store"  # units
PRODUCT, SPECIAL, POINTWISE, COPIED, STORED = "product", "special", "pointwise", "copy", "store"  # kinds of work
VALUES = ("accumulate",)  # products whose results are states
BEHIND = ("rescale",)  # done when the value products of the step before are


@dataclass(frozen=True)
class Prices:
    """Clocks of each operation of a warpgroup, by its name. apart: of a step, beside them. store: that an item adds to
    its steps, for one warpgroup. rows: of the copy of a warpgroup's rows.
    """

    clocks: Mapping[str, float]
    apart: float = 0.0
    store: float = 0.0
    rows: float = 0.0


@dataclass(frozen=True)
class PipelineStep:
    """Operations of one step of a tile. first, last: rings that it is the first and the last to read for its scores.
    done: rings that its values are the last to read.
    """

    scores: tuple[str, ...]
    pointwise: tuple[str, ...]
    values: tuple[str, ...]
    behind: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    done: tuple[str, ...] = ()


NO_STEP = PipelineStep((), (), (), ())


def kind_of(operation: Operation) -> str:
    """What kind of work an operation mostly is."""
    if operation.streaming:
        return COPIED
    if "tensor" in operation.work:
        return PRODUCT
    return SPECIAL if operation.work.get("special", 0) > operation.work.get("fma", 0) else POINTWISE


# Warp-specialised kernels ---------------------------------------------------------------------------------------------


def specialised(
    binding: Binding, problem: Problem, config: HopperConfig, prices: Prices, tiles: int
) -> tuple[list[list[Instruction]], dict[str, int]]:
    """The actors of all programs on a multiprocessor, each with one item of so many tiles; counters that begin above 0.
    """
    actors, counters = list[list[Instruction]](), dict[str, int]()
    for number in range(config.residents):
        program = _Specialised(binding, problem, config, prices, f"{number} ")
        actors.append([*program.producer(tiles)])
        actors += ([*program.consumer(w, tiles)] for w in range(config.consumers))
        counters[program.turn(0)] = 1
    return actors, counters


class _Specialised:
    """The warps of one program."""

    def __init__(self, binding: Binding, problem: Problem, config: HopperConfig, prices: Prices, program: str):
        self.binding, self.config, self.prices, self.program = binding, config, prices, program
        self.operations = {operation.name: operation for operation in problem.operations}
        self.read = {name: [e.before for e in problem.edges if e.after == name] for name in self.operations}
        later = [o for o in binding.matrices if o not in binding.columns]
        self.rings = _rings([*binding.columns, *binding.overlays, *later], self.operations)
        among = lambda operands: [ring for operand, ring in self.rings.items() if operand in operands]
        self.columns, self.overlays = among(binding.columns), among(binding.overlays)
        self.steps = self._steps()

    def turn(self, w: int) -> str:
        return f"{self.program}turn {w}"

    def _steps(self) -> tuple[PipelineStep, ...]:
        numbers = {id(state): str(n) for n, state in enumerate(self.binding.loop.accumulators)}
        found = [self._of_states({numbers[id(state)] for state, _ in step.states}) for step in self.binding.steps]
        return tuple(self._with_rings(found, n) for n in range(len(found)))

    def _of_states(self, mine: Collection[str]) -> PipelineStep:
        """The operations that states take, by the states' numbers, and the products that these read."""
        names = [n for n, o in self.operations.items() if not o.streaming and _state(n) in mine]
        values = tuple(n for n in names if n.startswith(VALUES))
        behind = tuple(n for n in names if n.startswith(BEHIND))
        pointwise = tuple(n for n in names if n not in (*values, *behind))
        scores = dict.fromkeys(p for n in pointwise for p in self.read[n] if p.startswith("product"))
        return PipelineStep(tuple(scores), pointwise, values, behind)

    def _with_rings(self, steps: list[PipelineStep], n: int) -> PipelineStep:
        """The step with the rings that it is the first, and the last, to read."""
        reads = [self._read_by(step.scores) for step in steps]
        values = [self._read_by(step.values) for step in steps]
        before = {ring for rings in reads[:n] for ring in rings}
        behind = {ring for rings in reads[n + 1 :] for ring in rings}
        later = {ring for rings in values[n + 1 :] for ring in rings} | {*self.columns}
        return replace(
            steps[n],
            first=tuple(r for r in reads[n] if r not in before),
            last=tuple(r for r in reads[n] if r not in behind),
            done=tuple(r for r in values[n] if r not in later),
        )

    def _read_by(self, products: tuple[str, ...]) -> tuple[str, ...]:
        """The rings that products read, in the order of copies."""
        read = {name for product in products for name in self.read[product]}
        return tuple(ring for ring in self.rings.values() if ring in read)

    # The warp that copies

    def producer(self, tiles: int) -> Iterator[Instruction]:
        """Copies an item's rows and every tile, each as soon as its place in the ring is free."""
        config, rows = self.config, [self._copy("rows", self.prices.rows, 0)] * self.config.consumers
        yield from rows if config.row_buffers > 1 else []
        for t in range(tiles):
            for n, ring in enumerate(self.rings.values()):
                if ring not in self.overlays:
                    yield Await(self._empty(ring), (t - config.stages + 1) * config.consumers)
                yield self._copy(ring, self.prices.clocks[ring], t)
                if t == n == 0 and config.row_buffers == 1:
                    yield from rows

    def _copy(self, what: str, clocks: float, tile: int) -> Work:
        return Work(COPY, clocks, f"{self.program}copies", COPIED, what, tile, self._full(what), waits=False)

    def _full(self, ring: str) -> str:
        return f"{self.program}{ring} is there"

    def _empty(self, ring: str) -> str:
        return f"{self.program}{ring} is read"

    # A warpgroup that computes

    def consumer(self, w: int, tiles: int) -> Iterator[Instruction]:
        """An item: the steps of every tile, the last value products, the store."""
        yield Await(self._full("rows"), self.config.consumers)
        yield from self._arrived(self.steps[0].first, 0)
        taken = products = values = 0
        for t in range(tiles):
            for n, step in enumerate(self.steps):
                first = t == n == 0
                earlier, tile = (NO_STEP, 0) if first else (self.steps[n - 1], t if n else t - 1)
                if self.config.turns and not first:
                    yield Await(self.turn(w), taken := taken + 1)
                yield from self._issued(w, step.scores, t)
                yield from self._values(w, earlier, tile)
                products, values = products + len(step.scores), values + len(earlier.values)
                if self.config.turns and not first:
                    yield Raise(self.turn((w + 1) % self.config.consumers))
                yield from self._pointwise(w, n, t, products)
                arrived = self._next(n, t, tiles)
                finished = self._finished(w, earlier, values)
                yield from [*finished, *arrived] if self.config.late else [*arrived, *finished]
                yield from self._vector(w, () if t == 0 else step.behind, t)
        last = self.steps[-1]
        yield from self._values(w, last, tiles - 1)
        yield from self._finished(w, last, values + len(last.values))
        lane, label = f"{self.program}stores", f"results of warpgroup {w + 1}"
        yield Work(STORE, self.prices.store, lane, STORED, label, tiles - 1)

    def _next(self, n: int, t: int, tiles: int) -> list[Instruction]:
        """Waits for the tiles that the next step is the first to read."""
        if n + 1 < len(self.steps):
            return [*self._arrived(self.steps[n + 1].first, t)]
        return [*self._arrived(self.steps[0].first, t + 1)] if t + 1 < tiles else []

    def _arrived(self, rings: Iterable[str], tile: int) -> Iterator[Instruction]:
        return (Await(self._full(ring), tile + 1) for ring in rings)

    def _issued(self, w: int, names: tuple[str, ...], tile: int) -> Iterator[Instruction]:
        for name in names:
            signals = f"{self.program}{w} {'values' if name.startswith(VALUES) else 'scores'}"
            lane = self._lane(w, "products")
            yield Work(TENSOR, self.prices.clocks[name], lane, PRODUCT, name, tile, signals, waits=False)

    def _values(self, w: int, step: PipelineStep, tile: int) -> Iterator[Instruction]:
        """Issues the value products of a step when their tiles are there."""
        yield from self._arrived(self._read_by(step.values), tile)
        yield from self._issued(w, step.values, tile)

    def _pointwise(self, w: int, n: int, tile: int, products: int) -> Iterator[Instruction]:
        """Waits for the step's scores, hands back columns, and does the pointwise work."""
        overlays = self.overlays if n == 0 else ()
        yield from self._arrived(overlays if not self.config.deferred else (), tile)
        yield Await(f"{self.program}{w} scores", products)
        yield from self._arrived(overlays if self.config.deferred else (), tile)
        yield from (Raise(self._empty(ring)) for ring in self.steps[n].last)
        yield Work("", self.prices.apart / len(self.steps))
        yield from self._vector(w, self.steps[n].pointwise, tile)

    def _vector(self, w: int, names: tuple[str, ...], tile: int) -> Iterator[Instruction]:
        for name in names:
            kind = kind_of(self.operations[name])
            yield Work(VECTOR, self.prices.clocks[name], self._lane(w, "pointwise"), kind, name, tile)

    def _finished(self, w: int, step: PipelineStep, values: int) -> list[Instruction]:
        """Waits for value products, and hands back their tiles."""
        free = [Raise(self._empty(ring)) for ring in step.done]
        return [Await(f"{self.program}{w} values", values), *free] if step.values else []

    def _lane(self, w: int, what: str) -> str:
        return f"{self.program}warpgroup {w + 1}: {what}"


def _rings(operands: Iterable[Operand], operations: Collection[str]) -> dict[Operand, str]:
    """The names of the operations that load operands, in their order; those of one tensor are numbered."""
    found, seen = {}, Counter[str]()
    for operand in dict.fromkeys(operands):
        base = f"load {operand.tensor.name}"
        name = f"{base} {seen[base]}" if seen[base] else base
        seen[base] += 1
        if name in operations:
            found[operand] = name
    return found


def _state(name: str) -> str:
    """The number of the state that an operation belongs to."""
    kind, _, number = name.rpartition(" ")
    return "" if kind.startswith(("product", "load")) else number.split(".")[0]


# Plain kernels --------------------------------------------------------------------------------------------------------


def plain(
    problem: Problem, config: TritonConfig, prices: Prices, programs: int, tiles: int
) -> tuple[list[list[Instruction]], dict[str, int]]:
    """The actors of so many programs on a multiprocessor, each with one item of so many tiles: warpgroups, and the
    copies that are under way for them. No counter begins above 0.
    """
    order, loads = _order(problem), tuple(o.name for o in problem.operations if o.streaming)
    actors = list[list[Instruction]]()
    for number in range(programs):
        program = f"{number} "
        actors.append([*_ahead(program, loads, config, prices, tiles)])
        actors += ([*_plain_warpgroup(program, w, order, loads, prices, tiles)] for w in range(config.warpgroups))
    return actors, {}


def _order(problem: Problem) -> list[Operation]:
    """The operations of a tile but its loads, each behind those that it reads."""
    graph: dict[str, list[str]] = {o.name: [] for o in problem.operations}
    for edge in problem.edges:
        if not edge.distance:
            graph[edge.after].append(edge.before)
    place = {name: n for n, name in enumerate(TopologicalSorter(graph).static_order())}
    return sorted((o for o in problem.operations if not o.streaming), key=lambda o: place[o.name])


def _ahead(
    program: str, loads: tuple[str, ...], config: TritonConfig, prices: Prices, tiles: int
) -> Iterator[Instruction]:
    """The copies of a program: of each tile as soon as the one `stages - 1` before it is begun."""
    ahead = config.stages - 1
    for t in range(tiles):
        yield Await(f"{program}begun", (t - ahead + 1) * config.warpgroups)
        for name in loads:
            lane = f"{program}copies {t % max(1, ahead) + 1}"
            yield Work(COPY, prices.clocks[name], lane, COPIED, name, t, f"{program}{name}", waits=False)


def _plain_warpgroup(
    program: str, w: int, order: list[Operation], loads: tuple[str, ...], prices: Prices, tiles: int
) -> Iterator[Instruction]:
    """Each tile's operations one after the other, when its copies are there; then the store."""
    lane = f"{program}warpgroup {w + 1}: "
    for t in range(tiles):
        yield Raise(f"{program}begun")
        yield from (Await(f"{program}{name}", t + 1) for name in loads)
        yield Work("", prices.apart)
        for operation in order:
            kind, clocks = kind_of(operation), prices.clocks[operation.name]
            unit, what = (TENSOR, "products") if kind == PRODUCT else (VECTOR, "pointwise")
            yield Work(unit, clocks, lane + what, kind, operation.name, t)
    lane, label = f"{program}start and stores", f"start, rows and results of warpgroup {w + 1}"
    yield Work(STORE, prices.store, lane, STORED, label, tiles - 1)
