"""Regions and checkpoints in both orders: gradients against float64, and how often the forward operation runs."""

import functools
from collections import Counter

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import onepass
from onepass.api.backend import onepass_backend
from onepass.runtime import training_operator

pytestmark = pytest.mark.usefixtures("fresh")
INNER = ["eager", "inductor"]
POLICIES = {"saved": CheckpointPolicy.MUST_SAVE, "computed again": CheckpointPolicy.PREFER_RECOMPUTE}


@pytest.fixture
def runs(monkeypatch):
    """How often each direction of a region has run."""
    counts = Counter()
    for name in ("ForwardRunner", "BackwardRunner"):
        kind = getattr(training_operator, name)

        def counted(self, *given, name=name, run=kind.__call__):
            counts[name.removesuffix("Runner")] += 1
            return run(self, *given)

        monkeypatch.setattr(kind, "__call__", counted)
    return counts


def attention(q, k, v):
    return torch.softmax(q.sin() @ k.mT / 4, -1) @ v


def block(q, k, v):
    return attention(q, k, v).sin()


def inputs(rows=40):
    torch.manual_seed(rows)
    return [torch.randn(2, 3, rows, 16) for _ in range(3)]


def policy_of(policy, asked=None):
    """A policy for the forward operation; whatever else there is is computed again."""

    def decide(context, operation, *args, **kwargs):
        if asked is not None:
            asked.append(operation)
        if operation is torch.ops.onepass.region_train.default:
            return policy
        return CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, decide)


def compiled(function, inner, **options):
    return torch.compile(function, backend=onepass_backend, options={"inner": inner, "strict": True, **options})


def assert_as_in_float64(run, function, given):
    """Holds the result and all gradients of a run to those of the function in float64."""
    found, exact = [], []
    for kind, call, kept in ((torch.float32, run, found), (torch.float64, function, exact)):
        leaves = [x.detach().to(kind, copy=True).requires_grad_() for x in given]
        result = call(*leaves)
        result.square().sum().backward()
        kept += [result.detach(), *(x.grad for x in leaves)]
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)


def in_order(order, function, inner, **options):
    """The function with a checkpoint inside of what is compiled, or around it."""
    if order == "compile(checkpoint)":
        return compiled(lambda *given: checkpoint(function, *given, **options), inner)
    run = compiled(function, inner)
    return lambda *given: checkpoint(run, *given, **options)


ORDERS = ["compile(checkpoint)", "checkpoint(compile)"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_a_checkpoint_runs_the_forward_again(order, reentrant, inner, runs):
    run = in_order(order, block, inner, use_reentrant=reentrant)
    for _ in range(2):
        runs.clear()
        assert_as_in_float64(run, block, inputs())
        # Around a compiled function, a reentrant checkpoint first runs it without gradients.
        assert runs == {"Forward": 1 if reentrant and order == ORDERS[1] else 2, "Backward": 1}
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_selective_policy_decides_on_the_forward_operation(order, name, inner, runs):
    """Of FlexAttention: pytorch #147879 (a policy raised), #159970 (so it did around a compiled call)."""
    asked = []
    policy = policy_of(POLICIES[name], asked)
    run = in_order(order, block, inner, use_reentrant=False, context_fn=policy)
    assert_as_in_float64(run, block, inputs())
    assert runs == {"Forward": 1 if name == "saved" else 2, "Backward": 1}
    assert torch.ops.onepass.region_train.default in asked
    assert torch.ops.onepass.region.default not in asked


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
def test_of_two_compiled_calls_in_a_checkpoint_one_is_saved(inner, runs):
    """pytorch #175258: what was saved of one compiled call was given to the other."""
    first, second = (compiled(f, inner) for f in (attention, lambda q, k, v: attention(k, q, v) * 2))

    def only_long(context, operation, *args, **kwargs):
        is_long = operation is torch.ops.onepass.region_train.default and args[0][0].shape[-2] == 40
        return CheckpointPolicy.MUST_SAVE if is_long else CheckpointPolicy.PREFER_RECOMPUTE

    def both(one, other):
        def run(q, k, v):
            short = [x[..., :24, :] for x in (q, k, v)]
            return other(*short).mean() + one(q, k, v) + other(*short).std()

        return run

    policy = functools.partial(create_selective_checkpoint_contexts, only_long)
    run = lambda *given: checkpoint(both(first, second), *given, use_reentrant=False, context_fn=policy)
    assert_as_in_float64(run, both(attention, lambda q, k, v: attention(k, q, v) * 2), inputs())
    assert runs == {"Forward": 1 + 2 * 2, "Backward": 3}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
def test_checkpoints_inside_of_checkpoints(inner, runs):
    def outer(q, k, v):
        return checkpoint(block, checkpoint(block, q, k, v, use_reentrant=False) + q, k, v, use_reentrant=False)

    run = compiled(lambda *given: checkpoint(outer, *given, use_reentrant=False), inner)
    assert_as_in_float64(run, outer, inputs())
    assert runs["Backward"] == 2 and runs["Forward"] >= 4
    assert sum(region.count for region in onepass.reports()[-1].regions) == 2


class Block(torch.nn.Module):
    """One layer: causal attention with learned slopes, and a residual."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.slopes = torch.nn.Parameter(torch.rand(2))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        at = torch.arange(n)
        score = q @ k.mT / 4 - self.slopes[:, None, None] * (at[:, None] - at)
        score = score.masked_fill(at[:, None] < at, -torch.inf)
        return x + (torch.softmax(score, -1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("inner", INNER)
def test_a_checkpointed_model_trains_as_in_float64(inner, dynamic, runs):
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([Block(), Block()])
    exact = torch.nn.ModuleList([Block(), Block()]).double()
    exact.load_state_dict(layers.state_dict())

    def model(x, of):
        for layer in of:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    run = torch.compile(
        lambda x: model(x, layers), backend=onepass_backend, options={"inner": inner, "strict": True}, dynamic=dynamic
    )
    graphs = len(onepass.reports())
    for n in (29, 37) if dynamic else (29,):
        x = torch.randn(2, n, 32)
        run(x).square().mean().backward()
        model(x.double(), exact).square().mean().backward()
    for mine, wanted in zip(layers.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert len(onepass.reports()) == graphs + 1
    assert sum(region.count for region in onepass.reports()[-1].regions) == 2
    assert runs["Forward"] == 2 * runs["Backward"] > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", INNER)
def test_a_checkpoint_without_gradients_has_a_plain_region(inner, runs):
    run = compiled(lambda *given: checkpoint(block, *given, use_reentrant=False), inner)
    given = inputs()
    with torch.no_grad():
        torch.testing.assert_close(run(*given), block(*given), atol=1e-5, rtol=1e-4)
    assert not runs and onepass.reports()[-1].regions[0].backward.startswith("not planned")


def test_explain_reports_the_region_of_a_checkpoint_and_changes_nothing(runs):
    given = [x.requires_grad_() for x in inputs()]
    found = onepass.explain(lambda *given: checkpoint(block, *given, use_reentrant=False), *given)
    assert len(found.regions) == 1 and not found.refusals
    assert not runs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("budget", [1, 0.5, 0])
def test_the_joint_graph_has_one_node_for_each_direction(budget, runs):
    """The memory budget takes the operation as it is: none of its work is fused with what is around."""
    from torch._functorch import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Seen(CustomGraphPass):
        nodes = ()

        def __call__(self, graph):
            Seen.nodes = [n for n in graph.nodes if "onepass" in str(n.target)]

        def uuid(self):
            return None

    around = lambda q, k, v: block(q.tanh(), k.exp(), v.cos()).exp().sin()
    run = compiled(around, "inductor", inner_options={"joint_custom_post_pass": Seen()})
    with config.patch(activation_memory_budget=budget):
        assert_as_in_float64(run, around, inputs())
    operations = [torch.ops.onepass.region_train.default, torch.ops.onepass.region_gradients.default]
    assert [n.target for n in Seen.nodes] == operations
    assert runs == {"Forward": 1 if budget else 2, "Backward": 1}
