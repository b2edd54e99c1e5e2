"""Inputs of a user's function as the command line asks for them: shapes, the dtype and the device.

Tensors are random, from a fixed seed. A module goes to the device and the dtype of its inputs. Example: `--shape
1,8,1024,64 --shape mask=1024,1024:bool --dtype bfloat16` makes q, k, v and a mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import OnepassError
from .values import GivenShape, meant

ON_HOPPER = "the line `elsewhere` of a kernel says what would run on it"
PLAIN = "kernels are plain Triton on it, compiled for it in the tests, and not run there"
GPUS = {"h100": ON_HOPPER, "h200": ON_HOPPER, "a100": PLAIN, "b200": PLAIN, "mi300x": PLAIN}
LARGE = "where the call takes long on the CPU, --device meta computes nothing"
CAPABILITIES = {"h100": (9, 0), "h200": (9, 0), "a100": (8, 0), "b200": (10, 0), "mi300x": None}
KNOWN = f"devices of torch are known, as cpu or cuda, and to `explain` GPUs that are not here: {', '.join(GPUS)}"


class TargetError(OnepassError, ValueError):
    """A FILE:FUNC that cannot be used; the message says the file, the line and what to write instead."""


@dataclass(frozen=True)
class TargetFunction:
    """A function with its inputs. `guessed` describes guessed inputs; it is empty if the file gives the inputs."""

    function: Callable
    inputs: tuple = ()
    keywords: Mapping[str, object] = field(default_factory=dict)
    guessed: str = ""


@dataclass(frozen=True)
class InputChoice:
    """What the command line says of inputs: their shapes, the dtype of floating ones, and the device."""

    shapes: tuple[GivenShape, ...] = ()
    dtype: str = ""
    device: str = ""


def made(function: Callable, name: str, choice: InputChoice) -> TargetFunction:
    """The function with tensors of the shapes given. `name` is for messages. Raises TargetError."""
    shapes = _by_name(function, name, choice.shapes)
    tensors_by_name = dict(zip(shapes, tensors(shapes.values(), choice.device)))
    by_position = [p.name for p in _parameters(function) if p.kind is p.POSITIONAL_ONLY and p.name in shapes]
    return TargetFunction(function, tuple(tensors_by_name.pop(n) for n in by_position), tensors_by_name)


def _by_name(function, name: str, shapes: Iterable[GivenShape]) -> dict[str, GivenShape]:
    """Shapes by parameter: one without a name is for every other parameter, several are for these in turn."""
    named = {given.name: given for given in shapes if given.name}
    known = [p.name for p in _parameters(function)]
    for unknown in sorted(set(named) - set(known)):
        raise TargetError(f"{name} has no parameter {unknown}{meant(unknown, known)}")
    unnamed = [given for given in shapes if not given.name]
    rest = [p.name for p in needed(function) if p.name not in named]
    spread = unnamed * len(rest) if len(unnamed) == 1 else unnamed
    if len(spread) != len(rest):
        raise TargetError(f"{name} needs shapes for {', '.join(rest) or 'nothing else'}; given: {len(unnamed)}")
    return named | dict(zip(rest, spread))


def _parameters(function) -> list[inspect.Parameter]:
    """The parameters of a function, or of a module's forward, that have names."""
    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def needed(function: Callable) -> list[inspect.Parameter]:
    """The parameters without a default."""
    return [p for p in _parameters(function) if p.default is p.empty]


def tensors(shapes: Iterable[GivenShape], device: str = "") -> list:
    """Random tensors from a fixed seed: normal numbers; of other dtypes, zeros and ones. On meta, none take memory."""
    import torch

    generator, found = torch.Generator().manual_seed(0), []
    for given in shapes:
        dtype = getattr(torch, given.dtype or "float32")
        if device == "meta":
            found.append(torch.empty(given.sizes, dtype=dtype, device=device))
        elif dtype.is_floating_point:
            found.append(torch.randn(given.sizes, generator=generator).to(dtype))
        else:
            found.append(torch.randint(0, 2, given.sizes, generator=generator).to(dtype))
    return found


def placed(found: TargetFunction, choice: InputChoice) -> TargetFunction:
    """The same with its module and tensors on the device, and floating ones in the dtype. Raises TargetError."""
    import torch
    from torch.utils._pytree import tree_map

    device = _device(choice.device) if choice.device else None
    dtype = getattr(torch, choice.dtype) if choice.dtype else None

    def place(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, dtype if x.is_floating_point() else x.dtype)

    function = found.function
    if isinstance(function, torch.nn.Module):
        function = function.to(device, dtype)
    own = {given.name for given in choice.shapes if given.dtype}  # whose dtype was said beside its shape
    move = lambda name, x: x.to(device) if name in own else tree_map(place, x)
    keywords = {name: move(name, x) for name, x in found.keywords.items()}
    return replace(found, function=function, inputs=tree_map(place, found.inputs), keywords=keywords)


def from_afar(device: str) -> tuple[str, str]:
    """The device of torch for a report about a GPU, such as h100, and what is said where that GPU is not here."""
    name = device.lower()
    if name not in GPUS:
        return device, ""
    import torch

    if torch.cuda.is_available() and name in torch.cuda.get_device_name().lower():
        return "cuda", ""
    missing = f"there is no {device.upper()} here: inputs are on the CPU, and fusion is decided as on that GPU"
    return "cpu", f"{missing}; {GPUS[name]}; {LARGE}"


def _device(text: str):
    import torch

    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = "there is no GPU here" if text.startswith("cuda") and not torch.cuda.is_available() else str(error)
        raise TargetError(f"--device {text}: {reason.splitlines()[0]}; {KNOWN}") from error
    return device
