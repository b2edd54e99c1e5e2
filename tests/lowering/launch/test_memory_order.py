"""Tensors that a Hopper kernel could not read by tensor maps are copied first; the others are read as they lie."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import EXECUTORS
from onepass.lowering.launch import relayout
from onepass.translate.translate import translate
from tests.support.on_hopper import pretend_hopper

SHAPE = (2, 3, 384, 64)
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "columns next to next": lambda x: x.mT.contiguous().mT,
    "every second number": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "rows of 65": lambda x: torch.nn.functional.pad(x, (0, 1))[..., :64],
    "from an odd element": lambda x: torch.nn.functional.pad(x, (1, 7))[..., 1:65],
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "columns of odd length": lambda x: torch.nn.functional.pad(x, (0, 0, 0, 1)).mT.contiguous().mT[..., :384, :],
    "packed": lambda x: torch.stack((x, x, x), -1)[..., 1],
}
SUITED = ("contiguous", "columns next to next")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def laid(places, name, shape=SHAPE):
    torch.manual_seed(0)
    given = [torch.randn(shape).bfloat16() for _ in range(3)]
    return [LAYOUTS[name](x) if k in places else x for k, x in enumerate(given)]


def copied(inputs, executor="gluon", least=1):
    """(names of what is copied, for each input whether the kernel then reads it by a tensor map)."""
    plan = optimize_all(translate(program_of(attention, *inputs)).results).plan
    tensors = dict(zip("qkv", inputs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relayout, "MIN_WASTED_BYTES", least)
        found = EXECUTORS[executor]._in_order(plan, tensors, {}, None)
    given = dict(zip("qkv", found.given(tensors)))
    turned = found.reordered.turned
    assert all(torch.equal(x, turned(name, tensors[name])) for name, x in given.items())
    axes = EXECUTORS[executor]._by_tensor_maps(found.plan, given, {}, inputs[0].device)
    (suited,) = axes.values() or ({},)
    return {"qkv"[copy.place] for copy in found.copies}, {name: axis is None for name, axis in suited.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_that_lacks_a_tensor_map_is_copied(name, monkeypatch):
    pretend_hopper(monkeypatch)
    for places in ((0,), (1, 2), (0, 1, 2)):
        found, suited = copied(laid(places, name))
        assert found == (set() if name in SUITED else {"qkv"[k] for k in places})
        assert suited == dict.fromkeys("qkv", True)


def test_little_is_read_as_it_lies(monkeypatch):
    pretend_hopper(monkeypatch)
    found, suited = copied(laid((0,), "rows of 65"), least=relayout.MIN_WASTED_BYTES)
    assert not found and suited == {"q": False, "k": True, "v": True}


def test_few_rows_are_plain_triton_anyway(monkeypatch):
    pretend_hopper(monkeypatch)
    assert copied(laid((0,), "rows of 65", (2, 3, 48, 64))) == (set(), {})


def test_kernels_without_tensor_maps_need_no_copy_of_what_is_read_once():
    assert copied(laid((0,), "rows of 65"), "triton") == (set(), {})
