"""The schedule of a launch over time: what one program does in the first and the last steps of its loop.

The order of work is that of the kernel's text, and a step takes as long as the estimate says: what warps do is
simulated at the fitted rates, and then stretched by one factor to that step. Invariant: `spent` adds up to the
estimated time.
Example: of 32 steps of causal attention the first 3 and the last 2 are drawn, of 1.4 µs each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...egraph.terms.sizes import UnknownSize
from ...egraph.terms.term import TermError
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import bind
from ..plan.device import H200, HopperGpu
from ..plan.kernel_config import TritonConfig
from ..plan.records import Kernel, Loop, NotPlannable, Plan
from ..schedule import kernel_time, pipeline_time
from ..schedule.kernel_time import Config, Sizes
from ..schedule.pipeline_time import Demand, corner
from ..schedule.problem import Problem
from .actors import VECTOR, Prices, plain, specialised
from .kernel_cost import demand_of
from .plan_cost import KernelEstimate, plan_estimate
from .simulation import Span, simulated

BEFORE, AFTER = 3, 2  # steps that are drawn of a long item: from its beginning, and up to its end
SETTLED, MEASURED_STEPS = 8, 8  # steps until a simulation is regular, and those whose average is its step


@dataclass(frozen=True)
class Box:
    """A piece of work on a lane. start, end: in seconds from the beginning. step: its tile of the item, from 0."""

    lane: str
    kind: str
    label: str
    step: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """One work item of one program. title: the kernel and its loop. device, settings: for which it is drawn.

    step: seconds of a regular step. steps: of the longest item. left_out: those between the first and the last ones, at
    `cut` seconds of the drawing. items: of the launch. programs: that a multiprocessor has at a time. stretch: by which
    simulated times are longer here. spent: what the launch's seconds are for, all of them; empty for
    further loops of the launch. notes: sentences.
    """

    title: str
    device: str
    settings: str = ""
    form: str = ""
    lanes: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    step: float = 0.0
    steps: int = 0
    items: int = 0
    programs: int = 0
    multiprocessors: int = 0
    left_out: int = 0
    cut: float = 0.0
    stretch: float = 1.0
    spent: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def seconds(self) -> float:
        """Of the launch."""
        return sum(seconds for _, seconds in self.spent)

    @property
    def end(self) -> float:
        """Of the drawing."""
        return max((box.end for box in self.boxes), default=0.0)


def timelines(
    plan: Plan, kernel: Kernel, sizes: Sizes | None = None, device: HopperGpu = H200
) -> tuple[Timeline, ...]:
    """A picture of each loop of each launch of a kernel. A launch without a loop, or without an estimate, says why it
    has none.
    """
    try:
        launches = plan_estimate(replace(plan, kernels=(kernel,)), sizes, device)
    except (UnknownSize, TermError):  # the latter is of a limit that reads such a size
        return (Timeline(kernel.name, device.name, why_not="a size is not known"),)
    except NotPlannable as reason:
        return (Timeline(kernel.name, device.name, why_not=str(reason)),)
    return tuple(one for launch in launches for one in _of_launch(launch, dict(sizes or {}), device))


def _of_launch(launch: KernelEstimate, sizes: dict, device: HopperGpu) -> Iterator[Timeline]:
    kernel, config, estimate = launch.kernel, launch.config, launch.estimate
    form = "warp-specialised Gluon" if isinstance(config, HopperConfig) else "plain Triton"
    spent = tuple((name, seconds) for name, seconds in estimate.spent.items() if seconds)
    empty = Timeline(kernel.name, device.name, form=form, spent=spent)
    if estimate.why or not kernel.loops:
        why = estimate.why or "the kernel has no loop: each program loads, computes and stores its tile once"
        yield replace(empty, why_not=why)
        return
    for n, loop in enumerate(kernel.loops):
        found = demand_of(kernel, loop, config, launch.sizes, device)
        settings, notes = _settings(config, kernel, loop), tuple(_notes(loop, config))
        titled = replace(empty, title=f"{kernel.name} over {loop.dim}", settings=settings, notes=notes)
        yield _drawn(titled if n == 0 else replace(titled, spent=()), _LoopInTime(kernel, loop, config, found, device))


def _settings(c: Config, kernel: Kernel, loop: Loop) -> str:
    """The settings that the picture shows, in words."""
    rows = kernel.rows or "row"
    if isinstance(c, TritonConfig):
        across = f" by {c.loop_tile} {loop.dim}" if loop.tile else ""
        many = lambda count, what: f"{count} {what}{'' if count == 1 else 's'}"
        return f"tiles of {c.row_tile} {rows}{across}, {many(c.warps, 'warp')}, {many(c.stages, 'stage')}"
    groups = "a warpgroup" if c.consumers == 1 else f"{c.consumers} warpgroups"
    said = [f"{groups} of {H200.product_rows} {rows} each, tiles of {c.loop_tile} {loop.dim}, {c.stages} in flight"]
    said += ["products in turn"] * c.turns + ["the next tile is waited for last"] * c.late
    said += [f"{c.residents} programs on a multiprocessor"] * (c.residents > 1)
    return ", ".join(said)


def _notes(loop: Loop, c: Config) -> Iterator[str]:
    """What the picture does not show."""
    if loop.map is not None:
        yield "The mask's data decide which tiles run; the picture and its times are of all of them."
    if isinstance(c, HopperConfig) and c.chained:
        yield "The next item's first scores are issued with this one's last products, which is not drawn."
    if isinstance(c, TritonConfig):
        yield "The gap between a tile's copies and its first work is the latency of memory."
        yield "Triton's compiler orders the instructions of a step; those of the picture are in the order of the text."


@dataclass(frozen=True)
class _LoopInTime:
    """A loop with what it asks for, and how its warps are simulated."""

    kernel: Kernel
    loop: Loop
    config: Config
    demand: Demand
    device: HopperGpu

    @property
    def problem(self) -> Problem:
        return kernel_time.problem_of(self.kernel, self.loop, self.config, self.device, refined=True)

    @property
    def step(self) -> float:
        """Clocks of a step of every warpgroup of a multiprocessor, by the estimate."""
        if isinstance(self.config, HopperConfig):
            return pipeline_time.clocks(kernel_time.HOPPER_TIMING, self.demand, self.config)[0]
        return kernel_time.step_clocks(self.at_once, self.config)

    @property
    def at_once(self) -> Demand:
        return kernel_time.together(self.demand, self.device)

    @property
    def programs(self) -> int:
        """That a multiprocessor has at a time."""
        return self.config.residents if isinstance(self.config, HopperConfig) else self.at_once.resident

    def spans(self, tiles: int, stretch: float = 1.0) -> list[Span]:
        """An item of so many tiles of every program, in clocks of the fitted rates. stretch: by which clocks will be
        longer, but those that an item adds.
        """
        config, problem = self.config, self.problem
        if isinstance(config, HopperConfig):
            binding = bind(self.kernel)
            assert not isinstance(binding, str)
            prices = self._specialised(config, problem)
            prices = replace(prices, store=prices.store / stretch)
            actors, counters = specialised(binding, problem, config, prices, tiles)
        else:
            prices = self._plain(config, problem)
            prices = replace(prices, store=prices.store / stretch)
            actors, counters = plain(problem, config, prices, self.programs, tiles)
        return simulated(actors, (VECTOR,), counters)

    def _specialised(self, c: HopperConfig, problem: Problem) -> Prices:
        timing, d = kernel_time.HOPPER_TIMING, self.demand
        alone = corner(timing.issue, d.special, d.fma * timing.alone) + timing.spill * d.lacking
        weigh = lambda special, fma: corner(timing.issue, special, fma * timing.alone)
        end = (timing.bytes + timing.unsent * (not c.send)) * d.rows
        rows = problem.resident / self.device.copy_bytes
        clocks = self._clocks(problem, timing.tensor, alone, weigh)
        return Prices(clocks, timing.step + timing.late * c.late, end / c.consumers, rows)

    def _plain(self, c: TritonConfig, problem: Problem) -> Prices:
        timing, d = kernel_time.TRITON_TIMING, self.at_once
        pointwise = d.special + d.fma * timing.fma + timing.spill * d.lacking + timing.exchange * d.weights / 1024
        weigh = lambda special, fma: special + fma * timing.fma
        waited = timing.latency / (c.stages - 1) if c.stages > 1 else timing.latency * timing.single
        end = (timing.fixed + timing.bytes * d.rows) / c.warpgroups
        return Prices(self._clocks(problem, timing.tensor, pointwise, weigh), waited, end)

    def _clocks(self, problem: Problem, tensor: float, pointwise: float, weigh) -> Mapping[str, float]:
        """Clocks by operation. pointwise: of all that is no product, shared out by what `weigh` says of each."""
        work, d = problem.work(), self.demand
        padding = d.tensor / work["tensor"] if work.get("tensor") else 1.0
        found, weights = dict[str, float](), dict[str, float]()
        for o in problem.operations:
            if o.streaming:
                found[o.name] = o.work.get("copy", 0)
            elif "tensor" in o.work:
                found[o.name] = o.work["tensor"] * padding * tensor
            else:
                weights[o.name] = weigh(o.work.get("special", 0), o.work.get("fma", 0))
        total = sum(weights.values()) or 1.0
        return found | {name: pointwise * weight / total for name, weight in weights.items()}


def _drawn(empty: Timeline, loop: _LoopInTime) -> Timeline:
    """The picture of a loop."""
    longest = loop.demand.longest
    if not longest:
        return replace(empty, why_not="the loop has no step at these sizes")
    drawn = min(longest, BEFORE + AFTER)
    regular = _regular(loop)
    if not regular:
        return replace(empty, why_not="its steps only move data")
    stretch = loop.step / regular
    seconds = stretch / loop.device.clock
    spans = [span for span in loop.spans(drawn, stretch) if span.work.lane.startswith("0 ")]
    boxes = tuple(_box(span, seconds) for span in spans)
    left_out = longest - drawn
    cut = min((b.start for b in boxes if b.step == BEFORE and b.kind not in ("copy", "store")), default=0.0)
    return replace(
        empty,
        lanes=tuple(_lanes(boxes)),
        boxes=boxes,
        step=loop.step / loop.device.clock,
        steps=longest,
        items=loop.demand.blocks,
        programs=loop.programs,
        multiprocessors=loop.device.multiprocessors,
        left_out=left_out,
        cut=cut if left_out else 0.0,
        stretch=stretch,
    )


def _regular(loop: _LoopInTime) -> float:
    """Clocks of a step in a long item, by the simulation; 0 where nothing is computed."""
    spans = loop.spans(SETTLED + MEASURED_STEPS + 2)
    begun: dict[int, float] = {}
    for span in spans:
        if span.work.lane.startswith("0 warpgroup 1: ") and span.work.step not in begun:
            begun[span.work.step] = span.start
    return (begun[SETTLED + MEASURED_STEPS] - begun[SETTLED]) / MEASURED_STEPS if begun else 0.0


def _box(span: Span, seconds: float) -> Box:
    lane = span.work.lane.partition(" ")[2]
    return Box(lane, span.work.kind, span.work.label, span.work.step, span.start * seconds, span.end * seconds)


def _lanes(boxes: tuple[Box, ...]) -> list[str]:
    """The lanes from top to bottom: copies, each warpgroup's products and pointwise work, stores."""
    places = {"copies": 0, "warpgroup": 1, "stores": 2, "start": 2}
    names = dict.fromkeys(box.lane for box in boxes)
    order = lambda lane: (places[lane.split()[0]], lane.partition(":")[0], not lane.endswith("products"), lane)
    return sorted(names, key=order)
