"""A program that walks used an index of its window as an address before it was known to be a place of the tensor."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.compiler.verified_kernels import checks
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton import launch as triton_launch
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.lowering.triton.walks import walk_of
from onepass.proofs.texts.check import differences
from onepass.translate.translate import translate

CONFIG = TritonConfig(16, 16, 4, 2)


def chosen(q, k, v, bias, kind):
    """Each window has one of a few sets of queries."""
    return torch.softmax(q[kind] @ k.mT + bias, -1) @ v


@pytest.mark.parametrize("wild", [False, True])
def test_an_index_of_a_window_is_clamped_before_it_is_read(wild, monkeypatch):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 11, 7), torch.randn(40, 11, 7), torch.randn(40, 11, 7)
    kind = torch.randint(-3, 3, (40,))
    given = [q, k, v, torch.randn(11, 11), kind]
    plan = optimize_all(translate(program_of(chosen, *given)).results).plan
    (kernel,) = plan.kernels
    walk = walk_of(kernel, CONFIG, {}, 1)
    assert walk is not None
    monkeypatch.setattr(triton_launch, "walk_of", lambda *given: (walk[0], 5))
    tensors = dict(zip(("q", "k", "v", "bias", "kind"), given))
    exact = chosen(*(x.double() if x.is_floating_point() else x for x in given))
    launcher = Launcher(plan, CONFIG)
    torch.testing.assert_close(launcher(tensors).double(), exact, atol=1e-5, rtol=1e-5)
    if wild:
        tensors["kind"] = kind.clone().fill_(10**6)
    texts = launch_texts(Launcher(plan, CONFIG), tensors, {})
    said = [one for _, checked in checks(texts, 2**60) for one in differences(checked)]
    assert any("out of range" in one for one in said) if wild else not said
    (text,) = (source.text for source in launcher._sources.values())
    inside = text.split("_size, 5):")[1]
    assert "tl.minimum(" in inside.split("q_tile = tl.load")[0]
