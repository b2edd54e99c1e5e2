"""Gradients of random programs: `python -m tests.fuzz --gradients`.

A program then names the inputs whose gradients are wanted. Its results get random cotangents, some of them none. The
gradients of the compiled function are compared with those of float64 autograd of the original. What is allowed comes
from eager's own error, and from how far the exact gradients move when every operation rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from random import Random

import torch
from torch._decomp import decomposition_table
from torch._dynamo.backends.debugging import aot_eager_decomp_partition
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from onepass.api import backend
from onepass.graph_passes.region_gradients import RECOMPUTES
from onepass.report.records import Report
from tests.fuzz.programs import Fuzzed

# Of the largest element: what a rounding of the last place may become over sums of some hundred terms.
FLOORS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MOVED = 4  # times how far the exact gradient moves when every operation rounds
MOVES = 8
FLOATING = ("float", "small", "positive", "float32")
# Who gets the rest of the graph, with the backend that is this alone: nobody, or AOTAutograd, as under Inductor.
PLAIN = {"eager": lambda graph, inputs: graph, "aot": aot_eager_decomp_partition}


@dataclass(frozen=True)
class Answers:
    """What a function gave: its results, what it has written into its inputs, and the wanted gradients."""

    results: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...] = ()


def asked(random: Random, program: Fuzzed) -> Fuzzed:
    """The program with a random set of wanted gradients; as it is if it has no floating input."""
    floats = [name for name, (kind, _) in program.inputs.items() if kind in FLOATING]
    many = random.randint(1, max(1, len(floats)))
    wanted = floats if random.random() < 0.3 else random.sample(floats, min(many, len(floats)))
    return replace(program, wanted=tuple(wanted), inner=random.choice([*PLAIN]))


def answers(function: Callable, program: Fuzzed, tensors: list[torch.Tensor]) -> Answers:
    """The results, the inputs as they are left where the function writes into them, and the wanted gradients."""
    before = [t.clone() for t in tensors]
    names = list(program.inputs)
    leaves = [t.requires_grad_() for name, t in zip(names, tensors, strict=True) if name in program.wanted]
    given = [t.clone() if name in program.written else t for name, t in zip(names, tensors, strict=True)]
    found = function(*given)
    results = tuple(found) if isinstance(found, tuple | list) else (found,)
    results = tuple(r for r in results if r is not None)
    gradients = _gradients(results, leaves, program.seed)
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


def _gradients(results: tuple[torch.Tensor, ...], leaves: list[torch.Tensor], seed: int) -> tuple[torch.Tensor, ...]:
    """The gradients of the leaves for random cotangents; zeros for a leaf that no cotangent reaches."""
    random = Random(seed)
    pairs = [(r, _cotangent(r, random)) for r in results]
    pairs = [(r, g) for r, g in pairs if r.requires_grad]
    pairs = [(r, g) for r, g in pairs if random.random() < 0.75] or pairs
    if not pairs or not leaves:
        return ()
    reached, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(reached, leaves, cotangents, allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True))


def _cotangent(result: torch.Tensor, random: Random) -> torch.Tensor:
    """Numbers that every dtype holds exactly, in some layout: each drawn, or one for all, as of a sum."""
    generator = torch.Generator().manual_seed(random.randint(0, 1 << 30))
    kind = random.choice(("each", "each", "each", "transposed", "one for all", "zero in part"))
    drawn = torch.randn(result.shape[:0] if kind == "one for all" else result.shape, generator=generator)
    drawn = drawn.bfloat16().to(result.device, result.dtype if result.is_floating_point() else torch.float32)
    if kind == "zero in part" and drawn.dim():
        drawn[..., drawn.shape[-1] // 2 :] = 0
    if kind == "transposed" and drawn.dim() > 1:
        return drawn.mT.contiguous().mT
    return drawn.expand(result.shape)


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
    mine, theirs, truth = mine.double(), theirs.double(), truth.double()
    usable = truth.isfinite() & theirs.isfinite()
    if not mine[usable].isfinite().all():
        return "not finite where eager is finite"
    if not hidden and bool((mine.isfinite() & ~truth.isfinite() & ~theirs.isfinite()).any()):
        return "finite where eager is not"
    if not usable.any():
        return ""
    error, own = ((x - truth)[usable].abs().max().item() for x in (mine, theirs))
    size = truth[usable].abs().max().item()
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


def movements(program: Fuzzed, tensors: list[torch.Tensor]) -> list[float]:
    """How far each exact gradient moves when every operation, forward and backward, rounds to the program's dtype.

    Where a row has one weight of 1, dP - Σ P · dP is 0, and what is left of it in any arithmetic is rounding. A shift
    by a maximum hides that, as the same rounding comes back through it. So the program moves with constant maxima, too.
    """
    last = torch.finfo(getattr(torch, program.dtype)).eps
    doubles = [t.double() if t.is_floating_point() else t for t in tensors]
    run = lambda: answers(program.function(stable=True), program, [t.clone() for t in doubles]).gradients
    furthest = [0.0] * len(program.wanted)
    for maxima in (nullcontext, _ConstantMaxima):
        with maxima():
            still = run()
        for move in range(MOVES):
            with maxima(), _Rounding(last, move):
                found = run()
            furthest = [max(far, *_apart(a, b)) for far, a, b in zip(furthest, found, still, strict=True)]
    return furthest


def _apart(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    return [0.0, *(one - other).abs().nan_to_num(0, 0).flatten().tolist()]


class _ConstantMaxima(TorchFunctionMode):
    """No gradient goes through a largest element."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in ("amax", "max"):
            return found
        return tree_map_only(torch.Tensor, torch.Tensor.detach, found)


class _Rounding(TorchDispatchMode):
    """What an operation computes anew is off by a random part of its last place; what it picks out is exact.

    A sum is off by a part of the last place of its terms, anew wherever it is read, as if it were computed again there.
    """

    OPENED = (torch.ops.aten._softmax_backward_data.default, torch.ops.aten._log_softmax_backward_data.default)
    SUMS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "sum", "mean"}
    VIEWS = {"_unsafe_view", "_reshape_alias"}
    EXACT = {"max", "min", "amax", "amin", "maximum", "minimum", "where", "cat", "stack", "clone", "neg", "abs", "sort"}
    EXACT |= {"relu", "clamp", "masked_fill", "index", "index_select", "gather", "_to_copy", "topk", "roll", "flip"}
    EXACT |= {"embedding", "constant_pad_nd", "sign", "floor", "round", "tril", "triu", "threshold_backward", "copy"}

    def __init__(self, last: float, seed: int):
        super().__init__()
        self.last, self.random = last, torch.Generator().manual_seed(seed)
        self.sizes = WeakTensorKeyDictionary()  # of the terms of each sum

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.OPENED:
            with self:
                return decomposition_table[func](*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in self.VIEWS or any(result.alias_info for result in func._schema.returns):
            return self._view(func, args, kwargs)
        if name in self.EXACT:
            return func(*args, **kwargs)
        found = func(*tree_map_only(torch.Tensor, self._read, args), **kwargs)
        found = tree_map_only(torch.Tensor, lambda x: self._off(x, x), found)
        if name in self.SUMS:
            self.sizes[found] = func(*tree_map_only(torch.Tensor, _size, args), **kwargs)
        return found

    def _view(self, func, args, kwargs):
        found = func(*args, **kwargs)
        size = self.sizes.get(args[0]) if isinstance(args[0], torch.Tensor) else None
        if size is not None and isinstance(found, torch.Tensor) and found is not args[0]:
            self.sizes[found] = func(size, *args[1:], **kwargs)
        return found

    def _read(self, x: torch.Tensor) -> torch.Tensor:
        size = self.sizes.get(x)
        return x if size is None or size.shape != x.shape else self._off(x, size)

    def _off(self, x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        noise = torch.rand(x.shape, generator=self.random, dtype=x.dtype).to(x.device)
        return x + _size(size) * (self.last * (2 * noise - 1))


def _size(x: torch.Tensor) -> torch.Tensor:
    return x.abs().nan_to_num(0, 0) if x.is_floating_point() else x


@contextmanager
def inner(name: str) -> Iterator[str]:
    """The backend's option for who compiles the rest; AOTAutograd stands for Inductor, whose code takes too long."""
    if name == "eager":
        yield "eager"
        return
    inductor = backend._inductor
    backend._inductor = lambda gm, inputs, options, mode: aot_eager_decomp_partition(gm, inputs)
    try:
        yield "inductor"
    finally:
        backend._inductor = inductor
