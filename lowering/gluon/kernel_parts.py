"""The parts of a Gluon kernel as records: what its launch knows, tensor maps, rings of shared memory, its source.

Example: the keys of attention are an operand of the loop. A ring has two slots for their tiles and a tensor map that
fills one while the other is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor
from ..codegen.fast_division import division
from ..codegen.signature import Source
from ..hopper.kernel_form import Diagonal, Operand
from ..hopper.mask_words import Packed
from ..plan.launch_facts import Facts


def slot_of(name: str, count: str, stages: int) -> str:
    """The slot of a ring's buffer or barriers that the tile with the number `count` has."""
    slot = f"({count}) & {stages - 1}" if stages & (stages - 1) == 0 else f"({count}) % {stages}"
    return f"{name}.index({slot})"


def phase_of(count: str, stages: int) -> str:
    """The parity that a barrier of that slot is waited for with."""
    return f"(({count}) // {stages}) & 1"


@dataclass(frozen=True)
class LaunchShape:
    """What the launcher knows of one call.

    masked: which tiles of a warpgroup's rows need the guard ("none", "first", "some", "all").
    single: one tile has the whole loop. skewed: a warpgroup's tiles may be fewer than its program's. vacant: it may
    have no rows at all.
    table: a table orders the work. chained: as in the schedule, where the sizes allow it.
    overlays: resident 2-D tiles, of tensors over rows and loop that are copied tile by tile.
    diagonals: tensors over the relative index of rows and loop, which threads read once for all of their rows.
    sent: results that leave by shared memory. entered: what is read for these and comes in there.
    listed: the dims of a list of tiles in memory that items follow, None where they follow the loop's limits.
    packed: the guard's part that is a packed mask. vectors: names of tensors along the loop alone that are one run in
    memory, so that tiles of them are copied.
    """

    facts: Facts = Facts()  # noqa: RUF009
    masked: str = "some"
    single: bool = False
    skewed: bool = True
    vacant: bool = True
    table: bool = False
    chained: bool = False
    overlays: tuple[Operand, ...] = ()
    diagonals: tuple[Diagonal, ...] = ()
    sent: tuple[Operand, ...] = ()
    entered: tuple[tuple[Operand, Operand], ...] = ()
    listed: tuple[Dim, ...] | None = None
    packed: Packed | None = None
    vectors: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TensorMap:
    """A tensor map: the box that is copied at once. The operand's axes say which dims the box's axes run over.

    Without an operand the tensor is read as one run of memory.
    """

    name: str
    tensor: str
    box: tuple[int, ...]
    operand: Operand | None


@dataclass(frozen=True, kw_only=True)
class GluonSource(Source):
    """The text of a kernel and how to call it: first the tensor maps, then the arguments, the table of work, the lists
    of tiles and the packed mask, where it has them."""

    maps: tuple[TensorMap, ...]


@dataclass(frozen=True)
class Ring:
    """Shared memory of one operand: names of its buffers, one a chunk, and of its barriers; `bytes` of one slot.

    Overlays are handed back with the first columns, which saves each warpgroup a barrier a tile.
    """

    operand: Operand
    buffers: tuple[str, ...]
    maps: tuple[str, ...]
    full: str
    empty: str
    bytes: int


@dataclass(frozen=True)
class Handed:
    """What the warpgroup with the scores gives to the one with further columns of wide values, by names of its buffers:
    a tile of weights with the factor of the rows' sums, and at an item's end the rows' vectors. Barriers say so.
    """

    weights: str
    vectors: str
    full: str
    empty: str
    count: int  # of vectors


@dataclass(frozen=True)
class Buffers:
    """The shared memory of a kernel: rings of the loop's operands and of the rows', and, by result, exits and entries.

    An exit is where a result leaves. An entry is the same memory for what comes in before. All operands of the rows
    come together: they share the barriers rows_full and rows_empty. handed: what warpgroups give to each other. totals:
    what an accumulator of a loop in pieces adds up to, one a chunk.
    """

    loop: tuple[Ring, ...]
    rows: tuple[Ring, ...]
    exits: dict[Tensor, Ring]
    entries: dict[Tensor, Ring]
    rows_full: str
    rows_empty: str
    handed: Handed | None = None
    totals: tuple[str, ...] = ()

    @property
    def copied_rows(self) -> tuple[Ring, ...]:
        """The rings of rows that tensor maps copy."""
        return tuple(ring for ring in self.rows if not ring.operand.gathered)

    def ring(self, operand: Operand) -> Ring:
        """The ring of an operand of the loop or of the rows."""
        return next(ring for ring in (*self.loop, *self.rows) if ring.operand == operand)

    @property
    def names(self) -> list[str]:
        """All names, of buffers and barriers, each once."""
        found = [name for ring in (*self.rows, *self.loop) for name in (*ring.buffers, ring.full, ring.empty)]
        found += [name for ring in self.exits.values() for name in ring.buffers]
        found += [h.weights, h.vectors, h.full, h.empty] if (h := self.handed) else []
        found += [*(ring.full for ring in self.entries.values()), *self.totals]
        return [name for name in dict.fromkeys(found) if name]


def arguments_of(source: GluonSource, values: dict, sizes: dict) -> list[str | int]:
    """What a call gives to the kernel behind its tensor maps: names of tensors, strides, sizes and their divisors."""
    found: list[str | int] = []
    for argument in source.arguments:
        if argument.size is not None:
            size = resolve(argument.size, sizes)
            found.append(division(-(-size // argument.step))[argument.part] if argument.part else size)
        elif argument.axis is not None:
            found.append(values[argument.tensor].stride(argument.axis))
        else:
            found.append(argument.tensor)
    return found
