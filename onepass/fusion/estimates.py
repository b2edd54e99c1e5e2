"""Estimates for fusion: bytes, operations and seconds of graph nodes, regions and plans.

They come from shapes alone. A symbolic size counts as the number that it had when the graph was made. Example: a
float32 node of shape (4, 8) has 128 bytes. Estimates only choose between forms: no result depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod

import torch
from torch import fx

from ..compiler.optimize import TARGET
from ..egraph.search.cost import NOMINAL_SIZE, contracts, node_time
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import every_reduction, subterms
from ..graph.nodes import value_of_node
from ..graph.op_kinds import name_of
from ..graph.survey import gathered, hinted, shape
from ..lowering.plan.device import Device, planned_for
from ..lowering.plan.records import Plan
from ..regions.region import Region

ROWS_OF_A_TILE = 128
# A plan that loses its Hopper form is measured to lose 0.17 to 0.36 of a kernel's time.
TIME_SHARE_OF_THE_HOPPER_FORM = 0.25
HOPPER = (9, 0)  # its compute capability
COUNT_OF_A_TUPLE = 1 << 62  # elements of what is no tensor: more than any tensor has


@dataclass(frozen=True)
class AskedGpu:
    """A GPU that is not here, by its compute capability; None is one that is not of CUDA."""

    capability: tuple[int, int] | None


_asked: ContextVar[AskedGpu | None] = ContextVar("asked", default=None)


@contextmanager
def estimated_for(capability: tuple[int, int] | None) -> Iterator[None]:
    """Inside, fusion decides as it would on a GPU of this compute capability; None is one that is not of CUDA.

    Tensors stay where they are. Example: `explain --device h100` on a machine without a GPU is `estimated_for((9, 0))`.
    """
    token = _asked.set(AskedGpu(capability))
    try:
        yield
    finally:
        _asked.reset(token)


def device_type(region: Region) -> str:
    """The type of the device that the region's result is on, or that was asked for."""
    return "cuda" if _asked.get() else value_of_node(region.output).device.type


def device_of(region: Region) -> Device:
    """The device that is assumed for the region's result. A plan does not depend on which GPU is at hand."""
    return planned_for(device_type(region))


def on_hopper(region: Region) -> bool:
    """Whether the region's result is on a device whose kernels can have the Hopper form."""
    asked = _asked.get()
    return asked.capability == HOPPER if asked else is_hopper(value_of_node(region.output).device)


def is_hopper(device: torch.device) -> bool:
    """Whether the device is a GPU of Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


# Sizes ----------------------------------------------------------------------------------------------------------------


def size_hints(region: Region) -> dict[str, int]:
    """Numbers for the region's symbolic sizes, as they were when the graph was made."""
    found = {}
    for node in region.inputs:
        value = value_of_node(node)
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                found[str(size.node.expr)] = size.node.hint
    return found


def length(dim: Dim, sizes: dict[str, int]) -> int:
    """The number of elements of a dim; NOMINAL_SIZE where `sizes` does not have its symbol."""
    return dim.size if isinstance(dim.size, int) else sizes.get(dim.size, NOMINAL_SIZE)


def nominal_count(node: fx.Node) -> int:
    """Elements of a node, each symbol counted as NOMINAL_SIZE. A tuple of tensors counts as larger than any tensor."""
    sizes = shape(node)
    return COUNT_OF_A_TUPLE if sizes is None else prod(n if isinstance(n, int) else NOMINAL_SIZE for n in sizes)


def element_count(node: fx.Node) -> int:
    """Elements of a node that is a tensor."""
    return prod(hinted(value_of_node(node)))


def byte_count(node: fx.Node) -> int:
    """Bytes of a node; 0 for what is no tensor."""
    value = value_of_node(node)
    return prod(hinted(value)) * value.element_size() if isinstance(value, torch.Tensor) else 0


def elements_processed(node: fx.Node) -> int:
    """Elements that a node reads or makes, whichever are more."""
    tensors = [n for n in (node, *node.all_input_nodes) if shape(n) is not None]
    return max(map(element_count, tensors), default=0)


# Times ----------------------------------------------------------------------------------------------------------------


def write_and_read_seconds(node: fx.Node, device: Device) -> float:
    """Seconds to write a node's value and to read it again."""
    return 2 * byte_count(node) / device.memory_bytes


def separate_kernel_seconds(nodes: Iterable[fx.Node], result: fx.Node, device: Device) -> float:
    """Seconds of a kernel that computes these nodes, the result among them, and of reading that in another kernel."""
    moved = _bytes_read(set(nodes)) + 2 * byte_count(result)
    return moved / device.memory_bytes + device.launch_seconds


def _bytes_read(nodes: set[fx.Node]) -> int:
    """Bytes that the nodes read from outside. A gather reads no more of a table than it gives."""
    total: dict[fx.Node, int] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in nodes:
                whole = byte_count(source)
                part = byte_count(node) if source in gathered(node)[:1] else whole
                total[source] = min(total.get(source, 0) + part, whole)
    return sum(total.values())


def hopper_form_seconds(region: Region, plan: Plan) -> float:
    """Seconds that the plan of a region saves by its warp-specialised form on Hopper."""
    return TIME_SHARE_OF_THE_HOPPER_FORM * _product_seconds(region, plan)


def library_seconds(region: Region, plan: Plan) -> float:
    """Seconds of a library's kernel for a region with this plan: it is bound by memory, or by products."""
    moved = sum(map(byte_count, (*region.inputs, *region.outputs)))
    return max(moved / device_of(region).memory_bytes, _product_seconds(region, plan))


def _product_seconds(region: Region, plan: Plan) -> float:
    """Seconds of a plan's products at the device's rate."""
    sizes = size_hints(region)
    terms = [store.term for kernel in plan.kernels for store in kernel.stores]
    products = sum(_volume(reduction.args[0], sizes) for reduction in every_reduction(terms))
    return 2 * products / device_of(region).matrix_flops


def _volume(term: Term, sizes: dict[str, int]) -> float:
    return prod(float(length(dim, sizes)) for dim in term.dims)


def plan_cost(plan: Plan) -> float:
    """The time of all kernels of a plan, in the units of the search's cost."""
    total = 0.0
    for kernel in plan.kernels:
        for term in {t for store in kernel.stores for t in subterms(store.term) if t.dtype != "int64"}:
            total += node_time(term, TARGET, term.op == "reduce" and contracts(term.args[0]))
    return total


def product_cost(node: fx.Node) -> float:
    """The time of a product of two matrices that stays outside of every region, in the same units."""
    return _multiplications(node) / TARGET.matrix


def _multiplications(node: fx.Node) -> float:
    """Multiplications of a product: elements of the result, times the axes that are summed."""
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    if name_of(node) != "einsum":
        return element_count(node) * hinted(value_of_node(operands[0]))[-1]
    subscripts, _, result = node.args[0].replace(" ", "").partition("->")
    summed = {
        letter: size
        for letters, n in zip(subscripts.split(","), operands, strict=True)
        # From the last letter on, because an ellipsis comes first.
        for letter, size in zip(reversed(letters), reversed(hinted(value_of_node(n))), strict=False)
        if letter not in result
    }
    return element_count(node) * prod(summed.values())
