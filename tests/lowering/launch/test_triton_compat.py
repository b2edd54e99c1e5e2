"""A relaunch gives the driver what Triton's own launch gives it. No device: the driver's functions write down calls."""

import sys
from types import SimpleNamespace

import pytest
import torch

from onepass.lowering.launch import triton_compat
from onepass.lowering.launch.triton_compat import RELEASE, Relaunch, Window

pytestmark = pytest.mark.skipif(RELEASE < (3, 7), reason="Triton 3.6 compiles a launcher in C for every signature")
MAP = "tensordesc<bf16[64, 64],layout>"
SIGNATURE = {"x": MAP, "y": MAP, "pointer": "*i32", "stride": "constexpr", "count": "i32"}
ENCODING = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 64], "fp4_padded": False}
OFF = [f"{kind}_scratch_{what}" for kind in ("global", "profile") for what in ("size", "align")]
OFF += ["launch_cooperative_grid"]


@pytest.fixture
def driver(monkeypatch):
    """NVIDIA's driver module with a device 0 whose launches are kept in `calls`."""
    module = sys.modules[triton_compat.triton.backends.backends["nvidia"].driver.__module__]
    calls = []
    utils = SimpleNamespace(launch=lambda *given: calls.append(given), build_signature_metadata=tuple)
    utils.fill_tma_descriptor_tiled = lambda *given: given
    active = SimpleNamespace(utils=utils, get_current_device=lambda: 0, get_current_stream=lambda device: 7 + device)
    monkeypatch.setattr(triton_compat.triton.runtime.driver, "_active", active)
    for name in ("ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE"):
        monkeypatch.setattr(module, name, name, raising=False)
    monkeypatch.setattr(module, "PyKernelArg", lambda nested_tuple, type: type, raising=False)
    return SimpleNamespace(calls=calls, CudaLauncher=module.CudaLauncher)


def _kernel(driver):
    said = {"num_ctas": 1, "instrumentation_mode": "", "launch_pdl": False, "tensordesc_meta": [ENCODING, ENCODING]}
    source = SimpleNamespace(signature=dict(SIGNATURE), fn=SimpleNamespace(arg_names=list(SIGNATURE)))
    run = driver.CudaLauncher(source, SimpleNamespace(**said, **dict.fromkeys(OFF, 0)))
    return SimpleNamespace(run=run, function=99, packed_metadata=(4, 1, 1000))


def _plainly(given):
    return tuple(list(x) if isinstance(x, (list, tuple)) else x for x in given)


@pytest.mark.parametrize("hidden", [False, True], ids=["maps encoded here", "maps encoded by Triton"])
def test_a_relaunch_gives_the_driver_what_a_launch_gives(hidden, driver):
    kernel, windows = _kernel(driver), tuple(Window((n, 64), (64, 1), (64, 64)) for n in (128, 256))
    again = Relaunch(kernel, 5, windows)
    assert again.direct is not None
    again.direct = None if hidden else again.direct
    first, second = ([torch.zeros(n, 64, dtype=torch.bfloat16) for n in (128, 256)] for _ in range(2))
    for bases in (first, second, first):
        again(bases, [1234, 1, 6])
        for window, base in zip(windows, bases, strict=True):
            window.base = base
        kernel.run(5, 1, 1, 7, 99, kernel.packed_metadata, None, None, None, *windows, 1234, 1, 6)
        mine, theirs = driver.calls[-2:]
        assert _plainly(mine) == _plainly(theirs)
        assert [x[0] for x in mine[-1] if isinstance(x, tuple)] == [base.data_ptr() for base in bases]


@pytest.mark.parametrize("overlaps", [False, True], ids=["directly", "by Triton"])
def test_a_relaunch_without_maps_is_the_launch_too(overlaps, driver, monkeypatch):
    monkeypatch.setitem(SIGNATURE, "x", "*bf16")
    monkeypatch.setitem(SIGNATURE, "y", "*bf16")
    kernel = _kernel(driver)
    kernel.run.launch_pdl = overlaps
    again = Relaunch(kernel, 5)
    assert (again.direct is None) == overlaps
    again([], [1234, 5678, 91, 1, 6])
    kernel.run(5, 1, 1, 7, 99, kernel.packed_metadata, None, None, None, 1234, 5678, 91, 1, 6)
    mine, theirs = driver.calls
    assert _plainly(mine) == _plainly(theirs)


def test_a_triton_that_is_not_known_launches_itself(driver, monkeypatch):
    monkeypatch.setattr(triton_compat, "KNOWN_DRIVER", False)
    assert Relaunch(_kernel(driver), 5).direct is None
