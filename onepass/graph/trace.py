"""From PyTorch to a Program: traces a region to pre-dispatch ATen on fake tensors, or reads ATen nodes as they are.

Shapes stay symbolic where Dynamo's are; no guard is added. Example: `program_of(lambda q, k: q @ k.mT, q, k)`.
"""

from __future__ import annotations

import inspect
import keyword
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import messages
from ..errors import Refusal
from .nodes import TORCH_FOLDER, size_of, value_of_node, where_of
from .op_kinds import is_aten, is_call_of
from .program import GETITEM, Atom, Input, Meta, Program, ProgramNode, is_allowed
from .value_names import NAME, name_for_readers, plain_name

_SAFE_IN_PLACE = {"aten.detach_.default": "aten.detach.default"}  # on a fresh constant; changes no values


@contextmanager
def without_saved_tensors() -> Iterator[None]:
    """Hides what is traced here from a checkpoint around the call, which counts the tensors that autograd saves."""
    same = lambda x: x
    with torch.autograd.graph.saved_tensors_hooks(same, same):
        yield


def trace(region: Callable, fake_inputs: Sequence) -> Program:
    """A Program of a region of a Dynamo graph (or any callable), traced on the fake values of its inputs.

    Raises Refusal for what has no ATen form: higher-order operations, mutation, autocast.
    """
    names = _input_names(region, len(fake_inputs))
    if names is not None:  # a shape among the inputs is traced as several sizes
        several = [x if isinstance(x, tuple | list) else (x,) for x in fake_inputs]
        names = [name for name, values in zip(names, several, strict=True) for _ in values]
    return _from_traced(aten_graph(region, fake_inputs), names)


def aten_graph(region: Callable, fake_inputs: Sequence) -> fx.Graph:
    """The pre-dispatch ATen operations of a callable or of a module of nodes, on fake inputs. Raises Refusal."""
    _require_plain(region, fake_inputs)
    mode = next((x.fake_mode for x in fake_inputs if isinstance(x, FakeTensor)), None)
    if mode is None:
        raise Refusal(messages.NO_INPUTS)
    body = fx.Interpreter(region).run if isinstance(region, fx.GraphModule) else region
    with ExitStack() as stack:
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(mode)
        if any(map(_is_symbolic, fake_inputs)):
            stack.enter_context(_without_cache(mode))
        before = not _under_autocast(fake_inputs)  # autocast inserts its casts when operations are dispatched
        if not before:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # traces attention to operations that have terms
        return _traced(body, fake_inputs, pre_dispatch=before, tracing_mode="real")


def _is_symbolic(value) -> bool:
    """Whether a size is a symbol."""
    return any(isinstance(size, torch.SymInt) for size in (value, *getattr(value, "shape", ())))


@contextmanager
def _without_cache(mode: FakeTensorMode) -> Iterator[None]:
    """Computes every fake result: with symbols, to name it for torch's cache and to make it again takes longer."""
    before = mode.cache_enabled
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = before


def _traced(function: Callable, inputs: Sequence, **how) -> fx.Graph:
    """The graph of a function by make_fx. Raises Refusal for an argument that graphs of torch 2.11 do not hold."""
    try:
        return make_fx(function, _allow_non_fake_inputs=True, **how)(*inputs).graph
    except NotImplementedError as error:  # later releases hold every argument: then `_encode` refuses it
        found = re.match(r"argument of type: <class '(?:\S+\.)?(\w+)'>", str(error))
        if found is None:
            raise
        raise Refusal(messages.ARGUMENT, type=found[1]) from error


def _require_plain(region, fake_inputs: Sequence) -> None:
    """Raises Refusal for subclasses of Tensor, which may give operations a meaning of their own."""
    names = _input_names(region, len(fake_inputs)) or ["an input"] * len(fake_inputs)
    for name, value in zip(names, fake_inputs, strict=True):
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
            raise Refusal(messages.SUBCLASS, name=_clean(name, set()), type=type(value).__name__)


class UserLines(TorchFunctionMode):
    """Notes the user's line for every operation, where no graph has noted it yet."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH_FOLDER):
            frame = frame.f_back
        noted = getattr(fx_traceback, "current_meta", {})
        noted["stack_trace"] = f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'
        return function(*args, **(kwargs or {}))


def program_of(function: Callable, *inputs: torch.Tensor) -> Program:
    """A Program of a Python function, traced on example tensors; their sizes become fixed."""
    if _under_autocast(inputs):
        raise Refusal(messages.AUTOCAST)
    separate = [x.detach() for x in inputs]  # a tensor passed twice is two inputs
    with fx_traceback.preserve_node_meta(), UserLines():
        graph = _traced(function, separate, pre_dispatch=True, tracing_mode="fake")
    return _from_traced(graph, _input_names(function, len(inputs)))


def _under_autocast(values) -> bool:
    kinds = {x.device.type for x in values if isinstance(x, torch.Tensor)}
    return any(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) for kind in kinds)


def _input_names(region, count: int) -> list[str] | None:
    if isinstance(region, fx.GraphModule):
        return [n.meta.get(NAME, n.name) for n in region.graph.nodes if n.op == "placeholder"]
    try:
        names = list(inspect.signature(region).parameters)
    except (TypeError, ValueError):
        return None
    return names if len(names) == count else None


def _from_traced(graph: fx.Graph, names: list[str] | None) -> Program:
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    (result,) = next(n for n in graph.nodes if n.op == "output").args
    results = list(result) if isinstance(result, tuple | list) else [result]
    if not results or not all(isinstance(r, fx.Node) and _is_tensor(value_of_node(r)) for r in results):
        raise Refusal(messages.NO_TENSOR_RESULT)
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    return from_aten_graph(calls, inputs, results, names)


def _is_tensor(value) -> bool:
    return isinstance(value, torch.Tensor)


def from_aten_graph(
    nodes: Iterable[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], names: Sequence[str] | None = None
) -> Program:
    """A Program of the ATen nodes of a graph. Inputs that are sizes are taken from the shapes of the tensors."""
    live = _needed(list(nodes), outputs)
    taken: dict[fx.Node, str] = {}
    for node, name in zip(inputs, names or map(name_for_readers, inputs), strict=True):
        taken[node] = _clean(name, set(taken.values()))
    for node in live:
        taken[node] = _clean(node.name, set(taken.values()))
    entries = tuple(_input(n, taken[n]) for n in inputs if isinstance(value_of_node(n), torch.Tensor))
    calls = tuple(_call(n, taken) for n in live if not _is_scalar(value_of_node(n)))
    return Program(entries, calls, tuple(taken[output] for output in outputs))


def _needed(nodes: list[fx.Node], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    wanted = set(outputs)
    for node in reversed(nodes):
        if node in wanted:
            wanted.update(_operands(node))
    return [n for n in nodes if n in wanted]


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes that it reads; of a concatenation, those with elements: a rotation may leave nothing of a head."""
    return [n for n in node.all_input_nodes if not (_is_joint(node) and _is_empty(n))]


def _is_joint(node: fx.Node) -> bool:
    return is_aten(node) and is_call_of(node, "cat")


def _is_empty(value) -> bool:
    value = value_of_node(value) if isinstance(value, fx.Node) else value
    return isinstance(value, torch.Tensor) and any(isinstance(s, int) and s == 0 for s in value.shape)


def _is_scalar(value) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def _clean(name: str, used: set[str]) -> str:
    """The plain name, as an identifier, with a number behind it where it is used."""
    stem = plain_name(name)
    stem = f"x{stem}" if stem[0].isdigit() else f"{stem}_" if keyword.iskeyword(stem) else stem
    return next(n for n in (stem, *(f"{stem}_{k}" for k in range(1, len(used) + 2))) if n not in used)


def _meta(value: torch.Tensor, where: str) -> Meta:
    if value.is_complex():
        raise Refusal(messages.COMPLEX, where)
    if _is_empty(value):
        raise Refusal(messages.EMPTY, where)
    if value.layout != torch.strided or value.is_quantized:
        raise Refusal(messages.LAYOUT, where)
    return Meta(_word(value.dtype), tuple(map(size_of, value.shape)), value.device.type)


def _word(named) -> str:
    return str(named).removeprefix("torch.")


def _input(node: fx.Node, name: str) -> Input:
    value = value_of_node(node)
    return Input(name, _meta(value, where_of(node)), tuple(map(size_of, value.stride())))


def _call(node: fx.Node, taken: dict[fx.Node, str]) -> ProgramNode:
    where, value = where_of(node), value_of_node(node)
    if node.op == "get_attr":
        return _constant(node, taken[node], where)
    target = _target(node, where)
    values = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(v, torch.Tensor) for v in values):
        raise Refusal(messages.NO_TENSORS, where, call=target)
    given = node.args
    if _is_joint(node):
        given = ([n for n in given[0] if not _is_empty(n)], *given[1:])
    args = tuple(_encode(a, taken, where) for a in given)
    kwargs = tuple(sorted((k, _encode(a, taken, where)) for k, a in node.kwargs.items()))
    return ProgramNode(taken[node], target, args, kwargs, tuple(_meta(v, where) for v in values), where)


def _target(node: fx.Node, where: str) -> str:
    if node.target is operator.getitem:
        return GETITEM
    schema = getattr(node.target, "_schema", None)
    if schema is None or not is_allowed(str(node.target)):
        raise Refusal(messages.NOT_ATEN, where, call=getattr(node.target, "__name__", node.target))
    target = str(node.target)
    if schema.is_mutable and target not in _SAFE_IN_PLACE:
        raise Refusal(messages.IN_PLACE_CALL, where, call=target)
    return _SAFE_IN_PLACE.get(target, target)


def _constant(node: fx.Node, name: str, where: str) -> ProgramNode:
    """A tensor that the trace found in the function itself: kept if all its elements are one number."""
    found = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    found = getattr(found, "constant", None) if isinstance(found, FakeTensor) else found
    if not isinstance(found, torch.Tensor):
        raise Refusal(messages.ARGUMENT, where, type=type(found).__name__)
    if isinstance(found, FakeTensor) or len(found.unique()) != 1:
        raise Refusal(messages.CONSTANT, where)
    meta = _meta(found, where)
    kwargs = (("device", Atom("device", meta.device)), ("dtype", Atom("dtype", meta.dtype)))
    return ProgramNode(
        name, "aten.full.default", (tuple(found.shape), found.flatten()[0].item()), kwargs, (meta,), where
    )


def _encode(value, taken: dict[fx.Node, str], where: str):
    """An argument of a call as data."""
    if isinstance(value, fx.Node):
        inner = value_of_node(value)
        return _encode(inner, taken, where) if _is_scalar(inner) else Atom("node", taken[value])
    if isinstance(value, tuple | list):
        return tuple(_encode(v, taken, where) for v in value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return int(value) if value.node.expr.is_Integer else Atom("size", str(value.node.expr))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return Atom("device", value.type)
    if isinstance(value, complex):
        raise Refusal(messages.COMPLEX, where)
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return Atom(kind, _word(value))
    raise Refusal(messages.ARGUMENT, where, type=type(value).__name__)
