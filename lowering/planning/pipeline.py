"""The passes from terms to a plan, in order, and how they are run.

A pass is a function from a `Planning` to the next one. After each stage a verifier checks what must hold. With
ONEPASS_PRINT_PLAN_PASSES=1 in the environment, the state after each pass that changed something is printed to stderr.
Decisions that need sizes, strides or a device come later, at launch; they work on finished plans and kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from ...egraph.terms.printing import show_where
from ..plan.records import Kernel, Store
from ..source_folder import debug_folder, keep_stage
from .build_loops import (
    attach_block_maps,
    build_loops,
    finite_masks_as_guards,
    group_stores,
    mark_exact_products,
    name_axes_alike,
    share_totals,
)
from .inline_producers import inline_producers, write_pairs_in_loops
from .kernel_cuts import round_stored_sums, split_chosen, store_chosen, store_parts
from .kernel_shape import choose_kernel_shape, with_new_shape
from .normalize_terms import (
    halve_sums,
    leave_out_hidden_weights,
    merge_summed_dims,
    multiply_out_addends,
    order_nested_sums,
    read_where_chosen,
    reassociate_divisors,
    rename_bound_dims,
    rename_shadowed_dims,
    share_softmax_scales,
    split_flattened_dims,
    sums_of_one_as_axes,
    unroll_short_sums,
)
from .planning_state import Planning
from .reshape_dims import group_rows, merge_value_dims
from .verify import verify

PRINT_PASSES = "ONEPASS_PRINT_PLAN_PASSES"
TERMS, SHAPE, FROM_CUTS = ("terms",), ("shape",), ("cuts", "kernels")  # stages; what cost chooses counts from shape on
STAGES = (*TERMS, *SHAPE, *FROM_CUTS)


@dataclass(frozen=True)
class PlanPass:
    """One pass. `run` makes the next state; `invariant` says what holds after it, where its conditions on sizes apply.

    each_store: a run works on the store in `planning.focus`, until it changes nothing; then on the stores that it adds.
    """

    name: str
    stage: str
    run: Callable[[Planning], Planning]
    invariant: str
    each_store: bool = False


PASSES = (
    PlanPass("split_flattened_dims", "terms", split_flattened_dims, "no product has a batch of two flattened dims"),
    PlanPass("rename_shadowed_dims", "terms", rename_shadowed_dims, "no dim is bound inside of where it is bound"),
    PlanPass("reassociate_divisors", "terms", reassociate_divisors, "no divisor adds a dim to a factor of a sum"),
    PlanPass("multiply_out_addends", "terms", multiply_out_addends, "no factor hides products of matrices"),
    PlanPass("sums_of_one_as_axes", "terms", sums_of_one_as_axes, "no result sums products over a dim of size 1"),
    PlanPass("halve_sums", "terms", halve_sums, "no sum that lacks the rows of its products does them again"),
    PlanPass("merge_summed_dims", "terms", merge_summed_dims, "a product of matrices has one inner dim"),
    PlanPass("order_nested_sums", "terms", order_nested_sums, "sums that make one loop are in one order"),
    PlanPass("unroll_short_sums", "terms", unroll_short_sums, "no sum of operations on pairs is over a short dim"),
    PlanPass("rename_bound_dims", "terms", rename_bound_dims, "no axis of a result is bound by a reduction"),
    PlanPass("read_where_chosen", "terms", read_where_chosen, "no arm of a choice looks up what the other one hides"),
    PlanPass("share_softmax_scales", "terms", share_softmax_scales, "equal scores share one scale"),
    PlanPass("leave_out_hidden_weights", "terms", leave_out_hidden_weights, "no sum reads what -∞ hides from weights"),
    PlanPass("group_rows", "shape", group_rows, "rows for which a loop reads the same are rows of one tile"),
    PlanPass("merge_value_dims", "shape", merge_value_dims, "values have one dim where a tile holds them"),
    PlanPass("choose_kernel_shape", "shape", choose_kernel_shape, "each store has rows, held dims and a grid"),
    PlanPass("store_chosen", "cuts", store_chosen, "what was chosen by cost is stored"),
    PlanPass("store_parts", "cuts", store_parts, "what no kernel can compute with the rest is stored", True),
    PlanPass("split_chosen", "cuts", split_chosen, "what cost has chosen to do in parts is stored for each part"),
    PlanPass("round_stored_sums", "cuts", round_stored_sums, "no sum keeps bits that the program rounds away"),
    PlanPass("name_axes_alike", "kernels", name_axes_alike, "no part has a loop of another store by other names"),
    PlanPass("group_stores", "kernels", group_stores, "each store has a kernel"),
    PlanPass("build_loops", "kernels", build_loops, "each long reduction is in a loop"),
    PlanPass("finite_masks_as_guards", "kernels", finite_masks_as_guards, "known limits of a finite mask are guards"),
    PlanPass("attach_block_maps", "kernels", attach_block_maps, "a loop with a guard over data has a block map"),
    PlanPass("write_pairs_in_loops", "kernels", write_pairs_in_loops, "no kernel does a loop's products for its pairs"),
    PlanPass("inline_producers", "kernels", inline_producers, "no loop could compute what it reads"),
    PlanPass("share_totals", "kernels", share_totals, "totals that are only added up are one"),
    PlanPass("mark_exact_products", "kernels", mark_exact_products, "products that must not round are marked"),
)


def run_passes(planning: Planning, stages: Collection[str] = STAGES) -> Planning:
    """The state after all passes of these stages, each stage verified. Raises NotPlannable for what has no plan."""
    for stage, passes in groupby((one for one in PASSES if one.stage in stages), key=lambda one: one.stage):
        for one in passes:
            if one.each_store:
                for name in [store.output.name for store in planning.stores]:
                    planning = _run_on_store(one, planning, name)
            else:
                planning = _run(one, planning)
        verify(planning, stage)
    return planning


def _run(one: PlanPass, planning: Planning) -> Planning:
    """The state after one run, with the pass noted in it if it changed anything."""
    after = one.run(planning)
    if after == planning:
        return planning
    if one.name not in after.plan_passes:
        after = replace(after, plan_passes=(*after.plan_passes, one.name))
    printed = os.environ.get(PRINT_PASSES, "0") not in ("", "0")
    if printed or debug_folder():
        name = f"after {one.stage}/{one.name}" + (f" on {planning.focus}" if planning.focus else "")
        text = "\n".join(described(after))
        keep_stage(f"plan {name}", text)
        if printed:
            print(f"--- {name}", text, sep="\n", file=sys.stderr)
    return after


def _run_on_store(one: PlanPass, planning: Planning, name: str) -> Planning:
    """The pass on one store until it changes nothing. A store that it adds is finished before the pass goes on."""
    planning = with_new_shape(replace(planning, focus=name))
    while (after := _run(one, planning)) is not planning:
        for added in _added(planning, after):
            after = _run_on_store(one, after, added)
        planning = with_new_shape(replace(after, focus=name))
    return replace(planning, focus="")


def _added(before: Planning, after: Planning) -> list[str]:
    known = {store.output.name for store in before.stores}
    return [store.output.name for store in after.stores if store.output.name not in known]


# The state as text


def described(planning: Planning) -> Iterator[str]:
    """The state as lines: each store with its shape, or each kernel with its roles of dims and its stores."""
    if planning.kernels:
        for kernel in planning.kernels:
            yield from _described_kernel(kernel)
        return
    for store in planning.stores:
        yield _described_store(store)
        if shape := planning.shapes.get(store.output.name):
            yield f"  rows {shape.rows}, held ({_listed(shape.held)}), grid ({_listed(shape.grid)}): {shape.reason}"


def _described_kernel(kernel: Kernel) -> Iterator[str]:
    tiled = f"rows {kernel.rows}" + (f", columns {_listed(kernel.columns)}" if kernel.columns else "")
    loops = f"loops over ({_listed(loop.over for loop in kernel.loops)})"
    yield f"{kernel.name or 'kernel'}: grid ({_listed(kernel.grid)}), {tiled}, held ({_listed(kernel.held)}), {loops}"
    for loop in kernel.loops:
        if loop.guard is not None:
            yield f"  over {loop.dim}{', by a block map,' if loop.map else ''} where {show_where(loop.guard)}"
    yield from (f"  {_described_store(store)}" for store in kernel.stores)


def _described_store(store: Store) -> str:
    every, places = (f"for all {_listed(store.order)}: ", store.places) if store.places else ("", store.order)
    sign = "+=" if store.places else "="
    return f"{every}{store.output.name}[{_listed(places)}] {sign} {show_where(store.term)}"


def _listed(dims) -> str:
    return ", ".join(map(str, dims))
