"""Runs a plan with two of its kernels joined, where these have that form and the tensors suit it.

The other kernels of the plan run as any Hopper kernel does. Where the form is refused, the plan runs as it is. Example:
on a Hopper GPU the gradients of attention in bfloat16 are one kernel, with a short one before it and one behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch

from ...egraph.forks import lock
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Tensor
from ...egraph.terms.traversal import subterms
from ..codegen.signature import Source
from ..gluon.kernel_parts import LaunchShape, TensorMap, arguments_of
from ..gluon.launch import (
    GluonLaunch,
    GluonLauncher,
    RefusedLaunch,
    described,
    require_suited,
    wide_tensors,
    window_of,
)
from ..gluon.launch import refusal as refusal_of_kernels
from ..hopper import work_order
from ..launch.affine_views import in_views
from ..launch.axis_order import NO_ORDERS, Axes
from ..launch.split_loops import SplitKernel
from ..launch.triton_compat import Window, architecture, compiler_options, gluon_missing
from ..masks.block_map import NOTHING, Tiling, pays, placed, shared_visits
from ..plan.device import COSTS, H200
from ..plan.kernel_config import TritonConfig
from ..plan.launch_facts import Facts
from ..plan.queries import map_name
from ..plan.records import Kernel, Plan
from ..readback.check_plan import differs
from ..schedule.schedule_store import ScheduleStore
from ..triton.launch import META, Launcher, load
from .config import JoinedClass, JoinedConfig, default_config
from .finish import emit_finish
from .form import JoinedBinding, bind_joined, no_split_by_products
from .join import Joined, join
from .kernel import emit_joined
from .memory import block_size, columns_of_sums, extent_of, part_of, shared_bytes

T = TypeVar("T")
SHARED_BYTES = H200.shared_bytes - H200.barrier_bytes  # of a program's tiles
COPY_BYTES = 16  # a copy by a tensor map begins at a multiple of these
SHARE_OF_PLACES, SHORT_LOOP = 0.5, 4096  # see `fills_device`
TOO_FEW = "its programs fill less than half of the device, and their loops are long"
NO_ORDER = "a deterministic result is asked for, and which programs add to a sum depends on "
# What the joined kernel stores in each form, the best first: for rows and columns, and along diagonals, too.
FORMS = ((True, True), (True, False), (False, False))
FINISH_CONFIG = TritonConfig(H200.product_rows, H200.product_rows, 4, 1)  # its row tile is the block of the sums


class JoinedLauncher(GluonLauncher):
    """A launcher that prefers the plan with two kernels joined. `joined_config` replaces the default settings.

    deterministic: programs of a joined kernel add in order, or kernels stay apart where it is not known who adds.
    """

    def __init__(
        self,
        plan: Plan,
        store: ScheduleStore | None = None,
        joined_config: JoinedConfig | None = None,
        deterministic: bool = False,
        **options: Any,
    ):
        super().__init__(plan, store=store, **options)
        stored = [form for form in FORMS if not (deterministic and form[1])]
        self.left = [partial(joined_launcher, plan, store, joined_config, deterministic, *one) for one in stored]
        self.forms: list[JoinedPlanLauncher] = []
        self.lock = lock()
        self.joined: JoinedPlanLauncher | str = self._form(0)

    def _form(self, number: int) -> JoinedPlanLauncher | str:
        """The joined plan's form of a number, made when it is first asked for; 0 is the best one. Or why there is none.
        """
        reason = "no other form of the joined plan is left"
        with self.lock:
            while len(self.forms) <= number and self.left:
                found = self.left.pop(0)()
                if isinstance(found, str):
                    reason = found
                else:
                    self.forms.append(found)
            return self.forms[number] if number < len(self.forms) else reason

    def _by_forms(self, run: Callable[[JoinedPlanLauncher], T]) -> T | None:
        """What the best form gives that takes a call; None if none does. Each kind of call has its own best form."""
        number = 0
        while not isinstance(form := self._form(number), str):
            try:
                result = run(form)
            except RefusedLaunch as reason:
                refusal, number = str(reason), number + 1
                continue
            self.joined = form
            return result
        self.joined = refusal if number else self.joined  # why there is no form at all was said before
        return None

    @property
    def active(self) -> GluonLauncher:
        """What runs: the joined plan, or the plan as it is."""
        return self.joined if isinstance(self.joined, JoinedPlanLauncher) else self

    @property
    def deterministic(self) -> bool:
        in_order = isinstance(self.joined, JoinedPlanLauncher) and self.joined.joined_config.in_order
        return in_order or self.active.plan.deterministic

    @property
    def said(self) -> tuple[str, ...]:
        """A sentence for the report where two kernels run as one."""
        if not isinstance(self.joined, JoinedPlanLauncher):
            return ()
        found, config = self.joined.joined, self.joined.joined_config
        sums = ", ".join(tensor.name for tensor in found.sums)
        kernels = f"{found.main.name} and {found.finish.name}"
        order = "one order" if config.in_order else "no fixed order"
        return (f"{kernels} are one kernel, which adds to {sums} in {order}: {config}",)

    def by_best_form(self, run: Callable[[Launcher], T]) -> T:
        found = self._by_forms(run)
        return super().by_best_form(run) if found is None else found

    def results(self, tensors: dict, sizes: dict | None = None, outputs: Mapping | None = None) -> tuple:
        found = self._by_forms(lambda form: form.results(tensors, sizes, outputs))
        return super().results(tensors, sizes, outputs) if found is None else found

    def bind(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        sizes: dict,
        strides: dict | None = None,
        orders: Mapping[str, Axes] = NO_ORDERS,
    ) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
        found = self._by_forms(lambda form: form.bind(names, tensors, sizes, strides, orders))
        return super().bind(names, tensors, sizes, strides, orders) if found is None else found

    def compile_ahead(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        sizes: dict,
        strides: dict | None,
        device: torch.device,
    ) -> None:
        given = names, tensors, sizes, strides, device

        def act(form: JoinedPlanLauncher) -> JoinedPlanLauncher:
            form.compile_ahead(*given)
            return form

        if self._by_forms(act) is None:
            super().compile_ahead(*given)


def joined_launcher(
    plan: Plan,
    store: ScheduleStore | None = None,
    config: JoinedConfig | None = None,
    deterministic: bool = False,
    with_pairs: bool = False,
    with_diagonals: bool = False,
) -> JoinedPlanLauncher | str:
    """The launcher of the plan with two kernels joined, or why there is none.

    deterministic: programs add in order. with_pairs: the joined kernel stores what the two stored for rows and columns;
    with_diagonals: also what they added up along diagonals, in no fixed order.
    """
    if missing := gluon_missing():
        return missing
    form = joined_form(plan, with_pairs, with_diagonals, config)
    if isinstance(form, str):
        return form
    found, binding, settings = form
    if different := differs(found.plan, plan):
        return different
    settings = replace(settings, in_order=True) if deterministic else settings
    return JoinedPlanLauncher(found, binding, settings, store)


def joined_form(
    plan: Plan, with_pairs: bool, with_diagonals: bool, config: JoinedConfig | None = None
) -> tuple[Joined, JoinedBinding, JoinedConfig] | str:
    """A plan with two kernels joined, the parts of the joined kernel and its settings, or why there is none."""
    found = join(plan, with_pairs, with_diagonals)
    if found is None:
        return "no two kernels compute the same tiles, one by rows and one by columns"
    binding = bind_joined(found.main)
    if isinstance(binding, str):
        return binding
    settings = config or config_of(binding)
    if isinstance(settings, str):
        return settings
    reason = no_split_by_products(binding) if settings.by_products else None
    return reason or (found, binding, settings)


def class_of(binding: JoinedBinding) -> JoinedClass:
    """What the default settings of a kernel depend on."""
    kernel, loop = binding.kernel, binding.loop
    factors = {f for weight in binding.weights for f in weight.factors}
    inside = {n for f in factors for n in subterms(f, lambda n: n.op in ("reduce", "load"))}
    work = sum(sum(COSTS[n.op]) for n in inside if {kernel.rows, loop.dim} <= n.dims)
    uneven = bool(loop.limits or loop.outer or loop.map)
    return JoinedClass(columns_of_sums(binding), len(binding.products), work, uneven)


def config_of(binding: JoinedBinding) -> JoinedConfig | str:
    """The default settings of a kernel, or why it has none."""
    kind = class_of(binding)
    found = default_config(kind)
    if found is None:
        return f"its tiles need too many registers: {kind}"
    if found.by_products and (reason := no_split_by_products(binding)):
        return f"its tiles need too many registers: {kind}; {reason}"
    smaller = replace(found, loop_tile=H200.product_rows)
    tried = (found, smaller, replace(smaller, runs=False))
    fits = lambda overlays: (c for c in tried if shared_bytes(binding, overlays, c) <= SHARED_BYTES)
    return next(fits(binding.overlays), None) or next(fits(()), "its tiles do not fit in shared memory")


class JoinedPlanLauncher(GluonLauncher):
    """Runs a joined plan. Raises RefusedLaunch where tensors or sizes do not suit its joined kernel."""

    def __init__(
        self, joined: Joined, binding: JoinedBinding, config: JoinedConfig, store: ScheduleStore | None = None
    ):
        super().__init__(joined.plan, store=store)
        self.joined, self.binding, self.joined_config = joined, binding, config
        self.refusals.pop(joined.main.name, None)
        self.sums = {s.store.output: s for s in binding.row_sums}

    def _new(self, target: Tensor, sizes: dict[str, int], device: torch.device) -> torch.Tensor:
        """Sums lie in blocks of 64 rows, two for each 128, of whole tiles of the inner dim. Counters follow a block."""
        if target not in self.sums:
            return super()._new(target, sizes, device)
        *grid, length, _ = (resolve(s, sizes) for s in target.shape)
        blocks = 2 * -(-length // (2 * H200.product_rows))
        shape = (*grid, blocks, block_size(self.sums[target].matrix.inner, self.joined_config))
        return torch.empty(shape, dtype=torch.float32, device=device)

    def _parts(self, kernel: Kernel, sizes: dict, device: torch.device) -> tuple[SplitKernel | None, int]:
        whole = kernel.name in (self.joined.main.name, self.joined.finish.name)
        return (None, 1) if whole else super()._parts(kernel, sizes, device)

    def whole(self, kernel: Kernel) -> Kernel:
        """What the joined kernel adds up has no results but by the last one."""
        return self.joined.main if kernel.name == self.joined.finish.name else super().whole(kernel)

    def source(self, kernel: Kernel, facts: Facts) -> Source:
        if kernel.name != self.joined.finish.name:
            return super().source(kernel, facts)
        parts, config = {}, self.joined_config
        for target, s in self.sums.items():
            inner = s.matrix.inner
            pieces = extent_of(inner) // part_of(inner, config)
            parts[target] = (extent_of(inner), pieces, block_size(inner, config))
        return emit_finish(kernel, self.plan, facts, parts)

    def config(self, kernel: Kernel, sizes: dict, device: torch.device) -> TritonConfig:
        return FINISH_CONFIG if kernel.name == self.joined.finish.name else super().config(kernel, sizes, device)

    def _prepare(self, kernel: Kernel, values: dict, sizes: dict, device: torch.device, checked: bool = True) -> Any:
        if kernel.name != self.joined.main.name:
            return super()._prepare(kernel, values, sizes, device, checked)
        binding, config = self.binding, self.joined_config
        require_suited(binding, values, sizes, device)
        if not fills_device(binding, config, sizes, _multiprocessors(device)):
            raise RefusedLaunch(TOO_FEW)
        call = prepare_joined(binding, config, values, sizes, _multiprocessors(device))
        source = emit_joined(binding, self.plan, config, call.shape)
        windows = tuple((m.tensor, _window(m, values[m.tensor], sizes)) for m in source.maps)
        lists, table = (f"{map_name(kernel, binding.loop)}{part}" for part in ("", " table"))
        maps = () if call.tiling is None else (((lists, table), call.tiling),)
        place = device if checked else META
        given = [placed(call.table, place), placed(call.listed, place)]
        if call.tiling is not None:
            given = [table if call.tiling.dealt else given[0], lists]
        arguments = (*arguments_of(source, values, sizes), *given, call.total)
        # Programs that wait for each other have to be on the device together, unless items are taken in their order.
        together = config.in_order and config.persistent
        options = {"num_warps": 4, **compiler_options(source.text)}
        options |= {"launch_cooperative_grid": True} if together else {}
        function = load(source.text, source.function)
        return GluonLaunch(function, call.programs, windows, arguments, maps, options, source)


@dataclass(frozen=True)
class JoinedCall:
    """What is known of a call.

    shape: what the text may know. total: the number of items. programs: how many run them. table: who runs which,
    NOTHING where each program runs every so many. Lists of tiles come from a block map (tiling), or are known (listed).
    """

    shape: LaunchShape
    total: int
    programs: int
    table: torch.Tensor = NOTHING
    tiling: Tiling | None = None
    listed: torch.Tensor = NOTHING


def items(binding: JoinedBinding, config: JoinedConfig, sizes: dict) -> int:
    """How many programs there are: one for each tile of rows at each grid point."""
    rows = resolve(binding.kernel.rows.size, sizes)
    return -(-rows // config.row_tile) * prod(resolve(d.size, sizes) for d in binding.kernel.grid)


def fills_device(
    binding: JoinedBinding, config: JoinedConfig, sizes: dict, places: int = H200.multiprocessors
) -> bool:
    """Whether one kernel has programs for half of the multiprocessors, or short loops: else two kernels, which have
    twice as many programs, are faster.

    Measured on an H200, both gradients of CLIP's loss, 64 programs for 132 multiprocessors: 0.88 of the time apart with
    8192 columns of D 128, 0.46 of D 256. One head of attention, in one kernel over apart: 8192 columns 1.04, 4096 1.01,
    2048 0.95, 1024 0.88.
    """
    few = items(binding, config, sizes) < places * SHARE_OF_PLACES
    return not few or resolve(binding.loop.dim.size, sizes) <= SHORT_LOOP


def prepare_joined(
    binding: JoinedBinding, config: JoinedConfig, values: Mapping[str, torch.Tensor], sizes: dict, places: int
) -> JoinedCall:
    """What is known of a call with tensors like these on `places` multiprocessors. Raises RefusedLaunch."""
    kernel, loop = binding.kernel, binding.loop
    tiles = ((kernel.rows, config.row_tile), (loop.dim, config.loop_tile))
    even = frozenset(str(dim) for dim, tile in tiles if resolve(dim.size, sizes) % tile == 0)
    vectors = (values[load.attrs[0].name] for load in binding.vectors)
    copied = frozenset(load.attrs[0].name for load, t in zip(binding.vectors, vectors, strict=True) if _in_runs(t))
    facts = Facts(even, wide_tensors(kernel, values, sizes))
    if len(described((p.operand for p in binding.pairs), values)) < len(binding.pairs):
        raise RefusedLaunch("what is stored for each row and column has no tensor map")
    fits = shared_bytes(binding, binding.overlays, config) <= SHARED_BYTES
    overlays = described(binding.overlays, values) if fits else ()
    shape = LaunchShape(facts, masked="some", overlays=overlays, vectors=copied)
    total = items(binding, config, sizes)
    call = JoinedCall(shape, total, min(places, total) if config.persistent else total)
    if config.in_order:
        return _in_order(call, binding, config, sizes, places, len(even) == len(tiles))
    if loop.map is not None and pays(kernel, loop.map, H200.product_rows, config.loop_tile, sizes):
        return _by_block_map(call, binding, config, sizes, places)
    if len(loop.ranges) != 1:
        return _by_list(call, binding, config, sizes, places)
    ranges = work_order.ranges(binding, sizes, config.row_tile, config.loop_tile)
    lengths = None if ranges is None else ranges.end - ranges.begin
    return _dealt(call, lengths, _masked(binding, len(even) == len(tiles)), binding, config, sizes, places)


def _by_block_map(
    call: JoinedCall, binding: JoinedBinding, config: JoinedConfig, sizes: dict, places: int
) -> JoinedCall:
    """The tiles that a block map in memory names."""
    record, known = binding.loop.map, tuple(sorted(sizes.items()))
    tiling = Tiling(record, H200.product_rows if record.rows else 1, config.loop_tile, known, config.consumers)
    dealt = work_order.dealing(binding, config, sizes, call.total, places) if config.persistent else None
    shape = replace(call.shape, listed=(*record.dims, *record.rows), table=dealt is not None)
    return replace(call, shape=shape, tiling=replace(tiling, dealt=dealt))


def _by_list(call: JoinedCall, binding: JoinedBinding, config: JoinedConfig, sizes: dict, places: int) -> JoinedCall:
    """The tiles of a union of ranges, listed on the host."""
    classes = work_order.classes(binding, sizes, H200.product_rows, config.loop_tile)
    if classes is None:
        raise RefusedLaunch("its guard keeps a union of ranges that depend on more than the row")
    listed = shared_visits(torch.from_numpy(classes), config.consumers)
    call = replace(call, shape=replace(call.shape, listed=(binding.kernel.rows,)), listed=listed)
    return _dealt(call, listed[:, 0].numpy(), "some", binding, config, sizes, places)


def _in_order(
    call: JoinedCall, binding: JoinedBinding, config: JoinedConfig, sizes: dict, places: int, whole: bool
) -> JoinedCall:
    """The call with programs that add in order: of a tile of the loop, the last tile of rows first.

    A program waits for items before its own in the list of all items. It has its own in the same order, or takes the
    next one of the list when it begins. So one of those that are not done never waits.
    """
    loop = binding.loop
    if loop.map is not None and pays(binding.kernel, loop.map, H200.product_rows, config.loop_tile, sizes):
        raise RefusedLaunch(f"{NO_ORDER}tensors")
    ranges = work_order.ranges(binding, sizes, config.row_tile, config.loop_tile) if len(loop.ranges) == 1 else None
    length = -(-resolve(loop.dim.size, sizes) // config.loop_tile)
    last = None if ranges is None else last_visitors(ranges, length)
    if ranges is None or last is None:
        raise RefusedLaunch(f"{NO_ORDER}more than one range that moves with the rows")
    around = prod(resolve(d.size, sizes) for d in loop.outer)
    lengths = (ranges.end - ranges.begin) * around
    points = call.total // len(lengths)
    few = work_order.evenly(points, work_order.few_at_a_time(len(lengths), places))
    table = _table(in_order(points, few, len(lengths)), _cost(lengths, config), call, config)
    shape = replace(call.shape, masked=_masked(binding, whole), table=True)
    return replace(call, shape=shape, table=table, listed=torch.from_numpy(last))


def last_visitors(ranges: work_order.Ranges, length: int) -> np.ndarray | None:
    """For each tile of the loop, the last tile of rows that runs it.

    None unless both ends of the ranges grow with the rows: else those that run a tile may not be consecutive.
    """
    if (np.diff(ranges.begin) < 0).any() or (np.diff(ranges.end) < 0).any():
        return None
    return (np.searchsorted(ranges.begin, np.arange(length), side="right") - 1).astype(np.int32)


def in_order(points: int, few: int, tiles: int) -> Iterator[int]:
    """Items in one order: of a few grid points at a time, the last tiles of rows first.

    With more points at a time, programs would wait less for each other. But on an H100 it is slower: 24 points instead
    of 3 took 1.3 to 1.7 times as long, probably since their sums together do not fit in the L2 cache.

    tiles: of rows, at each point. An item's number is point · tiles + tile of rows.
    """
    return work_order.in_turn(work_order.groups_of(points, few), range(tiles - 1, -1, -1))


def _cost(lengths: np.ndarray, config: JoinedConfig) -> np.ndarray:
    """The time of each tile of rows, in tiles of the loop. lengths: how many of these it runs."""
    return lengths + work_order.OVERHEAD / config.loop_tile


def _table(items: Iterator[int], cost: np.ndarray, call: JoinedCall, config: JoinedConfig) -> torch.Tensor:
    """Items in this order, one for each program; or a column for each program, if it goes through many."""
    if config.persistent:
        return torch.from_numpy(work_order.list_scheduled(items, cost, call.programs))
    return torch.from_numpy(np.fromiter(items, np.int32, call.total))


def _dealt(
    call: JoinedCall,
    lengths: np.ndarray | None,
    masked: str,
    binding: JoinedBinding,
    config: JoinedConfig,
    sizes: dict,
    places: int,
) -> JoinedCall:
    """The call with its items given to programs. lengths: of the loop, by tile of rows, where they are known."""
    shape = replace(call.shape, masked=masked)
    if lengths is None or len(set(lengths.tolist())) == 1:
        return replace(call, shape=shape)
    points, around = call.total // len(lengths), prod(resolve(d.size, sizes) for d in binding.loop.outer)
    length = resolve(binding.loop.dim.size, sizes)
    added = 4 * length * sum(extent_of(s.matrix.inner) for s in binding.row_sums)
    again = around * (work_order.streamed(binding, length) + added)
    cost = _cost(lengths * around, config)
    items = work_order.longest_first(cost, points, again, call.programs if config.persistent else places)
    return replace(call, shape=replace(shape, table=True), table=_table(items, cost, call, config))


def _in_runs(tensor: torch.Tensor) -> bool:
    """Whether a tile along the last axis may be copied from a contiguous tensor: it begins at a multiple of 16 bytes.

    Elsewhere a copy by a tensor map of one axis is an illegal instruction.
    """
    return tensor.is_contiguous() and tensor.size(-1) * tensor.element_size() % COPY_BYTES == 0


def _masked(binding: JoinedBinding, whole: bool) -> str:
    """Which tiles have absent elements. whole: no tile reaches beyond the end of a dim."""
    if binding.loop.guard is None:
        return "none" if whole else "some"
    return "some" if binding.loop.limits_only else "all"


def _window(described: TensorMap, tensor: torch.Tensor, sizes: dict) -> Window:
    if described.operand is None:
        return Window((tensor.numel(),), (1,), described.box)
    return window_of(described, tensor, sizes)


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def refusal(plan: Plan, device: torch.device) -> str | None:
    """Why no kernel of the plan runs in a form of Hopper here, joined or alone, on its inputs or on views of them; None
    if one does, as far as is known without its tensors."""
    reason = refusal_of_kernels(plan, device)
    if reason is None or gluon_missing() or architecture(device) != "sm_90":
        return reason
    if not isinstance(joined := joined_launcher(plan), str):
        return None
    viewed = in_views(plan)
    return None if viewed is not plan and refusal(viewed, device) is None else f"{reason}; {joined}"


@lru_cache(maxsize=256)
def launcher(plan: Plan, store: ScheduleStore | None = None, deterministic: bool = False) -> JoinedLauncher:
    """The launcher of a plan, one for this process."""
    return JoinedLauncher(plan, store=store, deterministic=deterministic)
