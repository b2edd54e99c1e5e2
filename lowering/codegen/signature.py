"""The arguments of a generated kernel, and its text with them: what a launcher needs to call it.

The order of `arguments` is the order of the call. Example: `Argument("q_stride_1", tensor="q", axis=1)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...egraph.terms.term import Dim, Tensor, Term
from .ops import Names


@dataclass(frozen=True)
class Argument:
    """One run-time argument: a tensor's pointer, one of its strides (axis), or an integer size (number or symbol).

    part: "multiplier" or "shift" of a division by the size, in tiles of `step` (lowering/codegen/fast_division.py).
    """

    name: str
    tensor: str = ""
    axis: int | None = None
    size: int | str | None = None
    step: int = 1
    part: str = ""


@dataclass(frozen=True)
class Source:
    """The text of one kernel and how to call it.

    tiles: its constexpr parameters, each with the field of TritonConfig that gives its value. may_run_again: its loops
    may run a second time, in another form (relative_products.py). held: the extents of dims that a tile holds whole.
    """

    text: str
    function: str
    arguments: tuple[Argument, ...]
    tiles: tuple[tuple[str, str], ...] = ()
    may_run_again: bool = False
    held: Mapping[Dim, int] = field(default_factory=dict)


@dataclass
class Signature:
    """Declares the arguments of one kernel, in order, and remembers under which names.

    pointers: by tensor, its pointer and its strides. sizes: by dim. scalars: by symbol or number, as text of a size.
    """

    names: Names
    arguments: list[Argument] = field(default_factory=list)
    pointers: dict[Tensor, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    sizes: dict[Dim, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)

    def declare_map(self, hint: str, tensor: str) -> str:
        """An argument for a tensor that the launcher makes."""
        name = self.names.fresh(hint)
        self.arguments.append(Argument(name, tensor))
        return name

    def declare_tensor(self, tensor: Tensor) -> None:
        """The tensor's pointer; its strides are declared apart."""
        self.pointers[tensor] = (self.declare_map(tensor.name, tensor.name), ())

    def declare_strides(self, tensor: Tensor) -> None:
        pointer, _ = self.pointers[tensor]
        strides = tuple(self.names.fresh(f"{pointer}_stride_{axis}") for axis in range(len(tensor.shape)))
        self.arguments += [Argument(name, tensor.name, axis) for axis, name in enumerate(strides)]
        self.pointers[tensor] = (pointer, strides)

    def declare_sizes(self, dims: Iterable[Dim]) -> None:
        """The sizes of these dims; a term that names such a size reads the same argument."""
        for dim in dict.fromkeys(dims):
            self.sizes[dim] = self.names.fresh(f"{dim}_size")
            self.arguments.append(Argument(self.sizes[dim], size=dim.size))
            self.scalars.setdefault(str(dim.size), self.sizes[dim])

    def declare_symbols(self, nodes: Iterable[Term]) -> None:
        """The symbolic sizes among these terms that no dim has declared."""
        for node in nodes:
            if node.op == "size" and node.attrs[0] not in self.scalars:
                symbol = node.attrs[0]
                self.scalars[symbol] = self.names.fresh(symbol)
                self.arguments.append(Argument(self.scalars[symbol], size=symbol))
