"""What fuzzers of random batches share: their command line, and programs that take turns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from onepass import process_state


def turns(count: int, batches: int) -> Iterator[range]:
    """The numbers of each program's batches, up to `count`; each program begins as in a new process."""
    for start in range(0, count, batches):
        torch._dynamo.reset()
        process_state.forget()
        yield range(start, min(start + batches, count))


def parser(documentation: str) -> argparse.ArgumentParser:
    """The command line that the fuzzers have in common."""
    made = argparse.ArgumentParser(description=documentation.splitlines()[0])
    made.add_argument("--count", type=int, default=1000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--executor", default="tiled", choices=("tiled", "triton"))
    return made


def exit_status(found: Sequence[str], count: int, what: str) -> int:
    """Prints what was found in so many batches; 1 if it is anything."""
    print(*found, f"{count} batches, {len(found)} {what}", sep="\n")
    return bool(found)
