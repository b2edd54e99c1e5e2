"""A Program: one captured region as data. A frozen list of ATen calls with input metadata; JSON in, JSON out.

A graph's custom operator carries it. It can run itself with PyTorch's own operations (as a fallback, or for the
backward), has a digest of its content, and holds names of operations only, so that reading one never runs code.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..egraph.forks import cached_property
from ..egraph.terms.sizes import Size, symbols, value_of
from ..errors import ProgramError
from . import random_operators
from .op_kinds import Trait, operation_named

NAMESPACES = ("aten", "prims")
GETITEM = "getitem"
VERSION = 5  # also of what an operation makes of the text: compilers keep their graphs by it


@dataclass(frozen=True)
class Atom:
    """An argument that JSON cannot express. `kind`: node, size (symbolic), dtype, device, layout, memory_format."""

    kind: str
    text: str


@dataclass(frozen=True)
class Meta:
    """What is known of a tensor: dtype, shape (numbers, or texts of symbolic sizes), device type."""

    dtype: str
    shape: tuple[Size, ...]
    device: str


@dataclass(frozen=True)
class Input:
    """A tensor that the region reads, in the order in which `run` takes them."""

    name: str
    meta: Meta
    strides: tuple[Size, ...]


@dataclass(frozen=True)
class ProgramNode:
    """One call of `target`, such as "aten.softmax.int"; `where` is the user's file:line, not part of the digest."""

    name: str
    target: str
    args: tuple
    kwargs: tuple[tuple[str, object], ...]
    metas: tuple[Meta, ...]
    where: str = ""

    @property
    def meta(self) -> Meta:
        return self.metas[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the nodes and inputs that are its operands."""
        return tuple(atom.text for atom in _atoms((self.args, self.kwargs)) if atom.kind == "node")


@dataclass(frozen=True)
class Program:
    """A captured region. `outputs` name nodes or inputs, in the order of the results."""

    inputs: tuple[Input, ...]
    nodes: tuple[ProgramNode, ...]
    outputs: tuple[str, ...]

    @cached_property
    def output_metas(self) -> tuple[Meta, ...]:
        """What is known of every result."""
        metas = {n.name: n.meta for n in self.nodes} | {i.name: i.meta for i in self.inputs}
        return tuple(metas[name] for name in self.outputs)

    @property
    def output_meta(self) -> Meta:
        """What is known of the first result."""
        return self.output_metas[0]

    @cached_property
    def draws(self) -> bool:
        """Whether the region draws random numbers, by a seed that it reads."""
        return any(node.target.startswith("onepass.") for node in self.nodes)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic sizes that the region mentions, by name."""
        metas = [x.meta for x in self.inputs] + [m for n in self.nodes for m in n.metas]
        texts = [s for m in metas for s in m.shape]
        texts += [a.text for n in self.nodes for a in _atoms((n.args, n.kwargs)) if a.kind == "size"]
        return tuple(sorted(set().union(*map(symbols, texts))))

    @cached_property
    def differentiable(self) -> tuple[frozenset[int], ...]:
        """For every result, the positions of the inputs that a derivative of it reaches, as autograd finds them."""
        reached = {x.name: frozenset((k,)) for k, x in enumerate(self.inputs)}
        for node in self.nodes:
            reached[node.name] = frozenset().union(*(reached[name] for name in _differentiated(node)))
        return tuple(reached[name] for name in self.outputs)

    def to_json(self) -> str:
        return json.dumps(self._document(True), separators=(",", ":"), sort_keys=True)

    def _document(self, locations: bool) -> dict:
        return {
            "version": VERSION,
            "inputs": [[i.name, _meta_out(i.meta), list(i.strides)] for i in self.inputs],
            "nodes": [
                [n.name, n.target, _out(n.args), _out(n.kwargs), list(map(_meta_out, n.metas))]
                + ([n.where] if locations else [])
                for n in self.nodes
            ],
            "outputs": list(self.outputs),
        }

    @staticmethod
    def from_json(text: str) -> Program:
        """Reads a program; raises ProgramError on anything else than what `to_json` writes."""
        try:
            document = json.loads(text)
            if document["version"] != VERSION:
                raise ProgramError(f"a program of version {document['version']}, not {VERSION}")
            inputs = tuple(Input(n, _meta_in(m), tuple(s)) for n, m, s in document["inputs"])
            return Program(inputs, tuple(map(_node_in, document["nodes"])), tuple(document["outputs"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProgramError(f"not a program: {error}") from error

    def digest(self) -> str:
        """sha256 of the content; where the user wrote it does not matter."""
        text = json.dumps(self._document(False), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def sizes_of(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """Values of the symbolic sizes that are an axis of an input."""
        found: dict[str, int] = {}
        for entry, tensor in zip(self.inputs, tensors, strict=True):
            found |= {s: n for s, n in zip(entry.meta.shape, tensor.shape, strict=True) if isinstance(s, str)}
        return found

    def run(self, *tensors: torch.Tensor, sizes: Mapping[str, int] | None = None) -> torch.Tensor:
        """The first result, as `results` has it."""
        return self.results(*tensors, sizes=sizes)[0]

    def results(self, *tensors: torch.Tensor, sizes: Mapping[str, int] | None = None) -> tuple[torch.Tensor, ...]:
        """The region by PyTorch's own operations. `sizes` is needed only for symbols that are no axis of an input."""
        known = {**self.sizes_of(tensors), **(sizes or {})}
        return self.bound(known, tensors[0].device if tensors else torch.device("cpu"))(tensors)

    def bound(self, sizes: Mapping[str, int], device: torch.device) -> Callable[[Sequence[torch.Tensor]], tuple]:
        """A function that runs the region for these sizes on this device; arguments that are no tensors are fixed."""
        names = [entry.name for entry in self.inputs]
        steps: list[tuple[str, Callable, list[Callable], dict[str, Callable]]] = [
            (
                node.name,
                operator.getitem if node.target == GETITEM else operation(node.target),
                [_reader(a, sizes, device) for a in node.args],
                {k: _reader(a, sizes, device) for k, a in node.kwargs},
            )
            for node in self.nodes
        ]

        def run(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            values: dict[str, object] = dict(zip(names, tensors, strict=True))
            for name, call, args, kwargs in steps:
                values[name] = call(*[read(values) for read in args], **{k: read(values) for k, read in kwargs.items()})
            return tuple(values[name] for name in self.outputs)

        return run


def is_allowed(target: str) -> bool:
    """Whether a program may call what the text names: an operation of ATen, or one of onepass that draws by a seed."""
    namespace, _, rest = target.partition(".")
    return namespace in NAMESPACES or (namespace == "onepass" and rest.partition(".")[0] in random_operators.OPERATORS)


def operation(target: str) -> torch._ops.OpOverload:
    """The operation of that name. Raises ProgramError for one that a program may not use."""
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if not is_allowed(target) or not overload or target.count(".") != 2:
        raise ProgramError(f"{target!r} is not an ATen operation")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError as error:
        raise ProgramError(f"this PyTorch has no operation {target!r}") from error


def _differentiated(node: ProgramNode) -> list[str]:
    """What the node reads that has a gradient if the node's result has one: only floating values have."""
    name = node.target.split(".")[-2:][0]
    known = operation_named(name)
    if not any(getattr(torch, meta.dtype).is_floating_point for meta in node.metas):
        return []
    if name == "detach" or known.kind == "creation":
        return []
    read = node.args[:1] if Trait.LIKE_ANOTHER in known.traits else (node.args, node.kwargs)
    return [atom.text for atom in _atoms(read) if atom.kind == "node"]


def _atoms(value):
    if isinstance(value, Atom):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _atoms(item)


def _meta_out(meta: Meta) -> list:
    return [meta.dtype, list(meta.shape), meta.device]


def _meta_in(stored) -> Meta:
    dtype, shape, device = stored
    return Meta(dtype, tuple(shape), device)


def _node_in(stored) -> ProgramNode:
    name, target, args, kwargs, metas, where = stored
    return ProgramNode(name, target, _in(args), _in(kwargs), tuple(map(_meta_in, metas)), where)


def _out(value):
    if isinstance(value, Atom):
        return {value.kind: value.text}
    if isinstance(value, tuple):
        return [_out(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    return value


def _in(stored):
    if isinstance(stored, dict):
        ((kind, text),) = stored.items()
        return float(text) if kind == "number" else Atom(kind, text)
    return tuple(_in(v) for v in stored) if isinstance(stored, list) else stored


def _reader(value, sizes, device) -> Callable[[Mapping], object]:
    """A function from the known values to an argument as PyTorch takes it."""
    if isinstance(value, tuple):
        readers = [_reader(v, sizes, device) for v in value]
        return lambda values: [read(values) for read in readers]
    if isinstance(value, Atom) and value.kind == "node":
        return operator.itemgetter(value.text)
    found = _constant(value, sizes, device) if isinstance(value, Atom) else value
    return lambda values: found


def _constant(value: Atom, sizes, device):
    match value.kind:
        case "size":
            return value_of(value.text, sizes)
        case "device":
            return device if device.type == value.text else torch.device(value.text)
        case "dtype" | "layout" | "memory_format":
            found = getattr(torch, value.text, None)
            if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                return found
    raise ProgramError(f"cannot read the argument {value}")
