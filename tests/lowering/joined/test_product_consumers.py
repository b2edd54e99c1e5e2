"""Joined kernels whose warpgroups share their rows: who computes what, and what crosses between them."""

import re
from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import load, make
from onepass.egraph.terms.term import Tensor
from onepass.lowering.joined.config import JoinedConfig
from onepass.lowering.joined.form import bind_joined, early_parts, no_split_by_products
from onepass.lowering.joined.join import join
from onepass.lowering.joined.launch import config_of
from onepass.lowering.joined.memory import part_of, shared_bytes
from onepass.lowering.plan.device import H200
from tests.support.gluon_ahead_of_time import backward_plan_of, joined_source_of

KINDS = "full causal window softcap longformer documents groups sigmoid bias".split()


@pytest.fixture(scope="module")
def plans():
    found = {}

    def plan(kind, width=256):
        if (kind, width) not in found:
            found[kind, width] = backward_plan_of(kind, width, rows=512, columns=512, batch=1, heads=8)
        return found[kind, width]

    return plan


def halves_of(text):
    """The lines of either warpgroup."""
    body = text[text.index("    if W == 0:") : text.index("def consumer0")]
    return body.split("    else:\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_each_warpgroup_has_half_of_the_products(kind, plans):
    binding, config, source = joined_source_of(plans(kind))
    assert config.by_products and config.row_tile == H200.product_rows
    assert shared_bytes(binding, (), config) <= H200.shared_bytes - H200.barrier_bytes
    for lines in halves_of(source.text):
        # Before the loop: a product. In it: one sum over the loop, two pieces of one over the rows, the next product.
        # Behind it: the last two pieces.
        assert lines.count("warpgroup_mma(") == 1 + 4 + 2
        assert lines.count("add_in_order(") == 4


def test_exponentials_are_computed_by_one_and_given_to_the_other(plans):
    first, second = halves_of(joined_source_of(plans("causal"))[2].text)
    assert "gl.exp2(" in first and "gl.exp2(" not in second
    assert "give(part_tiles, weight, 0)" in first and "taken(part_tiles, 0, SCORE)" in second
    assert "<=" in first and "<=" not in second  # who takes a part sees in it what is absent


def test_barriers_between_the_warpgroups_are_met_by_both(plans):
    """A name that one waits at is one where the other arrives, and nobody waits where nobody arrives."""
    first, second = halves_of(joined_source_of(plans("causal"))[2].text)
    for one, other in ((first, second), (second, first)):
        waits = set(re.findall(r"sync\((\w+)", one))
        assert waits <= set(re.findall(r"arrive\((\w+)", other))
    assert set(re.findall(r"sync\((\w+)", first)) == {"TAKEN", "WRITTEN"}
    assert set(re.findall(r"sync\((\w+)", second)) == {"GIVEN", "READ"}


def test_pieces_of_sums_over_the_rows_cover_the_inner_dim(plans):
    binding = bind_joined(join(plans("full")).main)
    config = config_of(binding)
    (s,) = binding.row_sums
    assert part_of(s.matrix.inner, config) == 64
    assert part_of(s.matrix.inner, replace(config, by_products=False)) == 128
    text = joined_source_of(plans("full"))[2].text
    starts = set(re.findall(r"slice\(\(W \* 2 \+ (\d)\) \* 64, 64, 1\)", text))
    assert starts == {"0", "1"}


def test_narrow_sums_may_be_shared_by_products_too(plans):
    _, _, source = joined_source_of(plans("causal", 64), JoinedConfig(64, turns=False, by_products=True))
    for lines in halves_of(source.text):
        assert lines.count("warpgroup_mma(") == 1 + 3 + 1  # the sum over the rows is one piece


def test_what_cannot_be_shared_is_refused(plans):
    binding = bind_joined(join(plans("full")).main)
    assert no_split_by_products(binding) is None and len(early_parts(binding)) == 1
    assert "no late products" in no_split_by_products(replace(binding, late=()))
    row = replace(binding.row_sums[0], weight=next(n for n, w in enumerate(binding.weights) if w.early))
    assert "needs no late product" in no_split_by_products(replace(binding, row_sums=(row,)))
    results = [s for s in binding.kernel.stores if not s.adds]
    both = make("add", tuple(s.accumulator.reductions[0] for s in binding.loop_sums))
    kernel = replace(binding.kernel, stores=(replace(results[0], term=both),))
    assert "sums of both warpgroups" in no_split_by_products(replace(binding, kernel=kernel))
    (late,) = binding.late
    mixed = make("mul", (late.node, binding.ahead[0].node))
    weights = tuple(w if w.early else replace(w, factors=(mixed,)) for w in binding.weights)
    assert "products of both" in no_split_by_products(replace(binding, weights=weights))


def test_a_part_that_nothing_needs_is_not_given(plans):
    """A weight that is a late product alone takes nothing of the other warpgroup."""
    binding = bind_joined(join(plans("full")).main)
    factors = load(Tensor("one", "float32", ()))
    late = tuple(
        w if w.early else replace(w, factors=(make("mul", (binding.late[0].node, factors)),)) for w in binding.weights
    )
    assert early_parts(replace(binding, weights=late)) == {}
