"""Queries and keys joined of two halves, as GPT-OSS turns them, are two products: their accumulators spilled.

Two tiles of scores beside each other do not fit into a thread's registers; their sum is one accumulator.
"""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import source_of


def _halves(a, b, c, d, v):
    return torch.softmax(torch.cat([a, b], -1) @ torch.cat([c, d], -1).mT / 8, -1) @ v


def _thirds(a, b, c, d, v):
    return torch.softmax((a @ c.mT + b @ d.mT + a @ d.mT) / 8, -1) @ v


def _apart(a, b, c, d, v):
    """One of the two is read by itself too."""
    left = a @ c.mT
    return torch.softmax(torch.tanh(left) + (left + b @ d.mT) / 8, -1) @ v


def _scaled(a, b, c, d, v):
    """Each has a factor of its own."""
    return torch.softmax(a @ c.mT * 0.3 + b @ d.mT * 0.7, -1) @ v


def text_of(function, width=32):
    inputs = [*(torch.randn(1, 2, 300, width).bfloat16() for _ in range(4)), torch.randn(1, 2, 300, 64).bfloat16()]
    return source_of(optimize_all(translate(program_of(function, *inputs)).results).plan)[2].text


@pytest.mark.parametrize("function,products", [(_halves, 2), (_thirds, 3)])
def test_sums_are_one_accumulator(function, products):
    text = text_of(function)
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("score")]
    made = [line for line in lines if "warpgroup_mma(" in line]
    assert {line.split(" = ")[0] for line in made} == {"score"}
    assert sum("use_acc=True" in line for line in made) * products == (products - 1) * len(made)


@pytest.mark.parametrize("function", [_apart, _scaled])
def test_others_keep_their_own(function):
    made = [line.split(" = ")[0].strip() for line in text_of(function).splitlines() if "_tiles.index(at)" in line]
    assert set(made) == {"score", "score_2"}
