"""Observes a function call by call of ATen: the calls and numbers it uses, the effect of rounding, overflow.

Each observation is a TorchDispatchMode under which the function runs. Calls and Overflow change no result. Example:
under Rounding, `a + b` adds operands with a relative error of 1e-15, as if each had been rounded before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..egraph.sampling.function_edges import RANGES, edges_of, edges_of_cast

PRODUCTS = set("mul div mm bmm mv dot addmm addmv baddbmm addbmm addcmul addcdiv prod cumprod convolution lerp".split())
SUMS = set("add sub rsub sum mean cumsum".split())
QUOTIENTS = {"div": 1, "addcdiv": 2}  # which argument is the divisor
SUBTRAHEND = {"sub": 1, "rsub": 0}
# Calls whose results are exact, or that jump: they get operands without errors. So do views.
EXACT = set(
    """
    neg abs sign sgn relu threshold heaviside max min amax amin maximum minimum argmax argmin cummax cummin median mode
    clamp clamp_min clamp_max eq ne lt le gt ge equal isclose isnan isinf isfinite signbit copysign any all logical_not
    where masked_fill nan_to_num sort argsort topk unique nonzero is_nonzero bucketize searchsorted
    gather index index_select index_put scatter cat stack flip roll tril triu repeat constant_pad_nd
    floor ceil round trunc frac remainder fmod floor_divide
    masked_select masked_scatter index_fill index_copy take embedding select_scatter slice_scatter unfold
    copy clone fill detach _unsafe_view scalar_tensor lift_fresh zeros_like ones_like full_like empty_like
    _to_copy _local_scalar_dense
    """.split()
)
MASKING_FRACTION = 0.99  # of the largest number: larger numbers are masks, such as `finfo.min`


class Calls(TorchDispatchMode):
    """Collects the names of a function's calls, the numbers in its code, and the dtypes that it casts to."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()
        self.numbers: set[float] = set()
        self.casts: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(_name(func))
        for declared, given in zip(func._schema.arguments, args):
            if "number" in str(declared.type) or str(declared.type) in ("Tensor", "float"):
                self._take(given)
        if isinstance(target := (kwargs or {}).get("dtype"), torch.dtype) and _name(func) == "_to_copy":
            self.casts.add(str(target).removeprefix("torch."))
        return func(*args, **(kwargs or {}))

    def _take(self, given) -> None:
        if isinstance(given, torch.Tensor) and given.dim() == 0 and type(given) is torch.Tensor:
            given = given.item()
        if isinstance(given, int | float) and not isinstance(given, bool):
            self.numbers.add(float(given))


@contextmanager
def watched(mode: TorchDispatchMode) -> Iterator[TorchDispatchMode]:
    """A context in which calls run under the mode. Compiled functions run eagerly, since a mode does not see kernels.

    A function that is compiled under a mode would also stay uncompiled afterwards.
    """
    compiled = "torch._dynamo" in sys.modules  # otherwise nothing is compiled, and the import takes seconds
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext(), mode:
        yield mode


SAMPLE = (0.5, -2.0, 1.0, 3.7, -0.3)


def edges_of_functions(functions: Iterable[Callable], inputs: Iterable, dtype: torch.dtype) -> tuple[float, ...]:
    """Numbers in the code of functions, and edges of their calls and casts, from a run on sample inputs."""
    shapes = [[int(w) if w.isdigit() else 2 for w in a.split()] if isinstance(a, str) else a for a in inputs]
    sample = [a if isinstance(a, torch.Tensor) else _sample(a, dtype) for a in shapes]
    calls = Calls()
    for function in functions:
        with suppress(Exception), watched(calls):  # the test meets a failure again; earlier calls count
            function(*(a.clone() for a in sample))
    names = [name.lstrip("_") for name in calls.names]
    dtypes = dict.fromkeys((str(dtype).removeprefix("torch."), *sorted(calls.casts & set(RANGES))))
    edges = [x for d in dtypes for x in edges_of(names, d)] + [x for c in sorted(calls.casts) for x in edges_of_cast(c)]
    return tuple(dict.fromkeys([*sorted(calls.numbers, key=lambda x: (abs(x), x)), *edges]))


def _sample(shape, dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor((SAMPLE * (count // len(SAMPLE) + 1))[:count], dtype=dtype).reshape(torch.Size(shape))


class Rounding(TorchDispatchMode):
    """Gives every element of the operands of calls that round a random relative error."""

    def __init__(self, error: float, seed: int):
        super().__init__()
        self.error, self.generator = error, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _is_exact(func):
            return func(*args, **(kwargs or {}))
        written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        kept = [*written, *[False] * len(args)]
        moved = (a if keep else tree_map(self._moved, a) for a, keep in zip(args, kept))
        return func(*moved, **(kwargs or {}))

    def _moved(self, x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        factors = torch.empty(x.shape, dtype=torch.float64).normal_(1.0, self.error, generator=self.generator)
        return x * factors.to(device=x.device, dtype=x.dtype)


class Overflow(TorchDispatchMode):
    """Finds calls that leave the range of their dtype, by name; "" if there are none.

    sums: a sum, product or quotient that could overflow in some order, judged by magnitudes. `x * x` counts as a
    function, not as a product. first: the first call that makes a result infinite or NaN of finite operands.
    """

    def __init__(self):
        super().__init__()
        self.sums = self.first = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = _name(func), kwargs or {}
        before = _finite(args)
        if not self.sums and name in PRODUCTS | SUMS and _leaves_the_range(func, name, args, kwargs):
            self.sums = name
        result = func(*args, **kwargs)
        if not self.first and before and not _finite(result):
            self.first = name.strip("_")
        return result


def _name(func) -> str:
    """The name of a call without its overload and without the underscore of in-place calls."""
    return func.overloadpacket.__name__.removesuffix("_")


def _is_exact(func) -> bool:
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return views or _name(func) in EXACT


def _tensors(value) -> list[torch.Tensor]:
    found = [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return [x for x in found if x.is_floating_point()]


def _finite(value) -> bool:
    return all(bool(x.isfinite().all()) for x in _tensors(value))


def _leaves_the_range(func, name: str, args, kwargs) -> bool:
    """Whether the magnitudes of finite operands give an infinite result, or a product or quotient underflows."""
    tensors = _tensors(args)
    if not tensors or (name == "mul" and len({x.data_ptr() for x in tensors}) < len(tensors)):  # a power
        return False
    result = func(*_magnitudes(name, args, torch.abs), **kwargs)
    if any(bool(x.isinf().any()) for x in _tensors(result)):
        return True
    if name not in PRODUCTS:
        return False
    present = func(*_magnitudes(name, args, lambda x: (x != 0).to(x.dtype)), **kwargs)
    ends = zip(_tensors(result), _tensors(present))
    return any(bool(((r.abs() < torch.finfo(r.dtype).tiny) & (p != 0)).any()) for r, p in ends)


def _magnitudes(name: str, args, of) -> list:
    """The arguments with each operand replaced by `of` it; elements that are not finite become 0, divisors of 0 1."""

    def change(x, place: int):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            here = x.abs() < MASKING_FRACTION * torch.finfo(x.dtype).max
            if QUOTIENTS.get(name) == place:
                return torch.where(here & (x != 0), of(x), torch.ones_like(x))
            found = torch.where(here, of(x), torch.zeros_like(x))
        elif isinstance(x, float | int) and not isinstance(x, bool) and name in SUBTRAHEND:
            found = abs(x)
        else:
            return x
        return -found if SUBTRAHEND.get(name) == place else found

    return [change(x, n) for n, x in enumerate(args)]
