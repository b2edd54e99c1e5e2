"""A region as text: lines with a label each, in the order in which a reader asks; and what several readers need.

Everything comes from the records; nothing is looked up here. Example of a line: `passes      3 -> 1, in 2 loops`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

from .. import messages
from ..lowering.stage_times import shown

# Records print themselves by this module, so it imports none of them.
Report = Any
RegionReport = Any
KernelReport = Any
DerivativeReport = Any


def way_out(refused: Any) -> str:
    """What to change so that the region can be fused, and where the page of refusals says more."""
    return messages.way_out(refused.code)


def nothing_lines(report: Report) -> Iterator[str]:
    """Why there is nothing to fuse; no line where something was found."""
    if not report.graphs:
        yield "no graph was captured: the function runs as Python, and there is nothing to fuse"
    elif not (report.regions or report.refusals or report.failures):
        many = "the graph" if report.graphs == 1 else "any graph"
        said = "no two products with a reduction that is known (a softmax, a sum, a maximum) between them were found"
        yield f"{said} in {many}: there is nothing to fuse"
        layers = "a product with weights, or with one matrix for a whole batch, is a layer, which is left to torch"
        yield f"({layers}; one product of which only reductions are read is fused from 2^21 elements on)"


def law_lines(report: Report) -> Iterator[str]:
    """What became of each law that was given, in all regions. Regions are told apart by their numbers."""
    for name in report.given:
        each = ((n, *law) for n, region in enumerate(report.regions, 1) for law in region_laws(region))
        found = {n: said for n, law, said in each if law == name}
        used = [str(n) for n, said in found.items() if said.startswith("used")]
        if used:
            yield f"{name}: used in region {', '.join(used)}"
        elif not found:
            searched = "no region was searched" if report.refusals or report.failures else "there is no region"
            yield f"{name}: not used: {searched}"
        else:
            by_outcome: dict[str, list[str]] = {}
            for n, text in found.items():
                by_outcome.setdefault(text, []).append(str(n))
            one = len(report.regions) == 1
            said = (text if one else f"{text} (region {', '.join(where)})" for text, where in by_outcome.items())
            yield f"{name}: {'; '.join(said)}"


def region_laws(region: RegionReport) -> Iterator[tuple[str, str]]:
    """The name of each law that was given, and what became of it in the region and in its derivatives."""
    for law in region.laws:
        said = law_outcome(law)
        for found in (region.gradients, region.tangents):
            # A pattern law becomes laws with names such as "name #1" and "name[left]"
            if found is not None and any(re.split(r" #|\[", step.rule)[0] == law.name for step in found.rules):
                said += f"; used in the {found.kind}"
        yield law.name, said


def law_outcome(law: Any) -> str:
    """What became of a law that was given, in one region."""
    if law.used:
        return "used"
    if law.matches:
        times = "once" if law.matches == 1 else f"{law.matches} times"
        return f"not used: it matched {times}, and the form chosen does without it"
    if law.declined:
        reasons = (f"{reason}{_often(times)}" for reason, times in law.declined)
        return f"not used: it declined: {'; '.join(reasons)}"
    until = f" before the search stopped ({law.stopped})" if law.stopped else ""
    return f"not used: it matched nothing{until}"


LABEL = 12  # characters of a label and the space behind it
MAX_REASONS = 3  # in one line
MAX_LENGTH_OF_A_FAILURE = 100  # characters, there


def headline(report: Report) -> str:
    """A report in one line: how many regions are fused, by which unproved rules, and in short why others are not."""
    reasons = [f"{first_clause(r.reason)} ({short_place(r)})" for r in report.refusals]
    reasons += [f"failed, {shorten(failure, MAX_LENGTH_OF_A_FAILURE)}" for failure in report.failures]
    if not (report.fused or reasons):
        return "nothing was found to fuse"
    said = f"{report.fused} fused"
    if report.trusted:
        said += f" by unproved rules too ({', '.join(report.trusted)})"
    if reasons:
        more = len(reasons) - MAX_REASONS
        listed = "; ".join(reasons[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")
        said += f", {report.left} left as written: {listed}"
    return said


def region_headline(region: RegionReport) -> str:
    """A region in one line: where it is, how often, and how many kernels compute it."""
    many = f"{len(region.kernels)} kernel{'' if len(region.kernels) == 1 else 's'}"
    return f"{', '.join(region.places) or '(source line unknown)'}{_often(region.count)}, {many}"


def first_clause(sentence: str) -> str:
    """What a reason says first."""
    return re.split(r"[,;:] ", sentence, maxsplit=1)[0]


def short_place(refused: Any) -> str:
    """The name of the file, and the line."""
    return f"{Path(refused.file).name}:{refused.line}" if refused.file else "line unknown"


def region_lines(region: RegionReport, verbose: bool = False) -> Iterator[str]:
    """A region's report, a label in front of each line. verbose: also how the engine came to it."""
    times = f" ({region.count} times)" if region.count > 1 else ""
    yield f"at          {', '.join(region.places) or '(source line unknown)'}{times}"
    yield from _labelled("captured", region.captured)
    yield from _labelled("extracted", region.extracted)
    yield from _rule_lines(region.derivation)
    yield f"passes      {region.passes[0]} -> {region.passes[1]}{in_loops(region)}"
    yield f"bytes       {bytes_text(region.bytes[0])} -> {bytes_text(region.bytes[1])} (estimated)"
    for kernel in region.kernels:
        yield from _kernel_lines(kernel, region.device, verbose)
    yield from _line_each("between", region.between)
    yield from _line_each("around", region.around)
    yield f"runs by     {runner(region)}"
    if region.deterministic:
        yield "repeats     the plan is deterministic: its sums are in a fixed order"
    if region.invariant:
        yield f"invariant   {region.invariant}"
    yield from _labelled("backward", region.backward)
    if region.backward_ran:
        yield f"runs by     {region.backward_ran} (backward)"
    if region.forward_mode:
        yield from _labelled("tangents", region.forward_mode)
    if region.forward_mode_ran:
        yield f"runs by     {region.forward_mode_ran} (forward mode)"
    for found in (region.gradients, region.tangents):
        if found is not None:
            yield from derivative_lines(found, region.device, verbose)
    yield from _engine_lines(region) if verbose else ()
    yield from _line_each("assumes", region.assumptions)
    yield from _line_each("trusted", (f"{t}: not proved, used on its author's word" for t in region.trusted))
    yield from _line_each("law", (f"{name}: {said}" for name, said in region_laws(region)))
    yield from _line_each("note", region.notes)


def _engine_lines(region: RegionReport) -> Iterator[str]:
    """How the engine came to the region's form."""
    yield from _line_each("planned", filter(None, [", ".join(region.plan_passes)]))
    yield from _line_each("shape", region.shape_reasons)
    yield from _line_each("plan", filter(None, [region.plan_check]))
    yield f"search      {search(region)}"
    yield f"cache       {region.cache}"
    if region.seconds:
        yield f"seconds     of its first runs: {shown(region.seconds)}"


def derivative_lines(found: DerivativeReport, device: str = "cpu", verbose: bool = False) -> Iterator[str]:
    """What is said of gradients or tangents, a label in front of each line. verbose: as of `region_lines`."""
    if found.why_not:
        yield f"{found.kind:11} not derived, the original calls compute them: {found.why_not}"
        return
    yield f"{found.kind:11} of {', '.join(name for name, _ in found.forms) or 'nothing: no derivative reaches them'}"
    for name, form in found.forms:
        yield from _labelled(f"d {name}", form)
    yield from _rule_lines(found.rules)
    yield from _line_each("row", (f"{row}{_often(times)}" for row, times in found.rows))
    for saved in found.saved:
        what = "reads" if saved.is_result else "saves"
        size = f"{saved.name} {saved.dtype}[{', '.join(saved.dims)}], {bytes_text(saved.bytes)}"
        yield from _labelled(what, f"{size}\n{saved.form}")
    yield from _line_each("equation", found.equations)
    for kernel in found.kernels:
        yield from _kernel_lines(kernel, device, verbose)
        yield from _line_each("stores", [", ".join(kernel.stores)])
        products = f"{len(kernel.products)} for each tile: {'; '.join(kernel.products)}"
        yield from _line_each("products", [products if kernel.products else "none"])
    yield from _line_each("between", found.between)
    yield from _line_each("repeats", filter(None, [found.deterministic]))
    yield from _line_each("assumes", found.assumptions)


def _often(times: int) -> str:
    return f" ({times} times)" if times > 1 else ""


def _rule_lines(steps: Iterable[Any]) -> Iterator[str]:
    for number, (step, times) in enumerate(_runs(steps), 1):
        again = _often(times)
        yield f"{'rules' if number == 1 else '':11} {number:2}. {step.rule}{again}: {step.law}"


def _kernel_lines(kernel: KernelReport, device: str, verbose: bool) -> Iterator[str]:
    where = f", source {kernel.source}" if kernel.source else ""
    loops = f"loops over {', '.join(kernel.loops)}" if kernel.loops else "no loop"
    yield f"kernel      {kernel.name}: grid ({', '.join(kernel.grid)}), rows {kernel.rows or '-'}, {loops}{where}"
    yield from _line_each("mask", kernel.masks)
    yield from _line_each("in parts", filter(None, [kernel.parts]))
    yield from _form(device, kernel.form if verbose else kernel.form.partition("\n")[0])
    yield from _line_each("estimated", filter(None, [kernel.estimate]))


def _line_each(label: str, texts: Iterable[str]) -> Iterator[str]:
    """A line for each text, each with the label."""
    return (f"{label:11} {text}" for text in texts)


def in_loops(region: RegionReport) -> str:
    """How many loops the passes are, where that is another number: what a tile holds whole is read once, in none."""
    names = (re.sub(r"_\d+$", "", name) for kernel in region.kernels for name in kernel.loops)  # j_0 is j bound again
    loops = max(Counter(names).values(), default=0)
    if not region.kernels or loops == region.passes[1]:
        return ""
    many = f"{loops or 'no'} loop{'' if loops == 1 else 's'}"
    if loops and any(not kernel.loops for kernel in region.kernels) and loops + 1 == region.passes[1]:
        return f", in {many} and a kernel without one"
    return f", in {many}" + (": what is passed over fits in a tile" if loops < region.passes[1] else "")


def search(region: RegionReport) -> str:
    """The search in one line."""
    return ", ".join(f"{name} {statistic(value)}" for name, value in region.statistics.items())


def _form(device: str, form: str):
    """The kernel's form on Hopper; of a region on a CPU the line says that it is of elsewhere."""
    yield from _labelled("on Hopper", form) if device != "cpu" else _labelled("elsewhere", f"on a Hopper GPU, {form}")


WHO = {"tiled": "torch operations, tile by tile", "triton": "Triton kernels", "gluon": "Gluon kernels"}


def runner(region: RegionReport) -> str:
    """Who ran the region last; before its first call, who will, as far as the option says it."""
    asked, cpu = region.executor, region.device == "cpu"
    if region.ran:
        name = region.ran if region.ran not in WHO else f"{region.ran}: {WHO[region.ran]}"
        return name if region.ran == asked else f"{name} (executor {asked!r})"
    if region.device == "meta":
        return f"nothing runs here: tensors on meta hold no numbers (executor {asked!r})"
    if asked == "tiled":
        return f"tiled: {WHO['tiled']}"
    if asked == "auto":
        own, others = (WHO["tiled"], "its original calls") if cpu else ("kernels", "calls of torch")
        rest = f", or {others} where they are faster" if region.libraries else ""
        return f"{own}{rest} (executor 'auto', from its first call)"
    if cpu:
        return f"{WHO[asked]} under Triton's interpreter (TRITON_INTERPRET=1), else {WHO['tiled']} (executor {asked!r})"
    return f"{WHO[asked]} (executor {asked!r}, from its first call)"


def _labelled(label: str, text: str):
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"{label if number == 0 else '':11} {line}"


def _runs(steps):
    """Equal steps in a row, with how many."""
    runs: list[list] = []
    for step in steps:
        if runs and runs[-1][0] == step:
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
    return [tuple(run) for run in runs]


def statistic(value: Any) -> str:
    """A number, or what several of them come to; JSON has each."""
    if isinstance(value, dict):
        value = {k: sum(v.values()) if isinstance(v, dict) else v for k, v in value.items()}
    if isinstance(value, dict) and all(isinstance(v, int) for v in value.values()):
        return f"{sum(value.values())} by {len(value)} rules"
    if isinstance(value, dict):
        return " and ".join(dict.fromkeys(map(str, value.values())))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def bytes_text(count: int | None) -> str:
    """A number of bytes for readers."""
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
