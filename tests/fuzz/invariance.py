"""Random batches that are called in other ways: the bits of each row must stay.

A batch is called as a whole, one sequence at a time, in another order, with its queries cut in chunks, and with a
buffer of keys of another length, behind whose lengths there is anything. `python -m tests.fuzz.invariance --count 1000`
counts the batches of which some row differs, and `--without` those that differ where the option is not set.
`--device cuda --executor triton` runs the kernels as they are; on a CPU they run in Triton's interpreter, with small
tiles and pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from unittest.mock import patch

import numpy as np
import torch
import torch.fx.experimental._config as shape_config
from torch import Tensor
from torch._dynamo import config as dynamo_config

from onepass.api.backend import onepass_backend
from onepass.lowering.cost import invariant_plans
from onepass.lowering.plan.kernel_config import TritonConfig
from tests.fuzz import batches

SLOTS, BATCHES_OF_A_PROGRAM = 16, 100
Way = tuple[str, list["Sequences"], Callable[[list[Tensor]], Tensor]]
# Of a buffer. A size of 1 is no symbol, so it has a plan of its own: without a loop where no softmax weighs the key,
# and with another one where the key stands beside a sink.
LEAST_KEYS = {"sigmoids": 2, "sinks": 2}


@dataclass(frozen=True)
class Sequences:
    """Queries [batch, heads, rows, width], keys, values [batch, groups, length, width], lengths, one number a head."""

    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Tensor
    heads: Tensor

    def of(self, places: list[int]) -> Sequences:
        """Some sequences of the batch."""
        return Sequences(*(getattr(self, name)[places] for name in ("q", "k", "v", "lengths")), self.heads)

    def rows(self, start: int, stop: int) -> Sequences:
        """A chunk of the queries, as they are called when later keys are not there yet."""
        return replace(self, q=self.q[:, :, start:stop], lengths=self.lengths - self.q.shape[2] + stop)

    def within(self, length: int, anything: Callable[[tuple[int, ...]], Tensor]) -> Sequences:
        """In a buffer of another length; what is behind a sequence may be anything."""
        return replace(self, k=_within(self.k, length, anything), v=_within(self.v, length, anything))


def _within(x: Tensor, length: int, anything: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    shape = (*x.shape[:2], max(0, length - x.shape[2]), x.shape[3])
    return torch.cat([x[:, :, :length], anything(shape).to(x)], 2)


# Programs -------------------------------------------------------------------------------------------------------------


def kept(s: Sequences) -> Tensor:
    i, j = (torch.arange(x.shape[2], device=x.device) for x in (s.q, s.k))
    return j <= (s.lengths[:, None] - s.q.shape[2] + i)[:, None, :, None]


def scores_of(s: Sequences) -> tuple[Tensor, Tensor]:
    k, v = (x.repeat_interleave(s.q.shape[1] // x.shape[1], 1) for x in (s.k, s.v))
    return s.q @ k.mT / (s.q.shape[-1] ** 0.5 + 1), v  # no power of two: a factor that is left out shows in bits


def plain(q, k, v, lengths, heads):
    scores, v = scores_of(s := Sequences(q, k, v, lengths, heads))
    return scores.masked_fill(~kept(s), -math.inf).softmax(-1) @ v


def softcap(q, k, v, lengths, heads):
    scores, v = scores_of(s := Sequences(q, k, v, lengths, heads))
    return (5 * torch.tanh(scores / 5)).masked_fill(~kept(s), -math.inf).softmax(-1) @ v


def sinks(q, k, v, lengths, heads):
    scores, v = scores_of(s := Sequences(q, k, v, lengths, heads))
    column = heads.to(q.dtype).reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
    scores = torch.cat([scores.masked_fill(~kept(s), -math.inf), column], -1)
    return scores.softmax(-1)[..., :-1] @ v


def window(q, k, v, lengths, heads):
    scores, v = scores_of(s := Sequences(q, k, v, lengths, heads))
    i, j = (torch.arange(x.shape[2], device=x.device) for x in (q, k))
    behind = (lengths[:, None] - q.shape[2] + i)[:, None, :, None] - j
    slope = -heads.abs().to(q.dtype)[:, None, None] * behind
    return (scores + slope).masked_fill(~(kept(s) & (behind < 40)), -math.inf).softmax(-1) @ v


def sigmoids(q, k, v, lengths, heads):
    scores, v = scores_of(s := Sequences(q, k, v, lengths, heads))
    return (torch.sigmoid(scores + heads.to(q.dtype)[:, None, None]) * kept(s)) @ v


def paged(q, kc, vc, table, lengths, heads):
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return plain(q, k, v, lengths, heads)


PROGRAMS = {one.__name__: one for one in (plain, softcap, sinks, window, sigmoids, paged)}


def inputs_of(name: str, s: Sequences, random: Random) -> tuple[Tensor, ...]:
    """The arguments of a program; pages lie anywhere in a cache."""
    if name != "paged":
        return s.q, s.k, s.v, s.lengths, s.heads
    batch, groups, length, width = s.k.shape
    pages = -(-length // SLOTS)
    places = torch.tensor(random.sample(range(batch * pages + 3), batch * pages), device=s.k.device)
    places = places.view(batch, pages)
    caches = []
    for x in (s.k, s.v):
        padded = torch.cat([x, x.new_zeros(batch, groups, pages * SLOTS - length, width)], 2)
        cache = torch.randn(batch * pages + 3, SLOTS, groups, width).to(x)
        cache[places] = padded.transpose(1, 2).unflatten(1, (pages, SLOTS))
        caches.append(cache)
    return s.q, *caches, places, s.lengths, s.heads


# Batches --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What the batches of one compiled program share."""

    name: str
    groups: int
    shared: int
    width: int
    dtype: torch.dtype

    @property
    def least_keys(self) -> int:
        """The fewest keys of a buffer."""
        return LEAST_KEYS.get(self.name, 1)

    @classmethod
    def random(cls, random: Random) -> Form:
        shape = random.choice((1, 2, 3)), random.choice((1, 1, 2, 4)), random.choice((16, 24, 32))
        return cls(random.choice(list(PROGRAMS)), *shape, random.choice((torch.float32, torch.bfloat16)))


def draw(random: Random, form: Form, longest: int, device: str = "cpu") -> Sequences:
    """A batch of some sequences, of which some are empty, short or as long as the buffer; some scores are large.

    It is drawn on the CPU: each device has the same batches.
    """
    batch, length = random.randint(1, 5), random.randint(form.least_keys, longest)
    rows = min(random.choice((1, 1, 2, 3, random.randint(4, 90))), length)
    lengths = [random.choice((length, random.randint(0, length), rows, random.randint(rows, length)))] * batch
    lengths = [random.choice((n, random.randint(rows, length))) for n in lengths]
    torch.manual_seed(random.getrandbits(32))
    make = lambda heads, n: (torch.randn(batch, heads, n, form.width) * random.choice((0.3, 1, 4))).to(form.dtype)
    heads = form.groups * form.shared
    tensors = make(heads, rows), make(form.groups, length), make(form.groups, length)
    return Sequences(*(x.to(device) for x in (*tensors, torch.tensor(lengths), torch.randn(heads))))


def other_ways(form: Form, s: Sequences, random: Random) -> Iterator[Way]:
    """Other ways to call a batch: what it is called, the calls, and how their results make the whole result."""
    batch, rows = s.q.shape[0], s.q.shape[2]
    anything = lambda shape: torch.randn(shape) * random.choice((1.0, 1e4))
    yield "again", [s], lambda found: found[0]
    yield "one by one", [s.of([b]) for b in range(batch)], torch.cat
    order = random.sample(range(batch), batch)
    yield "in another order", [s.of(order)], lambda found: found[0][torch.tensor(order).argsort()]
    most = max(int(s.lengths.max()), form.least_keys)
    yield "in a shorter buffer", [s.within(most, anything)], lambda found: found[0]
    longer = s.within(s.k.shape[2] + random.randint(1, 150), anything)
    yield "in a longer buffer", [longer], lambda found: found[0]
    cuts = sorted({0, rows, *(random.randint(0, rows) for _ in range(random.randint(1, 3)))})
    chunks = [s.rows(*ends).within(s.k.shape[2] + random.randint(0, 40), anything) for ends in pairwise(cuts)]
    yield f"cut at {cuts}", chunks, lambda found: torch.cat(found, 2)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two results are equal, bit by bit but for the sign of 0 and the kind of a NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def differs(form: Form, call: Callable[..., Tensor], s: Sequences, random: Random) -> str:
    """How a batch that is called in another way differs; "" if it does not."""
    ask = lambda one: call(*inputs_of(form.name, one, random))
    whole = ask(s)
    for way, calls, joined in other_ways(form, s, random):
        if not same_bits(whole, joined([ask(one) for one in calls])):
            return way
    return ""


# Runs -----------------------------------------------------------------------------------------------------------------


def compiled(form: Form, executor: str, invariant: bool) -> Callable[..., Tensor]:
    options = {"inner": "eager", "executor": executor, "invariant": invariant}
    return torch.compile(PROGRAMS[form.name], backend=onepass_backend, options=options, dynamic=True)


def in_order_of_the_sum(self, a, b, d, *_):
    """Triton's interpreter lets numpy multiply, whose bits depend on an element's place in a tile. A matrix unit's do
    not: here each element adds its products in order."""
    from triton.runtime.interpreter import TensorHandle

    wide = np.float64 if a.data.dtype == np.float64 else np.float32
    left, right, total = a.data.astype(wide), b.data.astype(wide), d.data.copy()
    for n in range(left.shape[-1]):
        total = total + left[..., :, n : n + 1] * right[..., n : n + 1, :]
    return TensorHandle(total, d.dtype.scalar)


def small_kernels(random: Random) -> ExitStack:
    """Triton's kernels with small tiles and pieces, so that a batch has several; one program or many run a loop."""
    from triton.runtime.interpreter import InterpreterBuilder

    from onepass.lowering.triton import launch

    stack = ExitStack()
    for place, name, value in (
        (InterpreterBuilder, "create_dot", in_order_of_the_sum),
        (launch, "default_for", lambda *_: TritonConfig(32, 16, 4, 1)),
        (launch, "wanted_chunks", lambda *_: random.choice((1, 2))),
        (invariant_plans, "KEYS_OF_A_PIECE", 64),
    ):
        stack.enter_context(patch.object(place, name, value))
    return stack


@torch.no_grad()
def run(count: int, seed: int, executor: str = "tiled", invariant: bool = True, device: str = "cpu") -> list[str]:
    """Which of so many random batches differ. Programs take turns, and each is called with several of them."""
    found, random = [], Random(seed)
    interpreted = executor == "triton" and device == "cpu"
    with ExitStack() as stack:
        stack.enter_context(shape_config.patch(use_duck_shape=False))
        stack.enter_context(dynamo_config.patch(recompile_limit=1000, accumulated_recompile_limit=10000))
        if interpreted:
            stack.enter_context(small_kernels(random))
        for numbers in batches.turns(count, BATCHES_OF_A_PROGRAM):
            form = Form.random(random)
            call = compiled(form, executor, invariant)
            for number in numbers:
                s = draw(random, form, 200 if interpreted else 1300, device)
                if said := differs(form, call, s, random):
                    sizes = f"{list(s.q.shape)} {s.lengths.tolist()}"
                    found.append(f"{form}, batch {number} of seed {seed}, {sizes}: {said}")
    return found


def main() -> int:
    parser = batches.parser(__doc__)
    parser.add_argument("--without", action="store_true", help="without the option")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    found = run(asked.count, asked.seed, asked.executor, not asked.without, asked.device)
    return batches.exit_status(found, asked.count, "differ")


if __name__ == "__main__":
    raise SystemExit(main())
