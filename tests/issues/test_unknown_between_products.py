"""Weights by an operation that is not known, without a softmax (arc cosines in YOSO), were left and nobody said why."""

import torch

import onepass


def angles(q, k, v):
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    return (1 - torch.acos((q @ k.mT).clamp(-0.999, 0.999)) / torch.pi) ** 3 @ v


def layers(x, w1, w2):
    return torch.acos((x @ w1).clamp(-0.9, 0.9)) @ w2


def test_the_operation_is_named():
    (refused,) = onepass.explain(angles, *(torch.randn(2, 3, 20, 16) for _ in range(3))).refusals
    assert refused.reason.startswith("acos stands between two contractions") and refused.kind == "unknown operation"


def test_layers_of_a_network_are_no_attention():
    weights = torch.randn(16, 32), torch.randn(32, 16)
    assert onepass.explain(layers, torch.randn(2, 20, 16), *weights).refusals == ()
