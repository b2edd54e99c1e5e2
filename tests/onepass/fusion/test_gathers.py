"""Learned tables read at positions of rows and columns: in training the region reads the table, and its gradient is a
sum in float32. Each spelling against float64, and what stays outside, with the reason."""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend
from onepass.lowering.plan.thresholds import MAX_ENTRIES_OF_A_TABLE
from onepass.runtime import training_operator

pytestmark = pytest.mark.usefixtures("fresh")
ROWS, HEADS, ENTRIES = 36, 3, 23


def attend(q, k, v, bias):
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


def by_index(q, k, v, table, index):
    return attend(q, k, v, table[index].permute(2, 0, 1))


def by_one_head(q, k, v, table, index):
    return attend(q, k, v, table[:, 0][index])


def by_heads_first(q, k, v, table, index):
    return attend(q, k, v, table.mT[:, index])


def by_embedding(q, k, v, table, index):
    return attend(q, k, v, F.embedding(index % ENTRIES, table).movedim(-1, 0))


def by_index_select(q, k, v, table, index):
    flat = torch.index_select(table, 0, (index % ENTRIES).flatten())
    return attend(q, k, v, flat.view(*index.shape, -1).permute(2, 0, 1).unsqueeze(0))


def by_flattened_index(q, k, v, table, index):
    """As Swin transformers write it."""
    bias = table[index.view(-1)].view(index.shape[0], index.shape[1], -1)
    return attend(q, k, v, bias.permute(2, 0, 1).contiguous().unsqueeze(0))


def by_a_function_of_it(q, k, v, table, index):
    return attend(q, k, v, 4 * torch.sigmoid(table[index]).permute(2, 0, 1))


def of_a_function(q, k, v, table, index):
    return attend(q, k, v, torch.tanh(table @ torch.ones(HEADS, HEADS, dtype=table.dtype))[index].permute(2, 0, 1))


def added_to_another(q, k, v, table, index):
    bias = table[index].permute(2, 0, 1) + torch.where(index > 20, -math.inf, 0.0)
    return attend(q, k, v, bias)


def read_twice(q, k, v, table, index):
    score = q @ k.mT / 4 * table[index].permute(2, 0, 1) + table[index.mT].permute(2, 0, 1)
    return torch.softmax(score, -1) @ v


def in_two_layers(q, k, v, table, index):
    """As T5 has it: one bias for all layers."""
    bias = table[index].permute(2, 0, 1).unsqueeze(0)
    return attend(attend(q, k, v, bias).sin(), k, v, bias)


def by_batch(q, k, v, table, index):
    """As Graphormer has it: another index for each graph of a batch."""
    every = torch.stack([index, index.flip(0)])
    return attend(q, k, v, table[every].permute(0, 3, 1, 2))


TAKEN = [
    *(by_index, by_one_head, by_heads_first, by_embedding, by_index_select, by_flattened_index, by_a_function_of_it),
    *(of_a_function, added_to_another, read_twice, in_two_layers, by_batch),
]


def inputs(rows=ROWS, entries=ENTRIES):
    torch.manual_seed(rows)
    table, index = torch.randn(entries, HEADS), torch.randint(-entries, entries - 1, (rows, rows))
    return [*torch.randn(3, 2, HEADS, rows, 16), table, index]


def leaves(given, kind=torch.float32):
    return [x.to(kind, copy=True).requires_grad_() if x.is_floating_point() else x for x in given]


def compiled(function, inner="eager", **options):
    options = {"inner": inner, "strict": True, "executor": "tiled", **options}
    return torch.compile(function, backend=onepass_backend, options=options)


def gradients(call, given):
    return torch.autograd.grad(call(*given).sin().sum(), given[:4])


def stores(direction):
    """What the kernels of the directions that ran write: names and shapes."""
    runners = {"forward": training_operator._FORWARDS, "backward": training_operator._BACKWARDS}[direction]
    kernels = [kernel for runner in runners.values() for kernel in runner.found.plan.kernels]
    return [(s.output.name, s.output.shape) for kernel in kernels for s in kernel.stores]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", TAKEN)
def test_the_region_reads_the_table(function):
    found = gradients(compiled(function), leaves(inputs()))
    exact = gradients(function, leaves(inputs(), torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    regions = onepass.reports()[-1].regions
    assert regions and all(region.backward.startswith("derived") for region in regions)
    assert any("computed in the kernel" in note for region in regions for note in region.around)
    assert not [name for name, shape in stores("backward") if shape[-2:] == (ROWS, ROWS)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [by_index, by_flattened_index, in_two_layers])
def test_behind_inductor_too(function):
    found = gradients(compiled(function, "inductor"), leaves(inputs()))
    exact = gradients(function, leaves(inputs(), torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    assert any("computed in the kernel" in note for r in onepass.reports()[-1].regions for note in r.around)


def test_sums_in_half_precision_are_float32s():
    """Eager on a CPU, as Inductor on a GPU, adds to a table in its own precision: 0.4 of a sum is lost here."""
    given = [x.bfloat16() if x.is_floating_point() else x for x in inputs(256, 5)]
    exact = gradients(by_index, leaves(given, torch.float64))[3]
    mine, eager = (gradients(call, leaves(given, torch.bfloat16))[3] for call in (compiled(by_index), by_index))
    error = lambda found: (found - exact).abs().max().item()
    assert error(mine) < 0.02 * exact.abs().max() < error(eager) / 4


def test_entries_that_nobody_reads_and_entries_of_infinity():
    given = inputs()
    given[3][2], given[3][5] = -math.inf, math.nan
    given[4] = torch.where((given[4] == 5) | (given[4] == 5 - ENTRIES), 6, given[4])
    found = gradients(compiled(by_index), leaves(given))
    exact = gradients(by_index, leaves(given, torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    assert not found[3][5].any() and not found[3][2].any()


@pytest.mark.slow
def test_lengths_change_without_a_new_graph():
    run = torch.compile(
        by_index, backend=onepass_backend, options={"inner": "eager", "strict": True, "executor": "tiled"}, dynamic=True
    )
    for rows in (36, 41, 67, 5):
        found = gradients(run, leaves(inputs(rows)))
        exact = gradients(by_index, leaves(inputs(rows), torch.float64))
        torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    assert len(onepass.reports()) == 1
    assert any("computed in the kernel" in note for note in onepass.reports()[-1].regions[0].around)


def also_returned(q, k, v, table, index):
    bias = table[index].permute(2, 0, 1)
    return attend(q, k, v, bias) + bias.mean()


OUTSIDE = {
    "many entries": (by_index, inputs(ROWS, MAX_ENTRIES_OF_A_TABLE + 1), "would compare each pair"),
    "another user": (also_returned, inputs(), "is also used by mean"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_stays_outside_says_why(name):
    function, given, reason = OUTSIDE[name]
    found = gradients(compiled(function), leaves(given))
    exact = gradients(function, leaves(given, torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived") and any(reason in note for note in region.around)
    assert not any("computed in the kernel" in note for note in region.around)


def test_a_frozen_table_stays_outside():
    given = leaves(inputs())
    given[3].requires_grad_(False)
    result = compiled(by_index)(*given)
    torch.testing.assert_close(result, by_index(*given), atol=1e-5, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived") and not region.around


def test_a_gather_inside_of_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    function = lambda *given: checkpoint(by_index, *given, use_reentrant=False)
    found = gradients(compiled(function), leaves(inputs()))
    exact = gradients(by_index, leaves(inputs(), torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    assert any("computed in the kernel" in note for note in onepass.reports()[-1].regions[0].around)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["always", "never"])
def test_the_option_decides_first(mode):
    found = gradients(compiled(by_index, fuse_loads=mode), leaves(inputs()))
    exact = gradients(by_index, leaves(inputs(), torch.float64))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    assert any("computed in the kernel" in note for note in region.around) == (mode == "always")
