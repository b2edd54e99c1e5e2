"""`plan`: a function prepared for one kind of call, so that a server may capture its calls in a CUDA graph.

Everything that depends on no value is done before: compiled, compared with the tiled executor, timed. A call does none
of it, and never falls back: what is not prepared raises. Example: `step = onepass.plan(attend, q, k, v)`, then
`step(q, k, v)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import exc

from ..compiler.options import Options
from ..errors import InputError, NotPrepared, OnepassError
from ..report.records import Report, as_seen
from ..report.requirements import hold
from ..runtime.executors import ORIGINAL
from ..runtime.region_call import CALLING, PlannedCalls, prepares
from .backend import Backend
from .compile import isolated, with_room
from .explain import merged

MAX_CALLS = 16  # of the function, to prepare it
QUIET_CALLS = 2  # in which nothing was prepared; kernels that distribute work by data come at a mask's second call
ALIGNMENT = 16  # bytes, for which kernels are specialised
PLAIN = (int, float, str, torch.dtype, torch.device, type(None))  # values that a call repeats
ASPECTS = ("type", "shape", "strides", "dtype", "device", "requires_grad", f"address modulo {ALIGNMENT}")
MAX_GRAPHS = 4  # of the function: its first calls may set what its later ones read
COMPILED_ANEW = (
    "{name} would be compiled anew, for something other than the kinds of its arguments: a mode of torch (inference, "
    "autocast, tangents), a value or an attribute that {name} reads, or which arguments are the same tensor"
)


def plan(function: Callable, *examples: object, **options: Any) -> ServingPlan:
    """A function or a module prepared for calls of the kind of these examples: a plan, which is called as `function`.

    It is compiled for exactly these shapes, strides, dtypes and devices, and called on the examples, without recording
    gradients, until nothing is left to compile, compare or time: some 4 to 6 calls. What `function` writes in place is
    written in each of them, so give copies where that matters. Numbers among the examples are fixed; contents of
    tensors, such as lengths or tables of pages, are not. options: those of the backend, such as executor="triton".

    Raises NotFused if something found is not fused, or nothing was found; NotPrepared if a region would run as written
    because no kernel can run it; OptionError; InputError for examples that the function does not accept; the errors of
    the function, and those of torch where it cannot be captured as one graph.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / 8, -1) @ v
    >>> q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    >>> prepared = onepass.plan(attend, q, k, v, inner="eager", libraries=False)
    >>> torch.allclose(prepared(q + 1, k, v), attend(q + 1, k, v), atol=1e-5)
    True
    >>> prepared.report.fused
    1
    """
    read = Options.read(options)
    if not callable(function) or isinstance(function, type):
        raise InputError(f"plan(function, *examples) takes a function or a module, and this is {function!r}")
    return ServingPlan(function, examples, read)


class ServingPlan:
    """A function that is prepared for one kind of call. `plan` makes it."""

    def __init__(self, function: Callable, examples: Sequence[object], options: Options):
        self.name = getattr(function, "__name__", type(function).__name__)
        self._names = _names(function, self.name, examples)
        self._kinds = [_kind(value) for value in examples]
        self._planned, self._reports = PlannedCalls(), list[Report]()
        backend = Backend(options, kept=self._reports)

        def compiled_before(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
            prepares(f"a graph of {self.name}")
            return backend(gm, example_inputs)

        limits = isolated(MAX_GRAPHS)
        self._compiled = torch.compile(function, backend=compiled_before, fullgraph=True, dynamic=False, **limits)
        try:
            with with_room(limits):
                self._prepare(examples)
        except exc.FailOnRecompileLimitHit as error:
            raise NotPrepared(COMPILED_ANEW.format(name=self.name) + ", at each call") from error
        except exc.TorchDynamoException as error:
            _raise_own_error(error, function, examples)
            raise

    def __call__(self, *tensors: Any) -> Any:
        """The function's results, without gradients.

        Raises InputError for tensors that are not of the kind of the examples, and NotPrepared for a call that would
        compile or fall back. Only this and its launches are left to the host: nothing waits for the device.
        """
        if [_kind(value) for value in tensors] != self._kinds:
            raise InputError("; ".join(self._differences(tensors)))
        try:
            return self._run(tensors)
        except (exc.TorchDynamoException, exc.FailOnRecompileLimitHit) as error:
            raise NotPrepared(COMPILED_ANEW.format(name=self.name) + "; make another plan for it") from error

    @property
    def report(self) -> Report:
        """What was fused, and who runs it."""
        return as_seen(merged(self._reports))

    def __repr__(self) -> str:
        report = self.report
        regions = (f"{', '.join(region.places) or 'a region'} by {region.ran}" for region in report.regions)
        return f"<ServingPlan of {self.name}: {report.fused} fused: {'; '.join(regions)}>"

    def _run(self, tensors: Sequence[Any]) -> Any:
        outer, CALLING.planned = CALLING.planned, self._planned
        try:
            if not torch.is_grad_enabled():
                return self._compiled(*tensors)
            with torch.no_grad():
                return self._compiled(*tensors)
        finally:
            CALLING.planned = outer

    def _prepare(self, examples: Sequence[object]) -> None:
        """Calls the function until nothing is left to prepare, and looks at who runs it."""
        quiet = 0
        for _ in range(MAX_CALLS):
            before = self._planned.prepared
            self._run(examples)
            quiet = quiet + 1 if self._planned.prepared == before else 0
            if quiet == QUIET_CALLS:
                break
        report = self.report
        hold(report, "all")
        lines = list(dict.fromkeys(self._planned.fallbacks))
        lines += [f"no kernel runs the region at {', '.join(r.places)}" for r in report.regions if r.ran == ORIGINAL]
        if quiet < QUIET_CALLS:
            lines.append(f"after {MAX_CALLS} calls there was still something to compile, compare or time")
        if lines:
            notes = (note for region in report.regions for note in region.notes)
            raise NotPrepared("\n  ".join((f"{self.name} cannot be planned:", *dict.fromkeys((*lines, *notes)))))
        self._planned.sealed = True

    def _differences(self, tensors: Sequence[object]) -> Iterator[str]:
        """What keeps a call from being of the kind of the examples, argument by argument."""
        if len(tensors) != len(self._kinds):
            yield f"{self.name} was planned for {len(self._kinds)} arguments, and got {len(tensors)}"
            return
        for name, value, planned in zip(self._names, tensors, self._kinds, strict=True):
            given = _kind(value)
            if given == planned:
                continue
            if len(given) != len(planned) or len(given) != len(ASPECTS):
                yield f"{name} was planned as {_said(planned)}, and is {_said(given)}"
                continue
            for aspect, one, other in zip(ASPECTS, given, planned, strict=True):
                if one != other:
                    yield f"{name} has {aspect} {_plainly(one)}, and was planned with {_plainly(other)}"


def _kind(value: object) -> tuple:
    """What a call has to have in common with the examples: ASPECTS of a tensor, and a plain value itself."""
    if not isinstance(value, torch.Tensor):
        return type(value), value
    shape, strides = value.shape, value.stride()
    return type(value), shape, strides, value.dtype, value.device, value.requires_grad, value.data_ptr() % ALIGNMENT


def _said(kind: tuple) -> str:
    return "a tensor" if len(kind) == len(ASPECTS) else repr(kind[1])


def _plainly(value: object) -> object:
    if isinstance(value, type):
        return value.__name__
    return tuple(value) if isinstance(value, tuple) else value


def _names(function: Callable, name: str, examples: Sequence[object]) -> tuple[str, ...]:
    """The name of each argument. Raises InputError for examples that a plan, or the function, does not take."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        names = tuple(f"argument {number}" for number in range(len(examples)))
    else:
        names = _bound(signature, name, examples)
    if not any(isinstance(value, torch.Tensor) for value in examples):
        raise InputError(f"plan({name}, *examples) takes the tensors that {name} is called with, and got none")
    for said, value in zip(names, examples, strict=True):
        if type(value).__module__ == "numpy" or not isinstance(value, (torch.Tensor, *PLAIN)):
            raise InputError(f"{said} is of type {type(value).__name__}, and plan takes tensors, numbers, words, None")
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise InputError(f"{said} has the layout {value.layout}, and plan takes plain strided tensors")
    return names


def _bound(signature: inspect.Signature, name: str, examples: Sequence[object]) -> tuple[str, ...]:
    try:
        bound = signature.bind(*examples)
    except TypeError as error:
        raise InputError(f"plan calls {name}{signature} with {len(examples)} examples: {error}") from error
    names: list[str] = []
    for said, value in bound.arguments.items():
        many = signature.parameters[said].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{said}[{number}]" for number in range(len(value))] if many else [said]
    return tuple(names)


@torch.no_grad()
def _raise_own_error(error: exc.TorchDynamoException, function: Callable, examples: Sequence[object]) -> None:
    """Raises onepass's error that torch carries, or the one that the function raises as written, if there is one."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, OnepassError):
        raise inner from error
    function(*examples)
