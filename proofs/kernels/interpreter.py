"""Runs the text of a Triton kernel over exact numbers, all programs of a launch side by side.

The text is parsed, not imported: nothing of Triton is needed. Programs are an axis of every value. A loop runs until
the last program is through, and a branch runs for those that take it; the others keep their values. Statements run as
a coroutine, so that a kernel whose warps wait for one another is interpreted by a subclass. Example:
`Interpreter(text, 4).call("kernel0", arguments)` runs four programs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .language import ALL_NANS, FUNCTIONS, NO_NANS, Type, binary, is_plain, ranked, rearranged, unary
from .memory import KernelFault, Pointer
from .numbers import Numbers, choose, literal, numbers

TRAP = "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.u32 $0, $1; }"
MOST_ROUNDS = 20_000  # of one loop: a wrong text may not end
Steps = Generator[Any, None, Any]  # gives what it waits for; returns what a function returns


class Returned(Exception):
    """A function's end, with its value."""


@lru_cache(maxsize=16)
def parsed(text: str) -> ast.Module:
    """The tree of a text."""
    return ast.parse(text)


def written(node: ast.AST) -> str:
    """The text of a node, made once."""
    known = getattr(node, "text", None)
    if known is None:
        known = node.text = ast.unparse(node)  # type: ignore[attr-defined]
    return known


class Interpreter:
    """One launch of a text. programs: the numbers of those that run, or how many do. known: literals of terms,
    of which one of the text may be a multiple. libraries: texts of functions that the text imports."""

    def __init__(
        self,
        text: str,
        programs: np.ndarray | int,
        most_rounds: int = MOST_ROUNDS,
        known: tuple[float, ...] = (),
        libraries: Sequence[str] = (),
    ):
        self.body = [node for source in (*libraries, text) for node in parsed(source).body]
        self.functions = {node.name: node for node in self.body if isinstance(node, ast.FunctionDef)}
        self.programs = np.arange(programs) if isinstance(programs, int) else np.asarray(programs)
        self.most_rounds, self.known = most_rounds, known
        self.active: np.ndarray | None = None  # by program; None: all
        self.entered: np.ndarray | None = None  # those that run the function
        self.names: dict[str, object] = {}

    def call(self, function: str, arguments: Mapping[str, object]) -> None:
        """Runs a function of the text. Raises KernelFault."""
        for _ in self.steps(function, arguments):
            raise KernelFault("a kernel without other warps waits")

    def steps(self, function: str, arguments: Mapping[str, object]) -> Steps:
        """A function of the text as a coroutine."""
        node = self.functions.get(function)
        if node is None:
            raise KernelFault(f"the text has no function {function}")
        wanted = [a.arg for a in node.args.args]
        if missing := [name for name in wanted if name not in arguments]:
            raise KernelFault(f"{function} takes {missing[0]}, which the launch does not give")
        return self._run(node, {name: arguments[name] for name in wanted})

    def _run(self, node: ast.FunctionDef, names: dict[str, object]) -> Steps:
        """Runs a function with these names; it returns what the function does."""
        before, self.names, self.entered = (self.names, self.entered), names, self.active
        try:
            yield from self._statements(node.body)
        except Returned as end:
            return end.args[0]
        finally:
            self.names, self.entered = before
        return None

    # Statements

    def _statements(self, body: Sequence[ast.stmt]) -> Steps:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: Any) -> Steps:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self._assign(name, self.value(node.value))
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                for target, value in zip(targets, self.value(node.value), strict=True):
                    self._assign(written(target), value)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self._assign(name, self.value(node.value))
            case ast.AugAssign(target=ast.Name(id=name)):
                self._assign(name, binary(type(node.op).__name__, self._name(name), self.value(node.value)))
            case ast.For():
                yield from self._for(node)
            case ast.If():
                yield from self._if(node)
            case ast.Expr():
                yield from self._effect(node.value)
            case ast.Return():
                if self.active is not self.entered:
                    raise KernelFault("some programs return, and others go on")
                raise Returned(self.value(node.value))
            case ast.Pass():
                pass
            case _:
                raise KernelFault(f"no meaning for the statement {written(node)}")

    def _effect(self, node: Any) -> Steps:
        """What is called for what it does. A function of the text may wait there."""
        function = written(node.func) if isinstance(node, ast.Call) else ""
        if function in self.functions:
            yield from self._run(self.functions[function], self._given(function, [self.value(a) for a in node.args]))
        else:
            self.value(node)

    def _assign(self, name: str, value) -> None:
        before = self.names.get(name)
        # Names of a function belong to the programs that entered it: while all of these run, nothing is merged, and an
        # unrolled round may give a name a tile of more axes.
        if self.active is not self.entered and self.active is not None and before is not None:
            value = self._merged(value, before)
        self.names[name] = value

    def _merged(self, value, before):
        """The value for the programs that run, and what was before for the others."""
        if value is before or (is_plain(value) and is_plain(before) and value == before):
            return value
        if isinstance(value, Pointer):
            return Pointer(value.buffer, self._merged(value.places, before.places))
        if isinstance(value, Numbers) or isinstance(before, Numbers):
            value, before = numbers(value), numbers(before)
        else:
            value, before = np.asarray(value), np.asarray(before)
        if value.ndim != before.ndim and value.ndim and before.ndim:
            raise KernelFault("a name has tiles of different axes")
        active = self.active.reshape(-1, *[1] * (max(value.ndim, before.ndim, 1) - 1))
        if isinstance(value, Numbers):
            return choose(active, value, before)
        return np.where(active, value, before.astype(value.dtype))

    def _bounds(self, node: Any) -> tuple[Any, Any, Any]:
        """First value, end and step of a loop."""
        bounds = [self.value(a) for a in node.iter.args]
        if written(node.iter.func) not in ("tl.range", "tl.static_range", "range", "gl.static_range"):
            raise KernelFault(f"no meaning for a loop over {written(node.iter)}")
        return (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]

    def _for(self, node: Any) -> Steps:
        low, high, step = self._bounds(node)
        outside, before = self.active, set(self.names)
        for number in range(self.most_rounds + 1):
            at = low + number * step
            running = np.asarray(at < high)
            running = running if outside is None else running & outside
            if not running.any():
                break
            if number == self.most_rounds:
                raise KernelFault(f"a loop has more than {self.most_rounds} rounds")
            if not (is_plain(at) and is_plain(high)):  # all that run take part in a round of an unrolled loop
                self.active = None if running.all() else np.broadcast_to(running, self.programs.shape)
            self._assign(node.target.id, at if is_plain(at) else np.asarray(at))
            yield from self._statements(node.body)
        self.active = outside
        self._leave(node, before)

    def _leave(self, node: Any, before: set[str]) -> None:
        """What a loop alone gives a value has none behind it, unless the loop is unrolled."""
        if not written(node.iter.func).endswith("static_range"):
            for name in self.names.keys() - before:
                del self.names[name]

    def _if(self, node: ast.If) -> Steps:
        test = self.value(node.test)
        if is_plain(test):
            yield from self._statements(node.body if test else node.orelse)
            return
        outside, test = self.active, np.asarray(test).reshape(-1)
        for taken, body in ((test, node.body), (~test, node.orelse)):
            self.active = np.broadcast_to(taken, self.programs.shape) & (True if outside is None else outside)
            yield from self._statements(body if self.active.any() else ())
        self.active = outside

    # Expressions

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        found = EXPRESSIONS.get(type(node))
        if found is None:
            raise KernelFault(f"no meaning for {written(node)}")
        return found(self, node)

    def _name(self, name: str):
        if name in self.names:
            return self.names[name]
        if name in self.functions:
            return lambda *args: self._inlined(name, args)
        raise KernelFault(f"the name {name} has no value")

    def _inlined(self, function: str, args):
        """What a function of the text returns inside an expression, where nothing waits."""
        try:
            next(steps := self._run(self.functions[function], self._given(function, args)))
        except StopIteration as end:
            return end.value
        steps.close()
        raise KernelFault(f"{function} waits inside an expression")

    def _given(self, function: str, args) -> dict[str, object]:
        return dict(zip([a.arg for a in self.functions[function].args.args], args, strict=True))

    def _literal(self, value):
        """A literal; one that is a multiple of a known one as a number."""
        return literal(value, self.known) if isinstance(value, float) and self.known and value else value

    def _attribute(self, node: Any):
        text = written(node)
        if text in ("tl.PropagateNan.ALL", "tl.PropagateNan.NONE"):
            return ALL_NANS if text.endswith("ALL") else NO_NANS
        if text.startswith("tl."):
            return Type(node.attr)
        if text.endswith(".dtype.element_ty"):
            buffer = self.value(node.value.value).buffer
            return Type("float32" if buffer.is_real else str(buffer.data.dtype))
        if node.attr == "shape":
            return self.value(node.value).shape[1:]  # behind the axis of programs
        raise KernelFault(f"no meaning for {text}")

    def _subscript(self, node: ast.Subscript):
        value, index = self.value(node.value), node.slice
        if isinstance(value, tuple):
            return value[self.value(index)]
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        places = [None if isinstance(part, ast.Constant) and part.value is None else slice(None) for part in parts]
        whole = all(isinstance(p, ast.Slice) or p is None or isinstance(p, ast.Constant) for p in parts)
        axes = sum(place is not None for place in places)
        array = value.places if isinstance(value, Pointer) else value
        if not whole or is_plain(value) or axes != array.ndim - 1:
            raise KernelFault(f"no meaning for {written(node)}")
        return rearranged(value, lambda part: part[(slice(None), *places)])

    def _binary(self, node: ast.BinOp):
        return binary(type(node.op).__name__, self.value(node.left), self.value(node.right))

    def _boolean(self, node: ast.BoolOp):
        found = [self.value(part) for part in node.values]
        if all(map(is_plain, found)):
            return all(found) if isinstance(node.op, ast.And) else any(found)
        name = "BitAnd" if isinstance(node.op, ast.And) else "BitOr"
        total = found[0]
        for value in found[1:]:
            total = binary(name, total, value)
        return total

    def _choice(self, node: ast.IfExp):
        test = self.value(node.test)
        if not is_plain(test):
            return FUNCTIONS["where"](test, self.value(node.body), self.value(node.orelse))
        return self.value(node.body if test else node.orelse)

    def _comparison(self, node: ast.Compare):
        if len(node.ops) != 1:
            raise KernelFault(f"no meaning for {written(node)}")
        return binary(type(node.ops[0]).__name__, self.value(node.left), self.value(node.comparators[0]))

    def _call(self, node: Any):
        function = written(node.func)
        if function == "float":
            return float(node.args[0].value)
        args = [self.value(a) for a in node.args]
        named = {k.arg: self.value(k.value) for k in node.keywords}
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return FUNCTIONS["cast"](self.value(node.func.value), *args, **named)
        if function in OF_PROGRAMS:
            return OF_PROGRAMS[function](self, *args, **named)
        if function.startswith("tl."):
            if node.func.attr not in FUNCTIONS:
                raise KernelFault(f"no meaning for {function}")
            return FUNCTIONS[node.func.attr](*args, **named)
        return self._name(function)(*args)

    def _present(self, mask) -> np.ndarray:
        """Which elements of a tile a mask and the programs that run leave."""
        mask = np.asarray(True if mask is None else mask)
        return mask if self.active is None else mask & self._present_lanes(mask.ndim)

    def _load(self, pointer: Pointer, mask=None, other=None, **options):
        present = self._aligned(pointer, mask)
        return pointer.load(present, other)

    def _aligned(self, pointer: Pointer, mask) -> np.ndarray:
        present = self._present(mask)
        if present.ndim > pointer.places.ndim:
            raise KernelFault("a mask has more axes than what it masks")
        lanes = present.shape[:1]
        return present.reshape(*lanes, *[1] * (pointer.places.ndim - present.ndim), *present.shape[1:])

    def _store(self, pointer: Pointer, value, mask=None, **options) -> None:
        lanes = np.broadcast_to(pointer.places, (len(self.programs), *pointer.places.shape[1:]))
        spread, value = ranked(lanes, value)
        if spread.ndim > lanes.ndim:
            raise KernelFault("a tile has more axes than where it is stored")
        Pointer(pointer.buffer, lanes).store(self._aligned(pointer, mask), value)

    def _assert(self, condition, message: str) -> None:
        """Stops the launch where a condition is false for a program that runs."""
        if not np.all(np.asarray(condition) | ~self._present_lanes(np.ndim(condition))):
            raise KernelFault(f"the kernel stops: {message}")

    def _instructions(self, text: str, constraints: str, arguments: list, *rest) -> Any:
        """What instructions compute; a trap stops the launch where its number is not 0."""
        if "trap;" not in text:
            return FUNCTIONS["inline_asm_elementwise"](text, constraints, arguments, *rest)
        if text != TRAP:
            raise KernelFault("instructions that stop otherwise")
        self._assert(np.asarray(arguments[0]) == 0, "an instruction")
        return arguments[0]

    def _present_lanes(self, axes: int) -> np.ndarray:
        """Which programs run, for a tile of so many axes."""
        lanes = np.ones(1, bool) if self.active is None else self.active
        return lanes.reshape(-1, *[1] * max(axes - 1, 0))

    def _program_id(self, axis: int) -> np.ndarray:
        return self.programs.astype(np.int32) if axis == 0 else np.zeros(1, np.int32)


OF_PROGRAMS: dict[str, Callable] = {
    "tl.load": Interpreter._load,
    "tl.store": Interpreter._store,
    "tl.program_id": Interpreter._program_id,
    "tl.device_assert": Interpreter._assert,
    "tl.inline_asm_elementwise": Interpreter._instructions,
}
EXPRESSIONS: dict[type, Callable] = {
    ast.Name: lambda self, node: self._name(node.id),
    ast.Constant: lambda self, node: self._literal(node.value),
    ast.BinOp: lambda self, node: self._binary(node),
    ast.UnaryOp: lambda self, node: unary(type(node.op).__name__, self.value(node.operand)),
    ast.Compare: lambda self, node: self._comparison(node),
    ast.Call: lambda self, node: self._call(node),
    ast.Attribute: lambda self, node: self._attribute(node),
    ast.Subscript: lambda self, node: self._subscript(node),
    ast.IfExp: lambda self, node: self._choice(node),
    ast.BoolOp: lambda self, node: self._boolean(node),
    ast.Tuple: lambda self, node: tuple(self.value(part) for part in node.elts),
    ast.List: lambda self, node: [self.value(part) for part in node.elts],
}
