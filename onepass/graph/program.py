"""A Program: one captured region as data. A frozen list of ATen calls with input metadata; JSON in, JSON out.

A graph's custom operator carries it. It can run itself with PyTorch's own operations (as a fallback, or for the
backward), has a digest of its content, and holds names of operations only, so that reading one never runs code.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from types import CodeType
from typing import Any

import torch

from ..egraph.forks import cached_property
from ..egraph.terms.sizes import Size, symbols, value_of
from ..errors import ProgramError
from . import random_operators
from .op_kinds import Trait, operation_named

NAMESPACES = ("aten", "prims")
GETITEM = "getitem"
LEAST_PLAIN_FILL = -1e4  # a mask that fills in less hides scores
LOOKUPS = ("index", "index_select", "gather", "take_along_dim", "embedding")  # of a tensor, at positions
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
    def numbers_by_place(self) -> bool:
        """Whether a floating value is made of positions, or hidden by a large number: in another call, of other sizes,
        it may be a constant, or may not be there.

        Not of what a mask makes -inf, nor of what is read at positions. Examples: a bias by distance, or a mask of
        -1e9, which a single query behind all keys does without.
        """
        places: set[str] = set()
        for node in self.nodes:
            if any(isinstance(x, int | float) and -math.inf < x < LEAST_PLAIN_FILL for x in node.args):
                return True
            if node.reads and places.isdisjoint(node.reads):
                continue
            if "float" not in node.meta.dtype:
                places.add(node.name)
            elif not _only_hides_or_reads(node, places):
                return True
        return False

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
        # `_op` is the function behind an operation: to call the operation itself takes as long as a small tensor's work
        known: dict[str, Any] = {
            f"f{n}": operator.getitem if node.target == GETITEM else operation(node.target)._op
            for n, node in enumerate(self.nodes)
        }
        text, constants = self._code
        known |= {f"c{n}": _constant(value, sizes, device) for n, value in enumerate(constants)}
        exec(_compiled(text), known)
        return known["run"]

    def graph(self, sizes: Mapping[str, int], device: torch.device) -> torch.fx.GraphModule:
        """The region as a graph of operations for these sizes on this device, as a compiler of torch takes it."""
        graph = torch.fx.Graph()
        known: dict[str, torch.fx.Node] = {}
        for n, entry in enumerate(self.inputs):
            known[entry.name] = graph.placeholder(f"input_{n}")

        def argument(value: object) -> Any:
            if isinstance(value, Atom) and value.kind == "node":
                return known[value.text]
            return [argument(one) for one in value] if isinstance(value, tuple) else _constant(value, sizes, device)

        for node in self.nodes:
            target = operator.getitem if node.target == GETITEM else operation(node.target)
            words = {word: argument(value) for word, value in node.kwargs}
            known[node.name] = graph.call_function(target, tuple(map(argument, node.args)), words)
        graph.output(tuple(known[name] for name in self.outputs))
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    @cached_property
    def _code(self) -> tuple[str, tuple]:
        """The text of a Python function `run` that makes the calls, and the constants that it reads.

        Its text holds positions alone, no name and no value of the program, so no text from outside is run. A value is
        let go after its last reader, as in eager code.
        """
        writer = _CodeWriter(self)
        return writer.text, tuple(writer.constants)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    return compile(text, "<onepass program>", "exec")


class _CodeWriter:
    """Writes a program as Python: a line for each call. The names are v0 ... of values, f0 ... of operations and
    c0 ... of constants. Example: "v3 = f0(v0, v1)", then "del v0, v1".
    """

    def __init__(self, program: Program):
        self.constants: list[object] = []
        self.names: dict[str, str] = {}
        made = [self._made(entry.name) for entry in program.inputs]
        lines = ["def run(tensors):", f"    ({''.join(name + ', ' for name in made)}) = tensors"]
        last = {name: n for n, node in enumerate(program.nodes) for name in (node.name, *node.reads)}
        for n, node in enumerate(program.nodes):
            given = [self._argument(value) for value in node.args]
            given += [f"{_word(word)}={self._argument(value)}" for word, value in node.kwargs]
            lines.append(f"    {self._made(node.name)} = f{n}({', '.join(given)})")
            gone = {*node.reads, node.name}.difference(program.outputs)
            if names := ", ".join(sorted(self.names[name] for name in gone if last[name] == n)):
                lines.append(f"    del {names}")
        lines.append(f"    return ({''.join(self.names[name] + ', ' for name in program.outputs)})")
        self.text = "\n".join(lines)

    def _made(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def _argument(self, value: object) -> str:
        if isinstance(value, Atom) and value.kind == "node":
            return self.names[value.text]
        if isinstance(value, tuple):
            return f"[{', '.join(map(self._argument, value))}]"
        self.constants.append(value)
        return f"c{len(self.constants) - 1}"


def _word(text: str) -> str:
    """The name of an argument, which stands in the text as it is."""
    if not text.isidentifier() or iskeyword(text):
        raise ProgramError(f"{text!r} is not the name of an argument")
    return text


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


def _only_hides_or_reads(node: ProgramNode, places: Set[str]) -> bool:
    """Whether what is made of places only says where a tensor is -inf, or where it is read."""
    name = node.target.split(".")[1] if "." in node.target else node.target
    of_places = [n for n, x in enumerate(node.args) if isinstance(x, Atom) and x.kind == "node" and x.text in places]
    if name in ("where", "masked_fill"):
        return of_places == [int(name == "masked_fill")] and -math.inf in node.args
    return (name in LOOKUPS or operation_named(name).kind == "attention") and 0 not in of_places


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


def _constant(value, sizes, device):
    """An argument as PyTorch takes it."""
    if not isinstance(value, Atom):
        return value
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
