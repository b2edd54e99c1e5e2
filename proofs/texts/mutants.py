"""Wrong texts of kernels: a text with one place changed, in every way that this module knows.

A check of texts is as good as the mutants that it finds. An edit is a function from a node of the text's tree to other
nodes in its place. Example: of `tl.load(x, mask=m, other=0)` one mutant is `tl.load(x)`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)  # operators whose operands may not be exchanged
OTHER_FUNCTIONS = {"maximum": "minimum", "minimum": "maximum", "max": "min", "exp2": "exp", "exp": "exp2", "sum": "max"}
UNTOUCHED = ("cast", "to")  # a width of integers, and types of floats
Edits = Iterator[tuple[str, ast.AST]]
Edit = Callable[[ast.AST], Edits]


@dataclass(frozen=True)
class Mutant:
    """A text with one change, which `what` describes."""

    what: str
    text: str


def mutants(text: str, edits: Sequence[Edit] | None = None) -> Iterator[Mutant]:
    """Every mutant of the functions of a text. edits: how it is changed, EDITS by default."""
    parts = ast.parse(text).body
    written, seen, lines = [ast.unparse(part) for part in parts], set(), text.splitlines()
    for n, part in enumerate(parts):
        seen.add(written[n])
        whole = ast.Module([part], [])
        places = _places(whole)
        for node in ast.walk(part):
            for edit in edits or EDITS:
                for kind, changed in edit(node):
                    with _changed(places[node], ast.fix_missing_locations(changed)):
                        mutated = ast.unparse(whole)
                    if mutated not in seen:
                        seen.add(mutated)
                        rest = [*written[:n], mutated, *written[n + 1 :]]
                        what = f"{kind}: {_shown(node)}; in: {lines[_number(node) - 1].strip()}"
                        yield Mutant(what, "\n".join(rest))


Places = list[tuple[ast.AST, str, int | None]]  # nodes above, the field, and the place in it if it is a list


def _places(tree: ast.AST) -> dict[ast.AST, Places]:
    """For each node, where it stands: Python has one node for all uses of a plain one, such as ast.Load()."""
    found: dict[ast.AST, Places] = defaultdict(list)
    for above in ast.walk(tree):
        for name, value in ast.iter_fields(above):
            for place, item in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(item, ast.AST):
                    found[item].append((above, name, place))
    return found


@contextmanager
def _changed(places: Places, node: ast.AST) -> Iterator[None]:
    """Puts a node in the place of another one, and the other one back."""
    own = [getattr(above, name) if place is None else getattr(above, name)[place] for above, name, place in places]
    _put(places, [node] * len(places))
    try:
        yield
    finally:
        _put(places, own)


def _put(places: Places, nodes: Sequence[ast.AST]) -> None:
    for (above, name, place), node in zip(places, nodes, strict=True):
        if place is None:
            setattr(above, name, node)
        else:
            getattr(above, name)[place] = node


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def _number(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


def changed_node(node: Any, **fields: Any) -> Any:
    """A copy of a node with other fields."""
    found = deepcopy(node)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def operators(node: ast.AST) -> Edits:
    """Another operator, or the operands exchanged."""
    if isinstance(node, ast.BinOp):
        for other in OPERATORS.get(type(node.op), ()):
            yield "operator", changed_node(node, op=other())
        if isinstance(node.op, ORDERED):
            yield "operands exchanged", changed_node(node, left=node.right, right=node.left)
    if isinstance(node, ast.Compare):
        for other in OPERATORS.get(type(node.ops[0]), ()):
            yield "comparison", changed_node(node, ops=[other()])


def literals(node: ast.AST) -> Edits:
    """Another number."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.BinOp | ast.Compare | ast.Call):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield "number", changed_node(node, **{name: ast.Constant(_other(value.value))})
    if isinstance(node, ast.Call) and not is_call_of(node, *UNTOUCHED):
        for place, value in enumerate(node.args):
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield "number", changed_node(node, args=_with(node.args, place, ast.Constant(_other(value.value))))
    if isinstance(node, ast.Call) and ast.unparse(node) in ("float('-inf')", "float('inf')"):
        yield "number", ast.Constant(0.0)


def _other(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value if value else 1.0


def _with(items: list, place: int, changed) -> list:
    return [changed if n == place else item for n, item in enumerate(items)]


def is_call_of(node: ast.AST, *names: str) -> bool:
    """Whether a node calls a method, or a function of a module, of one of these names."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def calls(node: Any) -> Edits:
    """A mask or a sum to add to dropped, the sides of a choice exchanged, another function, another axis."""
    if not isinstance(node, ast.Call):
        return
    if is_call_of(node, "load", "store") and any(k.arg == "mask" for k in node.keywords):
        yield "mask dropped", changed_node(node, keywords=[])
    if is_call_of(node, "where"):
        yield "sides exchanged", changed_node(node, args=[node.args[0], node.args[2], node.args[1]])
        yield "always", node.args[1]
    if is_call_of(node, "dot") and len(node.args) > 2:
        yield "sum dropped", changed_node(node, args=node.args[:2])
    if is_call_of(node, "trans"):
        yield "transpose dropped", node.args[0]
    if is_call_of(node, *OTHER_FUNCTIONS):
        function: Any = node.func
        attribute = changed_node(function, attr=OTHER_FUNCTIONS[function.attr])
        yield "function", changed_node(node, func=attribute)
    if is_call_of(node, "maximum", "minimum"):
        yield "one side", node.args[0]
        yield "one side", node.args[1]
    if is_call_of(node, "cdiv"):
        yield "rounded down", ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])


def masks(node: ast.AST) -> Edits:
    """One of two conditions."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        yield "one condition", node.left
        yield "one condition", node.right


def axes(node: ast.AST) -> Edits:
    """A tile along another axis."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
        yield "axes exchanged", changed_node(node, slice=ast.Tuple(node.slice.elts[::-1], ast.Load()))


def loops(node: Any) -> Edits:
    """A round fewer, at the start or at the end, or other steps."""
    called: Any = getattr(node, "iter", None)
    if isinstance(node, ast.For) and len(called.args) == 3:
        low, high, step = called.args
        for kind, bounds in (
            ("first round dropped", [ast.BinOp(low, ast.Add(), step), high, step]),
            ("last round dropped", [low, ast.BinOp(high, ast.Sub(), step), step]),
            ("one element fewer", [low, ast.BinOp(high, ast.Sub(), ast.Constant(1)), step]),
            ("steps of two", [low, high, ast.BinOp(step, ast.Mult(), ast.Constant(2))]),
        ):
            yield kind, changed_node(node, iter=changed_node(called, args=bounds))
        yield "loop dropped", ast.Pass()


def statements(node: ast.AST) -> Edits:
    """A statement dropped."""
    if isinstance(node, ast.Assign | ast.Expr) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield "dropped", ast.Pass()


def strides(node: ast.AST) -> Edits:
    """The stride of the axis beside it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and "_stride_" in node.id:
        start, axis = node.id.rsplit("_", 1)
        yield "stride", ast.Name(f"{start}_{int(axis) + 1 if axis == '0' else int(axis) - 1}", ast.Load())


def names(node: ast.AST) -> Edits:
    """A size or a tile's extent in place of the other."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for ending, other in (("_size", "_tile"), ("_tile", "_size"), ("_start", "_size")):
            if node.id.endswith(ending):
                yield "name", ast.Name(node.id.removesuffix(ending) + other, ast.Load())


EDITS: tuple[Edit, ...]
EDITS = (operators, literals, calls, masks, axes, loops, statements, strides, names)
