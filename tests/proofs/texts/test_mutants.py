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
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import Reference, differences
from onepass.proofs.texts.mutants import mutants
from onepass.proofs.texts.warp_mutants import EDITS_OF_WARPS
from onepass.translate.translate import translate
from tests.proofs.warps.test_gluon_interpreter import backward, forward
from tests.support.on_hopper import pretend_hopper
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


# Kernels whose warps wait for one another

ORDERS = r"mbarrier|sync\(|arrive\(|fence_|store_wait|_mma_wait|take_turn|give_turn|together|copy_|a slot fewer"
REASONS_OF_WARPS = {  # of a mutant's description; what orders it all the same
    r"in range\(0, (block_end - own_end|own_begin)|\.index\(\(count\) & 1\)": "tiles that a warpgroup hands back "
    "unread: before its own one at most, for which the other warpgroup waits; behind them a causal mask has none",
    r"exchanged score = warpgroup_mma_wait.* and mbarrier.arrive": "before the producer writes there it waits "
    "for values of the round before, which are handed back after this wait",
    r"TURN|(take|give)_turn": "turns say who issues products first",
    r"exchanged sync\(WRITTEN": "the other warpgroup gives the turn after it has written",
    r"exchanged add_in_order": "what is added is in registers",
    r"warpgroup_mma_wait\(2": "the next wait is for these products, too",
    r"together\(\)": "what is written next has waited for a tile that the producer copies after both are done",
    r"(operator|operands exchanged): count( \+ t)?( [-+] 1)?;": "a number and its negative are the same slot of two",
    r"own_end - own_begin; in": "a causal range begins at 0",
    r"slot: \w+\.index\(slot\); in: mbarrier.init": "all slots become barriers, in another order",
    r"a slot fewer: \[4, 1\]": "these are numbers of warps",
    r"(one condition|number): count [-+] 1( & 1)?;|ahead_full\.index\(done": "all items have an even number of tiles",
}


def warp_mutants(text):
    """Those that change in which order things happen, or what is copied."""
    return [m for m in mutants(text, EDITS_OF_WARPS) if re.search(ORDERS, m.what) and "Layout" not in m.what]


@pytest.mark.slow
@pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_some_mutants_of_waits_and_arrivals(name, monkeypatch):
    pretend_hopper(monkeypatch, 2)
    torch.manual_seed(0)
    texts = forward("causal", heads=3) if name == "forward" else backward("causal")
    (checked,) = (c for one, c in checks(texts, 2**60) if any(call.maps for call in one.calls))
    at = next(n for n, call in enumerate(checked.calls) if call.maps)
    reference, found = Reference(checked), []
    assert not differences(checked, reference)
    tried = warp_mutants(checked.calls[at].text)
    for mutant in tried[::9]:
        calls = [replace(c, text=mutant.text) if n == at else c for n, c in enumerate(checked.calls)]
        if not differences(replace(checked, calls=tuple(calls)), reference, MOST_ROUNDS):
            found.append(mutant.what)
    said = [what for what in found if not any(re.search(pattern, what) for pattern in REASONS_OF_WARPS)]
    assert not said and len(tried) > 150
