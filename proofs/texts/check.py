"""Holds the text of a kernel against the terms that it is to store: both are run over the same exact numbers.

A text is equal to its terms on these inputs if each element that a term says is written once, with the same number, and
nothing beyond a tensor is read or written. Example: `differences(checked)` is an empty list.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, subterms
from ..kernels import numbers as exact
from ..kernels.interpreter import MOST_ROUNDS, Interpreter
from ..kernels.memory import Buffer, KernelFault, Pointer, WrittenTensor
from ..kernels.numbers import Numbers, Value
from ..kernels.term_values import TermValues
from ..warps.gluon_interpreter import GluonInterpreter, run_gluon
from ..warps.gluon_language import CopyWindow
from ..warps.interleavings import Orders

SHOWN = 3  # elements that a message names
MOST_STATES = 5_000  # of programs whose groups of warps wait for one another: about half a second


@dataclass(frozen=True)
class Call:
    """One launch of a text: which tensor each pointer is, and the values of the other parameters.

    maps: tensor maps by parameter: a tensor, its shape and strides, the box, and the bytes of an element. libraries:
    texts of functions that the text imports. It has the fields of lowering's LaunchText, and is a record of its own:
    the check imports nothing of what it checks.
    """

    text: str
    function: str
    programs: int
    pointers: Mapping[str, str]
    integers: Mapping[str, int]
    constants: Mapping[str, int]
    maps: Mapping[str, tuple] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()

    @property
    def is_gluon(self) -> bool:
        """Whether groups of warps wait for one another."""
        return "gl.warp_specialize(" in self.text


@dataclass(frozen=True)
class StoredTerm:
    """What is to be in a tensor. order: the dims of its axes. places: the index along each axis instead, where elements
    with equal places are added."""

    name: str
    term: Term
    order: tuple[Dim, ...]
    places: tuple[Term, ...] = ()


@dataclass(frozen=True)
class KernelCheck:
    """Launches and what they are to compute together.

    tensors: the values of inputs, floats as float64 arrays or exact numbers. strides: of inputs. made: what launches
    write. sizes: of symbols. programs: those that run of a single launch; None: all.
    levels: primes, as many as `levels_of` says of every kernel of a plan.
    """

    calls: tuple[Call, ...]
    results: tuple[StoredTerm, ...]
    tensors: Mapping[str, Value]
    strides: Mapping[str, tuple[int, ...]]
    made: tuple[WrittenTensor, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    programs: tuple[int, ...] | None = None
    levels: int = exact.LEVELS

    @property
    def literals(self) -> tuple[float, ...]:
        """The literals of the terms that are no fractions."""
        found = (n.attrs[0] for result in self.results for n in subterms(result.term) if n.op == "const")
        return tuple(dict.fromkeys(v for v in found if isinstance(v, float) and v % 1 and isfinite(v)))


FAULTS = (KernelFault, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, ArithmeticError)


def run(checked: KernelCheck, most_rounds: int = MOST_ROUNDS, orders: Orders | None = None) -> dict[str, Buffer]:
    """The memory after the launches. orders: of groups of warps, that are tried besides. Raises KernelFault, or another
    of FAULTS for a text that means nothing."""
    given, levels = checked.tensors.items(), checked.levels
    buffers = {name: Buffer.of(name, value, checked.strides[name], levels) for name, value in given}
    buffers |= {memory.name: Buffer.made(memory, levels) for memory in checked.made}
    for call in checked.calls:
        arguments: dict[str, object] = {
            name: Pointer(buffers[tensor], np.zeros(1, np.int64)) for name, tensor in call.pointers.items()
        }
        width = lambda n: np.int32 if abs(n) < 2**31 else np.int64
        arguments |= {name: np.array([n], width(n)) for name, n in call.integers.items()}
        arguments |= {name: CopyWindow(buffers[tensor], *rest) for name, (tensor, *rest) in call.maps.items()}
        _run(call, arguments | dict(call.constants), checked, most_rounds, orders)
    return buffers


def _run(call: Call, arguments: Mapping[str, object], checked: KernelCheck, most_rounds: int, orders) -> None:
    """Runs one launch."""
    some = np.arange(call.programs) if checked.programs is None else np.array(checked.programs)
    if call.is_gluon:
        kernel = GluonInterpreter(call.text, call.programs, most_rounds, checked.literals, call.libraries)
        run_gluon(kernel, [int(n) for n in some], call.function, arguments, orders)
    else:
        interpreter = Interpreter(call.text, some, most_rounds, checked.literals, call.libraries)
        interpreter.call(call.function, arguments)


class Reference:
    """What terms say for the inputs of a check, kept for several texts."""

    def __init__(self, checked: KernelCheck):
        self.checked = checked
        self.made = {memory.name: memory for memory in checked.made}
        self.known: dict[tuple, Value] = {}

    def of(self, result: StoredTerm, places: tuple[np.ndarray, ...] | None) -> Value:
        """A result's tensor; places: only these along its axes."""
        key = (result.name, None if places is None else tuple(p.tobytes() for p in places))
        if key not in self.known:
            self.known[key] = self._added(result) if result.places else self._stored(result, places)
        return self.known[key]

    def _values(self, result: StoredTerm, places) -> TermValues:
        order = dict.fromkeys([*result.order, *(d for t in (result.term, *result.places) for d in all_dims(t))])
        chosen = None if places is None else dict(zip(result.order, places, strict=True))
        return TermValues(self.checked.tensors, self.checked.sizes, list(order), chosen, self.checked.levels)

    def _stored(self, result: StoredTerm, places) -> Value:
        terms = self._values(result, places)
        found = terms.of(result.term)
        found = exact.numbers(found) if self.made[result.name].is_real else found
        shape = tuple(len(terms.coordinates(d)) for d in result.order)
        inner = len(terms.order) - len(shape)

        def settled(part):
            part = np.asarray(part)
            part = part.reshape((1,) * (len(terms.order) - part.ndim) + part.shape)
            return np.broadcast_to(part.reshape(part.shape[: part.ndim - inner]), shape)

        return found.arranged(settled) if isinstance(found, Numbers) else settled(found)

    def _added(self, result: StoredTerm) -> Value:
        """Elements with equal places added up."""
        terms, memory = self._values(result, None), self.made[result.name]
        values = exact.numbers(terms.of(result.term))
        lengths = [1 if d not in result.term.dims else len(terms.coordinates(d)) for d in terms.order]
        places = [np.asarray(terms.of(place)) for place in result.places]
        shape = np.broadcast_shapes(tuple(lengths), *(p.shape for p in places))
        at = tuple(np.broadcast_to(p, shape) for p in places)
        spread = values.arranged(lambda part: np.broadcast_to(part, shape))
        parts, shadow = np.zeros((len(spread.parts), *memory.shape), np.int64), np.zeros(memory.shape)
        for level in range(len(parts)):
            np.add.at(parts[level], at, spread.parts[level])
        np.add.at(shadow, at, spread.shadow)
        return exact.made(parts, shadow)

    def shape(self, result: StoredTerm) -> tuple[int, ...]:
        """The shape of a result's tensor, by the dims of its axes."""
        if result.places:
            return self.made[result.name].shape
        return tuple(resolve(d.size, self.checked.sizes) for d in result.order)


def differences(
    checked: KernelCheck,
    reference: Reference | None = None,
    most_rounds: int = MOST_ROUNDS,
    orders: Orders | None = None,
) -> list[str]:
    """What the text does otherwise than the terms say, as sentences; none if they are equal.

    orders: of groups of warps; by default up to MOST_STATES states of a kernel's programs.
    """
    reference = reference or Reference(checked)
    try:
        buffers = run(checked, most_rounds, orders or Orders(MOST_STATES))
    except FAULTS as fault:
        return [str(fault) or type(fault).__name__]
    return [s for result in checked.results for s in _compared(result, buffers[result.name], reference)]


def _compared(result: StoredTerm, buffer: Buffer, reference: Reference) -> list[str]:
    memory, shape = reference.made[result.name], reference.shape(result)
    strides = memory.strides if len(shape) == len(memory.shape) else contiguous(shape)
    found, written = buffer.values(shape, strides)
    if reference.checked.programs is None:
        if not memory.zero and not written.all():
            return [f"{(~written).sum()} of {written.size} elements of {result.name} are not written"]
        return _differing(result, found, reference.of(result, None), np.ones(shape, bool), None)
    if not written.any():
        return [f"nothing is written to {result.name}"]
    said: list[str] = []
    for places in _blocks(written):
        at = np.ix_(*places)
        picked = operator.itemgetter(at)
        mine = found.arranged(picked) if isinstance(found, Numbers) else picked(found)
        said += _differing(result, mine, reference.of(result, places), written[at], places)
    return said


def _blocks(written: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The places along each axis of what is written: of each index of all axes but the last two, for which programs
    write few of the others."""
    lead = written.ndim - min(2, written.ndim)
    inner = tuple(range(lead, written.ndim))
    for first in np.argwhere(written.any(inner)) if lead else [np.zeros(0, np.int64)]:
        rest = np.nonzero(written[tuple(first)])
        yield (*(np.array([n]) for n in first), *map(np.unique, rest))


def _differing(result: StoredTerm, found: Value, wanted: Value, written: np.ndarray, places) -> list[str]:
    wrong = ~_same(found, wanted) & written
    if not wrong.any():
        return []
    shown = ", ".join(_at(result, place, places, found, wanted) for place in np.argwhere(wrong)[:SHOWN])
    return [f"{wrong.sum()} of {wrong.size} elements of {result.name} differ from its term, as {shown}"]


def _same(found: Value, wanted: Value) -> np.ndarray:
    if not isinstance(found, Numbers):
        return np.asarray(found == wanted)
    finite = np.isfinite(found.shadow) & np.isfinite(wanted.shadow)
    kinds = (found.shadow == wanted.shadow) | (np.isnan(found.shadow) & np.isnan(wanted.shadow))
    return np.where(finite, found.parts[-1] == wanted.parts[-1], kinds)


def _at(result: StoredTerm, place: Sequence[int], places, found: Value, wanted: Value) -> str:
    index = place if places is None else [axis[n] for axis, n in zip(places, place)]
    a, b = (np.asarray(v.shadow if isinstance(v, Numbers) else v)[tuple(place)] for v in (found, wanted))
    return f"[{', '.join(map(str, index))}]: {a} for {b}"


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    found = [1]
    for length in reversed(shape[1:]):
        found.insert(0, found[0] * max(length, 1))
    return tuple(found[: len(shape)])
