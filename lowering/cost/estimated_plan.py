"""The estimates of a whole plan, and when they call another plan faster.

Estimates of single plans are off by some tenths, those of plans as short as launches by more. So another plan has to be
faster by more than that, with each of the nominal sizes where sizes are symbols. Example: of two plans of the gradients
of linear attention, the one whose products are done in another order pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isfinite

from ...egraph.forks import cached_property
from ...egraph.terms.sizes import UnknownSize, resolve, symbols
from ...egraph.terms.term import TermError
from ...egraph.terms.traversal import all_dims
from ..joined.launch import fills_device
from ..plan.device import H200
from ..plan.records import Kernel, NotPlannable, Plan, Store
from ..triton.kernel import emit
from .joined_cost import JoinedKernels, joined_estimate, joined_kernels
from .kernel_cost import TIMING
from .plan_cost import KernelEstimate, kernel_estimates, total_seconds

LEAST_GAIN = 1.15  # of an estimate over another one; the estimates' median error is 9 %
OF_WHAT_HAS_NO_TEXT = 2.0  # another plan may take so many times the estimate of a plan that cannot be written
LAUNCHES_OF_SHORT_PLANS = 2.5  # their estimates are off by up to a factor of two
NOMINAL_SIZES = (128, 1024, 8192)  # of every symbol; a plan has to be faster with each

Launches = tuple[tuple[KernelEstimate, ...], ...]  # of each kernel


@dataclass(frozen=True)
class PlanEstimates:
    """A plan with its estimates. kernels: with each of the sizes, of each kernel, what its launches take; joined: the
    same of the plan with two kernels joined, if it has such a form, which is what runs then. needs_tiles: whether laws
    of sums alone cannot do without the tiles that these two have in common.
    """

    plan: Plan
    kernels: tuple[Launches, ...]
    joined: tuple[Launches, ...] = ()
    needs_tiles: bool = False

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """With each of the sizes, the time of all launches."""
        found = self.joined or self.kernels
        return tuple(total_seconds([*chain.from_iterable(launches)]) for launches in found)

    @cached_property
    def needed(self) -> tuple[float, ...]:
        """With each of the sizes, the bytes that each plan of these results moves at least."""
        return tuple(_moved_at_least(self.plan, chain.from_iterable(launches)) for launches in self.kernels)

    def beaten_by(self, *times: float) -> bool:
        """Whether these times, with the last of the sizes, are shorter than this plan's by more than their error.

        If this plan cannot be written, it is beaten by more than its own time, and not by any: torch may run the
        program as it is written faster. Texts take long, so they are looked at only where they decide.
        """
        pairs = list(zip(times, self.seconds[-len(times) :], strict=True))
        if all(time * LEAST_GAIN < seconds for time, seconds in pairs):
            return True
        return all(time * LEAST_GAIN < OF_WHAT_HAS_NO_TEXT * seconds for time, seconds in pairs) and not self.has_texts

    @cached_property
    def has_texts(self) -> bool:
        """Whether each kernel can be written. Example: a product of float32 with a batch inside of a tile cannot."""
        return all(map(_has_text, self.plan.kernels))

    def share_of(self, other: PlanEstimates) -> float:
        """Its time in times of the other's; with several sizes the worst of them."""
        return max(mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True))

    def pays(self, other: PlanEstimates) -> bool:
        """Whether it takes less time than the other has to beat by more than the error of estimates."""
        return other.beaten_by(*self.seconds)

    def least(self, launches: int) -> list[float]:
        """Seconds of so many launches that move each byte of inputs and results once, with each of the sizes.

        Each counts as one by itself: of plans as short as that, estimates say too little.
        """
        return [launches * TIMING.launch + needed / H200.memory_bytes for needed in self.needed]

    @cached_property
    def could_change(self) -> bool:
        """Whether another plan of about as many launches could be faster, and estimates could tell."""
        short = LAUNCHES_OF_SHORT_PLANS * TIMING.launch
        return self.beaten_by(*(max(least, short) for least in self.least(1)))

    @property
    def is_settled(self) -> bool:
        """Whether two kernels are joined that need their tiles: each product is done once then, at a known rate."""
        return self.needs_tiles and all(map(isfinite, self.seconds))


class Estimator:
    """The estimates of plans with some sizes."""

    def __init__(self, sizes: Sequence[Mapping[str, int]]):
        self._sizes = sizes

    def __call__(self, plan: Plan) -> PlanEstimates:
        """Raises NotPlannable, UnknownSize, TermError."""
        joined = joined_kernels(plan)
        own = self._of(plan.kernels)
        if joined is None:
            return PlanEstimates(plan, own)
        together = self._of(joined.plan.kernels, joined)
        runs = [fills_device(joined.binding, joined.config, dict(sizes)) for sizes in self._sizes]
        taken = tuple(one if runs[n] else own[n] for n, one in enumerate(together))
        return PlanEstimates(plan, own, taken, joined.needs_tiles)

    def _of(self, kernels: Sequence[Kernel], joined: JoinedKernels | None = None) -> tuple[Launches, ...]:
        main = None if joined is None else joined.main

        def of(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[KernelEstimate, ...]:
            if joined is None or kernel != main:
                return kernel_estimates(kernel, sizes)
            return (KernelEstimate(kernel, joined.tiles, joined_estimate(joined, sizes), dict(sizes)),)

        return tuple(tuple(of(kernel, sizes) for kernel in kernels) for sizes in self._sizes)


@lru_cache(1024)
def _has_text(kernel: Kernel) -> bool:
    """Whether a kernel can be written. Memoised, because the plans that are tried have most kernels in common."""
    try:
        return bool(emit(kernel, Plan((kernel,), kernel.inputs, ())))
    except NotPlannable:
        return False


def another_form_could_pay(plan: Plan, stores: Sequence[Store]) -> bool:
    """Whether terms of another form could give these stores a faster plan."""
    try:
        found = Estimator(nominal_sizes(stores))(plan)
        return found.could_change and not found.is_settled
    except (UnknownSize, TermError, NotPlannable):
        return False


def takes_less_time(one: Plan, other: Plan, stores: Sequence[Store]) -> bool:
    """Whether the estimates call the first plan of these stores faster than the second one by more than their error."""
    estimator = Estimator(nominal_sizes(stores))
    try:
        return estimator(one).pays(estimator(other))
    except (UnknownSize, TermError, NotPlannable):
        return False


def nominal_sizes(stores: Sequence[Store]) -> list[dict[str, int]]:
    """The sizes with which plans of these stores are estimated: values of all symbols.

    A size of which they would leave nothing, such as the difference of two symbols, has the value of a symbol.
    """
    sizes = {d.size for store in stores for d in (*store.order, *all_dims(store.term))}
    names = sorted(set().union(*map(symbols, sizes)))
    found = [dict.fromkeys(names, n) for n in NOMINAL_SIZES] if names else [{}]
    texts = sorted(size for size in sizes if isinstance(size, str))
    return [known | {size: max(known.values()) for size in texts if not _has_elements(size, known)} for known in found]


def _has_elements(size: str, known: Mapping[str, int]) -> bool:
    try:
        return resolve(size, known) > 0
    except UnknownSize:
        return False


def _moved_at_least(plan: Plan, launches: Iterable[KernelEstimate]) -> float:
    """The bytes of a plan's inputs and results, each that is needed once."""
    ends = {t.name for t in (*plan.inputs, *plan.outputs)}
    needed: dict[str, float] = {}
    for moved in (moved for one in launches for moved in one.estimate.traffic if moved.tensor in ends):
        needed[moved.tensor] = max(needed.get(moved.tensor, 0.0), moved.distinct)
    return sum(needed.values())
