"""Devices: one row for each architecture, and what an operation costs in instructions.

Rates are per clock of one multiprocessor, estimates per second of the whole device. Only the H200 was measured, by
bench/calibrate.py; the other GPUs have their vendors' numbers. Example: `DEVICES["sm_90"].shared_bytes` is 232448.
Invariant: COSTS has a row for every operation of ops.OPS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...egraph.terms.ops import OF_LAWS

UNITS = ("tensor", "special", "fma", "copy")


@dataclass(frozen=True, kw_only=True)
class Device:
    """Estimates of a whole device, for decisions about fusion.

    memory_bytes, pointwise_operations, matrix_flops: per second. launch_seconds: of one kernel. reduction_cost: of one
    element in a tile, in pointwise operations. The search ranks forms by two nominal rates, both over the rate of
    pointwise operations: matrix_rate of multiply-adds in matrix products, special_rate of special functions.
    """

    name: str
    memory_bytes: float
    pointwise_operations: float
    matrix_flops: float
    launch_seconds: float
    reduction_cost: float = 1.0
    special_rate: float = 0.25
    matrix_rate: float = 16.0


@dataclass(frozen=True, kw_only=True)
class Gpu(Device):
    """A GPU of equal multiprocessors.

    clock: Hz under load. tensor_flops: dense, half precision in, float32 out. special: exp2, reciprocal, logarithm,
    roots. lanes: float32 multiply-adds. copy_bytes: from the L2 to shared memory. shared_bytes: what one program may
    have; reserved_bytes: what the driver keeps besides for each program. registers: of a multiprocessor.
    thread_registers: the most of one thread. threads: the most of a multiprocessor. cache_bytes: of the L2 that
    streamed operands may fill at a time.
    """

    multiprocessors: int
    clock: float
    tensor_flops: int
    special: int
    lanes: int
    copy_bytes: int
    shared_bytes: int
    reserved_bytes: int
    registers: int
    thread_registers: int
    threads: int
    cache_bytes: int


@dataclass(frozen=True, kw_only=True)
class HopperGpu(Gpu):
    """A GPU with the warp-specialised form: warpgroups issue matrix products, one warp copies tiles.

    slot: the resolution of schedules, in clocks. warpgroup: threads that issue one matrix product. product_rows: rows
    of that product. max_consumers: consumer warpgroups of a program. partitions: (consumer warpgroups, registers that a
    thread of them gets). working_registers: what a thread needs for addresses, barriers and row states.
    consumer_registers: the most of a consumer's thread. hand_off: clocks from registers through shared memory to
    registers: fixed, and per KiB. load_latency: clocks from the request of a tile to its arrival, without the time of
    its bytes. barrier_bytes: shared memory left for barriers and for what the compiler keeps there.
    """

    slot: int
    warpgroup: int
    product_rows: int
    max_consumers: int
    partitions: tuple[tuple[int, int], ...]
    working_registers: int
    consumer_registers: int
    hand_off: tuple[int, float]
    load_latency: int
    barrier_bytes: int

    def budget(self, consumers: int) -> int:
        """Registers in which a thread may hold tiles; 0 if there is no such partition."""
        granted = dict(self.partitions).get(consumers, 0)
        return max(0, granted - self.working_registers)


A100 = Gpu(
    name="A100 by its vendor's rates",
    memory_bytes=1.6e12,
    pointwise_operations=1e13,
    matrix_flops=2e14,
    launch_seconds=2e-6,
    reduction_cost=16.0,
    multiprocessors=108,
    clock=1.41e9,
    tensor_flops=2048,
    special=16,
    lanes=64,
    copy_bytes=64,
    shared_bytes=166912,
    reserved_bytes=1024,
    registers=65536,
    thread_registers=255,
    threads=2048,
    cache_bytes=25 << 20,
)
PEAK = HopperGpu(
    name="H200 by its vendor's rates",
    memory_bytes=4e12,
    pointwise_operations=3e13,
    matrix_flops=5e14,
    launch_seconds=2e-6,
    reduction_cost=16.0,
    multiprocessors=132,
    clock=1.83e9,
    tensor_flops=4096,
    special=16,
    lanes=128,
    copy_bytes=64,
    shared_bytes=232448,
    reserved_bytes=1024,
    registers=65536,
    thread_registers=255,
    threads=2048,
    cache_bytes=32 << 20,
    slot=128,
    warpgroup=128,
    product_rows=64,
    max_consumers=4,
    partitions=((1, 240), (2, 240), (3, 160)),
    working_registers=24,
    consumer_registers=240,
    hand_off=(61, 16.1),
    load_latency=600,
    barrier_bytes=2048,
)
# As bench/calibrate.py measured it (bench/results/machine_h200.json). Special functions reach the vendor's rate, and
# multiply-adds do but for the micro-kernel's own loop. Products draw so much power that the clock falls to 1.62 GHz:
# what that costs is in the constants of the executors (schedule/kernel_time.py), as is what their own waits cost.
H200 = replace(PEAK, name="H200", clock=1.975e9, copy_bytes=38)
B200 = Gpu(
    name="B200 by its vendor's rates",
    memory_bytes=6.5e12,
    pointwise_operations=3.5e13,
    matrix_flops=1.2e15,
    launch_seconds=2e-6,
    reduction_cost=16.0,
    multiprocessors=148,
    clock=1.85e9,
    tensor_flops=8192,
    special=16,
    lanes=128,
    copy_bytes=64,
    shared_bytes=232448,
    reserved_bytes=1024,
    registers=65536,
    thread_registers=255,
    threads=2048,
    cache_bytes=64 << 20,
)
MI300X = Gpu(
    name="MI300X by its vendor's rates",
    memory_bytes=4.2e12,
    pointwise_operations=4e13,
    matrix_flops=5e14,
    launch_seconds=2e-6,
    reduction_cost=16.0,
    multiprocessors=304,
    clock=2.1e9,
    tensor_flops=2048,
    special=16,
    lanes=128,
    copy_bytes=64,
    shared_bytes=65536,
    reserved_bytes=0,
    registers=131072,
    thread_registers=512,
    threads=2048,
    cache_bytes=4 << 20,
)
CPU = Device(name="CPU", memory_bytes=2e10, pointwise_operations=4e9, matrix_flops=1e11, launch_seconds=5e-6)
DEVICES: Mapping[str, Device] = {"sm_80": A100, "sm_90": H200, "sm_100": B200, "gfx942": MI300X, "cpu": CPU}


def planned_for(kind: str) -> Device:
    """The device that a plan for a torch device type is estimated on: a plan does not depend on which GPU is at hand.

    Example: `planned_for("cuda")` is the H200, whatever GPU is there.
    """
    return CPU if kind == "cpu" else H200


# (multiply-add instructions, special-function instructions) for one element. An operation that is only an index, a
# constant or a choice of representation costs nothing by itself; what is not in registers is counted as bytes.
COSTS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("const", "iota", "load", "var", "size", *OF_LAWS, "reduce"), (0, 0)),
    **dict.fromkeys(("stored", "scaled", "scale", "mantissa"), (0, 0)),
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs", "floor", "maximum", "minimum"), (1, 0)),
    **dict.fromkeys(("lt", "le", "eq", "where", "and", "or", "not", "finite"), (1, 0)),
    "order": (5, 0),  # NaN is found, a zero loses its sign, and the bits of negative numbers turn round
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
    "uniform": (60, 0),  # ten rounds of two wide products and four bitwise operations
}
NARROW = {**COSTS, "tanh": (0, 1)}  # of warp-specialised kernels whose tensors are bfloat16: one coarse instruction
