"""Gradients of random programs: `python -m tests.fuzz --gradients`.

A program then names the inputs whose gradients are wanted. Its results get random cotangents, some of them none. The
gradients of the compiled function are compared with those of float64 autograd of the original. What is allowed comes
from eager's own error, and from how far the exact gradients move when every operation rounds. A program that needs the
second is judged in float64, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from random import Random

import torch
from torch._dynamo.backends.debugging import aot_eager_decomp_partition

from onepass.api import backend
from onepass.lowering.tiled import executor
from onepass.report.records import RECOMPUTES, Report
from tests.fuzz.layers import layer
from tests.fuzz.programs import Extents, Fuzzed
from tests.fuzz.rounding import ConstantMaxima, Rounding

# Of the largest element: what a rounding of the last place may become over sums of some hundred terms.
FLOORS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MOVED = 4  # times how far the exact gradient moves when every operation rounds
MOVES = 8
NOT_FINITE = "not finite where eager is finite"
# Sections of layers.txt with learned numbers, one tensor in several places, rows that keep nothing.
LEARNED = ("learned scores", "learned scores", "one tensor", "views of one tensor", "rows without keys", "differential")
FLOATING = ("float", "small", "positive", "float32")
# Who gets the rest of the graph, with the backend that is this alone: nobody, or AOTAutograd, as under Inductor.
PLAIN = {"eager": lambda graph, inputs: graph, "aot": aot_eager_decomp_partition}


Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Answers:
    """What a function gave: its results, what it has written into its inputs, and the wanted gradients."""

    results: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...] = ()


def random_learned(random: Random, extents: Extents) -> Fuzzed:
    """A program of one of the learned forms."""
    return layer(lambda *options: random.choice(options), random.randint, extents, LEARNED)


def asked(random: Random, program: Fuzzed) -> Fuzzed:
    """The program with a random set of wanted gradients; as it is if it has no floating input."""
    floats = [name for name, (kind, _) in program.inputs.items() if kind in FLOATING]
    many = random.randint(1, max(1, len(floats)))
    wanted = floats if random.random() < 0.3 else random.sample(floats, min(many, len(floats)))
    tiles = random.choice(((256, 512), (32, 16)))
    return replace(program, wanted=tuple(wanted), inner=random.choice([*PLAIN]), tiles=tiles)


def results_as_tuple(found) -> tuple[torch.Tensor, ...]:
    """What a function returned, one tensor or several, without what is None."""
    return tuple(r for r in (found if isinstance(found, tuple | list) else (found,)) if r is not None)


def widened(t: torch.Tensor) -> torch.Tensor:
    """A copy in float64, or of the same type where that is no floating one."""
    return t.double() if t.is_floating_point() else t.clone()


def answers(function: Callable, program: Fuzzed, tensors: list[torch.Tensor], read: Answers | None = None) -> Answers:
    """The results, the inputs as they are left where the function writes into them, and the wanted gradients.

    read: the answers whose results say which elements get a cotangent, so that all runs get the same; else its own do.
    """
    before = [t.clone() for t in tensors]
    names = list(program.inputs)
    leaves = [t.requires_grad_() for name, t in zip(names, tensors, strict=True) if name in program.wanted]
    given = [t.clone() if name in program.written else t for name, t in zip(names, tensors, strict=True)]
    results = results_as_tuple(function(*given))
    gradients = _gradients(results, leaves, program.seed, read.results if read else results)
    changed = (t for t, old in zip(given, before, strict=True) if not _same(t, old))
    return Answers(tuple(r.detach() for r in (*results, *changed)), gradients)


def with_written(program: Fuzzed) -> Fuzzed:
    """The program with the names of the inputs that it writes into: a leaf is copied first, so that it may."""
    tensors = program.tensors()
    before = [t.clone() for t in tensors]
    program.function()(*tensors)
    pairs = zip(program.inputs, tensors, before, strict=True)
    return replace(program, written=tuple(name for name, t, old in pairs if not _same(t, old)))


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x.detach().nan_to_num(), y.nan_to_num())


def _gradients(results: Results, leaves: list[torch.Tensor], seed: int, read: Results) -> Results:
    """The gradients of the leaves for random cotangents; zeros for a leaf that no cotangent reaches."""
    random = Random(seed)
    pairs = [(r, _cotangent(r, random, said)) for r, said in zip(results, read, strict=False)]
    pairs = [(r, g) for r, g in pairs if r.requires_grad]
    pairs = [(r, g) for r, g in pairs if random.random() < 0.75] or pairs
    if not pairs or not leaves:
        return ()
    reached, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(reached, leaves, cotangents, allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True))


def _cotangent(result: torch.Tensor, random: Random, read: torch.Tensor) -> torch.Tensor:
    """Numbers that every dtype holds exactly, in some layout: each drawn, or one for all, as of a sum.

    What `read` has as -∞ has 0: no loss that is a number reads it. (Through a score to which -∞ is added, autograd
    hands on what it gets; a choice of -∞, which is the same function, hands on nothing.)
    """
    generator = torch.Generator().manual_seed(random.randint(0, 1 << 30))
    kind = random.choice(("each", "each", "each", "transposed", "one for all", "zero in part"))
    drawn = torch.randn(result.shape[:0] if kind == "one for all" else result.shape, generator=generator)
    drawn = drawn.bfloat16().to(result.device, result.dtype if result.is_floating_point() else torch.float32)
    if kind == "zero in part" and drawn.dim():
        drawn[..., drawn.shape[-1] // 2 :] = 0
    drawn = drawn.mT.contiguous().mT if kind == "transposed" and drawn.dim() > 1 else drawn.expand(result.shape)
    return drawn.masked_fill(read == -inf, 0.0) if (read == -inf).any() else drawn


def difference(got: Answers, eager: Answers, exact: Answers, floor: float, hidden: bool, moved: Callable) -> str:
    """What is wrong with the gradients, "" if nothing is.

    floor: what may be off of a gradient's largest element. hidden: gradients may be finite where eager's are NaN, as
    those of a row without keys are. moved: says how far each exact gradient moves when operations round; it is asked
    only where that matters.
    """
    if len(got.gradients) != len(exact.gradients):
        return f"{len(got.gradients)} gradients, eager has {len(exact.gradients)}"
    room = None
    for k, (mine, theirs, truth) in enumerate(zip(got.gradients, eager.gradients, exact.gradients, strict=True)):
        if not _difference(mine, theirs, truth, floor, hidden, 0.0):
            continue
        room = moved() if room is None else room
        if found := _difference(mine, theirs, truth, floor, hidden, room[k]):
            return f"gradient {k}: {found}"
    return ""


def _difference(mine, theirs, truth, floor: float, hidden: bool, room: float) -> str:
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return f"{mine.dtype}{list(mine.shape)}, eager {theirs.dtype}{list(theirs.shape)}"
    coarse = FLOORS[mine.dtype]
    mine, theirs, truth = mine.double(), theirs.double(), truth.double()
    usable = truth.isfinite() & theirs.isfinite()
    if not mine[usable].isfinite().all():
        return NOT_FINITE
    if not hidden and bool((mine.isfinite() & ~truth.isfinite() & ~theirs.isfinite()).any()):
        return "finite where eager is not"
    if not usable.any():
        return ""
    error, own = ((x - truth)[usable].abs().max().item() for x in (mine, theirs))
    size = truth[usable].abs().max().item()
    # Where each row has one weight, the gradient is dP - dP = 0. Both are about 1, and one of them was rounded to the
    # type of results.
    if not size:
        floor, size = coarse, 1.0
    allowed = 4 * own + floor * size + MOVED * room
    return "" if error <= allowed else f"error {error:.3g}, eager's {own:.3g}, size {size:.3g}, moved {room:.3g}"


def what_became(reports: tuple[Report, ...], plain: str) -> str:
    """Whether the backward was derived, computed again, or left to Inductor; else the outcome of the results."""
    said = [region.backward for report in reports for region in report.regions]
    if any(line.startswith("derived") for line in said):
        return "derived"
    if any(line.startswith(RECOMPUTES) for line in said):
        return "recomputed"
    if any(refused.kind == "training" for report in reports for refused in report.refusals):
        return "left to Inductor"
    return plain


def movements(program: Fuzzed, tensors: list[torch.Tensor], read: Answers | None = None) -> list[float]:
    """How far each exact gradient moves when every operation, forward and backward, rounds to the program's dtype.

    Where a row has one weight of 1, dP - Σ P · dP is 0, and what is left of it in any arithmetic is rounding. A shift
    by a maximum hides that, as the same rounding comes back through it. So the program moves with constant maxima, too.
    """
    last = torch.finfo(getattr(torch, program.dtype)).eps
    doubles = [*map(widened, tensors)]
    run = lambda: answers(program.function(stable=True), program, [t.clone() for t in doubles], read).gradients
    furthest = [0.0] * len(program.wanted)
    for maxima in (nullcontext, ConstantMaxima):
        with maxima():
            still = run()
        for move in range(MOVES):
            with maxima(), Rounding(last, move):
                found = run()
            furthest = [max(far, *_apart(a, b)) for far, a, b in zip(furthest, found, still, strict=True)]
    return furthest


def _apart(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    return [0.0, *(one - other).abs().nan_to_num(0, 0).flatten().tolist()]


@contextmanager
def around(program: Fuzzed) -> Iterator[str]:
    """The program's tiles, and the backend's option for who compiles the rest of its graph.

    AOTAutograd stands for Inductor there, whose compilations take too long.
    """
    inductor, rows, columns = backend._inductor, executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS
    executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS = program.tiles
    backend._inductor = lambda gm, inputs, options, mode: aot_eager_decomp_partition(gm, inputs)
    try:
        yield {"eager": "eager", "aot": "inductor"}[program.inner]
    finally:
        backend._inductor, executor.FIRST_TILE_ROWS, executor.FIRST_TILE_COLUMNS = inductor, rows, columns
