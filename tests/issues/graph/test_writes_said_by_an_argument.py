"""relu(h, inplace=True), torch._foreach_add_, out=(a, i) and users' operators wrote; regions read what was before.

What is written into is told by a schema, a name or the argument; numbers that are written into are tensors.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import library

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.report import records


@library.custom_op("onepass_tests::second_is_written", mutates_args=("into",))
def second_is_written(x: torch.Tensor, into: torch.Tensor) -> None:
    into.add_(x)


@library.custom_op("onepass_tests::all_are_written", mutates_args=("into",))
def all_are_written(x: torch.Tensor, into: list[torch.Tensor]) -> None:
    for each in into:
        each.add_(x)


def _attention(q, k, v, bias=0.0):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1) @ v


def _unused(change):
    def function(q, k, v):
        h = q * 2
        change(h)
        return _attention(h, k, v)

    return function


def _both_names(q, k, v):
    h = q * 2
    g = F.relu(h, inplace=True)
    return _attention(h, k, v) + _attention(g, k, v)


def _on_scores(q, k, v):
    scores = q @ k.mT / 8
    F.relu(scores, True)
    return scores.square() @ v


def _scaled_scores(q, k, v):
    scores = q @ k.mT
    torch._foreach_mul_([scores], 0.3)
    return scores.softmax(-1) @ v


def _any_overload(q, k, v):
    """Some overloads of these write into an `out`, which is not asked for."""
    return torch.ops.aten.softmax(torch.ops.aten.mul(q @ k.mT, 0.5), -1) @ v


def _biased(change):
    """The change is given zeros and what else they may become."""

    def function(q, k, v):
        bias = torch.zeros(k.shape[2])
        change(bias, k[0, 0, :, 0])
        return _attention(q, k, v, bias)

    return function


def _masked(q, k, v):
    places = torch.arange(k.shape[2]) + 0
    torch._foreach_mul_([places], 2)
    return _attention(q, k, v, torch.where(places > 9, -math.inf, 0.0))


def _sorted(bias, x):
    torch.sort(x, out=(bias, torch.zeros(x.shape[0], dtype=torch.long)))


CASES = {
    "relu": _unused(lambda h: F.relu(h, inplace=True)),
    "silu": _unused(lambda h: F.silu(h, inplace=True)),
    "hardtanh": _unused(lambda h: F.hardtanh(h, -0.5, 0.5, inplace=True)),
    "leaky relu by place": _unused(lambda h: F.leaky_relu(h, 0.3, True)),
    "dropout": _unused(lambda h: F.dropout(h, 0.5, training=False, inplace=True)),
    "both names": _both_names,
    "scores": _on_scores,
    "foreach scores": _scaled_scores,
    "any overload": _any_overload,
    "foreach add": _biased(lambda bias, x: torch._foreach_add_([bias], [x])),
    "foreach copy": _biased(lambda bias, x: torch._foreach_copy_([bias], [x])),
    "foreach mask": _masked,
    "out of two": _biased(_sorted),
    "second argument": _biased(lambda bias, x: second_is_written(x, bias)),
    "a list": _biased(lambda bias, x: all_are_written(x, [bias])),
}


def _inputs():
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8) for n in (9, 11, 11)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_computes_the_same(name, dynamic):
    torch._dynamo.reset()
    process_state.forget("reports")
    fused = torch.compile(CASES[name], backend=onepass_backend, options={"inner": "eager"}, dynamic=dynamic)
    torch.testing.assert_close(fused(*_inputs()), CASES[name](*_inputs()))
    assert not any(said.failures for said in records.reports())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("hardtanh", "foreach scores")])
def test_it_is_fused(name):
    assert onepass.explain(CASES[name], *_inputs()).regions
