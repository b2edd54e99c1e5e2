"""The functions of kernels' texts, and how they are compiled: here, or ahead in a process of their own.

Half of a compilation is Python, so threads that compile take turns with each other and with the compiler around them.
A process takes no turns, and hands over what it made through Triton's cache on disk. Invariant: the kernel is the same;
where the process fails, or the cache cannot be used, it is compiled here.
Example: `with in_processes(): launch.compiled(values)` waits for another process, while other threads go on.
"""

from __future__ import annotations

import hashlib
import linecache
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from ..source_folder import named_folder, write_source

T = TypeVar("T")
LEAST_CORES = 4  # with fewer, a process would take turns with this one all the same
PROGRAM = (  # of the process, which finds its modules where this one does, and does not import torch
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from onepass.lowering.launch.kernel_functions import compile_for_another; compile_for_another(sys.stdin.buffer)"
)
_IN_PROCESSES: ContextVar[bool] = ContextVar("onepass_compiles_in_processes", default=False)
log = logging.getLogger(__name__)


@cache
def load(text: str, function: str) -> Any:
    """The @triton.jit function of a text. Triton reads the text back through linecache, so no file is needed."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    copy = write_source(named_folder(), f"{function}_{digest}.py", text)
    name = str(copy) if copy else f"<onepass {function} {digest}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {"__name__": f"onepass_kernel_{digest}"}
    exec(compile(text, name, "exec"), namespace)
    found: Any = namespace[function]
    if hasattr(found, "_do_compile"):  # a function of Triton's interpreter has no compiler
        found._do_compile = partial(_compile, found, found._do_compile, text)
    return found


@cache
def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_processes() -> bool:
    """Whether there are cores for processes that compile, and a program to start."""
    return cores() >= LEAST_CORES and bool(sys.executable)


@contextmanager
def in_processes() -> Iterator[None]:
    """What this thread compiles inside, other processes compile, if there are cores for them."""
    before = _IN_PROCESSES.set(has_processes())
    try:
        yield
    finally:
        _IN_PROCESSES.reset(before)


def side_by_side(act: Callable[[T], None], items: Sequence[T]) -> None:
    """Acts on each item: on all at once where processes compile. Raises what one of them raises."""
    if not _IN_PROCESSES.get() or len(items) < 2:
        for item in items:
            act(item)
        return
    with ThreadPoolExecutor(len(items)) as pool:
        for found in [pool.submit(copy_context().run, act, item) for item in items]:
            found.result()


class Request(NamedTuple):
    """A kernel that another process compiles: its text, and what Triton's compiler is called with."""

    text: str
    function: str
    kind: type  # of what the compiler reads: Triton's or Gluon's
    signature: dict
    constants: dict
    attributes: dict
    target: tuple
    options: dict


def _compile(function: Any, here: Callable, text: str, *given: Any, **named: Any) -> Any:
    """In place of what Triton calls to compile a function: what another process has compiled is in the cache."""
    if _IN_PROCESSES.get():
        try:
            _, signature, device, constants, options, attributes = given[:6]
            source = function.ASTSource(function, signature, constants, attributes)
            _have_compiled(text, source, function.device_caches[device][2], options.__dict__)
        except Exception as error:  # it is compiled here
            log.debug("onepass: %s is not compiled ahead: %s: %s", function.__name__, type(error).__name__, error)
    return here(*given, **named)


def _have_compiled(text: str, source: Any, target: Any, options: dict) -> None:
    """Waits until a process has compiled a kernel, unless it is in the cache."""
    if _is_cached(source, target, options):
        return
    where = target.backend, target.arch, target.warp_size
    given = source.signature, source.constants, source.attrs, where, dict(options)
    request = Request(text, source.name, type(source), *given)
    pickled = pickle.dumps(sys.path) + pickle.dumps(tuple(request))
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=pickled, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-2000:]
        log.debug("onepass: a process did not compile %s: %s", source.name, said)


def _is_cached(source: Any, target: Any, options: dict) -> bool:
    """Whether Triton's compiler would find the kernel in its cache."""
    from triton.compiler.compiler import get_cache_invalidating_env_vars, make_backend
    from triton.runtime.cache import get_cache_key, get_cache_manager

    backend = make_backend(target)
    variables = get_cache_invalidating_env_vars()
    key = get_cache_key(source, backend, backend.parse_options(dict(options)), env_vars=variables)
    name = f"{source.name[:150]}.json"  # as the compiler cuts it
    return name in (get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(name) or {})


def compile_for_another(stream: Any) -> None:
    """Compiles the one kernel that a stream of bytes asks for, into Triton's cache on disk."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile

    request = Request(*pickle.load(stream))
    function = load(request.text, request.function)
    source = request.kind(function, request.signature, request.constants, request.attributes)
    compiled = compile(source, target=GPUTarget(*request.target), options=request.options)
    if request.target[0] == "cuda":
        from triton.backends.nvidia import driver

        with suppress(Exception):  # the kernel is there
            if hasattr(driver, "make_launcher"):  # Triton 3.6 compiles a launcher in C, which it keeps on disk, too
                driver.CudaLauncher(compiled.src, compiled.metadata)
