"""Wrong texts of kernels whose warps wait for one another: waits, arrivals, slots and rounds changed in one place.

Example: of `mbarrier.wait(full, phase)` one mutant waits for the other parity, and one comes after the next statement.
"""

from __future__ import annotations

import ast
from typing import Any

from .mutants import EDITS, Edit, Edits, changed_node, is_call_of

WAITS = ("mbarrier.wait", "tma.store_wait", "warpgroup_mma_wait", "sync", "take_turn", "wait_for_programs")
ARRIVALS = ("mbarrier.arrive", "fence_async_shared", "arrive", "give_turn", "signal_program")
TOUCHES = ("copy_in(", "copy_out(", "warpgroup_mma(", ".load(", ".store(", "add_in_order(")


def _called(node: Any) -> str:
    value = getattr(node, "value", None)
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def waits(node: Any) -> Edits:
    """The other parity, no condition, another count of arrivals, another slot of a ring."""
    if is_call_of(node, "wait") and len(node.args) > 1:
        yield "parity", changed_node(node, args=[node.args[0], ast.BinOp(node.args[1], ast.BitXor(), ast.Constant(1))])
    if isinstance(node, ast.Call) and any(k.arg == "pred" for k in node.keywords):
        yield "condition dropped", changed_node(node, keywords=[k for k in node.keywords if k.arg != "pred"])
    if is_call_of(node, "init"):
        more = ast.BinOp(node.keywords[0].value, ast.Add(), ast.Constant(1))
        yield "arrivals", changed_node(node, keywords=[ast.keyword("count", more)])
    if is_call_of(node, "index"):
        yield "slot", changed_node(node, args=[ast.BinOp(node.args[0], ast.BitXor(), ast.Constant(1))])
        yield "slot", changed_node(node, args=[ast.Constant(0)])


def products(node: Any) -> Edits:
    """A product that adds, or that does not."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "use_acc" and isinstance(keyword.value, ast.Constant):
            others = [k for k in node.keywords if k is not keyword]
            other = ast.keyword("use_acc", ast.Constant(not keyword.value.value))
            yield "adds or not", changed_node(node, keywords=[*others, other])


def rings(node: Any) -> Edits:
    """A slot fewer."""
    if not is_call_of(node, "allocate_shared_memory"):
        return
    kind, shape, *rest = node.args
    first: Any = shape.left if isinstance(shape, ast.BinOp) else shape
    if first.elts[0].value > 1:
        fewer = changed_node(first, elts=[ast.Constant(first.elts[0].value - 1), *first.elts[1:]])
        fewer = changed_node(shape, left=fewer) if isinstance(shape, ast.BinOp) else fewer
        yield "a slot fewer", changed_node(node, args=[kind, fewer, *rest])


def order(node: Any) -> Edits:
    """A wait behind what comes after it, an arrival before what it comes after."""
    for place, (one, other) in enumerate(zip(getattr(node, "body", ()), getattr(node, "body", ())[1:])):
        late = _called(one) in WAITS and _called(other) not in WAITS
        early = _called(other) in ARRIVALS and _called(one) not in ARRIVALS
        texts = [ast.unparse(one), ast.unparse(other)]
        if (late or early) and any(name in texts[late] for name in (*TOUCHES, *WAITS, *ARRIVALS)):
            body = [*node.body[:place], other, one, *node.body[place + 2 :]]
            yield f"exchanged {' and '.join(text.splitlines()[0] for text in texts)}", changed_node(node, body=body)


def counters(node: Any) -> Edits:
    """A count that stays, or rounds of a producer or a consumer that fall out."""
    if isinstance(node, ast.AugAssign):
        yield "dropped", ast.Pass()
    called: Any = getattr(node, "iter", None)
    if isinstance(node, ast.For) and ast.unparse(called.func) == "range" and len(called.args) == 2:
        low, high = called.args
        for kind, bounds in (
            ("first round dropped", [ast.BinOp(low, ast.Add(), ast.Constant(1)), high]),
            ("last round dropped", [low, ast.BinOp(high, ast.Sub(), ast.Constant(1))]),
        ):
            yield kind, changed_node(node, iter=changed_node(called, args=bounds))


EDITS_OF_WARPS: tuple[Edit, ...]
EDITS_OF_WARPS = (*EDITS, waits, products, rings, order, counters)
