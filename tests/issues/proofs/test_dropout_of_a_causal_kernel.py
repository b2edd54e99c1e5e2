"""A causal kernel with dropout was refused by the check of texts: "a name has tiles of different axes".

Rounds of Philox are unrolled, and in them a number of a program becomes a tile. Where some programs ran a loop and
others did not, the tile was merged with the number.
"""

import math

import pytest
import torch

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.proofs.kernels.interpreter import Interpreter
from tests.proofs.texts.test_check import hold, plan_of
from tests.variants import heads

TEXT = """
def spread(x, y):
    for n in tl.static_range(2):
        x = x + y
    return x

def kernel(rounds):
    total = tl.zeros([4], tl.int32)
    for n in tl.range(0, rounds):
        total = total + spread(rounds, tl.arange(0, 4))
"""


def attention(q, k, v, seed):
    score = q @ k.mT / 4
    i, j = torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])
    weights = torch.softmax(torch.where(j <= i, score, -math.inf), -1)
    return torch.ops.onepass.dropout(weights, 0.3, seed) @ v


def test_an_unrolled_round_gives_a_name_more_axes():
    interpreter, seen = Interpreter(TEXT, 2), []
    keep = interpreter._assign
    interpreter._assign = lambda name, value: (keep(name, value), seen.append((name, interpreter.names[name])))
    interpreter.call("kernel", {"rounds": torch.tensor([2, 1]).numpy()})
    totals = [value for name, value in seen if name == "total"]
    assert totals[-1].tolist() == [[4, 8, 12, 16], [1, 3, 5, 7]]


@pytest.mark.parametrize("rows", [37, pytest.param(70, marks=pytest.mark.slow)])
def test_the_text_computes_its_term(rows):
    torch.manual_seed(0)
    inputs = [*heads(2, batch=1, rows=rows, columns=rows, width=12, values=20), torch.randint(0, 2**62, (2,))]
    texts = hold(*plan_of(attention, inputs), TritonConfig(16, 16, 4, 1, 1))
    assert "uniform_at" in texts[0].calls[0].text
