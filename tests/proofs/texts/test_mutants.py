"""Wrong texts of kernels are found: each text changed in one place, in every way that mutants.py knows.

A mutant runs at several sizes, so that each class of tiles occurs. One that is not found is listed with the reason why
it computes the same.
"""

import math
import re
from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.compiler.verified_kernels import checks, factors
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import Reference, differences
from onepass.proofs.texts.mutants import mutants
from onepass.translate.translate import translate
from tests.variants import heads

CONFIG = TritonConfig(32, 16, 4, 1, 1)
MOST_ROUNDS = 200


def masked(keep):
    def attention(q, k, v):
        score = q @ k.mT / 4
        i, j = torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])
        return torch.softmax(torch.where(keep(i, j), score, -math.inf), -1) @ v

    return attention


def full(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def documents(q, k, v, ids):
    same = ids[:, None] == ids[None, :]
    score = q @ k.mT / 4
    i, j = torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])
    return torch.softmax(torch.where(same & (j <= i), score, -math.inf), -1) @ v


def sigmoids(q, k, v, bias):
    score = q @ k.mT / 4 + bias
    i, j = torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])
    return torch.where(j <= i, torch.sigmoid(score), 0.0) @ v


def inputs(rows, columns=None):
    return heads(2, batch=2, rows=rows, columns=columns or rows, width=12, values=20)


SIZES = (49, 113, 37)
CASES = {  # a function, its inputs at sizes for which the text is the same, and how many mutants mean the same
    "full": (full, [inputs(37, 49), inputs(49, 65), inputs(33, 7)], 14),
    "causal": (masked(lambda i, j: j <= i), [inputs(n) for n in SIZES], 32),
    "window": (masked(lambda i, j: (j <= i) & (i - j < 60)), [inputs(113), inputs(97)], 57),
    "prefix": (masked(lambda i, j: (j <= i) | (j < 40)), [inputs(113), inputs(97)], 38),
    "rows without a key": (masked(lambda i, j: j + 20 <= i), [inputs(n) for n in SIZES], 38),
    "documents": (documents, [[*inputs(n), torch.arange(n) // 9] for n in SIZES], 30),
    "sigmoids of a bias": (sigmoids, [[*inputs(n), torch.randn(2, 2, n, n)] for n in SIZES], 2),
}
REASONS = {  # of a mutant's description; what it computes instead is the same
    r"; in: (\w_last|(add|sub|maximum)\w*|\w_(begin|end|full_begin|full_end|whole|before)) = ": "a tile changes its "
    "class: one that is full runs as a partial one, or one that is empty runs, and each of its elements is tested",
    r"number: tl\.full\(\[.*\], 0\.0": "the first round multiplies what is there by 0",
    r"number: tl\.where\(top\w* == float": "the weights of a row without a key are 0 with any finite shift",
    r"(number: float\('-inf'\)|axes exchanged: \w+_scale\[:, None\]).*; in: (mantissa|shift)": "a row without a key is "
    "undefined in any case, by 0/0 or by -inf + inf; without such rows nothing is chosen",
    r"(mask dropped|condition|operator|axes exchanged).*_exists.*; in: \w+_tile\w* = tl\.load": "an element that is "
    "there is read, and meets a 0 or is not stored",
    r"one element fewer: .*(full_end|whole|before)\w*, ": "both ends are multiples of the tile",
    r"(steps of two|name): .*; in: for \w+ in tl\.range\(\w+_full_end|whole": "the short last tile is one round",
    r"one condition: .*_exists.*; in: score": "j <= i, and i is beyond no row that is stored",
    r"comparison: j < j_size": "a column beyond the last one is kept by no other condition",
    r"; in: (le_i_j(_4)? = |score\w* = .*le_i_j(_3)? & le_i_j)": "a tile at one edge of a window is far from the other",
    r"where_i_j_e \+ 0\.0": "0 is added or not, and what is beyond the last column meets a value that was read as 0",
}


def held(function, given):
    """Everything to run of the kernels of a function: by inputs and factors of random numbers."""
    program = program_of(function, *given)
    plan = optimize_all(translate(program).results).plan
    named = {entry.name: x for entry, x in zip(program.inputs, given, strict=True)}
    texts = launch_texts(Launcher(plan, CONFIG), named, {})
    return [[checked for _, checked in checks(texts, factor=factor)] for factor in factors(texts)]


def survivors(name, step=1):
    """The mutants of a case that are not found, and the number of all; of all mutants, each `step`th one."""
    function, sizes, _ = CASES[name]
    found, count = [], 0
    for runs in zip(*(run for given in sizes for run in held(function, given)), strict=True):
        text = runs[0].calls[0].text
        kernel = [(checked, Reference(checked)) for checked in runs if checked.calls[0].text == text]
        assert not [said for one in kernel for said in differences(*one)]
        for mutant in list(mutants(text))[::step]:
            count += 1
            if not any(differs(checked, reference, mutant.text) for checked, reference in kernel):
                found.append(mutant.what)
    return found, count


def differs(checked, reference, text):
    wrong = replace(checked, calls=(replace(checked.calls[0], text=text), *checked.calls[1:]))
    return differences(wrong, reference, MOST_ROUNDS)


def reason(what):
    return next((said for pattern, said in REASONS.items() if re.search(pattern, what)), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_found_computes_the_same(name):
    found, count = survivors(name)
    assert not [what for what in found if reason(what) is None]
    assert len(found) <= CASES[name][2] and count > 200


@pytest.mark.slow
def test_some_mutants_of_a_causal_kernel():
    found, count = survivors("causal", 25)
    assert not [what for what in found if reason(what) is None] and count > 10
