"""What differs between the Triton releases that onepass supports, and between a GPU and Triton's interpreter.

Everything that reads a version, a knob or a private name of Triton is here.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import triton_key
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction

from ...egraph.terms.term import Tensor

THREADS_OF_A_PLAN = 2
RELEASE = tuple(map(int, triton.__version__.split(".")[:2]))
MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA = RELEASE >= (3, 9)  # 3.6 does not, 3.9 does; 3.7 and 3.8 were not tried
TYPE_NAMES = {
    "bool": "i1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
GLUON_NAMES = {"float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}  # of dtypes, where they are not torch's
OPTIONS = {
    "enable_fp_fusion": True,  # a weight is one fused multiply-add and one exp2; Triton 3.10 changes the default
    "sanitize_overflow": False,  # checks that only assertions run: a sixth of the front end's time
}
ASSERTING = {"debug": True}  # device_assert is compiled
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


def compiler_options(text: str) -> dict[str, bool]:
    """The compiler's options that a kernel's text asks for: assertions are compiled where nothing else stops it."""
    return OPTIONS | (ASSERTING if "device_assert(" in text and "stop_where(" not in text else {})


def interprets(function: object) -> bool:
    """True if the kernel runs in Triton's interpreter: it was decided when the kernel was defined."""
    return not isinstance(function, JITFunction)


def architecture(device: torch.device) -> str:
    """The key of DEVICES; "" where there is none, as on a CPU."""
    if device.type != "cuda":
        return ""
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def contiguous(
    arguments: Sequence, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, str], dict[str, int], tuple[str, ...]]:
    """(types, constants, divisible) for compile_ahead, as for contiguous, aligned tensors: a last stride is 1."""
    last = {a.name: 1 for a in arguments if a.axis is not None and a.axis == len(tensors[a.tensor].shape) - 1}
    others = [a for a in arguments if a.name not in last]
    pointer = lambda a: a.axis is None and a.size is None
    types = {a.name: "*" + TYPE_NAMES[tensors[a.tensor].dtype] if pointer(a) else "i32" for a in others}
    return types, last, tuple(a.name for a in others if a.size is None)


def compile_ahead(
    function: Any, types: dict[str, str], constants: dict, divisible: tuple[str, ...], target: str, options: dict
) -> Any:
    """Compiles without a GPU. types: argument name to Triton type; divisible: arguments known to be multiples of 16.

    Raises, as a launch does, for what a device function may not refer to: that is looked at for the cache's key.
    """
    assert function.cache_key
    signature = {name: "constexpr" if name in constants else types[name] for name in function.arg_names}
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    kind = ASTSource
    if getattr(function, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        kind = GluonASTSource
    source = kind(function, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=TARGETS[target], options=options | OPTIONS)


def load_compiler() -> None:
    """Loads what the first compilation waits for: Gluon, the driver, and the digest of Triton's own files. Each takes
    some tenths of a second."""
    if gluon_missing() is None:
        import triton.experimental.gluon.language.nvidia.hopper
    triton.runtime.driver.active.get_current_target()
    triton_key()


def compiled_forms(function: JITFunction) -> list[dict[str, int]]:
    """What every compiled form of a kernel that was launched needs: registers of a thread, spills, shared memory."""
    caches = [cache[0] if isinstance(cache, tuple) else cache for cache in function.device_caches.values()]
    kernels = [kernel for cache in caches for kernel in cache.values()]
    return [{"registers": k.n_regs, "spilled": k.n_spills, "shared": k.metadata.shared} for k in kernels]


def spilled(kernel: Any) -> int:
    """Registers of a thread that a compiled kernel keeps in memory; it is loaded, as by a launch."""
    kernel._init_handles()
    return kernel.n_spills


def make_launcher(kernel: Any) -> None:
    """Compiles the C function that launches a compiled kernel, which its first launch then finds; nothing is loaded."""
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


def compile_all(launches: Iterable[Any], values: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Compiles launches for tensors like these, and the C functions that launch them; nothing is loaded.

    Two side by side: ptxas takes as long for one large kernel as all else takes for several small ones.
    """

    def build(launch: Any) -> None:
        with torch.cuda.device(device):
            make_launcher(launch.compiled(values))

    with ThreadPoolExecutor(THREADS_OF_A_PLAN, thread_name_prefix="onepass") as pool:
        list(pool.map(build, launches))


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    return triton.compiler.compiler.max_shared_mem(device.index or 0)


def multiprocessors(device: torch.device) -> int:
    """How many run programs at a time; 0 on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def fails_in_compiler(error: Exception) -> bool:
    """Whether Triton's compiler failed in a pass of its own, or ptxas did. The text may compile with other tiles."""
    return "PassManager::run failed" in str(error) or isinstance(error, PTXASError)


def mixes_addresses(ptx: str) -> bool:
    """Whether ptxas up to CUDA 12.8 would read the address of a matrix from a register that nothing sets.

    It does where matrices of different patterns lie at one place in shared memory: descriptors that add constants of
    different high halves to one base. Results are wrong then, or an address is no address.
    """
    version = re.search(r"\.version (\d+)\.(\d+)", ptx)
    if version is None or tuple(map(int, version.groups())) > (8, 7):
        return False
    read = {name for line in re.findall(r"wgmma\.mma_async[^;]*;", ptx) for name in re.findall(r"%rd\d+", line)}
    patterns: dict[str, set[int]] = {}
    for name, base, constant in re.findall(r"(?:or\.b64|add\.s64)\s+(%rd\d+), (%rd\d+), (-?\d+);", ptx):
        if name in read and abs(int(constant)) >= 2**32:
            patterns.setdefault(base, set()).add(int(constant) >> 32)
    return any(len(found) > 1 for found in patterns.values())


def resources(compiled: Any, architecture: str = "sm_90a") -> dict[str, int]:
    """Registers, spilled bytes and shared memory of a kernel for NVIDIA, read off `ptxas -v` and the metadata.

    serialised: 1 where ptxas makes matrix products of a warpgroup wait for the ones before: it says so in a note.
    """
    from triton.backends.nvidia.compiler import get_ptxas  # the one that understands this release's PTX

    ptxas = get_ptxas(90).path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(compiled.asm["ptx"])
        flags = ["--regAllocOptLevel=2"] if RELEASE >= (3, 7) else []  # as Triton itself calls it
        command = [ptxas, f"-arch={architecture}", "-v", *flags, path, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
    text = said.stdout + said.stderr
    number = lambda pattern: sum(map(int, re.findall(pattern, text)))
    return {
        "registers": number(r"Used (\d+) registers"),
        "spilled": number(r"(\d+) bytes spill (?:stores|loads)"),
        "stack": number(r"(\d+) bytes stack frame"),
        "shared": compiled.metadata.shared,
        "serialised": int(re.search(r"\(C751[02457]\)", text) is not None),
    }


# Gluon and direct launches, whose names and arguments may change with every release

KNOWN_DRIVER = (3, 6) <= RELEASE <= (3, 9)


def gluon_missing() -> str | None:
    """Why Gluon kernels for Hopper cannot be compiled here; None if they can."""
    return None if KNOWN_DRIVER else f"Gluon kernels are written for Triton 3.6 to 3.9; this is {triton.__version__}"


def _map_layout(box: tuple[int, ...], dtype: str):
    from triton.experimental.gluon import language as gl

    return gl.NVMMASharedLayout.get_default_for(list(box), getattr(gl, GLUON_NAMES.get(dtype, dtype)))


def tensor_map_type(box: tuple[int, ...], dtype: str) -> str:
    """The type of a tensor map's argument, for compile_ahead."""
    return f"tensordesc<{TYPE_NAMES[dtype]}{list(box)},{_map_layout(box, dtype)!r}>"


class Window:
    """A tensor map's tensor, the shape that it covers (what lies beyond reads as zero) and the box copied at once."""

    __slots__ = ("base", "box", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]):
        self.base, self.shape, self.strides, self.box = None, shape, strides, box
        self.padding, self.round_f32_to_tf32 = "zero", False  # as Triton's own descriptors have them

    def described(self, tensor: torch.Tensor) -> object:
        """The argument of a first launch, checked by Triton."""
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = _map_layout(self.box, str(tensor.dtype).removeprefix("torch."))
        return TensorDescriptor(tensor, list(self.shape), list(self.strides), list(self.box), layout)


class Relaunch:
    """Launches what a first launch compiled, for arguments of the same types and alignments: nothing is looked up.

    Tensor maps are encoded again only for new addresses; the encoded ones keep no memory alive.
    """

    def __init__(self, kernel, programs: int, windows: tuple[Window, ...] = ()):
        self.kernel, self.programs, self.windows = kernel, programs, windows
        driver = triton.runtime.driver.active
        self.device, self.stream = driver.get_current_device(), driver.get_current_stream
        self.encoded: dict[tuple[int, ...], list] = {}
        self.direct, self.metadata = _past_python(kernel, bool(windows))

    def __call__(self, bases: list[torch.Tensor], arguments: list) -> None:
        """`arguments`: all but the maps, in the function's order; addresses for tensors, which the driver would ask."""
        stream = self.stream(self.device)
        if self.direct is None:
            kernel = self.kernel
            fixed, windows = (kernel.packed_metadata, None, None, None), self._based(bases)
            kernel.run(self.programs, 1, 1, stream, kernel.function, *fixed, *windows, *arguments)
            self._based([None] * len(bases))
            return
        if bases:
            where = tuple([base.data_ptr() for base in bases])
            maps = self.encoded.get(where)
            if maps is None:
                maps = self._encode(bases, where)
            arguments = [*maps, *arguments]
        self.direct(self.programs, stream, arguments)

    def _based(self, bases: list) -> tuple[Window, ...]:
        for window, base in zip(self.windows, bases, strict=True):
            window.base = base
        return self.windows

    def _encode(self, bases: list[torch.Tensor], where: tuple[int, ...]) -> list:
        from triton.backends.nvidia.driver import make_tensordesc_arg as encode

        if len(self.encoded) >= 64:
            self.encoded.clear()
        unused = [None] * (encode.__code__.co_argcount - 2)  # one since 3.8
        pairs = zip(self._based(bases), self.metadata, strict=True)
        found = self.encoded[where] = [part for window, meta in pairs for part in encode(window, meta, *unused)]
        self._based([None] * len(bases))
        return found


def _past_python(kernel, has_maps: bool):
    """(a launch past Triton's Python, which takes encoded tensor maps, metadata of the maps).

    (None, None) where this Triton is not known or hides them, or the kernel needs more than a launch.
    """
    run = kernel.run
    special = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    special = special or getattr(run, "launch_cooperative_grid", True) or getattr(run, "launch_pdl", True)
    launch = getattr(run, "launch", None)
    if special or getattr(run, "gsan_enabled", False) or launch is None or not KNOWN_DRIVER:
        return None, None
    if not has_maps:
        return _bare(kernel, launch), None
    names = getattr(getattr(launch, "__code__", None), "co_freevars", ())
    held = dict(zip(names, (cell.cell_contents for cell in launch.__closure__ or ()))) if names else {}
    if "launcher" not in held or not held.get("tensordesc_meta"):
        return None, None
    return _bare(kernel, held["launcher"]), held["tensordesc_meta"]


def _bare(kernel, launch):
    """launch(programs, stream, arguments): no hooks, no scratch memory, no cooperation of programs."""
    function, fixed = kernel.function, (kernel.packed_metadata, None, None, None)
    if not hasattr(kernel.run, "kernel_signature"):  # Triton 3.6 makes a launcher for every signature
        fixed = (None, None, *fixed)
        return lambda programs, stream, given: launch(programs, 1, 1, stream, function, False, False, *fixed, *given)
    fixed = (*fixed, None, None, kernel.run.arg_annotations, kernel.run.kernel_signature)
    return lambda programs, stream, given: launch(programs, 1, 1, stream, function, False, False, *fixed, given)
