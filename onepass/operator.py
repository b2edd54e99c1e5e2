"""The custom operations that stand in a compiled graph for fused regions, and how they run.

`onepass::region` gets the tensors, the region's self-contained text, and sizes that no tensor states. A failing
executor is used no more in this process: the original calls run instead, and the report says so. Registered at import.
"""

from __future__ import annotations

import logging
import threading

import torch
from torch import library

from . import cache, fused, report
from .errors import OnepassError
from .fused import Fused
from .sizes import value_of

SCHEMA = "(Tensor[] tensors, str program, SymInt[] sizes) -> Tensor[]"
SCHEMA_BACKWARD = "(Tensor?[] grads, Tensor[] tensors, str program, SymInt[] sizes, bool[] needed) -> Tensor[]"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
log = logging.getLogger(__name__)


class ExecutorError(OnepassError):
    """An executor that cannot be used: not there, or its result is not the tiled executor's."""


class Runner:
    """How one region runs in this process: which executors are left, and what was validated."""

    def __init__(self, found: Fused):
        self.found = found
        self.broken: set[str] = set()
        self.ran = ""
        self.orders: dict[torch.device, tuple[str, ...]] = {}
        self.told: set[tuple[str, str]] = set()
        self.validated: set[str] = set((cache.read(found.key) or {}).get("validated", ()))
        report.attach(found.report)

    def __call__(self, tensors, sizes) -> tuple[torch.Tensor, ...]:
        for name in self.preference(tensors[0].device):
            if name in self.broken:
                continue
            try:
                results = self._run(name, tensors, sizes)
            except Exception as error:
                if self.found.options.strict:
                    raise
                self.broken.add(name)
                _tell(self.found.key, f"executor {name} failed and is not used again: {_line(error)}")
                continue
            self.say(name)
            return results
        self.say("the original calls")
        return self.found.program.results(*tensors, sizes=sizes)

    def say(self, who: str) -> None:
        """Who ran, for the report."""
        if who != self.ran:
            self.ran = who
            report.ran(self.found.key, who)

    def preference(self, device: torch.device) -> tuple[str, ...]:
        """Who runs the plan on this device, best first; worked out once."""
        if device not in self.orders:
            self.orders[device] = _preference(self.found.options.executor, self.found.plan, device)
        return self.orders[device]

    def _run(self, name: str, tensors, sizes) -> tuple[torch.Tensor, ...]:
        named = dict(zip(self.found.names, tensors, strict=True))
        if name == "tiled":
            return _tiled(self.found.plan, named, sizes)
        execute = _gluon if name == "gluon" else _triton
        kind = f"{name} {_specialisation(tensors, sizes)}"
        if kind in self.validated or not tensors[0].is_cuda:
            return execute(self.found.plan, named, sizes)
        return self._validate(kind, named, sizes, execute)

    def _validate(self, kind: str, named, sizes, execute=None) -> tuple[torch.Tensor, ...]:
        """The first run of a kernel is compared with the tiled executor: a wrong kernel is never used."""
        expected = _tiled(self.found.plan, named, sizes)
        if torch.cuda.is_current_stream_capturing():  # a graph capture cannot wait for a comparison
            return expected
        results = (execute or _triton)(self.found.plan, named, sizes)
        for result, wanted in zip(results, expected, strict=True):
            difference = mismatch(result, wanted)
            if difference is not None:
                raise ExecutorError(f"the kernel's result differs from the tiled executor's: {difference}")
        if execute is _gluon:
            self._tell_refusals()
        self.validated.add(kind)
        cache.update(self.found.key, validated=sorted(self.validated))
        return results

    def _tell_refusals(self) -> None:
        """Notes once, by reason, which kernels ran as plain Triton after all."""
        from .lowering.gluon_launch import refusals

        for name, reason in refusals(self.found.plan).items():
            if (name, reason) not in self.told:
                self.told.add((name, reason))
                report.note(self.found.key, f"{name} runs as plain Triton: {reason}")


def mismatch(result: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Why two results are not the same up to rounding in their dtype; None if they are."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{result.dtype} {tuple(result.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if torch.equal(result, expected) else "different values"
    a, b = result.double(), expected.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return "NaN or infinity at different places"
    finite = b.isfinite()
    error = (a - b)[finite].abs().max().item() if finite.any() else 0.0
    allowed = TOLERANCE[expected.dtype] * max(b[finite].abs().max().item() if finite.any() else 0.0, 1e-3)
    return None if error <= allowed else f"by {error:.3g}, more than {allowed:.3g}"


def _tiled(plan, named, sizes):
    from .lowering.tiled import tiled_results

    return tiled_results(plan, named, sizes)


def _triton(plan, named, sizes):
    from .lowering.triton_launch import triton_results

    return triton_results(plan, named, sizes)


def _gluon(plan, named, sizes):
    from .lowering.gluon_launch import gluon_results

    return gluon_results(plan, named, sizes)


def _preference(executor: str, plan, device: torch.device) -> tuple[str, ...]:
    chain = ("gluon", "triton", "tiled")
    if executor != "auto":
        return chain[chain.index(executor) :]
    if device.type != "cuda":
        return ("tiled",)
    from .lowering.gluon_launch import refusal

    return chain if refusal(plan, device) is None else chain[1:]


def _specialisation(tensors, sizes) -> str:
    """What a kernel compiler specialises on: sizes, strides and addresses by divisibility and being one."""
    numbers = [*sizes.values(), *(n for t in tensors for n in (*t.shape, *t.stride(), t.data_ptr()))]
    return "".join("1" if n == 1 else "d" if n % 16 == 0 else "." for n in numbers)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _tell(key: str, sentence: str) -> None:
    log.warning("onepass: %s (region %s)", sentence, key[:12])
    report.note(key, sentence)


# The operations -------------------------------------------------------------------------------------------------------

_RUNNERS: dict[str, Runner | None] = {}
_LOCK = threading.Lock()


def runner(text: str) -> Runner | None:
    """The runner of a text, made at its first use; None if the region cannot be made again here."""
    with _LOCK:
        if text not in _RUNNERS:
            _RUNNERS[text] = _new_runner(text)
        return _RUNNERS[text]


def _new_runner(text: str) -> Runner | None:
    try:
        return Runner(fused.read(text))
    except Exception as error:
        if fused.carried(text).options.strict:
            raise
        log.warning("onepass: a cached region cannot be made again, its original calls run: %s", _line(error))
        return None


def forget() -> None:
    """Drops every runner of this process, as a new process would start."""
    with _LOCK:
        _RUNNERS.clear()
    fused.forget()


def _all_sizes(known, tensors, sizes) -> dict[str, int]:
    """Every symbolic size of the region: those that a tensor's axis states, and those given."""
    program = known.program
    stated = {s for i in program.inputs for s in i.meta.shape}
    free = [s for s in program.symbols if s not in stated]
    return {**program.sizes_of(tensors), **dict(zip(free, sizes, strict=True))}


@library.custom_op("onepass::region", mutates_args=(), schema=SCHEMA)
def region(tensors, program, sizes):
    run = runner(program)
    known = fused.carried(program) if run is None else run.found
    values = _all_sizes(known, tensors, sizes)
    results = known.program.results(*tensors, sizes=values) if run is None else run(tensors, values)
    taken = {t.untyped_storage().data_ptr() for t in tensors}
    return [_laid_out(r, s, values, taken) for r, s in zip(results, _strides(known), strict=True)]


def _strides(known) -> tuple:
    return known.strides or (None,) * len(known.program.outputs)


def _laid_out(result: torch.Tensor, strides, values, taken: set[int]) -> torch.Tensor:
    """The result with the original's strides, and never an alias of an input or of another result."""
    strides = result.contiguous().stride() if strides is None else tuple(value_of(s, values) for s in strides)
    storage = result.untyped_storage().data_ptr()
    if result.stride() != strides or storage in taken:
        return result.new_empty_strided(result.shape, strides).copy_(result)
    taken.add(storage)
    return result


@region.register_fake
def _(tensors, program, sizes):
    known = fused.carried(program)
    values = _all_sizes(known, tensors, sizes)
    return [_fake(m, s, values, tensors) for m, s in zip(known.program.output_metas, _strides(known), strict=True)]


def _fake(meta, strides, values, tensors) -> torch.Tensor:
    shape = [value_of(s, values) for s in meta.shape]
    like = next((t for t in tensors if t.device.type == meta.device), tensors[0])
    dtype = getattr(torch, meta.dtype)
    if strides is not None:
        return like.new_empty_strided(shape, [value_of(s, values) for s in strides], dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


@library.custom_op("onepass::region_backward", mutates_args=(), schema=SCHEMA_BACKWARD)
def region_backward(grads, tensors, program, sizes, needed):
    """Recomputes through the original calls under autograd."""
    known = fused.carried(program)
    values = _all_sizes(known, tensors, sizes)
    with _autograd_again():
        leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
        wanted = [t for t in leaves if t.requires_grad]
        pairs = zip(known.program.results(*leaves, sizes=values), grads, strict=True)
        reached = [(r, g) for r, g in pairs if r.requires_grad and g is not None]
        if not reached:
            return [torch.zeros_like(t) for t in wanted]
        results, given = zip(*reached, strict=True)
        found = torch.autograd.grad(results, wanted, given, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(t) if g is None else torch.empty_like(t).copy_(g) for g, t in pairs]


@region_backward.register_fake
def _(grads, tensors, program, sizes, needed):
    return [torch.empty_like(t) for t, n in zip(tensors, needed, strict=True) if n]


class _autograd_again:
    """Records gradients inside of an operation, where the dispatcher has switched autograd off."""

    def __enter__(self):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for name in ("AutogradFunctionality", "AutogradOther", "AutogradCPU", "AutogradCUDA"):
            kind = getattr(torch._C.DispatchKey, name, None)
            excluded = excluded if kind is None else excluded.remove(kind)
        included = torch._C._dispatch_tls_local_include_set()
        self.entered = [torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad()]
        for guard in self.entered:
            guard.__enter__()

    def __exit__(self, *error):
        for guard in reversed(self.entered):
            guard.__exit__(*error)


def _save(ctx, inputs, output):
    tensors, ctx.program, ctx.sizes = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grads):
    needed = [bool(n) for n in ctx.needs_input_grad[0]]
    found = iter(torch.ops.onepass.region_backward(grads, list(ctx.saved_tensors), ctx.program, ctx.sizes, needed))
    return [next(found) if n else None for n in needed], None, [None] * len(ctx.sizes)


region.register_autograd(_backward, setup_context=_save)
