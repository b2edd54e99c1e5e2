"""Attention in many forms as terms, by hand, with the straightforward eager computation beside each.

Every case says its term, output, order, inputs as torch tensors and eager function; `check` holds the tiled executor to
the meaning in float64. Used by the tests of lowering.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    exp,
    iota,
    le,
    load,
    logical_and,
    lt,
    mantissa,
    max_over,
    rescaled_sum,
    sum_over,
    where,
)
from onepass.egraph.terms.sizes import resolve
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled

FLOOR = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}
HALVES = ("float16", "bfloat16")


@dataclass
class Case:
    """A term to run: its output, what to feed it, and how eager computes it."""

    term: Term
    output: Tensor
    order: tuple[Dim, ...]
    inputs: dict[str, torch.Tensor]
    eager: Callable
    sizes: dict[str, int] = field(default_factory=dict)


def loaded(tensor: Tensor, *index) -> Term:
    """The element of a tensor as arithmetic sees it: half types are widened."""
    x = load(tensor, *(iota(i) if isinstance(i, Dim) else i for i in index))
    return cast(x, "float32") if tensor.dtype in HALVES else x


def stored(x: Term, dtype: str) -> Term:
    return cast(x, dtype) if dtype in HALVES else x


def one_pass(j: Dim, scores: Term, values: Term) -> Term:
    """Attention as it is extracted: one state of scale and mantissas."""
    return mantissa(rescaled_sum(j, scores, values)) / mantissa(rescaled_sum(j, scores, 1.0))


def three_pass(j: Dim, scores: Term, values: Term) -> Term:
    """Attention as it is captured: maximum, sum, and weighted sum."""
    weights = exp(scores - max_over(j, scores))
    return sum_over(j, weights / sum_over(j, weights) * values)


MASKS = {
    "none": lambda i, j: None,
    "causal": lambda i, j: le(j, i),
    "window": lambda i, j: logical_and(le(j, i), lt(i - j, 37)),
    "shifted": lambda i, j: le(j, i - 20),  # the first rows keep nothing
    "strided": lambda i, j: le(j % 3, i % 3),
    "blocks": lambda i, j: le(j // 16, i // 16),
}


def attention(
    batch=(2, 3),
    queries=70,
    keys=90,
    width=16,
    value_width=None,
    *,
    dtype="float32",
    mask="none",
    form=one_pass,
    symbolic=False,
    seed=0,
) -> Case:
    """Batch dims in any number, Sq and Sk, head width; lengths as symbols or numbers."""
    value_width = value_width or width
    names, sizes = ("s0", "2*s1"), {"s0": queries, "s1": keys // 2, "2*s1": keys}
    sq, sk = names if symbolic else (queries, keys)
    lead = [Dim(f"b{n}", size) for n, size in enumerate(batch)]
    i, j, d, e = Dim("i", sq), Dim("j", sk), Dim("d", width), Dim("e", value_width)
    tensor = lambda name, n, w: Tensor(name, dtype, (*batch, n, w))
    q, k, v = (
        loaded(tensor(name, *(x.size for x in dims)), *lead, *dims)
        for name, dims in (("q", (i, d)), ("k", (j, d)), ("v", (j, e)))
    )
    scores, kept = sum_over(d, q * k) * width**-0.5, MASKS[mask](iota(i), iota(j))
    scores = scores if kept is None else where(kept, scores, -inf)
    generator = torch.Generator().manual_seed(seed)
    make = lambda n, w: torch.randn(*batch, n, w, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
    inputs = {"q": make(queries, width), "k": make(keys, width), "v": make(keys, value_width)}
    term = stored(form(j, scores, v), dtype)
    order, output = (*lead, i, e), Tensor("out", dtype, (*batch, sq, value_width))
    return Case(
        term, output, order, inputs, lambda t: eager_attention(t, keep(mask, queries, keys)), sizes if symbolic else {}
    )


def keep(mask: str, queries: int, keys: int) -> torch.Tensor | None:
    """The mask as a boolean matrix, written a second time in torch."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    return {
        "none": None,
        "causal": j <= i,
        "window": (j <= i) & (i - j < 37),
        "shifted": j <= i - 20,
        "strided": j % 3 <= i % 3,
        "blocks": j // 16 <= i // 16,
    }[mask]


def eager_attention(t: dict[str, torch.Tensor], kept: torch.Tensor | None, bias=0.0) -> torch.Tensor:
    scores = t["q"] @ t["k"].mT * t["q"].shape[-1] ** -0.5 + bias
    if kept is not None:
        scores = scores.masked_fill(~kept, -inf)
    return torch.softmax(scores, -1) @ t["v"]


def meaning(case: Case) -> torch.Tensor:
    arrays = {name: (x.double() if x.is_floating_point() else x).numpy() for name, x in case.inputs.items()}
    shape = [resolve(n, case.sizes) for n in case.output.shape]
    return torch.from_numpy(np.broadcast_to(evaluate(case.term, arrays, case.order, case.sizes), shape).copy())


def run(case: Case) -> torch.Tensor:
    return run_tiled(build_plan(case.term, case.output, case.order), case.inputs, case.sizes)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference where both are finite; infinite if they are not finite in different places."""
    found, exact = found.double(), exact.double()
    if not torch.equal(torch.isnan(found), torch.isnan(exact)) or not torch.equal(
        torch.isinf(found), torch.isinf(exact)
    ):
        return inf
    return float(torch.where(torch.isfinite(exact), found - exact, 0).abs().max()) if exact.numel() else 0.0


def check(case: Case) -> None:
    found, exact = run(case), meaning(case)
    assert str(found.dtype) == f"torch.{case.output.dtype}" and found.shape == exact.shape
    eager = case.eager(case.inputs)
    floor = FLOOR[case.output.dtype] * max(1.0, float(torch.nan_to_num(exact, 0, 0, 0).abs().max()))
    assert error(found, exact) <= 3 * error(eager, exact) + floor
