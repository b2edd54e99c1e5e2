"""Runs the text of a Gluon kernel over exact numbers: producers and consumers of a program as coroutines.

Each group of warps is an interpreter of its own. Those of a program share memory and barriers; a wait is where one
stops and another goes on. Invariant: what a warp reads of shared memory, its writer has finished, whatever the order
in which warps run. Example: `Launch(text, libraries, 4).run("kernel0", arguments)` runs four programs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from ..kernels import numbers as exact
from ..kernels.interpreter import MOST_ROUNDS, Interpreter, Steps, written
from ..kernels.language import Type, binary, is_plain, matrix_product, rearranged, with_product
from ..kernels.memory import Buffer, KernelFault, Pointer
from ..kernels.numbers import Numbers
from .barriers import Barrier, Counter, NumberedBarrier, Waiting
from .events import Access, Meet, Wait
from .gluon_language import DEVICE_FUNCTIONS, GLUON_FUNCTIONS, LAYOUT, CopyWindow, extent, places_of_registers, whole
from .interleavings import Orders
from .shared_memory import InFlight, SharedBuffer, SharedMemory, SharedView, Warps
from .warp_schedule import Partition, RunningProgram, run

LAYOUTS = "NVMMADistributedLayout NVMMASharedLayout SwizzledSharedLayout SliceLayout DotOperandLayout".split()
LAYOUTS += ["BlockedLayout", "MBarrierLayout"]
OWN_BARRIERS = 8  # where numbers of barriers begin by which warpgroups take turns


class GluonInterpreter(Interpreter):
    """What one group of warps of one program does."""

    def __init__(
        self,
        text: str,
        count: int,
        most_rounds: int = MOST_ROUNDS,
        known: tuple[float, ...] = (),
        libraries: Sequence[str] = (),
    ):
        super().__init__(text, count, most_rounds, known, libraries)
        self.count = count
        self.constants = dict(self._named())
        self.program, self.warps = RunningProgram(0), Warps("the first warps")
        # Where programs wait for one another: what all of them access, sums by tensor, and counters by place.
        self.together = SharedMemory() if "wait_for_programs(" in text else None
        self.sums: dict[Buffer, SharedBuffer] = {}
        self.counters: dict[tuple[Buffer, int], Counter] = {}

    def _named(self) -> Iterator[tuple[str, ast.expr]]:
        """Names outside functions, with what they stand for."""
        for node in self.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    yield name, node.value
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    yield from ((written(t), v) for t, v in zip(targets, values, strict=True))

    def started(self, number: int, function: str, arguments: Mapping[str, object]) -> RunningProgram:
        """A program, whose first warps have yet to begin."""
        found = copy(self)
        found.programs = np.array([number])
        found.program = RunningProgram(number, memory=self.together or SharedMemory())
        found.warps = Warps(f"the first warps of program {number}")
        found.program.partitions.append(Partition(found.warps, found.steps(function, arguments)))
        return found.program

    def _unused(self, node: Any) -> Any:
        """The value of an operand of a product or of a wait, which may be under way."""
        if isinstance(node, ast.Tuple):
            return tuple(self._unused(part) for part in node.elts)
        known = self.names.get(node.id) if isinstance(node, ast.Name) else None
        return self.value(node) if known is None else known

    # Statements

    def _assign(self, name: str, value: Any) -> None:
        self.names[name] = value
        if isinstance(value, SharedView) and not value.buffer.name:
            value.buffer.name = name
        if isinstance(value, list) and value and isinstance(value[0], Barrier) and not value[0].name:
            for n, barrier in enumerate(value):
                barrier.name = f"{name}[{n}]"

    def _for(self, node: Any) -> Steps:
        bounds, before = self._bounds(node), set(self.names)
        low, high, step = map(whole, bounds)
        if (high - low) // max(step, 1) > self.most_rounds:
            raise KernelFault(f"a loop has more than {self.most_rounds} rounds")
        kind = np.result_type(np.int32, *(b.dtype for b in bounds if isinstance(b, np.ndarray)))
        static = written(node.iter.func) == "gl.static_range"
        for number in range(low, high, step):
            self._assign(node.target.id, number if static else np.array([number], kind))
            yield from self._statements(node.body)
        self._leave(node, before)

    def _if(self, node: ast.If) -> Steps:
        test = self.value(node.test)
        taken = test if is_plain(test) else bool(whole(test))
        yield from self._statements(node.body if taken else node.orelse)

    def _effect(self, node: Any) -> Steps:
        function = written(node.func) if isinstance(node, ast.Call) else ""
        if function == "gl.warp_specialize":
            self._specialise(node)
        elif function in EFFECTS:
            args, named = self._arguments(node)
            yield from EFFECTS[function](self, *args, **named) or ()
        elif function in DEVICE_FUNCTIONS or function in CALLS:
            self.value(node)
        else:
            yield from super()._effect(node)

    def _arguments(self, node: ast.Call) -> tuple[list, dict]:
        return [self.value(a) for a in node.args], {k.arg or "": self.value(k.value) for k in node.keywords}

    # Expressions

    def _name(self, name: str):
        if name in self.names:
            found = self.names[name]
            return found.use() if isinstance(found, InFlight) else found
        if name in self.constants:
            return self.value(self.constants[name])
        return super()._name(name)

    def _attribute(self, node: Any):
        text = written(node)
        if text.startswith("gl."):
            return Type(node.attr)
        if text.startswith("tl."):
            return super()._attribute(node)
        if node.attr in ("layout", "type"):
            return LAYOUT
        value = self.value(node.value)
        if node.attr == "shape":
            return extent(value)
        if isinstance(value, CopyWindow) and node.attr in ("dtype", "block_shape"):
            return list(value.box) if node.attr == "block_shape" else Type("float32")
        raise KernelFault(f"no meaning for {text}")

    def _subscript(self, node: ast.Subscript):
        value = self.value(node.value)
        if isinstance(value, tuple | list):
            return value[self.value(node.slice)]
        return super()._subscript(node)

    def _binary(self, node: ast.BinOp):
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            return left + right
        return binary(type(node.op).__name__, left, right)

    def _call(self, node: Any):
        function = written(node.func)
        if function == "float":
            return float(node.args[0].value)
        name = function.rpartition(".")[2]
        if name in (*LAYOUTS, "pointer_type") or "get_default_for" in function:
            return LAYOUT
        if function in PRODUCTS:
            args = [self._unused(a) for a in node.args]
            return PRODUCTS[function](self, *args, **{k.arg: self._unused(k.value) for k in node.keywords})
        args, named = self._arguments(node)
        if function in CALLS:
            return CALLS[function](self, *args, **named)
        if function in self.functions:
            return DEVICE_FUNCTIONS[name](*args) if name in DEVICE_FUNCTIONS else self._inlined(function, args)
        if function in (f"gl.{name}", f"tl.{name}"):
            if name not in GLUON_FUNCTIONS:
                raise KernelFault(f"no meaning for {function}")
            return GLUON_FUNCTIONS[name](*args, **named)
        if isinstance(node.func, ast.Attribute):
            return self._method(self.value(node.func.value), name, args, named)
        return self._name(function)(*args)

    def _method(self, value: Any, name: str, args: list, named: dict):
        """What is called of a value: of a tile, of shared memory, or of barriers."""
        if name == "to" and isinstance(value, Pointer):
            return value  # the same place as a pointer to another type
        if name == "to":
            return GLUON_FUNCTIONS["cast"](value, *args, **named)
        if isinstance(value, list) and name == "index":
            place = whole(args[0])
            if not 0 <= place < len(value):
                raise KernelFault(f"{value[0].name} has no slot {place}")
            return value[place]
        if isinstance(value, SharedView):
            return SHARED[name](self, value, *args, **named)
        if name in ("reshape", "permute", "split"):
            return GLUON_FUNCTIONS[name](value, *args)
        raise KernelFault(f"no meaning for {name} of a value")

    # Shared memory and barriers

    def _allocate(self, type_: Type, shape: list[int], layout: object) -> Any:
        if type_.name == "int64":
            return [Barrier("", self.program.memory) for _ in range(shape[0])]
        return SharedBuffer(self.program.memory, "", shape).whole

    def _load_shared(self, view: SharedView, layout: object) -> Any:
        found, _ = view.read(self.warps, "a load")
        return rearranged(found, lambda part: part[None])

    def _store_shared(self, view: SharedView, value: Any) -> None:
        view.write(rearranged(value, lambda part: part[0]), self.warps, "a store")

    def _initialise(self, barrier: Barrier, count: int) -> None:
        barrier.initialise(self.warps, count)

    def _expect(self, barrier: Barrier, bytes_: int, pred: object = True) -> None:
        if whole(pred):
            barrier.expect(self.warps, bytes_)

    def _arrive(self, barrier: Barrier, count: int = 1, pred: object = True) -> None:
        if whole(pred):
            barrier.arrive(self.warps, count)

    def _wait(self, barrier: Barrier, phase: Any, pred: object = True) -> Steps:
        if not whole(pred):
            return
        barrier.require_made(self.warps.known)
        parity = whole(phase)
        if parity not in (0, 1):
            raise KernelFault(f"{parity} is no parity")
        self.warps.events.append(Wait(barrier, parity))
        yield Waiting(f"{barrier.name} of parity {parity}", lambda: barrier.passes(parity))
        self.warps.learn(*barrier.released)

    def _copy_in(self, window: CopyWindow, where: list, barrier: Barrier, view: SharedView) -> None:
        barrier.require_made(self.warps.fenced)
        value = window.read(where)
        size = view.places.size
        if size != value.shadow.size if isinstance(value, Numbers) else size != value.size:
            raise KernelFault(f"a box of {window.box} is copied to {view.shape} of {view.buffer.name}")
        value = rearranged(value, lambda part: part.reshape(view.shape))
        number = view.write(value, self.warps, "a copy", asynchronous=True)
        self.program.copies.append(number)
        barrier.copied(self.warps, number, window.bytes)

    def _copy_out(self, window: CopyWindow, where: list, view: SharedView) -> None:
        value, number = view.read(self.warps, "a copy", asynchronous=True)
        self.warps.copies.append(number)
        window.write(where, rearranged(value, lambda part: part.reshape(window.box)))

    def _fence(self) -> None:
        self.warps.fence()

    def _store_wait(self, pending: int) -> None:
        self.warps.await_copies(pending)

    # Products

    def _product(self, a: Any, b: SharedView, acc: Any, use_acc: bool = True, is_async: bool = False) -> InFlight:
        number = self.program.memory.access(f"a product by {self.warps.name}")
        product = self.program.memory.products[number] = InFlight(exact.literal(0.0), number)
        factors = [self._factor(side, product) for side in (a, b)]
        found = matrix_product(*factors)
        if extent(acc.value if isinstance(acc, InFlight) else acc) != found.shape[1:]:
            raise KernelFault(f"a product of {found.shape[1:]} is added to a tile of another shape")
        if use_acc and not product.spoiled:
            found = with_product(found, acc.use(as_sum=True) if isinstance(acc, InFlight) else acc)
        product.value = found
        self.warps.products.append(product)
        if not is_async:
            self.warps.await_products(0)
        return product

    def _factor(self, factor: Any, product: InFlight) -> Numbers | np.ndarray:
        """A factor; one in shared memory is read until the product is over."""
        if isinstance(factor, InFlight):
            return factor.use()
        if not isinstance(factor, SharedView):
            return exact.numbers(factor)
        buffer, places = factor.buffer, factor.places
        try:
            buffer.check(places, self.warps.fenced, f"a product reads {buffer.name}", writes=False)
        except KernelFault as fault:
            product.spoiled = str(fault)
            return exact.literal(0.0).arranged(lambda part: np.broadcast_to(part, (1, *factor.shape)))
        buffer.note(places, product.number, writes=False)
        self.warps.events.append(Access(product.number, buffer, places, False, True))
        return rearranged(buffer.get(places), lambda part: part[None])

    def _product_wait(self, pending: int = 0, deps: Sequence[Any] = ()) -> Any:
        self.warps.await_products(pending)
        if any(isinstance(dep, InFlight) and not dep.over for dep in deps):
            raise KernelFault("a wait gives a product that is under way")
        return deps[0] if len(deps) == 1 else tuple(deps)

    # Numbered barriers

    def _numbered(self, number: Any) -> NumberedBarrier:
        return self.program.numbered.setdefault(whole(number), NumberedBarrier())

    def _take_turn(self, w: int) -> Steps:
        return self._sync(OWN_BARRIERS + whole(w), True)

    def _give_turn(self, w: int) -> None:
        self._arrive_at(OWN_BARRIERS + whole(w), True)

    def _sync(self, number: Any, on: Any) -> Steps:
        if whole(on):
            barrier = self._numbered(number)
            phase = barrier.arrive(self.warps)
            self.warps.events.append(Meet(whole(number), waits=True))
            yield Waiting(f"numbered barrier {whole(number)}", lambda: barrier.phases > phase)
            self.warps.learn(*barrier.released[phase])

    def _arrive_at(self, number: Any, on: Any) -> None:
        if whole(on):
            self._numbered(number).arrive(self.warps)
            self.warps.events.append(Meet(whole(number), waits=False))

    def _give(self, tiles: SharedView, value: Any, n: int) -> None:
        """Writes numbers as two tiles of half their bits, each of which stands for the whole number here."""
        for half in range(2):
            self._store_shared(tiles.index(2 * n + half), value)

    def _taken(self, tiles: SharedView, n: int, layout: object) -> Any:
        low, high = (self._load_shared(tiles.index(2 * n + half), layout) for half in range(2))
        if (low.parts != high.parts).any():
            raise KernelFault(f"halves of different numbers are read from {tiles.buffer.name}")
        return low

    # Programs

    def _add_in_order(self, pointer: Pointer, x: Numbers) -> None:
        """Adds a tile to memory; where programs wait for one another, after all who added there before."""
        places, buffer = places_of_registers(pointer, x), pointer.buffer
        if self.together is not None:
            empty = lambda: SharedBuffer(self.together, buffer.name, (len(buffer.elements),))
            order = self.sums[buffer] if buffer in self.sums else self.sums.setdefault(buffer, empty())
            order.check(places, self.warps.known, f"{self.warps.name} adds to {buffer.name}", writes=True)
            number = self.together.access(f"an add by {self.warps.name}")
            order.note(places, number, writes=True)
            self.warps.known |= 1 << number
        buffer.add(places, x.arranged(lambda part: part[0]))

    def _counter(self, pointer: Pointer) -> Counter:
        return self.counters.setdefault((pointer.buffer, whole(pointer.places)), Counter())

    def _wait_for_programs(self, pointer: Pointer, programs: Any) -> Steps:
        counter, wanted = self._counter(pointer), whole(programs)
        yield Waiting(f"{wanted} programs", lambda: counter.value >= wanted)
        self.warps.learn(*counter.released)

    def _signal_program(self, pointer: Pointer) -> None:
        self._counter(pointer).signal(self.warps)

    def _atomic_add(self, pointer: Pointer, value: int, sem: str = "") -> np.ndarray:
        """Adds to an integer that all programs see; what was there."""
        counter = self._counter(pointer)
        counter.value += value
        return np.array([counter.value - value], np.int32)

    def _specialise(self, node: ast.Call) -> None:
        """Starts the groups of warps, which know what those know who start them."""
        parts: Any = node.args[0]
        for pair in parts.elts:
            function, arguments = written(pair.elts[0]), self.value(pair.elts[1])
            found = copy(self)
            found.warps = Warps(f"{function} of program {self.program.number}", self.warps.known, self.warps.fenced)
            steps = found.steps(function, found._given(function, arguments))
            self.program.partitions.append(Partition(found.warps, steps))

    def _program_count(self, axis: int) -> np.ndarray:
        return np.array([self.count if axis == 0 else 1], np.int32)


EFFECTS: dict[str, Callable] = {
    "mbarrier.wait": GluonInterpreter._wait,
    "take_turn": GluonInterpreter._take_turn,
    "give_turn": GluonInterpreter._give_turn,
    "wait_for_programs": GluonInterpreter._wait_for_programs,
    "sync": GluonInterpreter._sync,
    "arrive": GluonInterpreter._arrive_at,
}
CALLS: dict[str, Callable] = {
    "gl.load": GluonInterpreter._load,
    "gl.store": GluonInterpreter._store,
    "gl.program_id": GluonInterpreter._program_id,
    "gl.device_assert": GluonInterpreter._assert,
    "gl.inline_asm_elementwise": GluonInterpreter._instructions,
    "gl.num_programs": GluonInterpreter._program_count,
    "gl.allocate_shared_memory": GluonInterpreter._allocate,
    "mbarrier.init": GluonInterpreter._initialise,
    "mbarrier.expect": GluonInterpreter._expect,
    "mbarrier.arrive": GluonInterpreter._arrive,
    "copy_in": GluonInterpreter._copy_in,
    "copy_out": GluonInterpreter._copy_out,
    "fence_async_shared": GluonInterpreter._fence,
    "tma.store_wait": GluonInterpreter._store_wait,
    "add_in_order": GluonInterpreter._add_in_order,
    "signal_program": GluonInterpreter._signal_program,
    "gl.atomic_add": GluonInterpreter._atomic_add,
    "give": GluonInterpreter._give,
    "taken": GluonInterpreter._taken,
}
PRODUCTS: dict[str, Callable] = {
    "warpgroup_mma": GluonInterpreter._product,
    "warpgroup_mma_wait": GluonInterpreter._product_wait,
}
SHARED: dict[str, Callable] = {
    "index": lambda self, view, number: view.index(number),
    "slice": lambda self, view, *args: view.slice(*args),
    "reshape": lambda self, view, shape: view.reshape(shape),
    "permute": lambda self, view, order: view.permute(order),
    "load": GluonInterpreter._load_shared,
    "store": GluonInterpreter._store_shared,
}


def run_gluon(
    interpreter: GluonInterpreter,
    numbers: Sequence[int],
    function: str,
    arguments: Mapping,
    orders: Orders | None = None,
) -> None:
    """Runs programs by their numbers. orders: which others than the order of the run are tried. Raises KernelFault."""
    programs = (interpreter.started(number, function, arguments) for number in numbers)
    run(programs, orders.try_of if orders else lambda program: None)
