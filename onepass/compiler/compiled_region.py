"""One captured region made ready to run: program -> term -> search -> plan, with its report, kept by content.

`make` does the work once per content in a process and once per content on a disk; `read` does the same from the text
that a compiled graph carries, so a graph out of any cache finds its plan again.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from keyword import iskeyword
from typing import TYPE_CHECKING

from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation
from ..egraph.forks import cached_property, lock
from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.rewrite.serialization import digest
from ..egraph.search.pattern_grounding import Grounded, ground
from ..egraph.terms.printing import show, show_let
from ..egraph.terms.term import Term, TermError
from ..egraph.terms.traversal import tensors
from ..errors import ProgramError
from ..garbage import rare_collections
from ..graph.program import Atom, Program
from ..lowering.analysis.dim_roles import product_sides
from ..lowering.analysis.exact_products import NOTHING_ROUNDED, ROUNDED, with_weights
from ..lowering.analysis.product_terms import matrix_products
from ..lowering.cost.invariant_plans import described
from ..lowering.executors import GLUON, TRITON, kernel_missing, runs_kernels
from ..lowering.masks.loop_ranges import without_clamps
from ..lowering.plan.records import Kernel, NotPlannable, Plan
from ..lowering.source_folder import write_source
from ..lowering.stage_times import stage
from ..process_state import keep_latest, registered
from ..report.records import KernelReport, LawReport, RegionData, RegionReport, Step
from ..rules import ALL
from ..translate.index_bounds import BoundsCondition
from . import disk_cache
from .assumptions import exactness
from .certificate_files import certificate
from .library_kernels import AttentionForm, form_of
from .optimized import Optimized, keep_chosen
from .options import Options
from .rule_admission import unproved
from .traffic import STORES_TOO_MUCH, eager_work, plan_bytes, stores_too_much

if TYPE_CHECKING:
    from ..translate.translate import Captured

UNPROVED = "law {} is not used: the ledger does not call it proved as it stands (`python -m onepass prove` decides it)"
BACKWARD = "not planned: no gradient is needed"
SEEDED = "torch's generator gives dropout a seed, and not each number: other elements are dropped than in eager"
MAX_REGIONS_KEPT = 512  # in this process, the latest
_LOCK = lock()
_BY_KEY: OrderedDict[str, Fused] = registered(OrderedDict(), "regions", _LOCK)
_BY_TEXT: OrderedDict[str, Fused] = registered(OrderedDict(), "regions", _LOCK)
Strides = tuple[tuple[int | str, ...], ...]  # of every result
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fused:
    """A region with its plan. `names` are the plan's names of the inputs, in the program's order."""

    key: str
    program: Program
    options: Options
    strides: Strides
    names: tuple[str, ...]
    plan: Plan
    report: RegionReport
    form: AttentionForm | None = None  # of which torch has a kernel
    required: tuple[BoundsCondition, ...] = ()  # of sizes, or eager raises

    @cached_property
    def text(self) -> str:
        """Everything that another process needs: data only."""
        document = {"program": self.program.to_json(), "options": self.options.carried(), "strides": self.strides}
        return json.dumps(document, separators=(",", ":"), sort_keys=True)

    @cached_property
    def free_symbols(self) -> tuple[str, ...]:
        """Symbolic sizes that no axis of an input states plainly: the operator gets them as numbers, in this order."""
        stated = {s for i in self.program.inputs for s in i.meta.shape}
        return tuple(s for s in self.program.symbols if s not in stated)


@dataclass(frozen=True, eq=False)
class TracedRegion:
    """A region as it was traced, with its terms as soon as they are asked for."""

    program: Program

    @cached_property
    def captured(self) -> Captured:
        """The program as terms. Raises Refusal."""
        from ..translate.translate import translate

        with stage("capture"):
            return translate(self.program)


@dataclass(frozen=True)
class Carried:
    """What the text of a graph says, before anything is searched."""

    program: Program
    options: Options
    strides: Strides


@lru_cache(MAX_REGIONS_KEPT)
def carried(text: str) -> Carried:
    """Reads the text of a graph. Raises ProgramError for what `Fused.text` did not write."""
    try:
        document = json.loads(text)
        options = Options.from_carried(document["options"])
        return Carried(Program.from_json(document["program"]), options, tuple(map(tuple, document["strides"])))
    except (ValueError, KeyError, TypeError, TermError) as error:
        raise ProgramError(f"not the text of a fused region: {error}") from error


def read(text: str) -> Fused:
    """The region that a graph's text describes, made again if this process does not have it."""
    with _LOCK:
        found = _BY_TEXT.get(text)
        if found is None:
            known = carried(text)
            found = keep_latest(_BY_TEXT, text, make(known.program, known.options, known.strides), MAX_REGIONS_KEPT)
        return found


def make(program: Program, options: Options, strides: Sequence = (), hints: Mapping[str, int] | None = None) -> Fused:
    """The region with its plan: from this process, from the disk, or by search. Raises Refusal or NotPlannable.

    strides: of every result, as `Strides`; contiguous if there are none. hints: numbers for symbolic sizes.
    """
    return make_traced(TracedRegion(program), options, strides, hints)


@rare_collections()
def make_traced(
    traced: TracedRegion, options: Options, strides: Sequence = (), hints: Mapping[str, int] | None = None
) -> Fused:
    """`make` of a region whose terms others ask for, too."""
    program = traced.program
    device = program.inputs[0].meta.device if program.inputs else "cpu"
    given = options.rules
    grounded = _grounded(traced, options, device)
    options = replace(options, rules=grounded.rules)
    key = disk_cache.key(digest([canonical(program).digest(), options.carried(), list(strides)]), device)
    with _LOCK:
        found = _BY_KEY.get(key)
        if found is not None:
            said = f"known in this process, no search{_whose_names(program, found.names)}"
            again = replace(found.report, cache=said, places=_places(program))
            found = replace(found, program=program, report=again)
        else:
            found = _restore(key, program, options, strides) or _search(key, traced, options, strides, hints or {})
            keep_latest(_BY_KEY, key, found, MAX_REGIONS_KEPT)
    if not given:
        return found
    return replace(found, report=replace(found.report, laws=_laws(given, grounded, found.report)))


def canonical(program: Program, inputs: Sequence[str] | None = None) -> Program:
    """The same program under names by position and without source lines: equal for equal layers of a model.

    inputs: other names for the inputs than x0, x1, ...
    """
    names = {i.name: inputs[k] if inputs else f"x{k}" for k, i in enumerate(program.inputs)}
    names |= {n.name: f"node {k}" for k, n in enumerate(program.nodes)}

    def renamed(value):
        if isinstance(value, tuple):
            return tuple(renamed(v) for v in value)
        return replace(value, text=names[value.text]) if isinstance(value, Atom) and value.kind == "node" else value

    renamed_inputs = tuple(replace(i, name=names[i.name]) for i in program.inputs)
    nodes = tuple(
        replace(n, name=names[n.name], args=renamed(n.args), kwargs=renamed(n.kwargs), where="") for n in program.nodes
    )
    return Program(renamed_inputs, nodes, tuple(names[output] for output in program.outputs))


def _grounded(traced: TracedRegion, options: Options, device: str) -> Grounded:
    """The rules of the options as ordinary rules only, so that they can be carried."""
    if all(isinstance(rule, Rule) for rule in options.rules):
        return ground(options.rules, ())
    from .optimize import resolve

    return resolve([result.term for result in traced.captured.results], options.rules, device)


def _laws(given: Iterable[Rule | PatternRule], grounded: Grounded, report: RegionReport) -> tuple[LawReport, ...]:
    """What became of each rule that was given: whoever wrote it wants to know."""
    used = {step.rule for step in report.derivation}
    counts = report.statistics.get("matches", {})
    limits = [stop for stop in dict(report.statistics.get("stop", {})).values() if stop != "saturated"]
    found = []
    for rule in given:
        names = grounded.names[rule.name]
        matches = sum(counts.get(name, 0) for name in names)
        declined = tuple(grounded.declined.get(rule.name, {}).items())
        found.append(LawReport(rule.name, not used.isdisjoint(names), matches, declined, (limits or [""])[0]))
    return tuple(found)


def _search(key: str, traced: TracedRegion, options: Options, strides, hints) -> Fused:
    from .optimize import optimize_all

    program, captured = traced.program, traced.captured
    found = optimize_all(captured.results, options.rules, invariant=options.invariant, without=options.without)
    require_kernels(found.plan, program, options, hints)
    names = tuple(entry.name for entry in program.inputs)
    body = {"names": list(names), **found.to_data()}
    said = "searched now, stored" if disk_cache.write(key, body) else "searched now, not stored"
    return _fused(_report(key, program, options, found, body, said), program, options, strides, names, captured, found)


def _fused(report: RegionReport, program, options, strides, names, captured, found: Optimized) -> Fused:
    """The region with what was found of it."""
    results = [(term, result.order) for term, result in zip(found.terms, captured.results, strict=True)]
    form = form_of(*results[0]) if len(results) == 1 else None
    strides = tuple(map(tuple, strides))
    plan = _settled(found.plan, program, options)
    return Fused(report.key, program, options, strides, names, plan, report, form, captured.required)


def _settled(plan: Plan, program: Program, options: Options) -> Plan:
    """The plan with what the options, and the program as it is written, let kernels do."""
    return replace(with_weights(plan, options.weights), factors_apart=plan.piece > 0 and not program.numbers_by_place)


def require_kernels(plan: Plan, program: Program, options: Options, hints: Mapping[str, int]) -> None:
    """Raises NotPlannable for a plan that has no kernel where kernels run it, or would be worse than what is written.

    What is left as written the compiler around may fuse; the operation could only call it as it stands.
    """
    if options.executor != "tiled" and stores_too_much(plan, program, hints):
        raise NotPlannable(STORES_TOO_MUCH)
    if runs_kernels(options.executor, {entry.meta.device for entry in program.inputs}):
        if missing := kernel_missing(plan):
            raise NotPlannable(missing)


def _restore(key: str, program: Program, options: Options, strides) -> Fused | None:
    """From the disk, without a search; its derivations are checked again. What does not fit the program is a miss."""
    from ..translate.translate import translate

    body = disk_cache.read(key)
    if body is None:
        return None
    try:
        names = _names_of(body["names"], program)
        with stage("capture"):
            captured = translate(canonical(program, names))
        found = Optimized.from_data(body, captured.results, options.ordinary_rules, options.invariant)
        keep_chosen(key, body, found.plan)
        said = f"found on disk, no search{_whose_names(program, names)}"
        report = _report(key, program, options, found, body, said)
        return _fused(report, program, options, strides, names, captured, found)
    except Exception as error:  # of whatever kind: the search does without the entry, and meets what is not its fault
        log.warning("onepass: cache entry %s cannot be used: %s", key, error)
        return None


def _names_of(written, program: Program) -> tuple[str, ...]:
    """The inputs' names under which the region was searched: one for each, and no two alike. Raises ProgramError."""
    names = tuple(written) if isinstance(written, list) else ()
    if len(names) != len(program.inputs) or not all(map(_is_name, names)) or len(set(names)) < len(names):
        raise ProgramError(f"{written!r} are not names of {len(program.inputs)} inputs")
    return names


def _is_name(value) -> bool:
    return isinstance(value, str) and value.isidentifier() and not iskeyword(value)


def _whose_names(program: Program, names: Sequence[str]) -> str:
    own = [entry.name for entry in program.inputs]
    return "" if own == list(names) else "; tensors have the names of the equal region that was searched"


def _report(key: str, program: Program, options: Options, found: Optimized, body: dict, said: str) -> RegionReport:
    """body: the region's entry. said: where it is from."""
    written = zip(found.derivations, body["derivations"], strict=True)
    plan = _settled(found.plan, program, options)
    rounds = options.weights != "half" and any(GLUON.rounds(kernel, options.weights) for kernel in plan.kernels)
    return RegionReport(
        key=key,
        places=_places(program),
        captured=show_let(*found.captured),
        extracted=show_let(*found.terms),
        derivation=steps(found.derivations, options.ordinary_rules),
        passes=(found.passes_before, found.passes_after),
        kernels=tuple(kernel_report(kernel, plan.weights, plan.piece > 0) for kernel in plan.kernels),
        statistics=dict(found.statistics),
        executor=options.executor,
        libraries=options.libraries,
        device=program.inputs[0].meta.device if program.inputs else "cpu",
        cache=said,
        backward=BACKWARD,
        certificates=tuple(certificate(derivation, data, options.ordinary_rules) for derivation, data in written),
        between=found.plan.between,
        plan_passes=found.plan.plan_passes,
        shape_reasons=found.plan.shape_reasons,
        plan_check=found.plan.read_back,
        deterministic=found.plan.deterministic,
        invariant=described(found.plan.piece) if found.plan.piece else "",
        rounded=ROUNDED if rounds else "",
        notes=(
            *(UNPROVED.format(name) for name in ledger.unproved(ALL)),
            *((SEEDED,) if program.draws else ()),
            *((NOTHING_ROUNDED,) if options.weights != "half" and not rounds else ()),
        ),
    )


def with_bytes(found: Fused, hints: Mapping[str, int]) -> Fused:
    """The same with the bytes that it moves, as eager runs it and as its plan does, and with what a page needs.

    hints: numbers for symbolic sizes.
    """
    moved, calls = eager_work(found.program, hints)
    data = RegionData(found.plan, hints, calls)
    return replace(found, report=replace(found.report, bytes=(moved, plan_bytes(found.plan, hints)), data=data))


def mask_inputs(found: Fused, values: Sequence[str]) -> dict[str, str]:
    """For each tensor of the plan that a mask reads, the graph's value. values: names of the region's, in order."""
    loops = [loop for kernel in found.plan.kernels for loop in kernel.loops if loop.guard is not None]
    read = {t.name for loop in loops for term in (loop.guard, *(x.bound for x in loop.limits)) for t in tensors(term)}
    return {name: value for name, value in zip(found.names, values, strict=True) if name in read}


def with_sources(found: Fused) -> Fused:
    """The same with every kernel's Triton source in a file for reading, named in the report, its schedule and its time.
    """
    of_kernel = partial(GLUON.describe_settings, store=disk_cache.OF_THIS_VERSION, weights=found.plan.weights)
    settings = ["" if found.plan.piece else of_kernel(kernel) for kernel in found.plan.kernels]
    times = [GLUON.describe_time(kernel, found.plan) for kernel in found.plan.kernels]
    kernels = tuple(
        replace(k, source=_written(found, n), form=k.form + settings[n], estimate=times[n])
        for n, k in enumerate(found.report.kernels)
    )
    return replace(found, report=replace(found.report, kernels=kernels))


def _written(found: Fused, number: int) -> str:
    """The path of a kernel's source; empty where nothing is kept, and, said in the log, if it cannot be written."""
    kernel = found.plan.kernels[number]
    try:
        place, name = disk_cache.made_folder(), f"{kernel.name}_{found.key[:12]}.py"
        return str(write_source(place, name, TRITON.source(kernel, found.plan)) or "")
    except Exception as error:  # for reading only: a region without readable source still runs
        log.warning("onepass: no source of kernel %s: %s", kernel.name, error)
        return ""


def _places(program: Program) -> tuple[str, ...]:
    """Where the user wrote the region's result."""
    return tuple(n.where for n in program.nodes if n.where)[-1:]


def kernel_report(kernel: Kernel, weights: str = "half", in_pieces: bool = False) -> KernelReport:
    """What a report says of a kernel. weights, in_pieces: of its plan."""
    return KernelReport(
        kernel.name,
        grid=tuple(map(str, kernel.grid)),
        rows=" and ".join(map(str, kernel.tiled)),
        loops=tuple(str(loop.dim) for loop in kernel.loops),
        form=GLUON.describe(kernel, weights, in_pieces),
        masks=tuple(filter(None, map(_mask, kernel.loops))),
        parts=TRITON.describe(kernel),
        stores=tuple(store.output.name for store in kernel.stores),
        products=tuple(map(_product, matrix_products(kernel))),
    )


def _product(node: Term) -> str:
    """The sides of a product of matrices: i by j over d, of Σ_d q[i, d] · k[j, d]."""
    left, right = product_sides(node)
    side = lambda dims: " and ".join(map(str, sorted(dims)))
    return f"{side(left - right)} by {side(right - left)} over {node.attrs[1]}"


def _mask(loop) -> str:
    """What of the loop's coordinates is visited, and how; empty for all of them."""
    if loop.guard is None:
        return ""
    spans = [_span(loop.dim, r) for r in loop.ranges]
    mapped = ", or by a block map of what the mask's tensors hold" if loop.map is not None else ""
    return ("; or ".join(spans) or f"no {loop.dim}") + mapped


def _span(dim, found) -> str:
    bounds = lambda limits: ", ".join(show(without_clamps(limit.bound, dim)) for limit in limits)
    lowers, uppers = bounds(found.lowers), bounds(found.uppers)
    said = f"{lowers} ≤ {dim}" if lowers else f"{dim}" if uppers else f"all {dim}"
    return said + (f" < {uppers}" if uppers else "") + ("" if found.exact else ", tested")


def steps(derivations: Sequence[Derivation], rules: Iterable[Rule]) -> tuple[Step, ...]:
    """The rules that were used, with their laws, and the strongest assumption that a use of each needs."""
    known = {rule.name: rule for rule in (*ALL, *rules)}
    needed: dict[str, str] = {}
    for name, exact in (pair for derivation in derivations for pair in exactness(derivation, known).items()):
        needed[name] = exact if exact == known[name].exact else needed.get(name, exact)
    return tuple(Step(name, known[name].law, exact, unproved(known[name])) for name, exact in needed.items())
