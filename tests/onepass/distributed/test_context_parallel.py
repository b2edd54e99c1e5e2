"""Four processes, started once, share sequences: results and gradients are those of float64 on the whole sequence."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention

import onepass
from onepass.distributed import context_parallel
from onepass.distributed.context_parallel import SharedCall
from onepass.distributed.positions import head_tail
from onepass.distributed.shared_attention import Sides
from onepass.errors import InputError, Refusal
from tests.support.processes import as_rank, together

RANKS, LENGTH = 4, 23
AXES = {"q": -2, "k": -2, "v": -2, "i": 0, "j": 0, "a": 0, "b": 0, "seen": -1}
PER_HEAD = ("slopes", "sinks", "table")
GRADIENTS = ("q", "k", "v", *PER_HEAD, "gate")


def full(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def causal(q, k, v, i, j):
    return torch.softmax((q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf), -1) @ v


def causal4(q, k, v, i, j):
    return causal(q, k, v, i, j)


def everything(q, k, v, i, j, a, b, slopes):
    """A causal window inside of documents a and b, softcap, ALiBi, two heads of queries for one of keys."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    apart = i[:, None] - j
    scores = 5 * torch.tanh(q @ k.mT / 15) - slopes[:, None, None] * apart
    kept = (apart >= 0) & (apart < 12) & (a[:, None] == b)
    return torch.softmax(scores.masked_fill(~kept, -math.inf), -1) @ v


def sinks(q, k, v, i, j, sinks):
    """The scores of gpt-oss: causal, in groups, and a learned sink for each head."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = (q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf)
    joined = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*q.shape[:3], 1)], -1)
    weights = torch.softmax(joined - joined.max(-1, keepdim=True).values, -1)
    return weights[..., :-1] @ v


def relative(q, k, v, i, j, table):
    """T5's bias: a table of heads and distances, indexed by positions that travel with the keys."""
    return torch.softmax(q @ k.mT / 3 + table[:, (i[:, None] - j).clamp(-6, 6) + 6], -1) @ v


def one_more(q, k, v, i, j):
    """Softmax with one more score, which is 0, and whose weight is read by nobody."""
    scores = (q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf)
    return torch.softmax(torch.nn.functional.pad(scores, (0, 1)), -1)[..., :-1] @ v


def one_key_head(q, k, v, b, seen):
    """Each head of queries reads the same keys, and what a key adds to its scores."""
    return torch.softmax((q @ k.mT / 3 + b).masked_fill(~seen, -math.inf), -1) @ v


def library(q, k, v, seen):
    return scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None, None], scale=0.3, enable_gqa=True).sin()


class Scaled(torch.nn.Module):
    """Attention with a parameter, and a linear map that follows the merge."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.scale = torch.nn.Parameter(torch.rand(2, 1, 1))
        self.out = torch.nn.Linear(8, 8)

    def forward(self, q, k, v):
        return self.out(torch.softmax(q @ k.mT * self.scale, -1) @ v)


def contiguous(ranks):
    """Pieces of the sequence of lengths that differ."""
    cuts = {2: [9, 14], 3: [8, 7, 8], 4: [6, 6, 5, 6]}[ranks]
    return list(torch.arange(LENGTH).split(cuts))


SIZES = {
    "causal4": (1, 4, 4),
    "everything": (1, 4, 2),
    "sinks": (1, 4, 2),
    "one_key_head": (1, 4, 1),
    "relative": (1, 2, 2),
    "library": (2, 4, 2),
}
WANTED = {
    "causal": "i j",
    "causal4": "i j",
    "everything": "i j a b slopes",
    "library": "seen",
    "sinks": "i j sinks",
    "one_key_head": "b seen",
    "relative": "i j table",
    "one_more": "i j",
}


def tensors_of(name):
    """The whole problem."""
    generator = torch.Generator().manual_seed(1)
    batch, queries, keys = SIZES.get(name, (2, 2, 2))
    heads = zip("qkv", (queries, keys, keys))
    found = {n: torch.randn(batch, h, LENGTH, 8, generator=generator) for n, h in heads}
    at = torch.arange(LENGTH)
    documents = torch.tensor([0] * 5 + [1] * 11 + [2] * 7)
    without_keys = documents.where((at != 13) & (at < 17), 7)  # of a document of no key: one, and all of the last of 4
    more = {"i": at, "j": at, "a": without_keys, "b": documents, "seen": at % 5 != 2}
    more["slopes"] = torch.rand(4, generator=generator) / 8
    more["sinks"] = torch.randn(4, generator=generator)
    more["table"] = torch.randn(2, 13, generator=generator)
    return found | {n: more[n] for n in WANTED.get(name, "").split()}


CASES = {
    "full, ring of 3": (full, "ring", 3, contiguous),
    "full, all-gather of 3": (full, "all-gather", 3, contiguous),
    "library, chosen for 2": (library, None, 2, contiguous),
    "everything, two-level of 4": (everything, "two-level", 4, contiguous),
    "everything, ulysses of 2": (everything, "ulysses", 2, contiguous),
    "sinks, ring of 2": (sinks, "ring", 2, lambda ranks: head_tail(LENGTH, ranks)),
    "sinks, ring of 3 in 2 pieces": (sinks, "ring", 3, contiguous),
    "everything, all-gather of 2 in 2 pieces": (everything, "all-gather", 2, contiguous),
    "everything, two-level of 4 in 2 pieces": (everything, "two-level", 4, contiguous),
    "causal of 4 heads, ulysses of 2 in 2 pieces": (causal4, "ulysses", 2, contiguous),
    "causal of 4 heads, two-level ulysses of 4 in 2 pieces": (causal4, "two-level ulysses", 4, contiguous),
    "relative, ring of 3": (relative, "ring", 3, contiguous),
    "relative, ulysses of 2": (relative, "ulysses", 2, contiguous),
    "one more, all-gather of 2 in 2 pieces": (one_more, "all-gather", 2, contiguous),
    "one key head, ring of 2 in 4 pieces": (one_key_head, "ring", 2, contiguous),
    "sinks, two-level ulysses of 4": (sinks, "two-level ulysses", 4, lambda ranks: head_tail(LENGTH, ranks)),
    "one key head, ulysses of 4": (one_key_head, "ulysses", 4, contiguous),
}


def local(function, parts, rank):
    """A rank's part of the problem, the arguments that are shared out, and the gradient of its part of the result."""
    whole = tensors_of(function.__name__)
    mine = parts[rank]
    own = {n: x.index_select(AXES[n], mine) if n in AXES else x.clone() for n, x in whole.items()}
    sides = [{n: AXES[n] for n in names if n in own} for names in (("q", "i", "a"), ("k", "v", "j", "b", "seen"))]
    return own, dict(queries=sides[0], keys=sides[1]), cotangent(whole["q"]).index_select(-2, mine)


def cotangent(q):
    return torch.randn(q.shape, generator=torch.Generator().manual_seed(2))


def stepped(call, given, grad):
    """The result and the gradients, by name."""
    wanted = {n: x.requires_grad_() for n, x in given.items() if n in GRADIENTS}
    result = call(**given)
    found = torch.autograd.grad(result, [*wanted.values()], grad.to(result.dtype))
    return {"result": result.detach(), **dict(zip(wanted, found, strict=True))}


def of_case(name, rank, mesh):
    function, schedule, ranks, parts = CASES[name]
    own, sides, grad = local(function, parts(ranks), rank)
    dim = ("host", "cp") if str(schedule).startswith("two-level") else None
    pieces = int(name.split(" in ")[1].split()[0]) if " in " in name else None
    how = {"schedule": schedule, "pieces": pieces, "strict": True}
    made = functools.partial(onepass.context_parallel, function, mesh, dim, **how, **sides)
    call, together = made(deterministic=True), made(deterministic=True, together=True)
    found = stepped(call, own, grad)
    again = [stepped(each, own, grad) for each in (call, together, together)]
    notes = {part.why_not for known in call._known.values() for part in known.parts.values()}
    return found | {"same bits": all(torch.equal(found[n], a[n]) for n in found for a in again), "notes": notes}


def of_changes(rank, mesh):
    """Positions that change in place on one rank between calls: the causal mask of other rows, twice and back."""
    own, sides, _ = local(causal, contiguous(2), rank)
    own = {n: x.detach() for n, x in own.items()}
    call = onepass.context_parallel(causal, mesh, schedule="ring", **sides)
    found = [call(**own)]
    for change in (LENGTH, -LENGTH):
        if rank == 0:
            own["j"] += change  # the keys of rank 0 are behind all queries
        found.append(call(**own))
    return {"found": found}


def of_half(rank, mesh, schedule="ring"):
    """bfloat16: states are merged in float32. An exchange is that of the batch."""
    own, sides, grad = local(full, contiguous(2), rank)
    own = {n: x.bfloat16() for n, x in own.items()}
    return stepped(onepass.context_parallel(full, mesh, schedule=schedule, **sides), own, grad)


def of_autocast(rank, mesh, schedule):
    """The forward under autocast, then one without it, which has another graph."""
    own, sides, grad = local(causal, contiguous(2), rank)
    call = onepass.context_parallel(causal, mesh, schedule=schedule, **sides)

    def autocast(**given):
        with torch.autocast("cpu", torch.bfloat16):
            return call(**given)

    found = stepped(autocast, own, grad)
    return found | {"plain": call(**own).detach()}


def of_module(rank, mesh):
    """Of parameters each rank has its queries' part, as in data parallel."""
    own, sides, grad = local(full, contiguous(2), rank)
    module = Scaled()
    call = onepass.context_parallel(module, mesh, schedule="ring", **sides)
    found = stepped(call, own, grad)
    return found | dict(enumerate(torch.autograd.grad(call(**own), [*module.parameters()], grad)))


def of_dtensors(rank, mesh):
    """Sharded tensors in, a sharded tensor out."""
    whole = tensors_of("full")
    places = [Shard(2), Shard(2)]
    given = [distribute_tensor(whole[n], mesh, places).requires_grad_() for n in "qkv"]
    result = onepass.context_parallel(full, mesh, ("host", "cp"))(*given)
    grad = distribute_tensor(cotangent(whole["q"]), mesh, places)
    found = torch.autograd.grad(result, given, grad)
    placed = list(result.placements) == places and result.shape == whole["q"].shape
    return {"placed": placed, "result": result.full_tensor(), **{n: g.full_tensor() for n, g in zip("qkv", found)}}


def of_kinds(rank, mesh):
    """A rank whose tensors are of another kind is told on all ranks; nobody waits for it."""
    own, sides, _ = local(full, contiguous(2), rank)
    call = onepass.context_parallel(full, mesh, schedule="ring", **sides)
    others = {
        "dtype": {n: x.double() if rank else x for n, x in own.items()},
        "heads": {n: x[:, : 2 - rank] for n, x in own.items()},
        "gradients": {n: x.clone().requires_grad_(rank == 0) for n, x in own.items()},
    }
    said = {}
    for name, given in others.items():
        try:
            call(**given)
        except InputError as error:
            said[name] = str(error)
    return {"said": said, "result": call(**{n: x.detach() for n, x in own.items()})}


def of_branches(rank, mesh):
    """A rank that refuses the function for its own length says so, and the others learn of it: nobody waits."""
    own, sides, _ = local(full, contiguous(2), rank)
    said = {}
    for side in "qk":
        branch = functools.partial(of_another_length, side=side, length=len(contiguous(2)[1]))
        call = onepass.context_parallel(branch, mesh, schedule="ring", pieces=1, **sides)
        try:
            call(*(own[n].detach() for n in "qkv"))
        except (InputError, Refusal) as error:
            said[side] = type(error).__name__
    call = onepass.context_parallel(full, mesh, schedule="ring", **sides)
    return {"said": said, "result": call(**{n: x.detach() for n, x in own.items()})}


def of_another_length(q, k, v, *, side, length):
    given = {"q": q, "k": k}
    return full(q * (2 if given[side].shape[-2] == length else 1), k, v)


HALVES = {"half": "ring", "half, ulysses": "ulysses"}
MORE = {name: (functools.partial(of_half, schedule=schedule), 2) for name, schedule in HALVES.items()}
AUTOCAST = {"autocast": "ring", "autocast, ulysses": "ulysses"}
MORE |= {name: (functools.partial(of_autocast, schedule=schedule), 2) for name, schedule in AUTOCAST.items()}
MORE |= {"module": (of_module, 2), "dtensors": (of_dtensors, 4), "changes": (of_changes, 2), "kinds": (of_kinds, 2)}
MORE["branches"] = of_branches, 2


def work(rank, folder):
    """What one rank finds in all cases."""
    with as_rank(rank, RANKS, folder):
        hosts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("host", "cp"))
        meshes = {ranks: DeviceMesh("cpu", list(range(ranks))) for ranks in (2, 3, 4)}
        for name, (_, schedule, ranks, _) in CASES.items():
            if rank < ranks:
                mesh = hosts if str(schedule).startswith("two-level") else meshes[ranks]
                torch.save(of_case(name, rank, mesh), folder / f"{name} {rank}")
        for name, (found, ranks) in MORE.items():
            if rank < ranks:
                torch.save(found(rank, meshes[2] if ranks == 2 else hosts), folder / f"{name} {rank}")


def exact(function, whole, grad):
    """Float64 eager on the whole sequence; a row without keys is 0, and so are its gradients."""
    given = {n: x.double() if x.is_floating_point() else x for n, x in whole.items()}
    alone = torch.zeros(LENGTH, 1, dtype=torch.bool)
    if "a" in given:  # eager gives NaN without keys, which spreads in its gradients: the row is left out of them
        alone = ~torch.isin(given["a"], given["b"])[:, None]
        given["a"] = given["a"].where(~alone[:, 0], given["b"])
    right = stepped(function, given, grad.masked_fill(alone, 0.0))
    return right | {"result": right["result"].masked_fill(alone, 0.0)}


def check_case(name, found):
    function, _, ranks, parts = CASES[name]
    whole, each = tensors_of(function.__name__), found(name, ranks)
    right = exact(function, whole, cotangent(whole["q"]))
    for n in PER_HEAD:
        if n in right:
            total = sum(mine[n] for mine in each)
            torch.testing.assert_close(total, right.pop(n).float(), rtol=1e-4, atol=1e-4)
    for mine, part in zip(each, parts(ranks), strict=True):
        assert_part(mine, right, part, 1e-5)
        assert mine["same bits"], "two runs differ"
        assert mine["notes"] == {""}, "no derived backward"


def check_half(name, found):
    whole = tensors_of("full")
    rounded = {n: x.bfloat16() for n, x in whole.items()}
    right = exact(full, rounded, cotangent(whole["q"]).bfloat16())
    for mine, part in zip(found(name, 2), contiguous(2), strict=True):
        assert mine["result"].dtype == torch.bfloat16
        assert_part(mine, right, part, 3e-2)


def check_autocast(name, found):
    whole = tensors_of("causal")
    right = exact(causal, whole, cotangent(whole["q"]))
    for mine, part in zip(found(name, 2), contiguous(2), strict=True):
        assert mine["result"].dtype == torch.bfloat16 and mine["plain"].dtype == torch.float32
        assert_part(mine, right, part, 5e-2)
        assert_part({"result": mine["plain"]}, {"result": right["result"]}, part, 1e-5)


def check_module(found):
    whole, module, each = tensors_of("full"), Scaled().double(), found("module", 2)
    grad = cotangent(whole["q"])
    right = exact(module, whole, grad)
    result = module(*(whole[n].double() for n in "qkv"))
    for mine, part in zip(each, contiguous(2), strict=True):
        assert_part(mine, right, part, 1e-5)
    for n, expected in enumerate(torch.autograd.grad(result, [*module.parameters()], grad.double())):
        torch.testing.assert_close(sum(mine[n] for mine in each), expected.float(), rtol=1e-4, atol=1e-4)


def check_changes(found):
    whole, parts = tensors_of("causal"), contiguous(2)
    given = {n: x.double() if x.is_floating_point() else x for n, x in whole.items()}
    behind = given | {"j": given["j"].index_add(0, parts[0], torch.full_like(parts[0], LENGTH))}
    for mine, part in zip(found("changes", 2), parts, strict=True):
        for result, now in zip(mine["found"], (given, behind, given), strict=True):
            right = causal(**now).nan_to_num().index_select(-2, part)
            torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-5)


def check_kinds(found):
    whole, parts = tensors_of("full"), contiguous(2)
    right = {"result": full(*(whole[n].double() for n in "qkv"))}
    for mine, part in zip(found("kinds", 2), parts, strict=True):
        assert mine["said"].keys() == {"dtype", "heads", "gradients"}
        assert all(said.startswith("ranks call full with other kinds") for said in mine["said"].values())
        assert_part(mine, right, part, 1e-5)


def check_branches(found):
    whole, parts = tensors_of("full"), contiguous(2)
    right = {"result": full(*(whole[n].double() for n in "qkv"))}
    first, second = found("branches", 2)
    # A rank has its own queries, and sees the keys of all.
    assert (first["said"], second["said"]) == ({"q": "InputError", "k": "Refusal"}, {"q": "Refusal", "k": "Refusal"})
    for mine, part in zip((first, second), parts, strict=True):
        assert_part(mine, right, part, 1e-5)


def check_dtensors(found):
    whole = tensors_of("full")
    right = exact(full, whole, cotangent(whole["q"]))
    for mine in found("dtensors", 4):
        assert mine["placed"]
        assert_part(mine, right, torch.arange(LENGTH), 1e-5)


def assert_part(mine, right, part, tolerance):
    for n, expected in right.items():
        own = expected.index_select(-2, part)
        torch.testing.assert_close(mine[n].double(), own, rtol=tolerance, atol=tolerance, msg=f"{n} {{}}".format)


@pytest.mark.slow
def test_ranks_find_what_one_finds(tmp_path, monkeypatch):
    """One test, as its processes are started once for all cases."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    together(work, folder=tmp_path, ranks=RANKS)
    found = lambda name, ranks: [torch.load(tmp_path / f"{name} {rank}") for rank in range(ranks)]
    checks = {name: functools.partial(check_case, name) for name in CASES}
    checks |= {name: functools.partial(check_half, name) for name in HALVES}
    checks |= {name: functools.partial(check_autocast, name) for name in AUTOCAST}
    checks |= {"module": check_module, "dtensors": check_dtensors, "changes": check_changes, "kinds": check_kinds}
    checks |= {"branches": check_branches}
    wrong = {}
    for name, check in checks.items():
        try:
            check(found)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong


# One rank, in this process --------------------------------------------------------------------------------------------


def test_one_rank_is_the_function(mesh):
    whole = tensors_of("everything")
    grad = cotangent(whole["q"])
    call = onepass.context_parallel(
        everything, mesh, "cp", queries={"q": 2, "i": 0, "a": 0}, keys={"k": 2, "v": 2, "j": 0, "b": 0}
    )
    found = stepped(call, whole, grad)
    for n, expected in exact(everything, whole, grad).items():
        torch.testing.assert_close(found[n], expected.float(), rtol=1e-5, atol=1e-5)
    assert call.reports and all(region.ran for report in call.reports for region in report.regions)


WRONG = {
    "the mesh is a DeviceMesh, such as init_device_mesh makes": lambda mesh: onepass.context_parallel(full, None, "cp"),
    "takes a function or a module": lambda mesh: onepass.context_parallel(3, mesh, "cp"),
    "schedule is one of ring, all-gather": lambda mesh: onepass.context_parallel(full, mesh, "cp", schedule="tree"),
    "two-level takes two dims": lambda mesh: onepass.context_parallel(full, mesh, "cp", schedule="two-level"),
    "ring takes one dim of the mesh; .* goes with two-level": lambda mesh: onepass.context_parallel(
        full, mesh, ("dp", "cp"), schedule="ring"
    ),
    "has no argument 'key'": lambda mesh: onepass.context_parallel(full, mesh, "cp", keys={"key": 0}),
    "missing a required argument": lambda mesh: onepass.context_parallel(full, mesh, "cp")(torch.ones(1, 2)),
    "v of full is shared out": lambda mesh: onepass.context_parallel(full, mesh, "cp")(*tensors("qk"), 1.0),
    "so none is -2": lambda mesh: onepass.context_parallel(full, mesh, "cp")(*tensors("qk"), torch.ones(3)),
    "parts of one sequence": lambda mesh: onepass.context_parallel(full, mesh, "cp")(
        *tensors("qk"), tensors("v")[0][:, :, 1:]
    ),
}


def tensors(names):
    return [tensors_of("full")[n] for n in names]


@pytest.mark.parametrize("said", WRONG)
def test_wrong_arguments_are_refused(said, mesh):
    with pytest.raises(InputError, match=said):
        WRONG[said](mesh)


def test_a_function_whose_states_do_not_merge_is_refused_at_its_call(mesh):
    by_place = functools.partial(causal, i=torch.arange(LENGTH), j=torch.arange(LENGTH))
    with pytest.raises(Refusal, match="it reads a tensor from outside"):
        onepass.context_parallel(lambda q, k, v: by_place(q, k, v), mesh, "cp")(*tensors("qkv"))


@pytest.mark.parametrize("forgotten, told", [("ij", "i, j have an axis"), ("j", "; j has an axis")])
def test_an_argument_that_is_not_named_is_told(forgotten, told, mesh):
    given = tensors_of("causal")
    queries, keys = {"q": -2, "i": 0}, {"k": -2, "v": -2, "j": 0}
    sides = [{n: axis for n, axis in side.items() if n not in forgotten} for side in (queries, keys)]
    with pytest.raises(Refusal, match=told):
        onepass.context_parallel(causal, mesh, "cp", queries=sides[0], keys=sides[1])(**given)


def mixed(q, k, v):
    scores = q @ k.mT / 3
    return torch.softmax(scores - scores.mean((0, 1), keepdim=True), -1) @ v


def test_what_mixes_heads_is_refused_where_heads_are_cut_alone(mesh):
    given = tensors("qkv")
    for how in ({"schedule": "ulysses"}, {"pieces": 2}):
        with pytest.raises(Refusal, match="OP807"):
            onepass.context_parallel(mixed, mesh, "cp", **how)(*given)
    for schedule, dim in ((None, "cp"), ("two-level", ("dp", "cp"))):
        call = onepass.context_parallel(mixed, mesh, dim, schedule=schedule)
        torch.testing.assert_close(call(*given), mixed(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pieces", [0, "many"])
def test_a_number_of_pieces_is_one_or_more(pieces, mesh):
    with pytest.raises(InputError, match="pieces is a number from 1 on"):
        onepass.context_parallel(full, mesh, "cp", pieces=pieces)


def gated(q, k, v, i, j, a, b, slopes, gate):
    """What follows the attention reads all heads."""
    result = everything(q, k, v, i, j, a, b, slopes)
    return (result - result.mean(1, keepdim=True)) * gate


@pytest.mark.parametrize("schedule", ["ring", "ulysses"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_pieces_are_joined(schedule, pieces, mesh):
    """Forward, and gradients of what has heads and of what has none."""
    whole = tensors_of("everything") | {"gate": torch.rand(1)}
    sides = {"queries": {"q": 2, "i": 0, "a": 0}, "keys": {"k": 2, "v": 2, "j": 0, "b": 0}}
    call = onepass.context_parallel(gated, mesh, "cp", schedule=schedule, pieces=pieces, strict=True, **sides)
    grad = cotangent(whole["q"])
    found, right = stepped(call, whole, grad), exact(gated, whole, grad)
    assert right.keys() == {"result", *(n for n, x in whole.items() if x.is_floating_point())}
    for name, expected in right.items():
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-5, msg=f"{name} {{}}".format)
    assert len({id(x) for known in call._known.values() for x in known.parts.values()}) == 1, "one part serves all"


def test_few_graphs_are_kept(mesh, monkeypatch):
    """Of parts whose lengths change in each call; the oldest is derived again where it is asked for."""
    monkeypatch.setattr(context_parallel, "MOST_GRAPHS", 2)
    call = onepass.context_parallel(full, mesh, "cp")
    for length in (5, 6, 7, 5):
        given = [x[:, :, :length] for x in tensors("qkv")]
        torch.testing.assert_close(call(*given), full(*given), rtol=1e-5, atol=1e-5)
        assert len(call._known) <= 2


def test_heads_are_exchanged_only_if_they_divide_into_the_pieces_too(mesh, monkeypatch):
    """Two heads and a batch of two: each of two ranks has one of them, and no two pieces of it."""
    asked = []
    monkeypatch.setattr(context_parallel, "chosen", lambda work, *_: asked.append(work.cut) or "ring")
    sides = Sides({0: 2}, {1: 2, 2: 2})
    for pieces in (1, 2):
        call = onepass.context_parallel(full, mesh, "cp", pieces=pieces)
        call._dims = SimpleNamespace(size=2, ranks=[SimpleNamespace(size=2)])
        call._chosen(SharedCall({}, dict(zip("qkv", tensors("qkv"), strict=True)), sides), [[[12, 12], [11, 11]]])
    assert asked[0] is not None and asked[1] is None
