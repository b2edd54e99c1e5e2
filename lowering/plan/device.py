"""What one streaming multiprocessor can do: rates of its units, registers, shared memory, and what an operation costs.

Invariant: COSTS has a row for every operation of ops.OPS, checked by a test. Numbers are per multiprocessor and clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNITS = ("tensor", "special", "fma", "copy")


@dataclass(frozen=True)
class Machine:
    """One GPU. `slot` is the schedule's resolution in clocks; rates are operations per clock of one multiprocessor."""

    name: str
    processors: int
    clock: float  # Hz, as it holds under load
    slot: int
    tensor_flops: int  # dense, half precision in, float32 out
    special: int  # exp2, reciprocal, logarithm, roots
    lanes: int  # float32 multiply-adds
    copy_bytes: int  # from the L2 to shared memory
    shared_bytes: int  # what one block may have
    warpgroup: int  # threads that issue one tensor product
    registers: tuple[tuple[int, int], ...]  # (consumer warpgroups, registers a thread of them gets)
    reserved: int  # registers a thread needs for addresses, barriers and row states
    hand_off: tuple[int, float]  # clocks of registers -> shared memory -> registers: fixed, and per KiB
    load_latency: int  # clocks from asking for a tile to its arrival, without the time of its bytes

    def budget(self, consumers: int) -> int:
        """Registers a thread may hold tiles in; 0 where there is no such partition."""
        granted = dict(self.registers).get(consumers, 0)
        return max(0, granted - self.reserved)


PEAK = Machine(
    name="H200 by its vendor's rates",
    processors=132,
    clock=1.83e9,
    slot=128,
    tensor_flops=4096,
    special=16,
    lanes=128,
    copy_bytes=64,
    shared_bytes=232448,
    warpgroup=128,
    registers=((1, 240), (2, 240), (3, 160)),
    reserved=24,
    hand_off=(61, 16.1),
    load_latency=600,
)
# As bench/calibrate.py measured it (bench/results/machine_h200.json). Special functions reach the vendor's rate, and
# multiply-adds do but for the micro-kernel's own loop. Products draw so much power that the clock falls to 1.62 GHz:
# what that costs is in the constants of the executors (schedule/kernel_time.py), as is what their own waits cost.
H200 = replace(PEAK, name="H200", clock=1.975e9, copy_bytes=38)

# (multiply-add instructions, special-function instructions) for one element. An operation that is only an index, a
# constant or a choice of representation costs nothing by itself; what is not in registers is counted as bytes.
COSTS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("const", "iota", "load", "var", "size", "reduce", "scaled", "scale", "mantissa"), (0, 0)),
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs", "floor", "maximum", "minimum"), (1, 0)),
    **dict.fromkeys(("lt", "le", "eq", "where", "and", "or", "not", "finite"), (1, 0)),
    "cast": (0.5, 0),  # two values are packed by one instruction
    "exp": (1, 1),
    "exp2": (0, 1),
    "log": (1, 1),
    "log2": (0, 1),
    "log1p": (4, 2),
    "sqrt": (1, 1),
    "rsqrt": (0, 1),
    "tanh": (4, 2),  # an exponential and a reciprocal
    "sigmoid": (2, 2),
    "erf": (12, 1),
    "sin": (2, 1),
    "cos": (2, 1),
    "div": (1, 1),
    "pow": (1, 2),
    "floordiv": (8, 1),
    "mod": (10, 1),
}
NARROW = {**COSTS, "tanh": (0, 1)}  # of warp-specialised kernels whose tensors are bfloat16: one coarse instruction


SHARED_MEMORY = 232448


BARRIERS = 2048  # bytes of shared memory left for barriers and for what the compiler keeps there


RESERVED = 1024  # bytes of shared memory that the driver keeps for each program


ROWS = 64  # of one consumer warpgroup: the height of a warpgroup's matrix product


MULTIPROCESSORS = 132  # of an H100 or H200


REGISTERS = 65536  # of a multiprocessor


MOST_REGISTERS = 240  # of a thread


MOST_CONSUMERS = 4  # warpgroups of a program


WARPGROUP = 128
