"""Producers and consumers as coroutines: a small ring in every order and with every mistake, then the emitted kernels.

Of the emitted kernels some run by default; the others are slow.
"""

import numpy as np
import pytest
import torch

from onepass.compiler.verified_kernels import checks, factors
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.joined.config import JoinedConfig
from onepass.lowering.joined.launch import JoinedLauncher
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.kernels.memory import Buffer, KernelFault, Pointer, WrittenTensor
from onepass.proofs.texts.check import differences
from onepass.proofs.warps.gluon_interpreter import GluonInterpreter, run_gluon
from onepass.proofs.warps.gluon_language import CopyWindow
from tests.lowering.gluon.test_kernel import KINDS
from tests.lowering.joined.test_kernel import KINDS as JOINED
from tests.proofs.texts.test_check import drawn, plan_of
from tests.support.gluon_ahead_of_time import backward_plan_of, inputs_of, plain
from tests.support.on_hopper import hopper_texts, pretend_hopper

RING = """
L = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])

@gluon.jit
def producer(x_map, tiles, full, empty, rounds):
    for t in range(0, rounds):
        mbarrier.wait(empty.index(t % 2), (t // 2 & 1) ^ 1)
        mbarrier.expect(full.index(t % 2), 64)
        copy_in(x_map, [t * 4, 0], full.index(t % 2), tiles.index(t % 2))

@gluon.jit
def consumer(out_map, out_tile, tiles, full, empty, rounds):
    product = gl.zeros([4, 4], gl.float32, L)
    total = gl.zeros([4, 4], gl.float32, L)
    for t in range(0, rounds):
        mbarrier.wait(full.index(t % 2), t // 2 & 1)
        product = warpgroup_mma(tiles.index(t % 2), tiles.index(t % 2), product, is_async=True)
        total = total + tiles.index(t % 2).load(L)
        fence_async_shared()
        product = warpgroup_mma_wait(0, deps=(product,))
        mbarrier.arrive(empty.index(t % 2))
    out_tile.store(product + total)
    fence_async_shared()
    copy_out(out_map, [gl.program_id(0) * 4, 0], out_tile)
    tma.store_wait(0)

@gluon.jit
def kernel(x_map, out_map, rounds):
    tiles = gl.allocate_shared_memory(x_map.dtype, [2] + x_map.block_shape, x_map.layout)
    out_tile = gl.allocate_shared_memory(x_map.dtype, x_map.block_shape, x_map.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize([
        (consumer, (out_map, out_tile, tiles, full, empty, rounds,)),
        (producer, (x_map, tiles, full, empty, rounds,)),
    ], [1], [24])
"""
ROUNDS = 7


def windows():
    """The ring's arguments, what it writes and what it reads."""
    x = np.arange(4.0 * 4 * ROUNDS).reshape(4 * ROUNDS, 4)
    out = Buffer.made(WrittenTensor("out", "float32", (12, 4), (4, 1)), 4)
    arguments = {
        "x_map": CopyWindow(Buffer.of("x", x, (4, 1)), x.shape, (4, 1), (4, 4), 4),
        "out_map": CopyWindow(out, (12, 4), (4, 1), (4, 4), 4),
        "rounds": np.int32([ROUNDS]),
    }
    return arguments, out, x


def ran(text, programs):
    arguments, out, x = windows()
    run_gluon(GluonInterpreter(text, 3, 100), programs, "kernel", arguments)
    return out.data.shadow.reshape(3, 4, 4)[programs], x.reshape(ROUNDS, 4, 4)


@pytest.mark.parametrize("program", range(3))
def test_a_ring_gives_the_same_in_every_order(program):
    found, x = ran(RING, [program])
    assert found[0].tolist() == (x @ x + x).sum(0).tolist()


MISTAKES = [
    ("mbarrier.wait(full.index(t % 2), t // 2 & 1)", "pass", "(while a copy to tiles by producer|nobody wrote)"),
    ("mbarrier.wait(empty.index(t % 2), (t // 2 & 1) ^ 1)", "pass", "a copy to tiles by producer.* while a"),
    ("(t // 2 & 1) ^ 1", "t // 2 & 1", "producer .* waits for ever|consumer .* waits for ever"),
    ("(full.index(t % 2), t // 2 & 1)", "(full.index(t % 2), 1)", "under way|waits for ever|nobody wrote"),
    ("mbarrier.arrive(empty.index(t % 2))", "pass", "waits for ever for (full|empty)"),
    ("mbarrier.arrive(empty.index(t % 2))", "mbarrier.arrive(empty.index(t % 2), count=2)", "more arrivals than its 1"),
    ("        mbarrier.arrive(empty.index(t % 2))", "    mbarrier.arrive(empty.index(0))", "waits for ever"),
    ("        fence_async_shared()\n        product", "        product", "a copy to tiles by producer.* while a load"),
    ("warpgroup_mma_wait(0, deps", "warpgroup_mma_wait(1, deps", "a wait gives a product that is under way"),
    ("product = warpgroup_mma_wait(0, deps=(product,))", "pass", "while a product|before it was waited for"),
    ("64)", "63)", "more bytes come to full"),
    ("64)", "65)", "waits for ever for full"),
    ("mbarrier.init(full.index(slot), count=1)", "mbarrier.init(full.index(slot), count=2)", "waits for ever"),
    ("mbarrier.init(full.index(slot), count=1)", "pass", "full.0. is not initialised"),
    ("    fence_async_shared()\n    gl.warp", "    gl.warp", "full.0. is used while the start of full"),
    ("[2] + x_map", "[1] + x_map", "tiles has no slot 1"),
    ("    fence_async_shared()\n    copy_out", "    copy_out", "a copy of out_tile by consumer.* while a store"),
    ("    tma.store_wait(0)\n", "", "ends while a copy may still read"),
    ("[t * 4, 0]", "[t * 4]", "a copy of 2 axes has 1"),
    ("0], full.index(t % 2)", "0], empty.index(t % 2)", "more bytes come to empty"),
    ("range(0, rounds)", "range(0, rounds + 1)", "a program ends while a copy|waits for ever"),
]


@pytest.mark.parametrize("program", range(3))
@pytest.mark.parametrize("old, new, said", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_shows_in_every_order(old, new, said, program):
    assert old in RING
    with pytest.raises(KernelFault, match=said):
        ran(RING.replace(old, new, 1), [program])


def test_tickets_are_given_out_in_turn():
    text = "def kernel(out):\n    n = gl.atomic_add(out, 1, sem='relaxed')\n    gl.store(out + n, n)"
    buffer = Buffer.made(WrittenTensor("out", "int32", (3,), (1,)), 1)
    run_gluon(GluonInterpreter(text, 3), [2, 0, 1], "kernel", {"out": Pointer(buffer, np.zeros(1, np.int64))})
    assert buffer.data.tolist() == [0, 1, 2]


# The kernels that are emitted

needs_gluon = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
SMALL = HopperConfig(consumers=2, loop_tile=64)
QUICK, QUICK_JOINED = ("causal", "bias"), ("causal",)
CONFIGS = {  # what they change, by the kind of attention that they run with
    "causal": ["turns=True", "late=True", "lazy=False", "ordered=False", "send=0", "send=64"]
    + ["chained=True, consumers=1, row_buffers=2", "stages=1, late=True", "stages=3, row_buffers=2"]
    + ["consumers=3, turns=True", "residents=2, consumers=1", "loop_tile=32"],
    "full": ["chained=True, turns=True, row_buffers=2"],
    "dense": ["deferred=True", "turns=True"],
    "difference": ["turns=True", "send=64"],
    "capped": ["emulated_eighths=4"],
    "sigmoid": ["emulated_eighths=4"],
}
MAPPED = ("documents", "boolean", "blocks", "joined", "padding", "padded", "drawn")


def quick(name, among=QUICK):
    return pytest.param(name, marks=[] if name in among else pytest.mark.slow)


def hold(texts, all_factors=False):
    """Asserts that each text computes its terms."""
    for factor in factors(texts) if all_factors else factors(texts)[:1]:
        for one, checked in checks(texts, 2**60, factor):
            assert not [f"{one.kernel.name}: {said}" for said in differences(checked)]


def length_of(kind):
    """Of rows and columns: so many that a row has a key."""
    return 330 if kind == "shifted" else 200


def forward(kind, config=SMALL, rows=200, columns=200, batch=1, heads=2):
    torch.manual_seed(0)
    inputs = inputs_of(kind, 16, rows=rows, columns=columns, batch=batch, heads=heads)
    return hopper_texts(*plan_of(plain(kind), inputs), config)


@needs_gluon
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [quick(kind) for kind in KINDS])
def test_forward(kind, monkeypatch):
    pretend_hopper(monkeypatch)
    batch, heads = (2, 2) if kind == "joined" else (1, 4 if kind in ("difference", "groups") else 2)
    length = length_of(kind)
    hold(forward(kind, rows=length, columns=length, batch=batch, heads=heads), kind not in QUICK)


@pytest.mark.sampled(1)
@needs_gluon
@pytest.mark.parametrize("columns", [260, 300, 320])
def test_positions_of_extrema(columns, monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    given = [torch.randn(n, 64).bfloat16() for n in (150, columns)]
    (one,) = texts = hopper_texts(*plan_of(lambda x, w: (x @ w.T).max(-1), given), HopperConfig(loop_tile=64))
    assert "== top" in one.calls[0].text
    hold(texts)


@needs_gluon
@pytest.mark.slow
@pytest.mark.parametrize("kind, change", [(kind, change) for kind in CONFIGS for change in CONFIGS[kind]])
def test_settings(kind, change, monkeypatch):
    pretend_hopper(monkeypatch)
    config = HopperConfig(**(dict(consumers=2, loop_tile=64) | eval(f"dict({change})")))
    size = 256 if config.chained or config.emulated_eighths else 200
    (one,) = forward(kind, config, size, size, heads=4 if kind == "difference" else 2)
    assert not config.chained or "pred=more" in one.calls[0].text
    hold([one])


@needs_gluon
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPPED)
def test_lists_of_tiles_and_packed_masks(kind, monkeypatch):
    pretend_hopper(monkeypatch, maps=True)
    texts = forward(kind, rows=260, columns=260, batch=2)
    assert any("visits" in call.text.split("def producer")[1] for one in texts for call in one.calls)
    hold(texts)


def backward(kind, config=None, deterministic=False, width=16, length=200, heads=2, batch=1):
    """length: of rows and columns, or one for each."""
    torch.manual_seed(0)
    heads = 4 if kind == "groups" else heads
    rows, columns = length if isinstance(length, tuple) else (length, length)
    plan = backward_plan_of(kind, width, rows=rows, columns=columns, batch=batch, heads=heads)
    launcher = JoinedLauncher(plan, joined_config=config, deterministic=deterministic)
    texts = launch_texts(launcher, {t.name: drawn(t) for t in plan.inputs}, {})
    assert launcher.said and sum(one.finish is not None for one in texts) == 1
    return texts


@needs_gluon
@pytest.mark.sampled(1)
@pytest.mark.parametrize("in_order", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [quick(kind, QUICK_JOINED) for kind in JOINED])
def test_joined_backward(kind, in_order, monkeypatch):
    pretend_hopper(monkeypatch)
    hold(backward(kind, None, in_order, length=length_of(kind)))


@needs_gluon
@pytest.mark.slow
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("kind", ["groups", "bias", "relative", "longformer", "dense"])
def test_more_joined_backwards(kind, in_order, monkeypatch):
    pretend_hopper(monkeypatch)
    hold(backward(kind, None, in_order, length=length_of(kind)))


@needs_gluon
@pytest.mark.slow
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(
    "change",
    ["turns=False", "runs=False", "persistent=False", "loop_tile=128", "turns=False, by_products=True",
     "turns=False, runs=False, persistent=False, by_products=True"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["causal", "full"])
def test_joined_settings(kind, change, in_order, monkeypatch):
    pretend_hopper(monkeypatch)
    config = JoinedConfig(**eval(f"dict({change})"))
    hold(backward(kind, config, in_order, width=32, length=256 if kind == "full" else 200))
