"""Runs a Plan with Triton: texts become functions once, and a call prepares its launches once per sizes and strides.

run_triton is the plain entry; Launcher is what a caller keeps for repeated calls. The text of every kernel stays in
memory where Triton reads it; the folder that ONEPASS_CACHE or ONEPASS_DEBUG_DIR names gets a copy for people.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import inf
from typing import Any, ClassVar, TypeVar

import torch

from ...egraph.forks import cached_property
from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import Tensor
from ..analysis.contiguous_axes import runs_of
from ..analysis.data_indices import blocks_of_tiles
from ..analysis.softmax_scaling import scales_of_pieces
from ..codegen.signature import Source
from ..launch.axis_order import NO_ORDERS, Axes
from ..launch.current_device import on_device, turned_allocator
from ..launch.split_loops import (
    MERGED,
    SplitKernel,
    enough_programs,
    piece_count,
    program_count,
    split_to_run,
    wanted_chunks,
)
from ..launch.triton_compat import (
    Relaunch,
    architecture,
    compile_all,
    compiler_options,
    fails_in_compiler,
    interprets,
    mixes_addresses,
    multiprocessors,
    shared_memory,
    spilled,
)
from ..masks.block_map import EMPTY, Found, MapCache, Tiling, elements_of_a_tile, pays, where_rows_keep
from ..masks.mask_bits import PackedTiling
from ..masks.tile_lists import distributed_items, visit_lists
from ..plan.device import H200
from ..plan.kernel_config import TritonConfig
from ..plan.kernel_texts import LaunchText, imported
from ..plan.launch_facts import INTERPRETER, Facts, interpreter_wanted
from ..plan.queries import map_name, reach, roots
from ..plan.records import VARIES_BY_DISTANCE, Kernel, Loop, NotPlannable, Plan
from ..planning.mask_plans import class_plan, packed_mask_plan
from ..source_folder import named_folder, write_source
from ..stage_times import stage
from .default_config import (
    MAX_SPILLED_REGISTERS,
    cut_to_sizes,
    default_for,
    has_rows_last,
    of_few_rows,
    of_pieces,
    widest,
)
from .diagonal_sums import slots_name
from .kernel import emit
from .slot_sums import SlotSum
from .walks import STAGES, dim_of, walk_of

INT32 = 2**31
MIN_REACH = 256  # elements of a dim from a tile's start that an offset is taken to reach
Made = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]  # name, shape, strides, dtype
META = torch.device("meta")  # of tensors without memory
CLASSED = 16384  # elements that one program looks at to class tiles
T = TypeVar("T")


class LaunchError(ValueError):
    """The tensors or sizes given do not fit the plan; the message says which."""


@cache
def load(text: str, function: str) -> Any:
    """The @triton.jit function of a text. Triton reads the text back through linecache, so no file is needed."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    copy = write_source(named_folder(), f"{function}_{digest}.py", text)
    name = str(copy) if copy else f"<onepass {function} {digest}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {"__name__": f"onepass_kernel_{digest}"}
    exec(compile(text, name, "exec"), namespace)
    return namespace[function]


@dataclass
class Launch:
    """One kernel ready to run: integers and constants are filled in, tensors are looked up by name."""

    function: Any  # a @triton.jit function
    programs: int
    tensors: tuple[str, ...]
    integers: tuple[int, ...]
    options: dict
    maps: tuple[tuple[tuple[str, ...], Tiling], ...] = ()
    sums: tuple[SlotSum, ...] = ()  # of stores that add elements
    spilled: int = MAX_SPILLED_REGISTERS  # registers of a thread that it may keep in memory
    source: Source | None = None
    again: Relaunch | None = None

    @stage("Triton")
    def compiled(self, values: dict[str, torch.Tensor]) -> Any:
        """What the compiler makes of it, without a launch; block maps need not be there yet."""
        slots = {slots_name(each.store): each.dtype for each in self.sums}
        tensors = [values.get(n, slots.get(n, torch.int32)) for n in self.tensors]
        return self.function.warmup(*tensors, *self.integers, grid=(self.programs,), **self.options)

    @cached_property
    def rest(self) -> tuple[int, ...]:
        """What follows the tensors in the function's order: integers, then constants."""
        names = self.function.arg_names[len(self.tensors) + len(self.integers) :]
        return (*self.integers, *(self.options[name] for name in names))

    own_tensors: ClassVar[dict[str, torch.Tensor]] = {}

    def as_text(self, values: Mapping[str, torch.Tensor]) -> LaunchText:
        """The launch as data."""
        source = self.source
        assert source is not None  # of a launch that was prepared
        pointers = {a.name: a.tensor for a in source.arguments if a.axis is None and a.size is None}
        rest = [a.name for a in source.arguments if a.name not in pointers]
        constants = {name: self.options[name] for name, _ in source.tiles}
        integers = dict(zip(rest, self.integers, strict=True))
        return LaunchText(
            source.text, source.function, self.programs, pointers, integers, constants, libraries=imported(source.text)
        )

    def run(self, values: dict[str, torch.Tensor]) -> None:
        """Launches the kernel, and what adds up its slots."""
        for each in self.sums:
            values[slots_name(each.store)] = each.made(values[each.store.output.name].device)
        self._run(values)
        for each in self.sums:
            each.add(values.pop(slots_name(each.store)), values[each.store.output.name])

    def _run(self, values: dict[str, torch.Tensor]) -> None:
        if self.again is not None:
            self.again([], [*[values[name].data_ptr() for name in self.tensors], *self.rest])
        elif self.programs:
            kernel = self.function[(self.programs,)](*[values[n] for n in self.tensors], *self.integers, **self.options)
            self.again = None if interprets(self.function) else Relaunch(kernel, self.programs)


@dataclass(frozen=True)
class PreparedLaunches:
    """The launches of a plan for tensors of some shapes: the kernels, sizes with their numbers, and what is written.

    seen: the tensors with the axes that kernels store by; outputs are without memory.
    """

    kernels: tuple[Kernel, ...]
    sizes: dict[str, int]
    made: tuple[Made, ...]
    launches: tuple[Launch, ...]
    device: torch.device
    seen: dict[str, torch.Tensor]


def _unsuited(launch: Launch, values: dict, device: torch.device, allowed: float) -> tuple[str, float]:
    """Why a kernel is not to be launched, "" if it may be, and how many times the allowed registers are in memory."""
    try:
        compiled = launch.compiled(values)
    except Exception as error:
        if not fails_in_compiler(error):
            raise
        return "is not compiled, as Triton's compiler fails,", 0.0
    if mixes_addresses(compiled.asm.get("ptx", "")):
        return "has two matrices in shared memory that ptxas up to CUDA 12.8 mixes up", 0.0
    if (needed := compiled.metadata.shared) > shared_memory(device):
        return f"needs {needed} bytes of shared memory", 0.0
    found = spilled(compiled)
    return (f"keeps {found} registers of a thread in memory", found / allowed) if found > allowed else ("", 0.0)


class Launcher:
    """A plan with its configurations: call it with tensors by name and values of the symbolic sizes."""

    def __init__(self, plan: Plan, config: TritonConfig | dict[str, TritonConfig] | None = None):
        self.plan = plan
        self.configs = config if isinstance(config, dict) else {k.name: config for k in plan.kernels if config}
        self.names = tuple(t.name for t in plan.inputs)
        self._sources: dict[tuple[str, Facts], Source] = {}
        self._prepared: dict[tuple, tuple[Launch, ...]] = {}
        self._maps = MapCache()
        self._whole: dict[str, Kernel] = {}  # what a kernel of parts is a part of
        self.shared: dict[str, str] = {}  # by kernel, how its loops last were shared out over programs

    @property
    def deterministic(self) -> bool:
        """Whether what runs adds in a fixed order."""
        return self.plan.deterministic

    def __call__(self, tensors: dict[str, torch.Tensor], sizes=None, output=None) -> torch.Tensor:
        """The plan's first output."""
        return self.results(tensors, sizes, {} if output is None else {self.plan.output.name: output})[0]

    def results(
        self,
        tensors: dict[str, torch.Tensor],
        sizes: dict[str, int] | None = None,
        outputs: Mapping[str, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The plan's outputs, in new tensors or in those given by name."""
        values, device = self._inputs(tensors)
        kernels, sizes = self._stages(sizes or {}, device)
        for target in self._targets(kernels):
            kept = (outputs or {}).get(target.name)
            values[target.name] = self._new(target, sizes, device) if kept is None else kept
        for name in (name for kernel in kernels for name in kernel.zeroed):
            values[name].zero_()
        key = (*((v.stride(), v.dtype) for v in values.values()), *sizes.items(), device, self.key(values))
        launches = self._prepared.get(key)
        if launches is None:
            seen = _as_stored(kernels, values, sizes)
            launches = self._prepared[key] = tuple(self._prepare(k, seen, sizes, device) for k in kernels)
        on_device(device, partial(self._run, launches))(values)
        return tuple(values[target.name] for target in self.plan.outputs)

    def bind(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        sizes: dict,
        strides: dict | None = None,
        orders: Mapping[str, Axes] = NO_ORDERS,
    ) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
        """What runs the plan on tensors of these shapes, strides, dtypes and alignments, in the order of `names`.

        strides: of outputs by name, contiguous where there are none. orders: of their axes where the plan has turned
        them; the results have them turned back. It gives a list of new tensors.
        """
        ready = self.prepared(dict(zip(names, tensors, strict=True)), sizes, strides or {})
        made = [(name, turned_allocator(s, t, d, ready.device, orders.get(name))) for name, s, t, d in ready.made]
        outputs = [target.name for target in self.plan.outputs]
        zeroed = [name for kernel in ready.kernels for name in kernel.zeroed]

        def run(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            values = dict(zip(names, given))
            for name, new in made:
                values[name] = new()
            for name in zeroed:
                values[name].zero_()
            self._run(ready.launches, values)
            return [values[name] for name in outputs]

        return on_device(ready.device, run)

    def prepared(self, tensors: dict[str, torch.Tensor], sizes: dict, strides: dict) -> PreparedLaunches:
        """The launches for tensors like these, with what they need. strides: of outputs by name."""
        values, device = self._inputs(tensors)
        kernels, sizes = self._stages(sizes, device)
        made = self._made(kernels, sizes, strides)
        seen = _as_stored(kernels, {**values, **_without_memory(made)}, sizes)
        launches = tuple(self._prepare(k, seen, sizes, device) for k in kernels)
        return PreparedLaunches(tuple(kernels), sizes, tuple(made), launches, device, seen)

    def by_best_form(self, run: Callable[[Launcher], T]) -> T:
        """What is given by the form of the plan that would run: here there is one."""
        return run(self)

    def whole(self, kernel: Kernel) -> Kernel:
        """The kernel of the plan that a kernel is a part of."""
        return self._whole.get(kernel.name, kernel)

    def mapped(self, launch: Launch, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tables of tiles that a launch reads, by name."""
        found: dict[str, torch.Tensor] = {}
        for names, tiling in launch.maps:
            again = None if tiling.dealt is None else with_items_dealt
            found.update(zip(names, self._maps.get(tiling, values, build_map, again)))
        return found

    def compile_ahead(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        sizes: dict,
        strides: dict | None,
        device: torch.device,
    ) -> None:
        """Compiles what `bind` would first try for tensors like these, which have no memory: they are on "meta".

        Nothing is loaded, copied or launched, so another thread may capture a graph meanwhile. Kernels whose settings
        depend on what is in the tensors are left out.
        """
        values, _ = self._inputs(dict(zip(names, tensors, strict=True)))
        with torch.cuda.device(device):
            kernels, sizes = self._stages(sizes, device)
            seen = _as_stored(kernels, {**values, **_without_memory(self._made(kernels, sizes, strides or {}))}, sizes)
            known = filter(self._is_known_ahead, kernels)
            launches = [self._prepare(kernel, seen, sizes, device, checked=False) for kernel in known]
        compile_all(launches, seen, device)

    def _is_known_ahead(self, kernel: Kernel) -> bool:
        """Whether sizes alone say how the kernel runs, and not what is in its tensors."""
        return True

    def _made(self, kernels: Sequence[Kernel], sizes: dict, strides: dict) -> list[Made]:
        """What the kernels write: name, shape, strides and dtype. strides: those that are wished for, by name.

        A kernel that stores two axes as one cannot have all of them: its result is contiguous then.
        """
        made = []
        stored = {s.output.name: s.output.shape for kernel in kernels for s in kernel.stores}
        for target in self._targets(kernels):
            like = self._new(target, sizes, META)
            wished, axes = strides.get(target.name), [_size(n, sizes) for n in stored[target.name]]
            steps = wished if wished is not None and _is_view(like, wished, axes) else like.stride()
            made.append((target.name, tuple(like.shape), steps, like.dtype))
        return made

    def _new(self, target: Tensor, sizes: dict[str, int], device: torch.device) -> torch.Tensor:
        """Memory for what kernels write."""
        shape = [_size(s, sizes) for s in target.shape]
        return torch.empty(shape, dtype=getattr(torch, target.dtype), device=device)

    def _targets(self, kernels: Sequence[Kernel]) -> list[Tensor]:
        """What the kernels write; results as the plan gives them."""
        results = {target.name: target for target in self.plan.outputs}
        return [results.get(s.output.name, s.output) for kernel in kernels for s in kernel.stores]

    def _inputs(self, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.device]:
        missing = [name for name in self.names if name not in tensors]
        if missing:
            raise LaunchError(f"no tensor was given for {missing[0]!r}")
        device = next((tensors[n].device for n in self.names), torch.device("cpu"))
        return {name: tensors[name] for name in self.names}, device

    def key(self, values: dict[str, torch.Tensor]) -> object:
        """What else of the tensors a prepared launch depends on."""
        return tuple([tensor.data_ptr() % 16 == 0 for tensor in values.values()])

    def source(self, kernel: Kernel, facts: Facts) -> Source:
        """The kernel's text for these facts, emitted once."""
        if (kernel.name, facts) not in self._sources:
            self._sources[kernel.name, facts] = emit(kernel, self.plan, facts)
        return self._sources[kernel.name, facts]

    def config(self, kernel: Kernel, sizes: dict, device: torch.device) -> TritonConfig:
        """The given or default configuration, with tiles no larger than the data needs; in pieces, the same for all
        sizes."""
        if self.plan.piece:
            whole, machine = self.whole(kernel), architecture(device)
            given = self.configs.get(kernel.name)
            return given or of_pieces(default_for(whole, machine), whole, machine, self._rows(whole, sizes))
        count = self._rows(kernel, sizes)
        whole = self._whole.get(kernel.name, kernel)
        given = self.configs.get(kernel.name) or default_for(whole, architecture(device), count)
        try:
            return cut_to_sizes(given, kernel, sizes)
        except UnknownSize as error:
            raise LaunchError(str(error)) from error

    @staticmethod
    def _rows(kernel: Kernel, sizes: dict) -> int:
        return _size(kernel.rows.size, sizes) if kernel.rows else 0

    def _stages(self, sizes: dict, device: torch.device) -> tuple[list[Kernel], dict[str, int]]:
        """The kernels that run at these sizes, those of too few programs in parts, and the sizes with their numbers."""
        kernels, known = [], dict(sizes)
        for kernel in self.plan.kernels:
            found, count = self._parts(kernel, sizes, device)
            kernels += [kernel] if found is None else [found.first, found.last]
            self.shared.pop(kernel.name, None)
            if found is not None:
                known[found.chunk.size] = count
                self.shared[kernel.name] = f"{found}; {count} parts"
                self._whole |= {found.first.name: kernel, found.last.name: kernel}
                if kernel.name in self.configs:
                    self.configs[found.first.name] = self.configs[kernel.name]
                self.configs.setdefault(found.last.name, self._merging(found.last))
        return kernels, known

    def _merging(self, last: Kernel) -> TritonConfig:
        """The configuration of a kernel that merges states; in pieces, one after another, as a program of all does."""
        config = of_few_rows(*widest(last))
        return replace(config, loop_tile=1, stages=3) if self.plan.piece else replace(config, stages=1)

    def _parts(self, kernel: Kernel, sizes: dict, device: torch.device) -> tuple[SplitKernel | None, int]:
        """The kernel in parts and their number, where it has fewer programs than the device has room for."""
        config, places = self.config(kernel, sizes, device), multiprocessors(device)
        try:
            count = config.chunks or wanted_chunks(kernel, config, sizes, places, self.enough(kernel, sizes))
        except UnknownSize as error:
            raise LaunchError(str(error)) from error
        if self.plan.piece and count > 1:
            count = piece_count(kernel, self.plan.piece, sizes)
        return split_to_run(kernel) if count > 1 else None, count

    def enough(self, kernel: Kernel, sizes: dict) -> float:
        """The part of a device that the kernel's programs may fill and not be shared out over more."""
        return enough_programs(kernel, sizes)

    def _run(self, launches: tuple[Launch, ...], values: dict[str, torch.Tensor]) -> None:
        for launch in launches:
            if launch.maps:
                values.update(self.mapped(launch, values))
            launch.run(values)

    def _tilings(self, kernel: Kernel, config: TritonConfig, sizes: dict) -> dict[Loop, Tiling]:
        """The block maps that pay, by loop."""
        if self.plan.piece:  # a map visits its partial tiles first
            return {}
        known = tuple(sorted(sizes.items()))
        return {
            loop: Tiling(loop.map, config.row_tile if loop.map.rows else 1, config.loop_tile, known)
            for loop in kernel.loops
            if loop.map is not None and pays(kernel, loop.map, config.row_tile, config.loop_tile, sizes)
        }

    def _prepare(
        self, kernel: Kernel, values: dict, sizes: dict, device: torch.device, checked: bool = True
    ) -> Launch:
        """The launch of the configuration; a default one becomes smaller while shared memory or registers are too few,
        or Triton's compiler fails.

        Registers that a step keeps in memory by the hundred make a kernel slower than the calls that it stands for. By
        the thousand, what would spill as well is passed over. Without checks it is the first launch to try, which
        nothing was compiled for.
        """
        first, given, most = self.config(kernel, sizes, device), kernel.name in self.configs, inf
        for config in (first, *(() if given else self._smaller(first))):
            if config.elements_of_a_thread > most:
                continue
            launch = self._launch(kernel, config, values, sizes, device)
            if not checked or device.type != "cuda" or interprets(launch.function) or not launch.programs:
                return launch
            with torch.cuda.device(device):
                allowed = inf if given or self.plan.piece else launch.spilled
                reason, excess = _unsuited(launch, values, device, allowed)
            if not reason:
                return launch
            tried, most = config, config.elements_to_try_next(excess) if excess else most
        refused = LaunchError if given else NotPlannable
        raise refused(f"{kernel.name} {reason} with tiles {tried}")

    def _smaller(self, config: TritonConfig) -> Iterable[TritonConfig]:
        """What to try where a default configuration does not fit; in pieces, with the same tiles."""
        return (one for one in config.smaller() if not self.plan.piece or self._adds_as(one, config))

    def _adds_as(self, one: TritonConfig, other: TritonConfig) -> bool:
        """Whether kernels of two configurations are the same but for the loads that are under way."""
        return replace(one, stages=0) == replace(other, stages=0)

    def _in_pieces(self, kernel: Kernel, facts: Facts) -> Facts:
        """The facts of a kernel that is read in pieces: one text for all lengths. A stored state is a piece."""
        if not self.plan.piece:
            return facts
        if self.whole(kernel) is not kernel and kernel.name.endswith(MERGED):
            return replace(facts, piece=1)
        facts = replace(facts, even=frozenset(), piece=self.plan.piece, factors_apart=self.plan.factors_apart)
        return replace(facts, scales=scales_of_pieces(self.whole(kernel)))

    def _as_written(self) -> dict[str, bool]:
        """In pieces, nothing is contracted: else a text's bits depend on what is around."""
        return {"enable_fp_fusion": False} if self.plan.piece else {}

    def _launch(self, kernel: Kernel, config: TritonConfig, values: dict, sizes: dict, device: torch.device) -> Launch:
        tilings = self._tilings(kernel, config, sizes)
        mapped = frozenset(map_name(kernel, loop) for loop in tilings)
        facts = self._in_pieces(kernel, _facts(kernel, config, values, sizes, device))
        facts, count = replace(facts, mapped=mapped), program_count(kernel, config.row_tile, config.loop_tile, sizes)
        if walk := None if facts.piece or mapped else walk_of(kernel, config, sizes, multiprocessors(device)):
            facts, count = replace(facts, walk=walk), count // _size(dim_of(kernel, walk).size, sizes) * walk[1]
            self.shared[kernel.name] = f"programs walk over {walk[0]} in steps of {walk[1]}"
        source = self.source(kernel, facts)
        if self.plan.piece and source.may_run_again:
            raise NotPlannable(VARIES_BY_DISTANCE)
        names = tuple(a.tensor for a in source.arguments if a.axis is None and a.size is None)
        options = {name: getattr(config, role) for name, role in source.tiles}
        stages = max(config.stages, STAGES) if walk else config.stages
        options |= {"num_warps": config.warps, "num_stages": stages, **compiler_options(source.text)}
        options |= self._as_written()
        maps = tuple({(map_name(kernel, loop),): tiling for loop, tiling in tilings.items()}.items())
        spilled = MAX_SPILLED_REGISTERS * (1 + source.may_run_again)
        function, integers = load(source.text, source.function), _integers(source, values, sizes)
        sums = tuple(SlotSum.of(kernel, store, config, source.held, sizes) for store in kernel.stores if store.places)
        return Launch(function, count, names, integers, options, maps, sums, spilled, source)


def _facts(kernel: Kernel, config: TritonConfig, values: dict, sizes: dict, device: torch.device) -> Facts:
    """What the text may know of these tensors and sizes; block maps are not in it."""
    loops = {loop.dim: config.loop_tile for loop in kernel.loops}
    tiles = dict.fromkeys(kernel.columns, config.loop_tile) | loops
    tiles |= {kernel.rows: config.row_tile} if kernel.rows else {}
    even = frozenset(str(d) for d, tile in tiles.items() if _size(d.size, sizes) % tile == 0)
    short = frozenset(str(d) for d, tile in loops.items() if 0 < _size(d.size, sizes) <= tile)
    extent = max(config.row_tile, config.loop_tile, MIN_REACH)
    reached = reach(kernel).items()
    wide = frozenset(n for (n, axis), c in reached if c * abs(values[n].stride(axis)) * extent >= INT32)
    machine = INTERPRETER if interpreter_wanted() else architecture(device)
    runs, rows_last = runs_of(roots(kernel), values), has_rows_last(kernel, config)
    blocks = blocks_of_tiles(kernel, loops)
    return Facts(even, wide, frozenset(), machine, runs, rows_last=rows_last, blocks=blocks, short=short)


def _integers(source: Source, values: dict, sizes: dict) -> tuple[int, ...]:
    """The sizes and strides among a kernel's arguments, in the order of the call."""
    found = []
    for argument in source.arguments:
        if argument.size is not None:
            found.append(_size(argument.size, sizes))
        elif argument.axis is not None:
            found.append(values[argument.tensor].stride(argument.axis))
    return tuple(found)


def _size(size: int | str, sizes: dict[str, int]) -> int:
    try:
        return resolve(size, sizes)
    except UnknownSize as error:
        raise LaunchError(str(error)) from error


def _without_memory(made: Sequence[Made]) -> dict[str, torch.Tensor]:
    """Tensors that have all but memory, by name."""
    return {name: torch.empty_strided(shape, steps, dtype=d, device=META) for name, shape, steps, d in made}


def _is_view(like: torch.Tensor, strides: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a tensor with these strides can be seen with these axes, without a copy."""
    try:
        torch.empty_strided(like.shape, strides, dtype=like.dtype, device=META).view(axes)
    except RuntimeError:
        return False
    return True


def _as_stored(kernels: Sequence[Kernel], values: dict[str, torch.Tensor], sizes: dict) -> dict[str, torch.Tensor]:
    """The tensors with the axes that kernels store by: one of a result may be two."""
    stored = [s.output for kernel in kernels for s in kernel.stores if not s.adds]
    return {**values, **{t.name: values[t.name].view([_size(n, sizes) for n in t.shape]) for t in stored}}


@lru_cache(maxsize=256)
def launcher(plan: Plan, config: TritonConfig | None = None) -> Launcher:
    """The launcher of a plan, one for this process."""
    return Launcher(plan, config)


@lru_cache(maxsize=128)
def _classifier(tiling: Tiling) -> tuple[Launcher, dict[str, int]]:
    """What finds the classes of a map's tiles, some at a time, and the sizes."""
    plan, places = class_plan(tiling), max(1, CLASSED // elements_of_a_tile(tiling))
    columns = min(places, 16) if plan.kernels[0].columns else 1
    return Launcher(plan, TritonConfig(places // columns, columns, 4, 1)), dict(tiling.sizes)


@lru_cache(maxsize=128)
def _packer(words: PackedTiling) -> Launcher:
    """What finds the words of a guard's bits, a tile in each program: a warpgroup's words of one block of rows."""
    plan = packed_mask_plan(words)
    by_words = plan.kernels[0].rows.name == "word"
    return Launcher(plan, TritonConfig(H200.warpgroup, 1, 4, 1) if by_words else TritonConfig(1, H200.warpgroup, 4, 1))


def build_map(tiling: Tiling, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The list of tiles to visit, and who runs which if a table says it, or the words of a guard's bits, from the
    guard's tensors."""
    if isinstance(tiling, PackedTiling):
        return (_packer(tiling)(dict(values), dict(tiling.sizes)),)
    classes = _classes(tiling, values)
    if tiling.record.finite_mask:
        finer = tiling.by_rows()
        classes = where_rows_keep(classes, _classes(finer, values) if finer else classes, tiling)
    lists = visit_lists(classes, tiling.together, bool(tiling.record.rows))
    if tiling.dealt is None:
        return (lists,)
    return with_items_dealt(tiling, (lists,)) if tiling.dealt.apart else (lists, tiling.dealt.in_turn(lists.device))


def with_items_dealt(tiling: Tiling, found: Found) -> Found:
    """What was built, with a table that deals out items by their lengths: that takes as long as a small kernel itself,
    so it is for a mask that is read again."""
    return found[0], distributed_items(found[0], tiling.dealt, tiling.tile)


def typical_run(tiling: Tiling, values: Mapping[str, torch.Tensor]) -> float:
    """Columns that nine in ten tiles of rows run up to, by these tensors; the host waits for it."""
    kept = (_classes(tiling, values) != EMPTY).sum(-1).double()
    return tiling.tile * kept.quantile(0.9).item()


def _classes(tiling: Tiling, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    classifier, sizes = _classifier(tiling)
    return classifier(dict(values), sizes)
