"""Ranks that are threads of one process: they exchange messages as processes do, and start in no time."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue

from onepass.distributed.exchange import Ranks

SECONDS = 60  # that a thread waits for a message


@dataclass
class Received:
    """What is waited for: tensors to fill, and the queue of each."""

    receives: list

    def wait(self):
        for tensor, source in self.receives:
            tensor.copy_(source.get(timeout=SECONDS))


@dataclass(frozen=True)
class RankThread(Ranks):
    """A thread's view of its group, which is a queue for each pair of ranks."""

    def start(self, sends, receives):
        for tensor, to in sends:
            self.group[self.rank, to].put(tensor.clone())
        return Received([(tensor, self.group[source, self.rank]) for tensor, source in receives])


def group():
    """A group of threads."""
    return defaultdict(Queue)


def in_threads(function, places):
    """What function(*place) gives at each place, all at the same time. Raises what one of them raised."""
    with ThreadPoolExecutor(len(places)) as pool:
        waiting = [pool.submit(function, *place) for place in places]
        return [each.result() for each in waiting]


def ended(steps):
    """What a schedule gives that is never left waiting."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
