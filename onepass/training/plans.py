"""The plans of a region in training, by its text and the inputs that need gradients: one forward, several backwards.

The forward is the region's own plan with saved values as further results. A backward is made for each set of needed
gradients and given cotangents, and reads no more than the forward saved. Invariant: what is not derived, or has no
kernel where kernels run, is a sentence that says why; nothing is replaced by half.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..compiler import compiled_region
from ..compiler.compiled_region import Fused
from ..egraph.calculus.certified import Certified
from ..egraph.derivation.certificate import Derivation
from ..egraph.forks import lock
from ..egraph.rewrite.serialization import digest
from ..egraph.search.engine import EngineError
from ..errors import Refusal
from ..garbage import rare_collections
from ..graph.program import Meta, Program
from ..lowering.masks.masked_weights import with_masked_weights_as_zeros
from ..lowering.plan.records import NotPlannable, Plan, Store
from ..lowering.stage_times import stage
from ..process_state import keep_latest, registered
from ..translate.translate import Captured, translate
from .derive_backward import BackwardStores, backward_stores, certified_gradients
from .not_derived import NotDerived, why_not
from .programs import BackwardProgram, ForwardProgram
from .searched_forms import optimized_together, plan_of_gradients
from .torch_derivatives import readings, with_picked_extrema

MAX_TRAININGS_KEPT = 512  # in this process, the latest
SAVED_NAMES = ("log", "mean", "row", "shift", "value_output")  # what saved values are named, with numbers behind
Flags = tuple[bool, ...]
Stores = TypeVar("Stores")  # of derivatives
_LOCK = lock()
_KNOWN: OrderedDict[tuple[str, Flags], Training | str] = registered(OrderedDict(), "regions", _LOCK)


@dataclass(frozen=True)
class Backward:
    """One backward of a region: its plan as a region of its own, whose inputs are those of BackwardProgram.

    kept: positions among the forward's outputs of what it reads. gradients: numbers of the inputs whose gradients are
    its results, in order. given: whether each result has a cotangent. chains: by the name of a gradient, from how it
    was derived to what the plan computes, where a search has found another form.
    """

    region: Fused
    kept: tuple[int, ...]
    gradients: tuple[int, ...]
    given: Flags
    chains: Mapping[str, Derivation] = field(compare=False)


@dataclass
class Training:
    """A region in training.

    reading: the program with torch's derivatives, and `captured` its terms. written: the results as the forward
    computes them. without: operations that are not differentiated. fell_back: the forward did not run by its plan, so
    no backward may read saved values. by_autograd: classes of sizes of which a backward was measured to be faster by
    autograd, which reads nothing saved.
    originals: those of them of which the forward runs the original calls, too, and no backward may read saved values.
    seconds_of_backward: by class of sizes, of its first backward that was timed.
    """

    forward: Fused
    found: Fused
    reading: Program
    captured: Captured
    written: Sequence[Store]
    needed: Flags
    without: frozenset[str]
    stores: BackwardStores
    fell_back: bool = False
    by_autograd: set[str] = field(default_factory=set)
    originals: set[str] = field(default_factory=set)
    seconds_of_backward: dict[str, float] = field(default_factory=dict)
    backwards: dict[tuple[Flags, Flags], Backward | None] = field(default_factory=dict)

    @property
    def results(self) -> int:
        """How many results the region has; saved values come behind them."""
        return len(self.captured.results)

    @property
    def every(self) -> Backward:
        """The backward for all gradients and all cotangents: it reads all that is saved."""
        return next(made for made in self.backwards.values() if made is not None)

    def certified(self) -> Certified:
        """All gradients that are needed, with a certificate that can be written down."""
        (needed, given), _ = next(item for item in self.backwards.items() if item[1] is not None)
        return certified_gradients(self.reading, self.captured, needed, given, self.without)

    def stored(self) -> dict[str, Derivation]:
        """The chain from what each saved value is to what the forward's plan computes. Raises NotPlannable."""
        results = (*self.written, *self.stores.saved)
        optimized = optimized_together(self.forward.key, self.found, self.found.names, results)
        names = [store.output.name for store in self.stores.saved]
        return dict(zip(names, optimized.derivations[self.results :], strict=True))

    def backward(self, needed: Flags, given: Flags) -> Backward | None:
        """The backward for these gradients and cotangents; None if it needs other values than those that are saved."""
        with _LOCK:
            key = needed, given
            if key not in self.backwards:
                self.backwards[key] = self._made(needed, given)
            return self.backwards[key]

    def _made(self, needed: Flags, given: Flags) -> Backward | None:
        try:
            stores = backward_stores(self.reading, self.captured, needed, given, self.without)
            return _backward(self, stores, needed, given)
        except (NotDerived, NotPlannable):
            return None

    def output_named(self, store: Store) -> int | None:
        """The position among the forward's outputs of a saved value."""
        same = (k for k, s in enumerate(self.stores.saved) if (s.term, s.order) == (store.term, store.order))
        number = next(same, None)
        return None if number is None else self.results + number


def training(text: str, needed: Sequence[bool]) -> Training | str:
    """The plans of the region with this text, where these inputs need gradients; or why there are none."""
    key = text, tuple(needed)
    with _LOCK:
        if key in _KNOWN:
            return _KNOWN[key]
        return keep_latest(_KNOWN, key, _derived(*key), MAX_TRAININGS_KEPT)


@rare_collections()
@stage("gradients")
def _derived(text: str, needed: Flags) -> Training | str:
    try:
        found = compiled_region.read(text)
        paths = found.program.differentiable
        wanted = {k for k, n in enumerate(needed) if n}
        return _made(found, needed, tuple(bool(path & wanted) for path in paths))
    except (NotDerived, NotPlannable, Refusal, EngineError) as error:
        return why_not(error, compiled_region.carried(text).program)


def _made(found: Fused, needed: Flags, given: Flags) -> Training:
    """The plans of a region, with the backward for all cotangents. Raises NotDerived, NotPlannable, Refusal."""
    found = with_free_names(found)
    stores_of = lambda reading, captured, without: backward_stores(reading, captured, needed, given, without)
    known = [*readings(found.program)]
    known.append((with_picked_extrema(known[-1][0]), frozenset()))
    reading, captured, without, stores = of_first_reading(known, stores_of)
    results = captured.results if reading == found.program else translate(found.program).results
    forward = _forward(found, results, stores, needed)
    made = Training(forward, found, reading, captured, results, needed, without, stores)
    made.backwards[needed, given] = _backward(made, stores, needed, given)
    return made


def of_first_reading(
    known: Iterable[tuple[Program, frozenset[str]]],
    stores_of: Callable[[Program, Captured, frozenset[str]], Stores],
) -> tuple[Program, Captured, frozenset[str], Stores]:
    """The first reading of a program whose derivatives are found: itself, its terms, and the stores of derivatives.

    known: the readings, as `readings` has them. The third is which operations it may not differentiate. Raises
    NotDerived, of the last reading.
    """
    refused: list[NotDerived] = []
    for reading, without in dict(known).items():
        captured = translate(reading)
        try:
            return reading, captured, without, stores_of(reading, captured, without)
        except NotDerived as error:
            refused.append(error)
    raise refused[-1]


def with_free_names(found: Fused) -> Fused:
    """The region by names of inputs that no saved value has, without source lines."""
    names = None if any(_is_saved_name(name) for name in found.names) else found.names
    program = compiled_region.canonical(found.program, names)
    return replace(found, program=program, names=tuple(entry.name for entry in program.inputs))


def _is_saved_name(name: str) -> bool:
    return any(name.rstrip("0123456789_") == saved for saved in SAVED_NAMES)


def _forward(found: Fused, given: Sequence[Store], stores: BackwardStores, needed: Flags) -> Fused:
    """The region with its saved values as results behind its own; from the disk where it was searched before.

    given: its own results as they are written: what torch's derivatives make a choice of 0 would count as masked.
    """
    key = digest([found.key, "training", list(needed)])[:40]
    saved = tuple(Meta(s.output.dtype, s.output.shape, found.program.output_meta.device) for s in stores.saved)
    program = ForwardProgram.of(found.program, saved)
    plan = optimized_together(key, found, found.names, (*given, *stores.saved)).plan
    _require_kernels(plan, found)
    strides = (*(found.strides or (None,) * len(given)), *(None for _ in saved))
    return replace(found, key=key, program=program, strides=strides, plan=plan, form=None)


def _backward(made: Training, stores: BackwardStores, needed: Flags, given: Flags) -> Backward | None:
    """The plan of some gradients; None if it reads what the forward does not save. Raises NotPlannable, NotDerived."""
    found = made.found
    positions = [made.output_named(store) for store in stores.saved]
    if None in positions or not {*stores.read} <= {*made.stores.read}:
        return None
    gradients = tuple(k for k, n in enumerate(needed) if n and k in stores.gradients)
    wanted = [_without_masked(stores.gradients[k], stores) for k in gradients]
    read = {made.captured.results[k].output: k for k in stores.read}  # each once: tensors are given by their names
    read |= {store.output: k for store, k in zip(stores.saved, positions, strict=True) if k is not None}
    tensors = (*read, *(cotangent for cotangent in stores.cotangents if cotangent is not None))
    only = tuple(k in gradients for k in range(len(needed)))
    kept = tuple(read.values())
    program = BackwardProgram.of(found.program, len(kept), only, given)
    names = (*found.names, *(tensor.name for tensor in tensors))
    key = digest([made.forward.key, "backward", list(only), list(given)])[:40]
    plan, chains = plan_of_gradients(key, found, names, wanted)
    _require_kernels(plan, found)
    region = replace(found, key=key, program=program, names=names, plan=plan, strides=(), form=None)
    return Backward(region, kept, gradients, given, chains)


def _without_masked(gradient: Store, stores: BackwardStores) -> Store:
    """The gradient with masks by a large negative number as limits of its loops, where each row keeps something."""
    saved = {store.output for store in stores.saved}
    return replace(gradient, term=with_masked_weights_as_zeros(gradient.term, saved))


def _require_kernels(plan: Plan, found: Fused) -> None:
    """Raises NotPlannable as for a region without gradients."""
    compiled_region.require_kernels(plan, found.program, found.options, {})
