"""Bytes that a region moves and makes, estimated from shapes: as eager runs it, and as a plan runs it.

Eager: every ATen call that is not a view reads its inputs and writes its result. A plan: every kernel reads each input
once per loop that needs it and writes its output once. Caches are left out on both sides. What is moved is for reports;
by what is made a plan is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..egraph.terms.sizes import UnknownSize, resolve, value_of
from ..egraph.terms.term import Tensor, Term
from ..egraph.terms.traversal import subterms, tensors
from ..errors import ProgramError
from ..graph.op_kinds import AtenOperation, Trait, operation_named
from ..graph.program import Input, Meta, Program, ProgramNode
from ..lowering.analysis.data_indices import reads_memory
from ..lowering.analysis.read_places import places_read
from ..lowering.plan.queries import roots
from ..lowering.plan.records import Kernel, Plan
from ..lowering.plan.thresholds import MAX_STORED_BYTES
from ..lowering.stages.staged_plan import held_in_parts

STORES_TOO_MUCH = "the kernels would store more between them than the original calls make"
Mode = TypeVar("Mode", TorchDispatchMode, FlopCounterMode)
LAYER_OF_PRODUCTS = Trait.MATRIX_PRODUCT | Trait.TAKES_BIAS
GATHERS = ("aten::index", "aten::index_select", "aten::gather", "aten::embedding")


class _Counter(TorchDispatchMode):
    """Counts what the calls below it would read and write, and the calls that are not views."""

    def __init__(self):
        super().__init__()
        self.bytes = self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not _moves_nothing(function):
            sizes = [_stored(x) for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            if function._schema.name in GATHERS:  # The first argument is read at as many places as the result has.
                sizes[0] = min(sizes[0], _stored(result))
            self.bytes += sum(sizes)
            self.calls += 1
        return result


def _moves_nothing(function: torch._ops.OpOverload) -> bool:
    """Whether a call gives what was there before: a view, or a fact about a tensor, which fake ones are asked for."""
    return function.is_view or function.namespace == "prim" or function._schema.name == "aten::_unsafe_view"


def _stored(x: torch.Tensor) -> int:
    """Bytes behind a tensor: an expanded axis is stored once."""
    return x.element_size() * prod(n for n, stride in zip(x.shape, x.stride()) if stride != 0)


def eager_work(program: Program, sizes: Mapping[str, int]) -> tuple[int, int] | tuple[None, None]:
    """The bytes that eager moves and its calls; None if a size is not known, or the region cannot be run on fake
    tensors."""
    counter = _counted(_Counter(), program, sizes)
    return (None, None) if counter is None else (int(counter.bytes), counter.calls)


def product_flops(program: Program, sizes: Mapping[str, int]) -> int | None:
    """The operations of the original calls' products; None as for `eager_work`."""
    counter = _counted(FlopCounterMode(display=False), program, sizes)
    return None if counter is None else int(counter.get_total_flops())


def _counted(counter: Mode, program: Program, sizes: Mapping[str, int]) -> Mode | None:
    """The counter, entered while the program runs on fake tensors; None if it cannot."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            inputs = [_example(i, sizes) for i in program.inputs]
            with counter:
                program.run(*inputs, sizes=dict(sizes))
        return counter
    except (ProgramError, RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def _example(entry: Input, sizes) -> torch.Tensor:
    shape, strides = ([value_of(s, sizes) for s in texts] for texts in (entry.meta.shape, entry.strides))
    dtype = getattr(torch, entry.meta.dtype)
    return torch.empty_strided(shape, strides, dtype=dtype, device=entry.meta.device)


def made_bytes(program: Program, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of every value that the original calls make. Raises UnknownSize if a size is not known."""
    return [_meta_size(m, sizes) for node in program.nodes for m in node.metas]


def least_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes that the original calls move, however a compiler joins them: inputs and results, and twice what a product
    makes, which is written by a kernel of its own and read by another. Raises UnknownSize."""
    ends = (*(entry.meta for entry in program.inputs), *program.output_metas)
    return sum(_meta_size(meta, sizes) for meta in ends) + 2 * product_bytes(program, sizes)


def product_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes that products make between inputs and results. Raises UnknownSize."""
    products = filter(_is_product, program.nodes)
    return sum(_meta_size(n.meta, sizes) for n in products if n.name not in program.outputs)


def reductions_of_products(program: Program, sizes: Mapping[str, int]) -> int:
    """How many reductions read as many elements as a product makes. Raises UnknownSize."""
    elements = {n.name: prod(value_of(size, sizes) for size in n.meta.shape) for n in program.nodes}
    most = max((elements[n.name] for n in filter(_is_product, program.nodes)), default=0)
    reductions = (n for n in program.nodes if _operation(n).kind == "reduction")
    return sum(any(elements.get(name, 0) >= most > 0 for name in n.reads) for n in reductions)


def _is_product(node: ProgramNode) -> bool:
    """Whether it multiplies matrices; a gather of rows is a layer, too, and no product."""
    found = _operation(node)
    return found.kind == "contraction" or (found.kind == "layer" and bool(found.traits & LAYER_OF_PRODUCTS))


def _operation(node: ProgramNode) -> AtenOperation:
    return operation_named(node.target.split(".")[-2:][0])


def _meta_size(meta: Meta, sizes: Mapping[str, int]) -> int:
    return _size(Tensor("", meta.dtype, meta.shape), sizes)


def stores_too_much(plan: Plan, program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether what the plan's kernels store for each other at a time is more than all that the original calls make."""
    parts = plan.parts
    if not parts:
        return False
    try:
        most = max(MAX_STORED_BYTES, sum(made_bytes(program, sizes)))
        if sum(_size(part, sizes) for part in parts) <= most:
            return False
        held = held_in_parts(plan)
        return held is None or held > most
    except UnknownSize:
        return False


def tensor_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """None if a size is not known."""
    try:
        return _size(tensor, sizes)
    except UnknownSize:
        return None


def plan_bytes(plan: Plan, sizes: Mapping[str, int]) -> int | None:
    """None if a size is not known."""
    try:
        return sum(_kernel_bytes(kernel, sizes) for kernel in plan.kernels)
    except UnknownSize:
        return None


def _kernel_bytes(kernel: Kernel, sizes) -> int:
    users = [_loop_tensors(loop) for loop in kernel.loops] + [{t for s in kernel.stores for t in tensors(s.term)}]
    reads = {t: max(1, sum(t in used for used in users[:-1])) for used in users for t in used}
    written = sum(_size(store.output, sizes) for store in kernel.stores)
    loads = {n for root in roots(kernel) for n in subterms(root) if n.op == "load"}
    return written + sum(_read_bytes(t, loads, sizes) * times for t, times in reads.items())


def _read_bytes(tensor: Tensor, loads: Iterable[Term], sizes) -> int:
    """Bytes of the tensor; where it is read at places that are data, such as pages, of so many places at most."""
    own = [load for load in loads if load.attrs[0] == tensor]
    whole = _size(tensor, sizes)
    if not any(reads_memory(index) for load in own for index in load.args):
        return whole
    places = sum(places_read(load, lambda dim: resolve(dim.size, sizes)) for load in own)
    return min(whole, getattr(torch, tensor.dtype).itemsize * places)


def _loop_tensors(loop) -> set[Tensor]:
    terms: list[Term] = [loop.guard] if loop.guard is not None else []
    for accumulator in loop.accumulators:
        terms += [*accumulator.values] + ([accumulator.gauge] if accumulator.gauge is not None else [])
    return {tensor for term in terms for tensor in tensors(term)}


def _size(tensor: Tensor, sizes) -> int:
    return getattr(torch, tensor.dtype).itemsize * prod(value_of(s, sizes) for s in tensor.shape)
