"""What the source of every warp-specialised kernel has: arguments, functions of warps, the function that is launched.

A subclass says what is in shared memory and what producer and consumers do. Invariant: a function takes just what its
text mentions. Example: of two consumers, each is a function of its own that calls one with its number.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import Generic, TypeVar

from ...egraph.terms.affine import affine, to_term
from ...egraph.terms.ops import iota
from ...egraph.terms.printing import show
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..analysis.data_indices import all_place_conditions
from ..codegen.dialect import GLUON
from ..codegen.ops import Names, helpers, remarks, wrapped
from ..codegen.signature import Signature
from ..hopper.config import WarpSettings
from ..hopper.kernel_form import WarpBinding
from ..hopper.register_order import register_place
from ..plan.launch_facts import Blocks
from ..plan.queries import roots
from ..plan.records import Plan
from .expressions import COPIES, HOPPER_FUNCTIONS, RESERVED, SPECIAL_FUNCTIONS, TILE_FUNCTIONS, GluonWriter
from .kernel_parts import GluonSource, LaunchShape, TensorMap
from .work_items import WalkWriter, reads_a_tensor

HEADER = f"""import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import {", ".join(HOPPER_FUNCTIONS)}
from onepass.lowering.gluon.device_functions import {", ".join((*COPIES, *TILE_FUNCTIONS))}
from onepass.lowering.gluon.device_math import {", ".join(SPECIAL_FUNCTIONS)}


"""
BindingT = TypeVar("BindingT", bound=WarpBinding)
ConfigT = TypeVar("ConfigT", bound=WarpSettings)


class KernelAssembly(ABC, Generic[BindingT, ConfigT]):
    """Assembles one kernel. imports: the head of its text; reserved: names that no variable may have."""

    imports: str = HEADER
    reserved: Collection[str] = RESERVED

    def __init__(self, binding: BindingT, config: ConfigT, shape: LaunchShape):
        self.binding, self.config, self.shape = binding, config, shape
        self.kernel, self.loop = binding.kernel, binding.loop
        self.names = Names()
        self.names.taken.update(self.reserved)
        self.function = self.names.fresh(self.kernel.name)
        self.signature = Signature(self.names)
        self.maps: dict[str, TensorMap] = {}
        self._declare()
        self.walks = WalkWriter(
            binding, config, self.signature.sizes, shape.listed, self.names.fresh, shape.facts.piece > 0
        )
        self.signature.arguments += [argument for divisor in self.walks.divisors for argument in divisor.arguments]

    def writer(self, blocks: Blocks = frozenset()) -> GluonWriter:
        """A writer for a new function; all share names and declared arguments. blocks: as in Facts."""
        signature = replace(self.signature, scalars=dict(self.signature.scalars))
        return GluonWriter(self.binding, replace(self.shape.facts, blocks=blocks), self.config, signature)

    # What a subclass says

    @abstractmethod
    def _copied_loads(self) -> set[Term]:
        """The loads that tensor maps do."""

    @abstractmethod
    def _shared_names(self) -> list[str]:
        """The names of buffers, barriers and what else the launched function gives to others."""

    @abstractmethod
    def _buffer_lines(self) -> list[str]:
        """Lines that allocate buffers, and find what else functions share."""

    @abstractmethod
    def _barriers(self) -> dict[str, tuple[int, int]]:
        """Barriers by name: how many of them there are, and how many arrivals complete a phase of each."""

    @abstractmethod
    def _layouts(self) -> str:
        """Lines that name layouts."""

    @abstractmethod
    def _producers(self) -> dict[str, list[str]]:
        """What the warps do that copy, by the names of functions."""

    @abstractmethod
    def _consumer(self) -> list[str]:
        """What the warpgroup with the number W does."""

    @property
    def chooses_by_number(self) -> bool:
        """Whether the number W chooses text or parts of tiles. Else all consumers call one function, which is inlined
        later: Triton's front end, which is Python, reads a function once for each constant.
        """
        return True

    def _other_warps(self) -> dict[str, list[str]]:
        """What further warps do, by the names of functions: one warp has the number W for each consumer warpgroup."""
        return {}

    # Signature

    def _declare(self) -> None:
        """The arguments: pointers and strides of tensors that no tensor map copies, then sizes."""
        kernel, signature = self.kernel, self.signature
        limits = [limit.bound for limit in (*self.loop.uppers, *self.loop.lowers)]
        nodes = dict.fromkeys(n for root in [*roots(kernel), *limits] for n in subterms(root))
        copied = self._copied_loads()
        indices = dict.fromkeys(n for load in copied for index in load.args for n in subterms(index))
        needed = {n.attrs[0] for n in {*nodes} - copied | {*indices} if n.op == "load"}
        needed |= {store.output for store in kernel.stores}
        for tensor in dict.fromkeys([*kernel.inputs, *(store.output for store in kernel.stores)]):
            if tensor in needed:
                signature.declare_tensor(tensor)
                signature.declare_strides(tensor)
        signature.declare_sizes([*kernel.grid, *kernel.around, kernel.rows, self.loop.dim])
        conditions = (n for condition in all_place_conditions(kernel) for n in subterms(condition))
        signature.declare_symbols(dict.fromkeys([*nodes, *indices, *conditions]))

    # Assembly

    def source(self, plan: Plan) -> GluonSource:
        """The kernel's text, with its header and layouts."""
        number = ["W: gl.constexpr" if self.chooses_by_number else "W"]
        consumer = self._function("consumer", number, self._consumer())
        producers = {name: self._function(name, [], body) for name, body in self._producers().items()}
        parts = self._numbered("consumer", consumer) | producers
        called = [*producers.values(), consumer]
        for name, body in self._other_warps().items():
            called.append(self._function(name, number, body))
            parts |= self._numbered(name, called[-1])
        texts = dict.fromkeys(text for text, _ in (*called, *parts.values()))
        functions = "".join(texts) + self._kernel(parts)
        text = self._header(plan) + self.imports + self._layouts() + helpers(functions, GLUON) + functions
        return GluonSource(text, self.function, tuple(self.signature.arguments), maps=tuple(self.maps.values()))

    def _parameters(self) -> list[str]:
        return list(dict.fromkeys([*self._outside(), *self._shared_names()]))

    def _outside(self) -> list[str]:
        words = ["words"] if self.shape.packed else []
        return [*self.maps, *(a.name for a in self.signature.arguments), "items", "visits", *words, "total"]

    def _function(self, name: str, first: list[str], body: list[str]) -> tuple[str, list[str]]:
        """A device function that takes what its body mentions, and the names of that."""
        text = "\n".join(f"    {line}" if line else "" for line in body)
        words = set(re.findall(r"\w+", text))
        used = [p for p in self._parameters() if p in words]
        signature = wrapped(", ".join([*first, *used]))
        return f"@gluon.jit\ndef {name}(\n{signature},\n):\n{text}\n\n\n", used

    def _numbered(self, name: str, function: tuple[str, list[str]]) -> dict[str, tuple[str, list[str]]]:
        """For each consumer warpgroup, a function that calls one with its number."""
        number = "{}" if self.chooses_by_number else "gl.to_tensor({})"
        call = lambda w: [f"{name}({', '.join([number.format(w), *function[1]])})"]
        return {f"{name}{w}": self._function(f"{name}{w}", [], call(w)) for w in range(self.config.warpgroups)}

    def _kernel(self, parts: dict[str, tuple[str, list[str]]]) -> str:
        """The function that is launched: it allocates buffers and barriers and starts producer and consumers."""
        s, lines = self.config, [*self._buffer_lines(), *self._barrier_lines(parts), "fence_async_shared()"]
        _, own, other = s.registers
        lines.append("gl.warp_specialize([")
        lines += [wrapped(f"({name}, ({', '.join(used)},)),", 112, 4, 5) for name, (_, used) in parts.items()]
        workers, single = s.warpgroups - 1, len(parts) - s.warpgroups
        lines.append(f"], {[4] * workers + [1] * single}, {[own] * workers + [other] * single})")
        body = "\n".join("    " + line.replace("\n", "\n    ") for line in lines)
        signature = wrapped(", ".join(self._outside()))
        plain = [a.name for a in self.signature.arguments if a.size is not None] + ["total"]
        return f"@gluon.jit(do_not_specialize={plain})\ndef {self.function}(\n{signature},\n):\n{body}\n"

    def _barrier_lines(self, parts: dict[str, tuple[str, list[str]]]) -> list[str]:
        """Lines that allocate and initialise the barriers that some function uses.

        A barrier that none uses must not be initialised. The compiler regards its memory as free after that, and lays
        other data over it. To the device it still is a barrier: where processes shared the device, eight bytes of those
        data were overwritten.
        """
        used, lines = {name for _, names in parts.values() for name in names}, []
        for name, (slots, count) in self._barriers().items():
            if name in used:
                lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [{slots}, 1], mbarrier.MBarrierLayout())")
                lines.append(f"for slot in gl.static_range({slots}):")
                lines.append(f"    mbarrier.init({name}.index(slot), count={count})")
        return lines

    def _header(self, plan: Plan) -> str:
        kernel = self.kernel
        stored = [(s.output.name, ", ".join(map(str, s.order)), show(s.term)) for s in kernel.stores]
        facts = [f"{kernel.name}: {name}[{order}] = {text}" for name, order, text in stored]
        facts += [f"Schedule: {self.config}; guard on tiles: {self.shape.masked}"]
        facts += [f"Guard over {self.loop.dim}: {show(self.loop.guard)}"] if self.loop.guard is not None else []
        facts += [f"As bits: {show(self.shape.packed.record.guard)}"] if self.shape.packed else []
        facts += [f"Derived by: {', '.join(plan.derivation)}"] if plan.derivation else []
        return remarks(facts)

    def _coordinate(self, writer: GluonWriter, index: Term, dim: Dim | None, start: int) -> str:
        """Where a box begins along an axis. dim: that the axis runs over, from `start` where it has no tiles."""
        if dim is not None and index is register_place(iota(dim)):
            return writer.starts[dim]
        coefficients, constant = affine(index)
        parts = []
        if dim is not None:
            moving = next(atom for atom in coefficients if dim in atom.dims)
            del coefficients[moving]
            begin = writer.starts.get(dim, str(start))
            parts = [begin if moving is iota(dim) else self._place_in_page(begin, moving.args[1].attrs[0])]
        rest = to_term((coefficients, constant))
        if rest.op != "const" or rest.attrs[0] or not parts:
            with writer.in_first_column() if self.loop.dim in rest.dims else nullcontext():
                text = writer.value(rest).text
            parts.append(f"gl.cast({text}, gl.int32)" if reads_a_tensor(rest) else text)
        return " + ".join(p for p in parts if p != "0" or len(parts) == 1)

    def _place_in_page(self, begin: str, page: int) -> str:
        """Where a copy begins in its page."""
        return "0" if page == self.walks.copied else f"{begin} % {page}"
