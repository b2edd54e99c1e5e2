"""Runs a plan's kernels by Gluon where they have that form and the tensors suit tensor maps, by Triton where not.

Everything that depends on sizes and strides alone (text, table of work, arguments) is prepared once; new pointers only
make new tensor maps. Example: with keys whose rows do not begin at multiples of 16 bytes, the kernel runs as Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from ...egraph.forks import cached_property
from ...egraph.terms.affine import affine
from ...egraph.terms.ops import iota
from ...egraph.terms.sizes import resolve
from ..codegen.fast_division import BITS
from ..hopper import work_order
from ..hopper.config import HOPPER_DEFAULTS, HopperConfig
from ..hopper.form_facts import accumulated, chains, why_not_in_pieces, width
from ..hopper.kernel_class import is_long, row_of
from ..hopper.kernel_form import MAX_OWN_COLUMNS, Binding, Diagonal, Operand, WarpBinding, bind, chunks, entered, sent
from ..hopper.mask_words import Packed, packed, small
from ..hopper.register_order import register_place
from ..hopper.split_states import with_split_states
from ..hopper.stored_values import why_unstored, with_stored_values
from ..launch.axis_order import order_of, turned_load
from ..launch.relayout import AxesForMaps, Copy
from ..launch.triton_compat import Relaunch, Window, architecture, compiler_options, gluon_missing
from ..masks.block_map import NOTHING, Tiling, capturing, is_nothing, keep_for_graphs, pays, placed, shared_visits
from ..masks.mask_bits import PackedTiling
from ..plan.device import H200
from ..plan.dtypes import HALVES
from ..plan.kernel_config import TritonConfig
from ..plan.kernel_texts import LaunchText, imported
from ..plan.launch_facts import Facts
from ..plan.queries import map_name, reach
from ..plan.records import Kernel, NotPlannable, Plan
from ..readback.check_plan import differs
from ..schedule.choose_config import Choice, choose, choose_in_pieces
from ..schedule.schedule_store import ScheduleStore
from ..stage_times import stage
from ..triton.launch import INT32, META, Launcher, load, typical_run
from .kernel import emit
from .kernel_parts import GluonSource, LaunchShape, TensorMap, arguments_of

log = logging.getLogger(__name__)
TOO_LARGE = "its tiles do not fit in shared memory"
MAX_WASTED_ROWS = 0.05  # of all rows, that warpgroups compute in vain
MAX_COLUMNS_BESIDE_WIDE_TILES = 128  # of accumulators
MIN_LENGTH_FOR_SPLIT_STATES = 2048  # of a loop that is worth a kernel for each state
RATE_OF_TRITON = 0.66  # of plain Triton's kernels, over this form's


class RefusedLaunch(Exception):
    """A kernel or its tensors do not suit the form; the message says why."""


@dataclass
class GluonLaunch:
    """One kernel ready to run. `arguments` holds a tensor's name where a pointer goes; no tensor of a call is kept."""

    function: Any  # a @gluon.jit function
    programs: int
    windows: tuple[tuple[str, Window], ...]  # of tensors, by name
    arguments: tuple[str | int | torch.Tensor, ...]
    maps: tuple = ()  # of blocks: names of what each gives, and its tiling
    options: dict = field(default_factory=dict)
    source: GluonSource | None = None
    again: Relaunch | None = None
    sums = ()

    @property
    def own_tensors(self) -> dict[str, torch.Tensor]:
        """Tables that are no plan's, by the names that `as_text` has for them."""
        return {name: value for name, value in self._named().items() if isinstance(value, torch.Tensor)}

    def _named(self) -> dict[str, str | int | torch.Tensor]:
        """The arguments by the names of parameters."""
        assert self.source is not None  # of a launch that was prepared
        tables = ("items", "visits", "words")[: len(self.arguments) - len(self.source.arguments) - 1]
        return dict(zip([*(a.name for a in self.source.arguments), *tables, "total"], self.arguments, strict=True))

    def as_text(self, values: Mapping[str, torch.Tensor]) -> LaunchText:
        """The launch as data, for tensors like these."""
        source, named = self.source, self._named()
        assert source is not None
        pointers = {n: n if isinstance(a, torch.Tensor) else a for n, a in named.items() if not isinstance(a, int)}
        integers = {name: a for name, a in named.items() if isinstance(a, int)}
        maps = {
            m.name: (name, tuple(w.shape), tuple(w.strides), tuple(w.box), values[name].element_size())
            for m, (name, w) in zip(source.maps, self.windows, strict=True)
        }
        known = (source.text, source.function, self.programs)
        return LaunchText(*known, pointers, integers, {}, maps, imported(source.text))

    @cached_property
    def bare(self) -> list[str | int]:
        """The arguments with an address for every tensor of its own."""
        return [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in self.arguments]

    @stage("Triton")
    def compiled(self, values: dict[str, torch.Tensor]) -> Any:
        """What the compiler makes of it, without a launch."""
        return self.function.warmup(*self._given(values), grid=(self.programs,), **self.options)

    def _given(self, values: dict[str, torch.Tensor]) -> list:
        """The arguments of a first launch."""
        described = [window.described(values[name]) for name, window in self.windows]
        return [*described, *(values[a] if a.__class__ is str else a for a in self.arguments)]

    @cached_property
    def tables(self) -> list[torch.Tensor]:
        """The tensors of its own that it reads."""
        return [a for a in self.arguments if isinstance(a, torch.Tensor) and not is_nothing(a)]

    def run(self, values: dict[str, torch.Tensor]) -> None:
        keep_for_graphs(self.tables)
        if self.again is not None:
            bases = [values[name] for name, _ in self.windows]
            self.again(bases, [values[a].data_ptr() if a.__class__ is str else a for a in self.bare])
            return
        kernel = self.function[(self.programs,)](*self._given(values), **self.options)
        self.again = Relaunch(kernel, self.programs, tuple(window for _, window in self.windows))


def suited_plan(plan: Plan, sizes: Mapping[str, int] | None = None) -> Plan:
    """The plan with matrices of bytes stored as products take them, and with kernels split that do not fit."""
    stored = _read_back(with_stored_values(plan, sizes or {}), plan)
    return _read_back(with_split_states(stored, fits), stored)


@lru_cache(maxsize=64)
def _read_back(changed: Plan, plan: Plan) -> Plan:
    """The changed plan where it is read back as the plan, else that."""
    if changed is plan or not (reason := differs(changed, plan)):
        return changed
    log.info("onepass: %s stay as they are: %s", ", ".join(kernel.name for kernel in plan.kernels), reason)
    return plan


class GluonLauncher(Launcher):
    """A Launcher that prefers Gluon kernel by kernel. hopper_configs: by kernel name, in place of the defaults.

    store: where solved schedules outlive the process."""

    def __init__(
        self,
        plan: Plan,
        config: TritonConfig | None = None,
        hopper_configs: dict[str, HopperConfig] | None = None,
        store: ScheduleStore | None = None,
    ):
        plan = plan if plan.piece or gluon_missing() else suited_plan(plan)
        super().__init__(plan, config)
        self.hopper_configs, self.store = hopper_configs or {}, store
        self.bindings = {kernel.name: bind(kernel) for kernel in plan.kernels}
        self.refusals = {name: found for name, found in self.bindings.items() if isinstance(found, str)}
        self.choices: dict[str, Choice] = {}

    def enough(self, kernel: Kernel, sizes: dict) -> float:
        """In split-K chunks a kernel is plain Triton, which is slower by a third."""
        found, enough = self.bindings[kernel.name], super().enough(kernel, sizes)
        if isinstance(found, str) or found.is_wide or resolve(kernel.rows.size, sizes) < H200.product_rows:
            return enough
        return RATE_OF_TRITON * enough

    def _of_parts(self, kernel: Kernel) -> Binding | None:
        """The form of a kernel over chunks of a loop; of narrow values they are plain Triton."""
        whole = self.bindings.get(self.whole(kernel).name)
        wide = isinstance(whole, Binding) and whole.is_wide and not self.plan.piece
        found = bind(kernel) if wide and any(loop.part for loop in kernel.loops) else None
        return found if isinstance(found, Binding) else None

    def _is_known_ahead(self, kernel: Kernel) -> bool:  # settings of this form depend on how many tiles a map lists
        return not isinstance(found := self.bindings.get(kernel.name), Binding) or found.loop.map is None

    def _prepare(self, kernel: Kernel, values: dict, sizes: dict, device: torch.device, checked: bool = True) -> Any:
        binding = self.bindings.get(kernel.name) or self._of_parts(kernel)
        if binding is None:  # one of the kernels that share out the loops of another
            return super()._prepare(kernel, values, sizes, device, checked)
        try:
            if isinstance(binding, str):
                raise RefusedLaunch(binding)
            return self._prepare_gluon(binding, values, sizes, device, device if checked else META)
        except (RefusedLaunch, NotPlannable) as reason:
            self.refusals[kernel.name] = str(reason)
            return super()._prepare(kernel, values, sizes, device, checked)

    def _prepare_gluon(
        self, binding: Binding, values: dict, sizes: dict, device: torch.device, place: torch.device
    ) -> GluonLaunch:
        """The launch on a device. place: where its tables go."""
        require_suited(binding, values, sizes, device)
        binding = replace(binding, entries=described(binding.entries, values))
        overlays = described(binding.overlays, values)
        places = torch.cuda.get_device_properties(device).multi_processor_count
        given = self.hopper_configs.get(binding.kernel.name)
        if self.plan.piece:
            tile = self.config(binding.kernel, sizes, device).loop_tile
            binding, given = self._in_order(binding, overlays, tile)
        run = None if given else self._run_here(binding, values, sizes, device)
        choice = choice_of(binding, sizes, overlays, places, run, self.store, given)
        self.choices[binding.kernel.name], config = choice, choice.config
        tensors, apart = suited_tensors(binding, overlays, values, sizes, config), is_long(binding, sizes, run)
        prepared = prepare(binding, config, sizes, tensors, places, apart)
        source = emit(binding, self.plan, config, self._shape(binding.kernel, prepared.shape))
        windows = tuple((m.tensor, window_of(m, values[m.tensor], sizes)) for m in source.maps)
        programs = prepared.total if apart else min(places * config.residents, prepared.total)
        found, maps = self._work(binding, prepared, config, programs, place)
        arguments = (*arguments_of(source, values, sizes), *found, prepared.total)
        options = options_of(config, source.text) | self._as_written()
        return GluonLaunch(load(source.text, source.function), programs, windows, arguments, maps, options, source)

    @staticmethod
    def _in_order(binding: Binding, overlays: tuple[Operand, ...], tile: int) -> tuple[Binding, HopperConfig]:
        """The form and the settings of a loop in pieces, whose tiles are read in order. Raises RefusedLaunch."""
        if reason := why_not_in_pieces(binding):
            raise RefusedLaunch(reason)
        if (found := choose_in_pieces(binding, overlays, tile)) is None:
            raise RefusedLaunch(TOO_LARGE)
        return replace(binding, loop=replace(binding.loop, map=None)), found

    def _shape(self, kernel: Kernel, shape: LaunchShape) -> LaunchShape:
        """The facts for a text; in pieces, tiles are read in order: what is partial comes last."""
        if not self.plan.piece:
            return shape
        facts = replace(self._in_pieces(kernel, shape.facts), even=shape.facts.even, machine="sm_90")
        whole = shape.masked == "none" and str(kernel.loops[0].dim) in facts.even
        masked = "none" if whole else "all" if shape.masked == "all" else "some"
        return replace(shape, facts=facts, single=False, masked=masked)

    def _work(
        self, binding: Binding, prepared: Prepared, config: HopperConfig, programs: int, device: torch.device
    ) -> tuple[list[torch.Tensor | str], tuple]:
        """(the table of work, the lists of tiles and the packed mask, the block maps that give those named here)."""
        lists, table, words = (f"{map_name(binding.kernel, binding.loop)}{part}" for part in ("", " table", " bits"))
        found = self._known(binding, prepared, config, programs, device)
        maps: tuple = ()
        if prepared.tiling is not None:
            found[1], maps = lists, (((lists, table), prepared.tiling),)
            found[0] = table if prepared.tiling.dealt else found[0]
        if prepared.words is not None:
            found, maps = [*found, words], (*maps, ((words,), prepared.words))
        return found, maps

    def _run_here(self, binding: Binding, values: dict, sizes: dict, device: torch.device) -> float | None:
        """Columns that tiles of rows run where a map says which, as the tensors of this call have it."""
        record, kernel = binding.loop.map, binding.kernel
        tile = H200.product_rows
        if record is None or not pays(kernel, record, tile, tile, sizes) or capturing(device):
            return None
        return typical_run(Tiling(record, tile if record.rows else 1, tile, tuple(sorted(sizes.items()))), values)

    def _known(
        self, binding: Binding, prepared: Prepared, config: HopperConfig, programs: int, device: torch.device
    ) -> list[torch.Tensor | str]:
        """The table of who runs what and the lists of tiles that the host knows."""
        table = NOTHING
        if prepared.lengths is not None and prepared.shape.table:
            points = prepared.total // len(prepared.lengths)
            streamed = work_order.streamed(binding, prepared.length)
            at_once = min(programs, H200.multiprocessors * config.residents)
            dealt = work_order.dealt(prepared.lengths, points, streamed, (programs, at_once), config.loop_tile)
            table = torch.from_numpy(dealt)
        return [placed(table, device), placed(prepared.listed, device)]


@dataclass(frozen=True)
class SuitedTensors:
    """What of a call's tensors suits the form.

    overlays, exits: operands that a tensor map describes. wide: names of tensors whose offsets need 64 bits.
    diagonals: those that move by one element. packed: the guard's part that may be a packed mask.
    """

    overlays: tuple[Operand, ...] = ()
    exits: tuple[Operand, ...] = ()
    wide: frozenset[str] = frozenset()
    diagonals: tuple[Diagonal, ...] = ()
    packed: Packed | None = None


def suited_tensors(
    binding: Binding, overlays: tuple[Operand, ...], values: dict, sizes: dict, config: HopperConfig
) -> SuitedTensors:
    """What of these tensors suits a kernel with these settings."""
    exits = described(sent(binding), values) if config.send and not config.value_warpgroups else ()
    diagonals = tuple(d for d in binding.diagonals if values[d.tensor.name].stride(d.axis) == 1)
    mask = packed(binding)
    mask = mask if mask is not None and small(mask, values, sizes) else None
    return SuitedTensors(overlays, exits, wide_tensors(binding.kernel, values, sizes), diagonals, mask)


def described(operands: Iterable[Operand], values: Mapping[str, torch.Tensor]) -> tuple[Operand, ...]:
    """The operands that a tensor map describes."""
    return tuple(o for o in operands if _unsuited(o, values[o.tensor.name]) is None)


@dataclass(frozen=True)
class Prepared:
    """What sizes say of a kernel.

    shape: the facts for its text. lengths: how much work each row tile is, where that is known. total: the number of
    items. length: of the loop. Lists of tiles come from a block map (tiling), or are known (listed). words: what a
    packed mask comes from.
    """

    shape: LaunchShape
    lengths: np.ndarray | None
    total: int
    length: int
    tiling: Tiling | None = None
    listed: torch.Tensor = NOTHING
    words: PackedTiling | None = None


@dataclass(frozen=True)
class _Call:
    """A kernel with its settings at some sizes. count: of rows. length: of the loop. total: the number of items."""

    binding: Binding
    config: HopperConfig
    sizes: dict
    count: int
    length: int
    total: int


def prepare(
    binding: Binding,
    config: HopperConfig,
    sizes: dict,
    tensors: SuitedTensors = SuitedTensors(),
    places: int = H200.multiprocessors,
    apart: bool = False,
) -> Prepared:
    """Everything about a call that does not need a device of `places` multiprocessors. Raises RefusedLaunch.

    apart: whether each item has a program of its own.
    """
    if reason := next(_refusals(binding, config, sizes), None):
        raise RefusedLaunch(reason)
    kernel, loop = binding.kernel, binding.loop
    count, length = resolve(kernel.rows.size, sizes), resolve(loop.dim.size, sizes)
    total = -(-count // config.row_tile) * prod(resolve(d.size, sizes) for d in kernel.grid)
    if total >= 1 << BITS:
        raise RefusedLaunch(f"{total} tiles of rows are more than items are numbered for")
    call = _Call(binding, config, sizes, count, length, total)
    shape = _shape_of(call, tensors)
    if loop.map is not None and pays(kernel, loop.map, H200.product_rows, config.loop_tile, sizes):
        return _by_block_map(call, shape, tensors.packed, places, apart)
    return _by_range(call, shape) if len(loop.ranges) == 1 else _by_list(call, shape)


def _refusals(binding: Binding, config: HopperConfig, sizes: Mapping[str, int]) -> Iterator[str]:
    """Reasons why a kernel cannot run with these settings."""
    if not config.terminates:
        yield f"warpgroups would wait for ever with {config}"
    if config.value_warpgroups:
        yield from _not_handed_over(binding)
    if binding.is_wide != bool(config.value_warpgroups):
        yield f"{accumulated(binding)} columns of values and {config.value_warpgroups} value warpgroups"
    if not binding.is_stored:
        yield why_unstored(binding, sizes)


def _not_handed_over(binding: Binding) -> Iterator[str]:
    """Reasons why a warpgroup cannot give its weights and the vectors of its rows to another one."""
    if len(binding.steps) > 1 or len(binding.matrices) != 1:
        yield f"its weights multiply {len(binding.matrices)} matrices of more than {MAX_OWN_COLUMNS} columns"
    states = [state for step in binding.steps for state, _ in step.states]
    if any(v.dtype not in (*HALVES, "float32", "float") for state in states for v in state.values):
        yield "what is no float32 is beside a matrix of more columns than one warpgroup holds"
    if binding.loop.map is not None or len(binding.loop.ranges) != 1:
        yield "a list of tiles says which warpgroup runs them, and here warpgroups share their rows"


def _shape_of(call: _Call, tensors: SuitedTensors) -> LaunchShape:
    """What is known of the call whatever tiles it runs."""
    kernel, loop, config = call.binding.kernel, call.binding.loop, call.config
    tiles = ((kernel.rows, call.count, config.row_tile), (loop.dim, call.length, config.loop_tile))
    even = frozenset(str(dim) for dim, size, tile in tiles if size % tile == 0)
    aligned = call.count % H200.product_rows == 0 and str(loop.dim) in even
    return LaunchShape(
        Facts(even, tensors.wide),
        skewed=False,
        overlays=tensors.overlays,
        diagonals=tuple(d for d in tensors.diagonals if aligned and d.tensor.name not in tensors.wide),
        sent=tensors.exits,
        entered=entered(call.binding, tensors.exits, config.send),
    )


def _by_block_map(call: _Call, shape: LaunchShape, mask: Packed | None, places: int, apart: bool) -> Prepared:
    """The tiles that a block map in memory names. Its guard becomes a packed mask where it may be one."""
    record, tile, known = call.binding.loop.map, call.config.loop_tile, tuple(sorted(call.sizes.items()))
    tiling = Tiling(record, H200.product_rows if record.rows else 1, tile, known, call.config.consumers)
    table = work_order.dealing(call.binding, call.config, call.sizes, call.total, places, apart)
    words = None if mask is None else PackedTiling(mask.record, H200.product_rows, tile, known)
    shape = replace(shape, listed=(*record.dims, *record.rows), packed=mask, table=table is not None)
    return Prepared(shape, None, call.total, call.length, replace(tiling, dealt=table), words=words)


def _by_list(call: _Call, shape: LaunchShape) -> Prepared:
    """The tiles of a union of ranges, listed on the host."""
    classes = work_order.classes(call.binding, call.sizes, H200.product_rows, call.config.loop_tile)
    if classes is None:
        raise RefusedLaunch("its guard keeps a union of ranges that depend on more than the row")
    listed = shared_visits(torch.from_numpy(classes), call.config.consumers)
    lengths = listed[:, 0].numpy()
    shape = replace(shape, listed=(call.binding.kernel.rows,), table=_uneven(lengths, call.config))
    return Prepared(shape, lengths, call.total, call.length, listed=listed)


def _by_range(call: _Call, shape: LaunchShape) -> Prepared:
    """The tiles of one range. Code that leaves tiles out takes registers: it is written only for idle warpgroups that
    would cost more than a few percent."""
    binding, config, rows = call.binding, call.config, H200.product_rows
    idle = -call.count % config.row_tile >= max(rows, MAX_WASTED_ROWS * call.count)
    own = work_order.ranges(binding, call.sizes, rows, config.loop_tile)
    whole = work_order.ranges(binding, call.sizes, config.row_tile, config.loop_tile)
    lengths = None if whole is None else whole.end - whole.begin
    lengths = lengths if lengths is None or not idle else work_order.work(lengths, call.count, config.consumers)
    may_chain = chains(binding, config, shape.overlays) and not (idle or shape.entered)
    shape = replace(
        shape,
        masked=work_order.guarded_tiles(binding, own),
        single=call.length <= config.loop_tile,
        skewed=config.consumers > 1 and bool(binding.loop.limits) and work_order.skewed(own, whole, config.consumers),
        vacant=idle,
        table=_uneven(lengths, config),
        chained=may_chain and work_order.chainable(own, whole, config.consumers, config.stages),
    )
    return Prepared(shape, lengths, call.total, call.length)


def _uneven(lengths: np.ndarray | None, config: HopperConfig) -> bool:
    return config.ordered and lengths is not None and len(set(lengths.tolist())) > 1


def slower(plan: Plan, sizes: dict) -> float:
    """By which part the plan's one kernel was measured to be slower in this form than in plain Triton; 0 if not."""
    found = [bind(kernel) for kernel in plan.kernels]
    row = row_of(found[0], sizes) if len(found) == 1 and isinstance(found[0], Binding) else None
    return row.slower if row else 0.0


def fits(binding: Binding) -> bool:
    """Whether a warpgroup holds the accumulators well: of several states in a long loop, no more than leave room for
    wide tiles, which was measured to be worth one more kernel and its result's way through memory."""
    length, columns = binding.loop.dim.size, accumulated(binding)
    is_long = isinstance(length, int) and length >= MIN_LENGTH_FOR_SPLIT_STATES
    if len(binding.steps) > 1 and columns > MAX_COLUMNS_BESIDE_WIDE_TILES and is_long:
        return False
    rows = [row for row in HOPPER_DEFAULTS if row.wide in (None, binding.is_wide)]
    return any(width(binding) <= row.width and columns <= row.columns for row in rows)


def options_of(config: HopperConfig, text: str) -> dict:
    """What Triton is told of a text; alone on its multiprocessor, a program may have all registers."""
    registers = {"maxnreg": config.registers[0]} if config.residents > 1 else {}
    return {"num_warps": 4, **compiler_options(text), **registers}


def fitting(binding: Binding, sizes: dict, overlays: tuple[Operand, ...] = ()) -> HopperConfig:
    """The kernel's own config. Raises RefusedLaunch."""
    return choice_of(binding, sizes, overlays).config


def choice_of(
    binding: Binding,
    sizes: dict,
    overlays: tuple[Operand, ...] = (),
    places: int = H200.multiprocessors,
    run_here: float | None = None,
    store: ScheduleStore | None = None,
    given: HopperConfig | None = None,
) -> Choice:
    """The kernel's config on `places` multiprocessors, and where its settings come from. Raises RefusedLaunch."""
    row = None if given else row_of(binding, sizes, run_here)
    found = choose(binding, sizes, overlays, row, places, store, given)
    if found is None and row is None:
        raise RefusedLaunch(f"accumulators of {accumulated(binding)} columns need more registers than threads have")
    if found is None:
        raise RefusedLaunch(TOO_LARGE)
    return found


def wide_tensors(kernel: Kernel, values: Mapping[str, torch.Tensor], sizes: dict) -> frozenset[str]:
    """Tensors whose offsets within one grid point may need 64 bits."""
    extent = max(resolve(d.size, sizes) for d in (kernel.rows, kernel.loops[0].dim)) + 1024
    return frozenset(n for (n, axis), c in reach(kernel).items() if c * abs(values[n].stride(axis)) * extent >= INT32)


def require_suited(binding: WarpBinding, values: dict, sizes: dict, device: torch.device) -> None:
    if missing := gluon_missing() or (architecture(device) != "sm_90" and "the device is no Hopper GPU"):
        raise RefusedLaunch(missing)
    kernel = binding.kernel
    if any(t.dtype == "float64" for t in (*kernel.inputs, *(s.output for s in kernel.stores))):
        raise RefusedLaunch("float64 has no Gluon form")
    if resolve(kernel.rows.size, sizes) < H200.product_rows:
        raise RefusedLaunch(f"fewer than {H200.product_rows} rows")
    if 0 in (resolve(binding.loop.dim.size, sizes), *(resolve(d.size, sizes) for d in kernel.grid)):
        raise RefusedLaunch("a dim is empty")
    for operand in _read_by_maps(binding):
        if reason := _unsuited(operand, values[operand.tensor.name]):
            raise RefusedLaunch(reason)


def _read_by_maps(binding: WarpBinding) -> tuple[Operand, ...]:
    """What the kernel reads by tensor maps, or else it is plain Triton."""
    return (*(o for o in binding.row_operands if not o.gathered), *binding.streams)


def by_tensor_maps(
    plan: Plan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], device: torch.device
) -> AxesForMaps:
    """What relayout.copies_of asks: which tensors kernels would read by tensor maps, if all of them suited one."""
    if gluon_missing() or architecture(device) != "sm_90":
        return {}
    long = [k for k in plan.kernels if k.rows is not None and resolve(k.rows.size, sizes) >= H200.product_rows]
    found = {kernel.name: bind(kernel) for kernel in long}
    return {name: _axes_for_maps(b, tensors) for name, b in found.items() if isinstance(b, Binding)}


def _axes_for_maps(binding: Binding, tensors: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """For each tensor that the kernel reads by a tensor map, what `by_tensor_maps` says; none if a copy is no help."""
    found: dict[str, int | None] = {}
    for operand in (o for o in _read_by_maps(binding) if o.tensor.name in tensors):
        name, tensor = operand.tensor.name, tensors[operand.tensor.name]
        suits = _suits_in_order(operand, tensor)
        axis = None if suits else _axis_of_copy(operand, tensor)
        if (axis is None and not suits) or found.setdefault(name, axis) != axis:
            return {}
    return found


def _suits_in_order(operand: Operand, tensor: torch.Tensor) -> bool:
    """Whether a tensor map describes the tensor once its axes are in the order of memory."""
    order = order_of(tensor.stride()) or (*range(tensor.dim()),)
    axes = tuple(operand.axes[axis] for axis in order)
    return _unsuited(replace(operand, load=turned_load(operand.load, order), axes=axes), tensor.permute(order)) is None


def _axis_of_copy(operand: Operand, tensor: torch.Tensor) -> int | None:
    """The axis that is contiguous in a copy which a tensor map describes: the one that is so now, if it can be."""
    now = [n for n, dim in enumerate(operand.axes) if dim is not None and tensor.stride(n) == 1]
    for axis in (*now, *(n for n, dim in enumerate(operand.axes) if dim == operand.inner)):
        strides = Copy(0, axis, 0).strides(tensor.shape)
        if _suits_in_order(operand, torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")):
            return axis
    return None


def _unsuited(operand: Operand, tensor: torch.Tensor) -> str | None:
    """Why no tensor map describes this tensor; None if one does."""
    strides, name = tensor.stride(), operand.tensor.name
    if strides[-1] != 1 or operand.axes[-1] is None:
        return f"the last axis of {name} is not one run in memory"
    starts = [tensor.data_ptr(), *(s * tensor.element_size() for s in (*strides[:-1], operand.step_in_row))]
    if any(s <= 0 for s in strides[:-1]) or any(start % 16 for start in starts):  # a copy from elsewhere stops a GPU
        return f"the rows of {name} do not begin at multiples of 16 bytes"
    return None


def window_of(described: TensorMap, tensor: torch.Tensor, sizes: dict) -> Window:
    """What a tensor map covers: a tile's dim ends where the dim ends, so that what follows reads as zero."""
    operand, extents = described.operand, list(tensor.shape)
    for n, (dim, box) in enumerate(zip(operand.axes, described.box, strict=True)):
        if dim is None or operand.load.args[n] is register_place(iota(dim)):
            continue
        coefficients, constant = affine(operand.load.args[n])
        length = resolve(dim.size, sizes)
        if len(coefficients) == 1 and constant >= 0:
            extents[n] = min(extents[n], constant + length)
        elif (sum(e for _, e in chunks(length)) if dim == operand.inner else -(-length // box) * box) != length:
            raise RefusedLaunch(f"a tile of {operand.tensor.name} begins at a computed place and may go beyond its dim")
    return Window(tuple(extents), tensor.stride(), described.box)


def refusal(plan: Plan, device: torch.device) -> str | None:
    """Why no kernel of the plan has a Gluon form here; None if one has, as far as is known without its tensors."""
    if missing := gluon_missing() or (architecture(device) != "sm_90" and "the device is no Hopper GPU"):
        return missing
    found = [bind(kernel) for kernel in plan.kernels]
    return None if any(isinstance(f, Binding) for f in found) else "; ".join(dict.fromkeys(map(str, found)))


@lru_cache(maxsize=256)
def launcher(plan: Plan, store: ScheduleStore | None = None) -> GluonLauncher:
    """The launcher of a plan, one for this process."""
    return GluonLauncher(plan, store=store)
