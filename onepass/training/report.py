"""What a report says of derivatives: their kernels with their loops, and the values that are saved for a backward.

Everything comes from the plans, and from the certificate where the whole is asked for. Example: a kernel's line is
`kernel1: grad_q; rows i, loops over j`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..compiler import compiled_region
from ..compiler.certificate_files import assumed, certificate, derivatives_certificate, equations
from ..compiler.compiled_region import Fused, kernel_report, steps
from ..compiler.traffic import tensor_bytes
from ..egraph.calculus.certified import Certified
from ..egraph.calculus.partials import written
from ..egraph.derivation.certificate import Derivation
from ..egraph.terms.printing import show_let
from ..egraph.terms.term import Tensor
from ..lowering.plan.records import Kernel, Plan, Store
from ..lowering.readback.erase_stored import certificates as of_plan
from ..report.records import DERIVED, DerivativeReport, KernelReport, SavedReport
from ..rules import ALL
from .plans import Training
from .tangent_plans import TangentPlan, certified


def backward_line(found: Training) -> str:
    """A line on the whole, and one for each kernel.

    Example of the first: `derived, 2 kernels; saves log float32[b, i]; deterministic, unless a GPU joins two kernels`.
    Where a Hopper GPU runs two kernels as one, sums are in an order of chance, unless a deterministic result is asked
    for.
    """
    made = found.every
    saved = [_saved(store) for store in found.stores.saved] or ["nothing"]
    read = [found.captured.results[k].output.name for k in found.stores.read]
    again = f"; reads the result{'s' if len(read) > 1 else ''} {', '.join(read)}" if read else ""
    plan = made.region.plan
    first = f"{DERIVED}, {_counted(plan)}; saves {', '.join(saved)}{again}; {_repeats(made.region)}"
    return "\n".join([first, *_kernels(plan)])


def forward_mode_line(plan: TangentPlan | str) -> str:
    """A line on forward mode, and one for each kernel; or why the original calls carry the tangents.

    Example of the first: `forward mode: derived, 1 kernel`.
    """
    if isinstance(plan, str):
        return f"forward mode: the original calls ({plan})"
    found = plan.region.plan
    return "\n".join([f"forward mode: derived, {_counted(found)}", *_kernels(found)])


def _counted(plan: Plan) -> str:
    many = len(plan.kernels)
    return f"{many} kernel{'s' if many > 1 else ''}"


def _kernels(plan: Plan) -> list[str]:
    """A line for each kernel."""
    results = {tensor.name for tensor in plan.outputs}
    return [_kernel(kernel, results) for kernel in plan.kernels]


def _repeats(region: Fused) -> str:
    """Whether each run gives the same bits, as far as the plan says."""
    if not region.plan.deterministic:
        return "not deterministic"
    one = region.options.deterministic or len([k for k in region.plan.kernels if k.loops]) < 2
    return "deterministic" if one else "deterministic, unless a GPU joins two kernels"


def _saved(store: Store) -> str:
    return f"{store.output.name} {store.output.dtype}[{', '.join(map(str, store.order))}]"


def _kernel(kernel: Kernel, results: set[str]) -> str:
    stored: list[Tensor] = [store.output for store in kernel.stores]
    names = ", ".join(t.name if t.name in results else f"{t.name} (a part)" for t in stored)
    loops = ", ".join(loop.over for loop in kernel.loops) or "nothing"
    return f"{kernel.name}: {names}; rows {kernel.rows}, loops over {loops}"


# All of it ------------------------------------------------------------------------------------------------------------


def gradients_report(made: Training | str, hints: Mapping[str, int]) -> DerivativeReport:
    """The gradients of a region in full; or why they are not derived. hints: numbers for symbolic sizes."""
    if isinstance(made, str):
        return DerivativeReport("gradients", why_not=made)
    found = made.certified()
    kept = [*(made.captured.results[k] for k in made.stores.read), *made.stores.saved]
    results = {store.output.name for store in made.captured.results}
    report = _report(made.every.region, found, {**made.stored(), **made.every.chains})
    saved = tuple(_saved_report(store, hints, store.output.name in results) for store in kept)
    return replace(report, saved=saved, deterministic=_repeats(made.every.region))


def tangents_report(text: str, plan: TangentPlan | str) -> DerivativeReport:
    """The tangents of the region with this text in full; or why they are not derived."""
    if isinstance(plan, str):
        return DerivativeReport("tangents", why_not=plan)
    return replace(_report(plan.region, *certified(text, plan)), deterministic=_repeats(plan.region))


def _report(region: Fused, found: Certified, stored: Mapping[str, Derivation]) -> DerivativeReport:
    """What both kinds of derivatives have. stored: chains to what a plan computes, by the name of the value."""
    given = region.options.ordinary_rules
    chains = [{"of": name, **certificate(chain, chain.to_json(), given)} for name, chain in stored.items()]
    return DerivativeReport(
        found.mode,
        forms=tuple((d.tensor.name, show_let(d.term)) for d in found.shown),
        rules=tuple(step for step in steps(found.chains, found.certificate.premises) if step.rule in found.rules),
        rows=tuple((written(op), times) for op, times in sorted(found.rows.items())),
        equations=tuple(equations(found)),
        kernels=_kernel_reports(region),
        assumptions=assumed(found, {rule.name: rule for rule in ALL}),
        certificates=(derivatives_certificate(found), *chains, *of_plan(region.plan)),
        between=region.plan.between,
    )


def _kernel_reports(region: Fused) -> tuple[KernelReport, ...]:
    """The kernels of a plan, with their sources in files for reading."""
    report = replace(region.report, kernels=tuple(map(kernel_report, region.plan.kernels)))
    return compiled_region.with_sources(replace(region, report=report)).report.kernels


def _saved_report(store: Store, hints: Mapping[str, int], is_result: bool) -> SavedReport:
    tensor, dims = store.output, tuple(map(str, store.order))
    return SavedReport(tensor.name, tensor.dtype, dims, show_let(store.term), tensor_bytes(tensor, hints), is_result)
