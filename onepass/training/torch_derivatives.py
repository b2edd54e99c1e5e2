"""A program whose terms have torch's derivatives where operands are equal: relu and clamp as choices, extrema as picks.

Translated as they stand, they are maxima and minima, whose derivative at a tie is a half. Autograd says 0 of relu at 0.
Of clamp at its bounds it says 1 in older releases; torch 2.15 says 0 for numbers, a half for tensors. Where a maximum
is a shift that the laws take out, the program as it stands will do. What is detached depends on other inputs, which
have the same values. Invariant: the values of the program stay. Example: relu(x) is where(x <= 0, 0, x).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..graph.program import Atom, Meta, Program, ProgramNode
from .not_derived import call_name

Bound = object  # a number, a symbolic number, or a tensor's Atom


TIED = frozenset({"maximum", "minimum"})  # what relu and clamp are translated to


def readings(program: Program) -> Iterator[tuple[Program, frozenset[str]]]:
    """Programs with the same values, in the order to try: each with the operations that it may not differentiate."""
    chosen = with_torch_derivatives(program)
    if chosen != program:
        yield program, TIED
    yield chosen, frozenset()


def with_picked_extrema(program: Program) -> Program:
    """The same program, with each `x.max(dim).values` as the element of x at the position of its largest one.

    Torch's derivative is that of this element alone, where `amax` shares it out among equal ones. Of a row that holds
    NaN the value is that of an element: only derivatives are made of it.
    """
    extrema = {n.name: n for n in program.nodes if n.target in _POSITIONS}
    nodes: list[ProgramNode] = []
    for node in program.nodes:
        found = extrema.get(node.args[0].text) if node.target == "getitem" and node.args[1] == 0 else None
        nodes += [node] if found is None else _picked(node, found)
    return replace(program, nodes=tuple(nodes))


_POSITIONS = {"aten.max.dim": "aten.argmax.default", "aten.min.dim": "aten.argmin.default"}


def _picked(node: ProgramNode, extremum: ProgramNode) -> Iterator[ProgramNode]:
    """The values of an extremum, under the name of the call that takes them out of it."""
    given = dict(zip(("self", "dim", "keepdim"), extremum.args)) | dict(extremum.kwargs)
    x, dim, keepdim = given["self"], given["dim"], given.get("keepdim", False)
    shape = list(node.meta.shape)
    if not keepdim:
        shape.insert(dim % (len(shape) + 1), 1)
    kept = lambda dtype: Meta(dtype, tuple(shape), node.meta.device)
    place, name = f"{node.name} place", node.name if keepdim else f"{node.name} picked"
    yield ProgramNode(place, _POSITIONS[extremum.target], (x, dim, True), (), (kept("int64"),), extremum.where)
    args = (x, dim, Atom("node", place))
    yield ProgramNode(name, "aten.gather.default", args, (), (kept(node.meta.dtype),), extremum.where)
    if not keepdim:
        yield ProgramNode(node.name, "aten.squeeze.dim", (Atom("node", name), dim), (), node.metas, node.where)


def with_torch_derivatives(program: Program) -> Program:
    """The same program, with a choice for each relu and clamp."""
    nodes = tuple(new for node in program.nodes for new in _replaced(node))
    return replace(program, nodes=nodes)


def _replaced(node: ProgramNode) -> Iterator[ProgramNode]:
    namespace, _, rest = node.target.partition(".")
    choice = _CHOICES.get(rest.partition(".")[0]) if namespace == "aten" else None
    if choice is not None:
        yield from choice(node)
    else:
        yield node


def _relu(node: ProgramNode) -> Iterator[ProgramNode]:
    yield from _choice(node, node.name, "le", node.args[0], 0)


def _clamp(node: ProgramNode) -> Iterator[ProgramNode]:
    given = dict(zip(("self", "min", "max"), node.args)) | dict(node.kwargs)
    yield from _bounded(node, given["self"], given.get("min"), given.get("max"))


def _clamp_min(node: ProgramNode) -> Iterator[ProgramNode]:
    given = dict(zip(("self", "min"), node.args)) | dict(node.kwargs)
    yield from _bounded(node, given["self"], given["min"], None)


def _clamp_max(node: ProgramNode) -> Iterator[ProgramNode]:
    given = dict(zip(("self", "max"), node.args)) | dict(node.kwargs)
    yield from _bounded(node, given["self"], None, given["max"])


_CHOICES: dict[str, Callable[[ProgramNode], Iterator[ProgramNode]]] = {
    "relu": _relu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
}


def _bounded(node: ProgramNode, x: Bound, low: Bound, high: Bound) -> Iterator[ProgramNode]:
    """x, or the bound that it is beyond: first the lower one, then the upper one, as torch has it."""
    at_bound = derivative_at_a_bound(any(map(_is_tensor, (low, high))))
    if at_bound == 0.5:  # as of the maximum and the minimum that it is translated to
        yield node
        return
    below, above = ("lt", "gt") if at_bound else ("le", "ge")
    if low is not None:
        name = node.name if high is None else f"{node.name} above"
        yield from _choice(node, name, below, x, low)
        x = Atom("node", name)
    if high is not None:
        yield from _choice(node, node.name, above, x, high)


@cache
def derivative_at_a_bound(is_tensor: bool) -> float:
    """What autograd says here of clamp where its operand is equal to its bound: it depends on torch's release."""
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        bounded = torch.clamp(x, min=torch.zeros(1)) if is_tensor else torch.clamp(x, min=0.0)
        return torch.autograd.grad(bounded, x, torch.ones(1))[0].item()


def _is_tensor(bound: Bound) -> bool:
    return isinstance(bound, Atom) and bound.kind == "node"


def _choice(node: ProgramNode, name: str, compare: str, x: Bound, bound: Bound) -> Iterator[ProgramNode]:
    """where(x compared with the bound, bound, x), under the name."""
    is_tensor = _is_tensor(bound)
    truth = Meta("bool", node.meta.shape, node.meta.device)
    overload, choice = ("Tensor", "aten.where.self") if is_tensor else ("Scalar", "aten.where.ScalarSelf")
    yield ProgramNode(f"{name} beyond", f"aten.{compare}.{overload}", (x, bound), (), (truth,), node.where)
    args = (Atom("node", f"{name} beyond"), bound, x)
    yield ProgramNode(name, choice, args, (), node.metas, node.where)


def with_detached_inputs(program: Program, wanted: Collection[str]) -> tuple[Program, Mapping[str, str]]:
    """The program whose detached values are computed from inputs of their own, and of which input each has the values.

    wanted: the inputs whose gradients are asked for, whose values the others have. Autograd's derivative of the program
    is that of this one by the wanted inputs alone. Example: x · detach(x) is x · y.
    """
    hidden: set[str] = set()  # what detached values are made of
    for node in reversed(program.nodes):
        hidden.update(node.reads if node.name in hidden or call_name(node) == "detach" else ())
    others = {name: Atom("node", f"{name} detached") for name in wanted}
    copies = others.copy()  # of the inputs, and of what is computed from them
    nodes: list[ProgramNode] = []
    for node in program.nodes:
        if node.name in hidden and not copies.keys().isdisjoint(node.reads):
            copies[node.name] = Atom("node", f"{node.name} detached")
            nodes.append(_reading(replace(node, name=copies[node.name].text), copies))
        nodes.append(_reading(node, copies) if call_name(node) == "detach" else node)
    inputs = [replace(entry, name=others[entry.name].text) for entry in program.inputs if entry.name in others]
    made = replace(program, inputs=(*program.inputs, *inputs), nodes=tuple(nodes))
    return made, {other.text: name for name, other in others.items()}


def _reading(node: ProgramNode, copies: Mapping[str, Atom]) -> ProgramNode:
    """The call with copies in place of what it reads."""

    def copied(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(copied, value))
        return copies.get(value.text, value) if isinstance(value, Atom) and value.kind == "node" else value

    return replace(node, args=copied(node.args), kwargs=copied(node.kwargs))
