"""Random batches of a paged cache against float64 eager: `python -m tests.fuzz.pages --count 1000 --seed 0`.

A program is compiled once, with symbolic sizes, and called with batches of any size: tables with repeated, negative and
meaningless entries, lengths around the ends of pages, NaN in slots that no sequence has written. Eager gets zeros there
and the first page. Where no key is kept, both may say NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from onepass.api.backend import onepass_backend
from tests.fuzz import batches
from tests.support.pages import GARBAGE, HEADS, SPELLINGS, Batch, Spelling, doubled

MAX_BATCH, MAX_ROW = 5, 7
BATCHES_OF_A_PROGRAM = 25
LEFT_OUT = ("quantised", "bias", "take_along_dim")  # have other tensors; torch makes a program for each batch size
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Drawn:
    """A batch as it is given to the kernel (wild), and as eager gets it (tame)."""

    wild: Batch
    tame: Batch


@dataclass(frozen=True)
class Form:
    """What a compiled program fixes: slots of a page, heads, one row or more, the type of tables."""

    slots: int
    heads: int
    one_row: bool
    kind: torch.dtype

    @classmethod
    def random(cls, random: Random) -> Form:
        kind = random.choice([torch.int32, torch.int64])
        return cls(random.choice([4, 8, 16]), HEADS * random.choice([1, 4]), random.random() < 0.5, kind)


def draw(random: Random, form: Form, negative: bool) -> Drawn:
    """A random batch of a form. Pages that a length does not reach hold anything."""
    many, row, pages = random.randint(3, MAX_BATCH), random.randint(6, MAX_ROW), random.randint(9, 30)
    slots, kind, heads = form.slots, form.kind, form.heads
    torch.manual_seed(random.getrandbits(32))
    edges = [0, 1, slots - 1, slots, slots + 1, row * slots, random.randint(0, row * slots)]
    lengths = [random.choice(edges) for _ in range(many)]
    rows = 1 if form.one_row else random.choice([2, 5, 17])
    kc, vc = torch.randn(2, pages, slots, HEADS, 16)
    low = -pages if negative else 0
    table = torch.tensor([[random.randrange(low, pages) for _ in range(row)] for _ in range(many)], dtype=kind)
    tame = Batch(torch.randn(many, heads, rows, 16), kc, vc, table, torch.tensor(lengths, dtype=kind))
    wild = replace(tame, table=table.clone(), kc=kc.clone(), vc=vc.clone())
    for n, length in enumerate(lengths):
        used = -(-length // slots)
        tame.table[n, used:] = 0
        for m in range(used, row):
            wild.table[n, m] = random.choice(GARBAGE)
    _forget_what_nobody_wrote(wild, tame, lengths, slots)
    return Drawn(wild, tame)


def _forget_what_nobody_wrote(wild: Batch, tame: Batch, lengths: list[int], slots: int) -> None:
    """Slots that no sequence has are NaN in the wild batch, and zero in the tame one."""
    written = torch.zeros(wild.kc.shape[:2], dtype=torch.bool)
    for n, length in enumerate(lengths):
        for place in range(length):
            written[int(tame.table[n, place // slots]), place % slots] = True
    for cache in (wild.kc, wild.vc):
        cache[~written] = torch.nan
    for cache in (tame.kc, tame.vc):
        cache[~written] = 0.0


def compiled(spelling: Spelling, executor: str) -> Callable[..., Tensor]:
    """The program with symbolic sizes, run by an executor, or not at all where that fails."""
    options = {"inner": "eager", "strict": True, "libraries": False, "executor": executor}
    return torch.compile(spelling.function, backend=onepass_backend, dynamic=True, options=options)


def wrong(spelling: Spelling, call: Callable[..., Tensor], drawn: Drawn) -> str:
    """What is wrong with the answer to a batch; "" if nothing is."""
    right = spelling.function(*doubled(spelling.inputs(drawn.tame)))
    found = call(*spelling.inputs(drawn.wild)).double()
    empty = right.isnan()  # rows of a length that keep no key
    if found[~empty].isnan().any():
        return "NaN where a key is kept"
    apart = (found - right)[~empty].abs().max().item() if (~empty).any() else 0.0
    return f"{apart:.1g} from float64" if apart > TOLERANCE else ""


@torch.no_grad()
def run(count: int, seed: int, executor: str = "tiled") -> list[str]:
    """What is wrong with so many random batches. Programs take turns, and each is called with several of them."""
    found, random = [], Random(seed)
    spellings = [s for s in SPELLINGS if not any(word in s.name for word in LEFT_OUT)]
    for numbers in batches.turns(count, BATCHES_OF_A_PROGRAM):
        spelling, form = random.choice(spellings), Form.random(random)
        call = compiled(spelling, executor)
        for number in numbers:
            if said := wrong(spelling, call, draw(random, form, spelling.wraps)):
                found.append(f"{spelling.name} with {form}, batch {number} of seed {seed}: {said}")
    return found


def main() -> int:
    asked = batches.parser(__doc__).parse_args()
    found = run(asked.count, asked.seed, asked.executor)
    return batches.exit_status(found, asked.count, "wrong")


if __name__ == "__main__":
    raise SystemExit(main())
