"""How a region runs in training: its forward with saved values, and its backward, each by a plan of its own.

A forward that cannot run by its plan gives the original results and no saved values; its backward then computes the
region again. So it is on a CPU for small values, where both were measured to be faster. A step of both plans is timed
beside one of the calls as Inductor compiles them; where these win, the next graph keeps them. Invariant: a backward
never reads a value that the forward has not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ..compiler.compiled_region import Fused
from ..lowering.executors import TILED
from ..lowering.masks.block_map import capturing
from ..report import records
from ..training.plans import Backward, Training
from . import executors, library_choice
from .region_call import RegionCall, Tensors, all_sizes, is_deterministic, unfit
from .runner import Runner

SMALLER = (2.0**-10, 2.0**-20)  # parts of cotangents: the end of float16 is 2^16, and loss scaling begins with 2^16
RIVALS_IN_TRAINING = (executors.COMPILED, *executors.TILES)  # for which a backward is timed


def size_class(training: Training, device: torch.device, sizes: Mapping[str, int]) -> str:
    """The class of a call's sizes, the same for the forward and for each backward."""
    known = {name: sizes[name] for name in training.forward.program.symbols if name in sizes}
    return library_choice.size_class(device, known)


def _may_time(found: Fused, tensors: Tensors, call: RegionCall, *names: str) -> bool:
    """Whether one of these rivals may run, and a step can be timed now: not while a graph is captured."""
    if capturing(tensors[0].device):
        return False
    return not library_choice.rivals(found, tensors, call).keys().isdisjoint(names)


class ForwardRunner(Runner):
    """The forward of a region in training. Its only rival are the original calls, which have no saved values: only
    where the backward was found to be faster without them.
    """

    def __init__(self, training: Training):
        super().__init__(training.forward)
        self.training, self.region = training, training.found.key
        self.asked = 0  # classes of sizes that were looked at

    def __call__(self, tensors: Tensors, numbers: Sequence[int]) -> list[torch.Tensor]:
        told = len(self.training.by_autograd) + len(self.training.seconds_of_backward)
        if told != self.asked:
            self.asked = told
            self._forget_ready()
        return super().__call__(tensors, numbers)

    def preference(self, device: torch.device) -> tuple[str, ...]:
        """As for a region, with the tiled executor instead of the original calls, which do not save."""
        names = tuple(name for name in super().preference(device) if name != executors.ORIGINAL)
        return names if TILED.name in names else (*names, TILED.name)

    def _is_left_out(self, name: str, tensors: Tensors) -> bool:
        """Without kernels, the loops of the tiled executor take a GPU a hundred times as long as the original calls. It
        stays for kernels that lacked memory, as those calls would, and for equal bits, which they do not have."""
        if name != TILED.name or not tensors[0].is_cuda or self.found.options.invariant:
            return False
        kernels = [one for one in self.preference(tensors[0].device) if one in executors.KERNELS]
        return bool(kernels) and self.broken.issuperset(kernels)

    def say(self, who: str) -> None:
        """Who ran, for the reports of graphs with gradients."""
        if who != self.ran:
            self.ran = who
            records.ran_in_training(self.found.report.key, who)

    def _stores_too_much(self, call: RegionCall) -> str:
        return ""  # decided when the plans were made

    def _expected(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        return executors.EXECUTORS[TILED.name](self.found, tensors, call)(tensors)

    def _unvalidated(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        return self._expected(tensors, call)

    def _chosen(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor] | None:
        """By the original calls, if they are faster and nothing saved is read: on a CPU.

        On a GPU a CUDA graph might replay a backward that reads what was saved.
        """
        size = size_class(self.training, tensors[0].device, call.sizes)
        if tensors[0].is_cuda:
            return None
        has_rival = executors.ORIGINAL in library_choice.rivals(self.found, tensors, call)
        if has_rival and size in self.training.by_autograd and size not in self.choices:
            own = executors.EXECUTORS[TILED.name](self.found, tensors, call)
            if (share := self._share_of_inductor(own, 1.0, tensors, call)) < 1.0:
                self._choose(size, (executors.COMPILED, share))
                return None
            rival = {executors.ORIGINAL: executors.original(self.found, tensors, call)}
            self._choose(size, library_choice.fastest(own, rival, tensors, lambda *_: None))
        chosen = self.choices.get(size, ("", 1.0))[0]
        if chosen not in (executors.ORIGINAL, *executors.TILES):
            return None
        if chosen == executors.ORIGINAL:
            self.training.originals.add(size)
        return super()._chosen(kind, tensors, call)

    def _without_a_long_wait(self, kind: tuple, tensors: Tensors, call: RegionCall) -> None:
        return None  # a backward may need what only the plan saves

    def _decided(self, name, run, results, tensors, call) -> bool:
        """By compiled tiles where these are faster, once a backward was timed; Inductor's step has to beat that."""
        size = size_class(self.training, tensors[0].device, call.sizes)
        if size in self.choices or not self._may_compare(size, tensors, call, *RIVALS_IN_TRAINING):
            return True
        ready = self._ready_rivals(self._tiles(tensors, call), tensors, call)
        own = library_choice.fastest(run, ready, tensors, self._wrong(results, tensors, call))
        share = self._share_of_inductor(run, own[1], tensors, call)
        self._choose(size, (executors.COMPILED, share) if share < 1.0 else own)
        return own[0] == "" or share < 1.0

    def _rivals_of_first_call(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        return {}  # they wait for a backward

    def _tiles(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        """The only rivals that save what the plan saves."""
        known = self.rivals(tensors, call)
        return {name: prepare for name, prepare in known.items() if name in executors.TILES}

    def _may_compare(self, size: str, tensors: Tensors, call: RegionCall, *names: str) -> bool:
        """Whether a backward was timed, and a step of one of these rivals can be timed now beside the plans'."""
        in_backward = torch._C._current_graph_task_id() != -1  # a checkpoint: autograd's own thread would wait for us
        timed = size in self.training.seconds_of_backward
        return timed and not in_backward and _may_time(self.found, tensors, call, *names)

    def _share_of_inductor(self, run: executors.Run, part: float, tensors: Tensors, call: RegionCall) -> float:
        """The part of the plans' time that a step takes whose calls Inductor compiles, forward and backward: it moves
        the bytes of the forward twice at least. 1 where that is not worth it."""
        size = size_class(self.training, tensors[0].device, call.sizes)
        if not self._may_compare(size, tensors, call, executors.COMPILED):
            return 1.0
        program, needed = self.training.found.program, self.training.needed
        if library_choice.takes_much_memory(program, tensors[0].device, call.sizes):
            return 1.0
        backward = self.training.seconds_of_backward[size]
        taken = part * library_choice.seconds(run, tensors) + backward
        step = executors.compiled_step(program, needed, tensors, call.sizes)
        least = library_choice.least_seconds(self.found, [executors.COMPILED], tensors, call)
        return library_choice.share_of_step(taken, step, tensors, 2 * least[executors.COMPILED])

    def _by_original_calls(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        results = super()._by_original_calls(kind, tensors, call)
        if not unfit(self.found, call):  # if they lack memory, too, the caller has an error, and no backward follows
            self.training.fell_back = True
        return results


class BackwardRunner(Runner):
    """One backward of a region. Its last resort, and its rival where values are small, is autograd."""

    def __init__(self, training: Training, backward: Backward):
        super().__init__(backward.region)
        self.training, self.backward = training, backward

    def gradients(
        self,
        grads: Sequence[torch.Tensor | None],
        tensors: Tensors,
        kept: Mapping[int, torch.Tensor],
        numbers: Sequence[int],
        needed: Sequence[bool],
    ) -> list[torch.Tensor]:
        """The gradients of the needed inputs, in order; zeros for one that no cotangent reaches.

        kept: what the forward kept, by its position among the forward's outputs.
        """
        own = [g for g, is_given in zip(grads, self.backward.given, strict=True) if is_given]
        found = self([*tensors, *(kept[k] for k in self.backward.kept), *own], numbers)
        by_input = dict(zip(self.backward.gradients, found, strict=True))
        return [by_input[k] if k in by_input else torch.zeros_like(tensors[k]) for k, n in enumerate(needed) if n]

    def say(self, who: str) -> None:
        """Who ran, for the report's line on the backward."""
        if who != self.ran:
            self.ran = who
            records.ran_backward(self.found.report.key, who)

    def _smaller(self, tensors: Tensors) -> Iterator[Tensors]:
        """With smaller cotangents, of which gradients are linear. Example: those of a scaled loss in float16."""
        first = len(tensors) - sum(self.backward.given)
        for part in SMALLER:
            scaled = [x * part for x in tensors[first:]]
            if all(x.stride() == y.stride() for x, y in zip(scaled, tensors[first:], strict=True)):
                yield [*tensors[:first], *scaled]

    def rivals(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        """Autograd alone: what it calls is not compiled here."""
        known = super().rivals(tensors, call)
        return {name: prepare for name, prepare in known.items() if name != executors.COMPILED}

    def _decided(
        self, name: str, run: executors.Run, results: list[torch.Tensor], tensors: Tensors, call: RegionCall
    ) -> bool:
        decided = super()._decided(name, run, results, tensors, call)
        self._tell_forward(tensors, call)
        size = library_choice.size_class(tensors[0].device, call.sizes)
        if decided or tensors[0].is_cuda or size in self.choices:
            self._time_for_forward(run, tensors, call, self.choices.get(size, ("", 1.0))[1])
        return decided

    def _time_for_forward(self, run: executors.Run, tensors: Tensors, call: RegionCall, part: float) -> None:
        """Keeps the seconds of this backward, which takes this part of the run's. The next forward compares: here,
        autograd's own thread waits."""
        size, known = size_class(self.training, tensors[0].device, call.sizes), self.training.seconds_of_backward
        if size in known or not _may_time(self.found, tensors, call, *RIVALS_IN_TRAINING):
            return
        known[size] = part * library_choice.seconds(run, tensors)

    def _without_a_long_wait(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor] | None:
        results = super()._without_a_long_wait(kind, tensors, call)
        self._tell_forward(tensors, call)
        if results is not None and kind in self.ready:
            self._time_for_forward(self.ready[kind][1], tensors, call, 1.0)
        return results

    def _tell_forward(self, tensors: Tensors, call: RegionCall) -> None:
        """Where autograd was faster, the forward need not save anything."""
        rival, _ = self.choices.get(library_choice.size_class(tensors[0].device, call.sizes), ("", 1.0))
        if rival == executors.ORIGINAL:
            self.training.by_autograd.add(size_class(self.training, tensors[0].device, call.sizes))

    def order(self, device: torch.device, call: RegionCall) -> dict[str, tuple[str, executors.Prepare]]:
        """As for a region; by autograd where the forward has run by its original calls."""
        if unfit(self.training.forward, call):
            return {executors.ORIGINAL: (executors.ORIGINAL, executors.original)}
        return super().order(device, call)

    def _call(self, tensors: Tensors, numbers: Sequence[int]) -> RegionCall:
        inputs = tensors[: len(self.found.program.inputs)]
        like = [torch.empty_like(inputs[k], device="meta") for k in self.backward.gradients]
        results = tuple((x.dtype, tuple(x.shape), x.stride()) for x in like)
        return RegionCall(all_sizes(self.found, inputs, numbers), results, is_deterministic(self.found))
