"""What a kernel computes while it loads: pointwise code, views and short reductions in front of a region's inputs.

Fused where it pays: what belongs to the rows is computed once per tile of rows, what belongs to a loop again for every
tile of rows. No node changes. `fuse` is called by onepass/graph_passes/replace.py with what finds a region's plan;
epilogues.py looks behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import fx

from ..compiler import library_kernels
from ..compiler.compiled_region import Fused
from ..egraph.derivation import ledger
from ..egraph.derivation.normalize import Normaliser
from ..egraph.search.cost import NOMINAL
from ..egraph.search.engine import EngineError
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import every_reduction, subterms
from ..errors import OnepassError
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import NORMS, changes_in_place, name_of
from ..graph.survey import Nodes, Survey, hinted, shape
from ..lowering.hopper.kernel_form import bind
from ..lowering.plan.records import Kernel, NotPlannable, Plan
from ..lowering.plan.thresholds import HELD
from ..lowering.planning.planner import plan_stores
from ..regions.find import objection, widened, without_joins
from ..regions.grow import axis_of
from ..regions.region import Region, signature
from ..rules import NORMAL
from .deferred_products import with_products
from .epilogues import tails

ROWS = 128  # of a tile, for estimates
FORM = 0.25  # of a kernel's time, which a plan that loses its form on Hopper is measured to lose: 0.17 to 0.36
SPECIAL_FORM = "sm_90"
LOSES = "the kernel would lose its form on Hopper, whose products read tensors as they are stored"
Make = Callable[[Region], Fused]
Reads = dict[str, "tuple[tuple[float, str], ...] | Exception"]  # by a region's signature: _repeats of each input


@dataclass(frozen=True)
class Machine:
    """Rates for estimates: bytes and pointwise operations a second, matrix operations a second, seconds of a launch.

    reduced: pointwise operations that reducing an element in a tile takes: over threads, 16 as measured.
    """

    memory: float
    pointwise: float
    matrix: float
    launch: float
    reduced: float = 1.0


MACHINES = {"cuda": Machine(4e12, 3e13, 5e14, 2e-6, 16.0), "cpu": Machine(2e10, 4e9, 1e11, 5e-6)}


@dataclass(frozen=True)
class Load:
    """An input of a region and the `nodes` in front of it that the region's kernel could compute itself, in order."""

    source: fx.Node
    nodes: tuple[fx.Node, ...]

    @property
    def inputs(self) -> list[fx.Node]:
        inside = set(self.nodes)
        return list(dict.fromkeys(i for n in self.nodes for i in n.all_input_nodes if i not in inside))

    def __str__(self) -> str:
        done = ", ".join(dict.fromkeys(name_of(n) for n in self.nodes if name_of(n) != "getitem"))
        of = ", ".join(i.name.removeprefix("l_").strip("_") for i in self.inputs if shape(i) is not None)
        return f"{done} of {of}" + (f" ({where_of(self.source)})" if where_of(self.source) else "")


def fuse(
    region: Region, s: Survey, taken: Nodes, mode: str, make: Make, known: Reads, tail: Sequence[str] = ()
) -> tuple[Region, Fused]:
    """The region with what it computes while it loads, and its plan, whose report says so.

    taken: nodes of other regions. mode: the option fuse_loads. known: what was found out of equal regions, kept by the
    caller. tail: what `with_tail` said. Raises what `make` raises for the region itself.
    """
    if region.refusal is not None or mode == "never":
        return region, make(region)
    region, apart = _with_form(region, s, mode, make)
    region, moved = with_products(region, s, taken, mode, make)
    said = [*tail, *apart, *moved]
    found = [(x, "" if mode == "always" else _reason(x, region, s, known)) for x in loads(region, s, taken)]
    chosen = [load for load, reason in found if not reason]
    if chosen:
        wide = widened(region, (n for load in chosen for n in load.nodes), s)
        answer, failed = _attempt(wide, region, s, mode, make, sum(_seconds(x, _machine(region)) for x in chosen))
        region = region if answer is None else wide
        found = [(load, reason or failed) for load, reason in found]
    said += [f"{load}: " + (f"outside: {reason}" if reason else _fused(load.source)) for load, reason in found]
    answer = make(region)
    return region, replace(answer, report=replace(answer.report, around=tuple(said)))


def _with_form(region: Region, s: Survey, mode: str, make: Make) -> tuple[Region, list[str]]:
    """Without tensors that it joins itself, where these keep the region from its form on Hopper, and what to say."""
    narrow, joins = without_joins(region, s) if _has_special_form(value_of_node(region.output).device) else (region, [])
    if mode != "auto" or not joins or _binds(make(region).plan) or objection(narrow, s) is not None:
        return region, []
    saved, plan = sum(2 * _bytes(n) / _machine(region).memory for n in joins), make(narrow).plan
    if not _binds(plan) or _of_form(narrow, plan) <= saved:
        return region, []
    return narrow, [f"{name_of(n)} ({where_of(n)}): outside: {LOSES}" for n in joins]


def _of_form(region: Region, plan: Plan) -> float:
    """Seconds that a plan's form on Hopper is good for."""
    sizes, machine = hints(region), _machine(region)
    return FORM * 2 * sum(_volume(r.args[0], sizes) for r in every_reduction(_terms(plan))) / machine.matrix


def with_tail(region: Region, s: Survey, taken: Nodes, mode: str, make: Make) -> tuple[Region, list[str]]:
    """The longest region that is as good as the given one, and what is to be said of it.

    taken: what other regions compute, their own copies too: those read this result itself.
    """
    said: list[str] = []
    if region.refusal is not None or mode == "never":
        return region, said
    for longer in tails(region, s, taken):
        done = ", ".join(dict.fromkeys(name_of(n) for n in longer.nodes if n not in set(region.nodes)))
        behind = f"{done} behind the result" + (f" ({where_of(longer.output)})" if where_of(longer.output) else "")
        saved = 2 * _bytes(region.output) / _machine(region).memory
        answer, reason = _attempt(longer, region, s, mode, make, saved)
        if answer is not None:
            return longer, [f"{behind}: {_fused(region.output)}"]
        said.append(f"{behind}: outside: {reason}")
    return region, said


def _attempt(wide: Region, region: Region, s: Survey, mode: str, make: Make, saved: float) -> tuple[Fused | None, str]:
    """The wider region's plan, or None and why it is no good; `saved` are the seconds that it is good for."""
    if (objected := objection(wide, s)) is not None:
        return None, objected.reason
    try:
        answer = make(wide)
    except (OnepassError, NotPlannable, EngineError) as error:
        return None, getattr(error, "reason", str(error))
    loss = _loss(region, answer, saved, make) if mode == "auto" else ""
    return (None, loss) if loss else (answer, "")


def _loss(region: Region, answer: Fused, saved: float, make: Make) -> str:
    """Why the region's own plan is the better one; empty if it is not."""
    kernels = answer.plan.kernels
    device = value_of_node(region.output).device
    hopper = _has_special_form(device)
    options, plain = answer.options, make(region)
    rival = options.libraries and options.executor == "auto" and plain.form is not None and answer.form is None
    if rival and not (hopper and _binds(answer.plan)):  # which is measured to be faster than torch's
        meta = plain.program.output_metas[0]
        if found := library_kernels.kernels(plain.form, device.type, meta.dtype):
            return f"{found[0].name} of torch's, which may be faster than any plan, takes the region without it"
    if len(kernels) == 1 and not hopper:
        return ""
    own = plain.plan
    if len(own.kernels) < len(kernels):
        return f"it would take {len(kernels)} kernels instead of {len(own.kernels)}"
    loses = hopper and _binds(own) and not _binds(answer.plan) and _of_form(region, own) > saved
    return LOSES if loses else ""


def _binds(plan: Plan) -> bool:
    return all(not isinstance(bind(kernel), str) for kernel in plan.kernels)


def _terms(plan: Plan) -> list[Term]:
    return [store.term for kernel in plan.kernels for store in kernel.stores]


def _has_special_form(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" == SPECIAL_FORM


# What could be computed while loading ---------------------------------------------------------------------------------


def loads(region: Region, s: Survey, taken: Nodes) -> list[Load]:
    """The floating inputs of a region that come from code which a kernel can compute by elements or by rows."""
    sources = (n for n in region.inputs if shape(n) is not None and value_of_node(n).is_floating_point())
    found = [Load(n, _cone(n, s, taken)) for n in sources]
    return [load for load in found if any(s.kind[n] not in ("view", "cast", "creation") for n in load.nodes)]


def _cone(source: fx.Node, s: Survey, taken: Nodes) -> tuple[fx.Node, ...]:
    """The nodes in front of the source that may be taken in, the source last; none if it may not."""
    found: list[fx.Node] = []
    inside, wanted = set(), {source}
    for node in reversed(s.order[: s.place[source] + 1]):
        if node in wanted and node not in taken and _computable(node, source, s):
            small = _count(node) < _count(source) and s.kind[node] != "view" and not s.free[node]
            if small and not inside.issuperset(node.users):  # a table that others read too
                continue
            found.append(node)
            inside.add(node)
            wanted.update(node.all_input_nodes)
    return tuple(reversed(found))


def _computable(node: fx.Node, source: fx.Node, s: Survey) -> bool:
    kind = s.kind[node]
    if node.op not in ("call_function", "call_method") or changes_in_place(node) or s.scope[node]:
        return False
    if kind == "reduction" or name_of(node) in NORMS:
        return _is_short(node, source)
    if kind == "join" or name_of(node) == "stack":
        return True
    return kind in ("pointwise", "cast", "view") or (kind == "creation" and s.free[node])


def _is_short(node: fx.Node, source: fx.Node) -> bool:
    """Reduces the last axis, which the source has too and which a tile holds whole."""
    if "softm" in name_of(node):
        return False
    size = (shape(node.all_input_nodes[0]) or (None,))[-1]
    last = name_of(node) in ("normalize", "rms_norm") or axis_of(node) == -1
    return last and isinstance(size, int) and size <= HELD and size in (shape(source) or ())


def _count(node: fx.Node) -> int:
    """Elements; what is no tensor (the parts of one) counts as many."""
    sizes = shape(node)
    return 1 << 62 if sizes is None else prod(n if isinstance(n, int) else NOMINAL for n in sizes)


# What pays ------------------------------------------------------------------------------------------------------------


def _reason(load: Load, region: Region, s: Survey, known: Reads) -> str:
    """Why the load's nodes are better left outside; empty if they are not."""
    if (user := _other_user(load.source, set(region.nodes))) is not None:
        at = f" at {where_of(user)}" if where_of(user) else ""
        return f"the result is also used by {name_of(user) or user.op}{at}, so it is written anyway"
    name = signature(region)
    if name not in known:
        try:
            known[name] = _repeats(region)
        except (OnepassError, NotPlannable) as error:
            known[name] = error
    if isinstance(known[name], Exception):
        return str(known[name])
    times, said = known[name][region.inputs.index(load.source)]
    machine = _machine(region)
    cost = lambda n: machine.reduced if s.kind[n] == "reduction" or name_of(n) in NORMS else 1
    work = sum(cost(n) * _elements(n) for n in load.nodes if s.kind[n] not in ("view", "cast")) / machine.pointwise
    if times > 1 and times * work > max(work, _seconds(load, machine)):
        return f"it would be computed again for {said}"
    return ""


def _other_user(node: fx.Node, inside: set[fx.Node]) -> fx.Node | None:
    """Who else needs the node when the region has become a call: its copies inside are no users."""
    for user in node.users:
        if user not in inside:
            return user
    return None


def _seconds(load: Load, machine: Machine) -> float:
    """The load's nodes as a kernel of their own, and reading their result."""
    moved = sum(_bytes(n) for n in load.inputs) + 2 * _bytes(load.source)
    return moved / machine.memory + machine.launch


def _repeats(region: Region) -> tuple[tuple[float, str], ...]:
    """For every input, how often an element would be computed, and a phrase for it."""
    from ..translate.translate import translate

    program = region.program()
    normaliser = Normaliser(ledger.proved(NORMAL))
    stores = [replace(r, term=normaliser.normal(r.term)) for r in translate(program).results]
    sizes, worst = hints(region), {entry.name: (1.0, "") for entry in program.inputs}
    tensors = [n for n in region.inputs if shape(n) is not None]
    elements = {entry.name: prod(hinted(value_of_node(n))) for entry, n in zip(program.inputs, tensors, strict=True)}
    for kernel in plan_stores(stores).kernels:
        for node in {t for store in kernel.stores for t in subterms(store.term)}:
            name = node.attrs[0].name if node.op == "load" else ""
            if name in worst:
                worst[name] = max(worst[name], _again(node, kernel, sizes, elements[name]), key=lambda pair: pair[0])
    found = dict(zip(tensors, worst.values(), strict=True))
    return tuple(found.get(n, (1.0, "")) for n in region.inputs)


def _again(node: Term, kernel: Kernel, sizes: dict[str, int], elements: int) -> tuple[float, str]:
    """In how many programs of the kernel one element is read, a tile of rows being one program."""
    spread = prod(_size(d, sizes) for d in {*node.dims, *kernel.grid}) / elements
    times, said = max(spread, 1.0), [f"each of {spread:g} points of the grid"] if spread > 1 else []
    for dim in kernel.tiled:
        if dim not in node.dims:
            tiles, what = -(-_size(dim, sizes) // ROWS), "rows" if dim == kernel.rows else "columns"
            text = str(tiles) if isinstance(dim.size, int) else f"ceil({dim.size}/{ROWS})"
            said, times = [f"each of the {text} tiles of {ROWS} {what}", *said], times * tiles
    return times, " and ".join(said)


def _fused(node: fx.Node) -> str:
    return f"computed in the kernel, which saves writing and reading {2 * _bytes(node)} bytes"


def hints(region: Region) -> dict[str, int]:
    """Numbers for symbolic sizes, as they were when the graph was made: for estimates, nothing else."""
    found = {}
    for node in region.inputs:
        value = value_of_node(node)
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                found[str(size.node.expr)] = size.node.hint
    return found


def _machine(region: Region) -> Machine:
    return MACHINES["cpu" if value_of_node(region.output).device.type == "cpu" else "cuda"]


def _size(dim: Dim, sizes: dict[str, int]) -> int:
    return dim.size if isinstance(dim.size, int) else sizes.get(dim.size, NOMINAL)


def _volume(term: Term, sizes: dict[str, int]) -> float:
    return prod(float(_size(d, sizes)) for d in term.dims)


def _elements(node: fx.Node) -> int:
    """Elements that a node reads or makes, whichever are more."""
    tensors = [n for n in (node, *node.all_input_nodes) if shape(n) is not None]
    return max((prod(hinted(value_of_node(n))) for n in tensors), default=0)


def _bytes(node: fx.Node) -> int:
    value = value_of_node(node)
    return prod(hinted(value)) * value.element_size() if isinstance(value, torch.Tensor) else 0
