"""Dims were named in the order of the nodes' names, so a form found on disk was not the one that was asked for.

The cache knows a program under names by position, where the tenth node comes before the ninth; its entry was searched
for again in every process. Dims are named by depth and first occurrence, whatever nodes are called.
"""

import logging
from itertools import pairwise

import torch

import onepass
from onepass import process_state
from onepass.compiler.compiled_region import canonical
from onepass.graph.trace import program_of
from onepass.translate.translate import translate


def blocks(q, k, v):
    """Of lengths 1 to 6, each added for itself: one reduction for each."""
    bounds = [n * (n - 1) // 2 for n in range(1, 8)]
    return sum(torch.sigmoid(q @ k[:, a:b].mT) @ v[:, a:b] for a, b in pairwise(bounds))


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, n, 16) for n in (5, 21, 21)]


def test_names_of_nodes_change_no_name_of_a_dim():
    program = program_of(blocks, *inputs())
    names = [entry.name for entry in program.inputs]
    own, other = translate(program), translate(canonical(program, names))
    assert [r.term for r in own.results] == [r.term for r in other.results]
    assert own.order == other.order


def test_a_form_is_found_on_disk(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    said = []
    for _ in range(2):
        torch._dynamo.reset()
        process_state.forget()
        with caplog.at_level(logging.WARNING):
            found = onepass.explain(blocks, *inputs())
        said.append([region.cache for region in found.regions])
    assert said[0] and all(text.startswith("found on disk") for text in said[1])
    assert "cannot be used" not in caplog.text
