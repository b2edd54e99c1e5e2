"""Executors: each runs a plan in one way, by torch operations tile by tile, by Triton, or by Gluon.

An executor gives the plan's results or says why it cannot. Without Triton this module still imports, and the tiled
executor runs. Example: `EXECUTORS["tiled"].prepare(plan, {"q": q, "k": k}, sizes={}).run([q, k])`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch

from ..egraph.terms.sizes import UnknownSize
from ..egraph.terms.term import TermError
from .analysis.exact_products import with_weights
from .hopper.config import HopperConfig
from .hopper.form_facts import why_not_in_pieces
from .hopper.kernel_form import Binding, bind
from .hopper.mask_words import packed
from .hopper.stored_values import bind_as_run, needs_sizes
from .launch.affine_views import in_views
from .launch.split_loops import describe_split
from .plan.device import H200
from .plan.kernel_texts import KernelTexts
from .plan.launch_facts import interpreter_wanted
from .plan.queries import are_distinct
from .plan.records import Kernel, NotPlannable, Plan
from .schedule.choose_config import emulating
from .schedule.kernel_time import executor_of
from .schedule.schedule_store import ScheduleStore
from .schedule.setting_values import config_of
from .stages.staged_plan import staged
from .stages.staged_run import Prepare, StagedRun
from .stages.stored_factors import of_a_library
from .tiled.compiled_tiles import CompiledTiles
from .tiled.executor import tiled_results
from .tiled.tile_ops import OutOfTime
from .triton.kernel import emit

if TYPE_CHECKING:
    from .cost.timeline import Timeline
    from .launch.memory_order import PlanInMemoryOrder
    from .launch.relayout import AxesForMaps

Tensors = Sequence[torch.Tensor]
Inputs = Mapping[str, torch.Tensor]  # by name
Sizes = Mapping[str, int]  # of symbols
Strides = Mapping[str, tuple[int, ...]]  # of outputs, by name


class SettingsRefused(ValueError):
    """Settings of a kernel that cannot be used here; the message says why."""


@dataclass(frozen=True)
class PreparedPlan:
    """A plan that is ready for tensors of the same shapes, strides, dtypes and alignments as those it was prepared for.

    run: takes the tensors in the order in which they were given and returns the plan's outputs.
    executor: who runs it, as reports name it. notes: sentences for the report.
    has_strides: each output is new memory, with the strides that were asked for. deterministic: each call adds in the
    same order.
    """

    run: Callable[[Tensors], list[torch.Tensor]]
    executor: str
    notes: tuple[str, ...] = ()
    has_strides: bool = False
    deterministic: bool = True


class PlanExecutor:
    """One way to run a plan."""

    name = ""

    def refusal(self, plan: Plan, device: torch.device) -> str | None:
        """Why no kernel of the plan can run this way on the device; None if one may."""
        return None

    def kernel_refusal(self, kernel: Kernel, plan: Plan) -> str | None:
        """Why a kernel of the plan has no form of this kind, on any device; None if it has one."""
        return None

    def prepare(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> PreparedPlan:
        """The plan made ready for tensors like these. It raises an error of any kind where it cannot run.

        tensors: the inputs by name. sizes: values of all symbolic sizes. strides: of outputs, by name; an output
        that is not named is contiguous. store: where solved schedules outlive the process. deterministic: only kernels
        that add in a fixed order.
        """
        raise NotImplementedError

    def compile_ahead(
        self,
        plan: Plan,
        tensors: Inputs,
        device: torch.device,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> None:
        """Compiles what `prepare` would first try on a device, for tensors like these, which are on "meta"."""

    def describe(self, kernel: Kernel, weights: str = "half", in_pieces: bool = False) -> str:
        """What a report says about how the kernel runs this way; empty for nothing. weights, in_pieces: of its plan."""
        return ""

    def describe_settings(self, kernel: Kernel, store: ScheduleStore | None = None, weights: str = "half") -> str:
        """The settings of the kernel's launch and their origins, as far as they are known without sizes."""
        return ""

    def describe_time(self, kernel: Kernel, plan: Plan, sizes: Sizes | None = None) -> str:
        """The kernel's estimated time and its bound; empty where a size is not known."""
        return ""

    def source(self, kernel: Kernel, plan: Plan) -> str:
        """The kernel's text as it is before sizes are known; empty if it has none."""
        return ""


class TiledExecutor(PlanExecutor):
    """Torch operations, tile by tile, on any device."""

    name = "tiled"

    def prepare(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> PreparedPlan:
        names = tuple(tensors)
        return PreparedPlan(lambda given: list(tiled_results(plan, dict(zip(names, given)), sizes)), self.name)

    def finishes(self, plan: Plan, inputs: Inputs, sizes: Sizes, seconds: float) -> bool:
        """Whether a run takes at most so many seconds. One that takes longer is given up."""
        try:
            tiled_results(plan, inputs, sizes, time.perf_counter() + seconds)
        except OutOfTime:
            return False
        return True


class CompiledTilesExecutor(TiledExecutor):
    """Tile by tile, and what happens in a tile is compiled by Inductor, for a CPU. The first run compiles.

    Two kernels of a plan that compute the same tiles run as one. Raises NotPlannable where no tile can be compiled.
    rounds: products of bfloat16 numbers are rounded to that type; only for a CPU that multiplies such numbers faster.
    """

    name = "tiles compiled by Inductor"

    def __init__(self, rounds: bool = False):
        self.rounds = rounds
        self.name += ", with products of bfloat16" if rounds else ""

    def prepare(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> PreparedPlan:
        if plan.piece or not any(kernel.loops for kernel in plan.kernels):
            raise NotPlannable("it has no tiles that are worth a compilation")
        if self.rounds and (any(kernel.exact for kernel in plan.kernels) or not torch.cpu._is_avx512_bf16_supported()):
            raise NotPlannable("none of its products may be rounded, or this CPU gains nothing by that")
        names, tiles, joined = tuple(tensors), CompiledTiles(self.rounds), _joined(plan)

        def run(given: Tensors) -> list[torch.Tensor]:
            results = tiled_results(joined, dict(zip(names, given)), sizes, compiled=tiles)
            tiles.close()
            return list(results)

        return PreparedPlan(run, self.name)


@lru_cache(maxsize=256)
def _joined(plan: Plan) -> Plan:
    """The plan with two kernels as one where that can be. On a CPU no factor is rounded, so none must stay exact."""
    from .joined.join import join

    free = replace(plan, kernels=tuple(replace(kernel, exact=frozenset()) for kernel in plan.kernels))
    found = join(free)
    return free if found is None else found.plan


class TritonExecutor(PlanExecutor):
    """Triton kernels, on a GPU or in Triton's interpreter."""

    name = "triton"
    in_stages = True  # torch runs the plain products of a plan

    def refusal(self, plan: Plan, device: torch.device) -> str | None:
        reasons = (self.kernel_refusal(kernel, plan) for kernel in plan.kernels)
        return triton_missing() or next(filter(None, reasons), None)

    def kernel_refusal(self, kernel: Kernel, plan: Plan) -> str | None:
        try:
            emit(kernel, plan)
        except NotPlannable as reason:
            return str(reason)
        return _not_compiled(kernel)

    def prepare(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> PreparedPlan:
        each = lambda stage, given, laid: self.prepare(stage, given, sizes, laid, store, deterministic)
        if (stages := self._staged(plan, tensors, each)) is not None:
            return _of_stages(stages, tuple(tensors))
        found = self._in_order(plan, tensors, sizes, strides)
        launcher = self._launcher(found.plan, sizes, store, deterministic)
        orders = found.reordered.orders
        bind = lambda given: launcher.bind(found.names, given, sizes, found.strides, orders)
        run = found.running(tensors, bind)
        notes = (*found.notes, *self._notes(launcher))
        return PreparedPlan(run, self._runs_as(launcher, plan), notes, _has_strides(plan), launcher.deterministic)

    def compile_ahead(
        self,
        plan: Plan,
        tensors: Inputs,
        device: torch.device,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> None:
        each = lambda stage, given, laid: self.compile_ahead(stage, given, device, sizes, laid, store, deterministic)
        if self._staged(plan, tensors, each) is not None:
            return
        found = self._in_order(plan, tensors, sizes, strides, device)
        launcher = self._launcher(found.plan, sizes, store, deterministic)
        launcher.compile_ahead(found.names, found.given(tensors), sizes, found.strides, device)

    def describe(self, kernel: Kernel, weights: str = "half", in_pieces: bool = False) -> str:
        return describe_split(kernel)

    def source(self, kernel: Kernel, plan: Plan) -> str:
        return emit(kernel, plan).text

    def texts(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None = None,
        store: ScheduleStore | None = None,
        deterministic: bool = False,
    ) -> list[KernelTexts]:
        """The texts that `prepare` makes for tensors like these, with the arguments of their launches."""
        from .triton.launch_texts import launch_texts

        found: list[KernelTexts] = []
        each = lambda stage, given, laid: found.extend(self.texts(stage, given, sizes, laid, store, deterministic))
        if self._staged(plan, tensors, each) is not None:
            return found
        ordered = self._in_order(plan, tensors, sizes, strides)
        made = self._launcher(ordered.plan, sizes, store, deterministic)
        given = dict(zip(ordered.names, ordered.given(tensors)))
        return launch_texts(made, given, dict(sizes), dict(ordered.strides or {}))

    def _in_order(
        self,
        plan: Plan,
        tensors: Inputs,
        sizes: Sizes,
        strides: Strides | None,
        device: torch.device | None = None,
    ) -> PlanInMemoryOrder:
        """The plan for tensors as they lie in memory. device: where it will run, if not where they are."""
        from .launch.memory_order import in_order

        there = device or next((t.device for t in tensors.values()), torch.device("cpu"))
        by_maps = lambda plan, tensors: self._by_tensor_maps(plan, tensors, sizes, there)
        return in_order(plan, tensors, sizes, strides, by_maps)

    def _by_tensor_maps(self, plan: Plan, tensors: Inputs, sizes: Sizes, device: torch.device) -> AxesForMaps:
        return {}

    def _staged(self, plan: Plan, tensors: Inputs, each: Prepare) -> StagedRun | None:
        """The plan in stages, with `each` of a stage's kernels and of tensors like its own; None if all run as one."""
        what = staged(plan) if self.in_stages else None
        return None if what is None else StagedRun(what, tensors, each)

    def _launcher(self, plan: Plan, sizes: Sizes, store: ScheduleStore | None, deterministic: bool):
        from .triton.launch import launcher

        return launcher(plan)

    def _notes(self, launcher) -> tuple[str, ...]:
        return tuple(f"{name}: {how}" for name, how in launcher.shared.items())

    def _runs_as(self, launcher, plan: Plan) -> str:
        return self.name


class GluonExecutor(TritonExecutor):
    """Hopper's own form for the kernels that have one. The others run as plain Triton, and the notes say why."""

    name = "gluon"

    def refusal(self, plan: Plan, device: torch.device) -> str | None:
        if missing := triton_missing():
            return missing
        from .joined.launch import refusal

        return refusal(plan, device)

    def kernel_refusal(self, kernel: Kernel, plan: Plan) -> str | None:
        found = bind_as_run(kernel, plan.weights)
        return found if isinstance(found, str) else None

    def describe(self, kernel: Kernel, weights: str = "half", in_pieces: bool = False) -> str:
        if not in_pieces and (said := of_a_library(kernel)):
            return said
        found, of_views = bind_as_run(kernel, weights), ""
        if isinstance(found, str):
            viewed = _in_views(kernel)
            if not isinstance(by_views := bind_as_run(viewed, weights), str):
                kernel, found, of_views = viewed, by_views, ", which reads views of its inputs or copies of them"
        if isinstance(found, Binding) and (reason := _too_few_rows(kernel) or (in_pieces and why_not_in_pieces(found))):
            return f"plain Triton: {reason}"
        if isinstance(found, str):
            option = ROUNDING_HELPS if weights == "half" and self.rounds(kernel, "e4m3") else ""
            return f"plain Triton: {found}{option}"
        bits = ", the mask's tensors as bits" if packed(found) else ""
        pieces = ", its loop in pieces" if in_pieces else ""
        return f"warp-specialised Gluon{_of_bytes(kernel, found)}{bits}{of_views}{pieces}"

    def rounds(self, kernel: Kernel, weights: str) -> bool:
        """Whether the kernel would round weights to e4m3, in a plan of such weights."""
        outputs = tuple(store.output for store in kernel.stores)
        (rounding,) = with_weights(Plan((kernel,), kernel.inputs, outputs), weights).kernels
        found = bind_as_run(rounding, weights)
        return not isinstance(found, str) and found.has_narrow_values

    def describe_settings(self, kernel: Kernel, store: ScheduleStore | None = None, weights: str = "half") -> str:
        binding = bind_as_run(kernel, weights)
        if isinstance(binding, str) or triton_missing() or _too_few_rows(kernel):
            return ""
        from .gluon.launch import RefusedLaunch, choice_of

        try:
            return f"\n{choice_of(binding, {}, binding.overlays, store=store)}".replace("; ", "\n")
        except (UnknownSize, TermError):  # the latter is of a limit that reads such a size
            return ", scheduled when its lengths are known"
        except RefusedLaunch as reason:
            return f", not for these sizes: {reason}"

    def describe_time(self, kernel: Kernel, plan: Plan, sizes: Sizes | None = None) -> str:
        if triton_missing():
            return ""
        from .cost.plan_cost import described

        return described(plan, kernel, sizes)

    def seconds(self, plan: Plan, sizes: Sizes | None = None) -> float | None:
        """The estimated time of a plan on an H200; None where a size or the time of a kernel is not known."""
        if triton_missing():
            return None
        from .cost.plan_cost import seconds

        return seconds(plan, sizes)

    def timelines(self, plan: Plan, kernel: Kernel, sizes: Sizes | None = None) -> tuple[Timeline, ...]:
        """The schedule over time of each loop of a kernel's launches on an H200; none where a size is not known."""
        if triton_missing():
            return ()
        from .cost.timeline import timelines

        return timelines(plan, kernel, sizes)

    def slowdown(self, plan: Plan, sizes: Sizes) -> float:
        """By which part the plan was measured to be slower in this form than in plain Triton; 0 if it was not."""
        from .gluon.launch import slower

        return slower(plan, dict(sizes))

    def _launcher(self, plan: Plan, sizes: Sizes, store: ScheduleStore | None, deterministic: bool):
        from .gluon.launch import suited_plan
        from .joined.launch import launcher

        return launcher(suited_plan(plan, sizes) if needs_sizes(plan) else plan, store, deterministic)

    def _by_tensor_maps(self, plan: Plan, tensors: Inputs, sizes: Sizes, device: torch.device) -> AxesForMaps:
        from .gluon.launch import by_tensor_maps

        return by_tensor_maps(plan, tensors, sizes, device)

    def _notes(self, launcher) -> tuple[str, ...]:
        active = launcher.active
        plain = (f"{name} runs as plain Triton: {reason}" for name, reason in active.refusals.items())
        scheduled = (f"{name} is scheduled: {choice}" for name, choice in active.choices.items())
        return (*launcher.said, *plain, *super()._notes(active), *scheduled)

    def _runs_as(self, launcher, plan: Plan) -> str:
        active = launcher.active
        plain, plan = {*active.refusals, *active.shared}, active.plan
        if not plain:
            return self.name
        return "gluon and triton" if len(plain) < len(plan.kernels) else "triton"


class ConfiguredExecutor(TritonExecutor):
    """Kernels with given settings, as the tuner found them. No kernel runs in another form.

    settings: as schedule/setting_values.py names them. Raises SettingsRefused for those that a search never tries.
    """

    in_stages = False

    def __init__(self, settings: Mapping[str, object]):
        try:
            self.config = config_of(settings)
        except ValueError as error:
            raise SettingsRefused(str(error)) from error
        self.name = f"{executor_of(self.config)}, tuned"

    def _launcher(self, plan: Plan, sizes: Sizes, store: ScheduleStore | None, deterministic: bool):
        config = self.config
        if isinstance(config, HopperConfig):
            from .gluon.launch import GluonLauncher

            return GluonLauncher(plan, hopper_configs={k.name: emulating(bind(k), config) for k in plan.kernels})
        from .triton.launch import Launcher

        return Launcher(plan, config)

    def _notes(self, launcher) -> tuple[str, ...]:
        if refused := getattr(launcher, "refusals", None):
            raise SettingsRefused("; ".join(refused.values()))
        return ()


def _of_stages(stages: StagedRun, names: Sequence[str]) -> PreparedPlan:
    """The stages as what runs a plan. names: of the tensors, in order."""
    ready = stages.prepared_plans
    run = lambda given: stages(dict(zip(names, given)))
    who = ", ".join(dict.fromkeys([*(one.executor for one in ready), "torch's products of matrices"]))
    notes = (str(stages.what), *dict.fromkeys(note for one in ready for note in one.notes))
    return PreparedPlan(run, who, notes, deterministic=all(one.deterministic for one in ready))


ROUNDING_HELPS = '; with options={"weights": "e4m3"} it has a form of its own on Hopper'


def _of_bytes(kernel: Kernel, found: Binding) -> str:
    """What is multiplied as bytes, and what is stored first for that; empty where nothing is."""
    parts = {"scores": found.has_narrow_scores, "weighted values": found.has_narrow_values}
    bytes_ = " and ".join(name for name, narrow in parts.items() if narrow)
    stored = ", ".join(t.name for t in found.kernel.inputs if t not in kernel.inputs)
    said = [f"products of bytes for {bytes_}"] if bytes_ else []
    return "".join(f", {text}" for text in [*said, *([f"{stored} stored first"] if stored else [])])


TILED, TRITON, GLUON = TiledExecutor(), TritonExecutor(), GluonExecutor()
COMPILED_TILES, ROUNDING_TILES = CompiledTilesExecutor(), CompiledTilesExecutor(rounds=True)
EXECUTORS: dict[str, PlanExecutor] = {executor.name: executor for executor in (TILED, TRITON, GLUON)}
KERNELS = (GLUON.name, TRITON.name)  # executors of kernels, in the order in which they are tried


def runs_kernels(option: str, devices: Collection[str]) -> bool:
    """Whether kernels are to run a plan whose inputs are on devices of these types.

    option: the user's choice of an executor, "auto" or a name. On a CPU a kernel runs only if it was chosen by name,
    in Triton's interpreter.
    """
    return option != TILED.name and ("cuda" in devices or (option != "auto" and interpreter_wanted()))


def order(option: str, plan: Plan, device: torch.device) -> tuple[str, ...]:
    """The names of the executors to try on a device, best first, as far as they run kernels; else the tiled one.

    option: the user's choice, "auto" or a name. Example: "auto" on a Hopper GPU gives ("gluon", "triton").
    """
    if not runs_kernels(option, (device.type,)):
        return (TILED.name,)
    if option == "auto":
        option = GLUON.name if GLUON.refusal(plan, device) is None else TRITON.name
    return KERNELS[KERNELS.index(option) :]


def kernel_missing(plan: Plan) -> str | None:
    """Why some kernel of a plan can run neither by Gluon nor by Triton; None if each can."""
    plain = (kernel for kernel in plan.kernels if plan.piece or GLUON.kernel_refusal(kernel, plan) is not None)
    return next(filter(None, (TRITON.kernel_refusal(kernel, plan) for kernel in plain)), None)


def has_hopper_form(plan: Plan) -> bool:
    """Whether every kernel of a plan has Hopper's own form."""
    return all(GLUON.kernel_refusal(kernel, plan) is None for kernel in plan.kernels)


def _too_few_rows(kernel: Kernel) -> str:
    """Why a kernel with Hopper's form runs as plain Triton at any size of its other dims; "" if it does not."""
    rows = kernel.rows.size if kernel.rows else 0
    few = isinstance(rows, int) and rows < H200.product_rows
    return f"its tiles have {rows} rows, and the form's have {H200.product_rows}" if few else ""


def _not_compiled(kernel: Kernel) -> str | None:
    """What of a kernel this release of Triton is known not to compile; None if nothing is."""
    if triton_missing():
        return None
    from .launch.triton_compat import MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA

    if MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA or "float64" not in {tensor.dtype for tensor in kernel.inputs}:
        return None
    narrow = [tensor for tensor in kernel.inputs if getattr(torch, tensor.dtype).itemsize < 4]
    if not narrow or not (kernel.loops or kernel.held):
        return None  # without a sum there is no product
    return f"Triton before 3.9 does not compile products of float64 beside {narrow[0].name} of {narrow[0].dtype}"


@cache
def triton_missing() -> str | None:
    """Why Triton cannot be used in this process; None if it can."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    return None


def load_triton() -> None:
    """Loads Triton's compiler, where it is there, so that the first compilation need not wait for that."""
    if triton_missing() is None:
        from .launch.triton_compat import load_compiler

        load_compiler()


def _in_views(kernel: Kernel) -> Kernel:
    """The kernel with views of its inputs, as affine_views.in_views has a plan of it."""
    return in_views(Plan((kernel,), kernel.inputs, tuple(store.output for store in kernel.stores))).kernels[0]


def _has_strides(plan: Plan) -> bool:
    """Whether kernels write each result with any strides: not if one is two results, or has two axes stored as one."""
    stored = {store.output.name: store.output for kernel in plan.kernels for store in kernel.stores}
    return are_distinct(plan) and all(len(stored[t.name].shape) >= len(t.shape) for t in plan.outputs)
