"""Capture: what a function of tensors means as a term, held to eager in float64; equal spellings give equal terms.

Also what a Program is (data that runs and survives JSON), and what is refused, with its reason.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass import rules
from onepass.egraph.derivation.normalize import canonical_names, normalise
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_simplify import simplify_index
from onepass.egraph.terms.ops import const, iota, le, load, make, max_over, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import rebuild, subterms
from onepass.errors import ProgramError, Refusal
from onepass.graph.program import Program, operation
from onepass.graph.trace import program_of
from onepass.translate.translate import HANDLERS, translate
from tests.support import spellings


def tensors(batch=2, heads=4, rows=6, columns=8, width=16, kv_heads=None, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, rows, width)] + [(batch, kv_heads or heads, columns, width)] * 2
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def widened(x):
    return x.double() if x.is_floating_point() else x


def check(function, *inputs, tolerance=1e-12):
    """The captured term means what eager computes in float64."""
    captured = translate(program_of(function, *inputs))
    values = {t.name: widened(x).numpy() for t, x in zip(captured.inputs, inputs, strict=True)}
    found = evaluate(captured.term, values, captured.order)
    wanted = function(*map(widened, inputs)).numpy()
    assert captured.output.shape == tuple(found.shape)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    return captured


def normal(function, *inputs):
    """The normalised term with dims named by position."""
    return canonical_names(normalise(translate(program_of(function, *inputs)).term, rules.NORMAL))


@pytest.mark.slow
@given(
    st.sampled_from(spellings.PLAIN),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 8]),
)
@settings(max_examples=40)
def test_plain_spellings_mean_what_eager_computes(function, batch, heads, rows, columns, width):
    inputs = [x.double() for x in tensors(batch, heads, rows, columns, width)]
    check(function, *inputs, tolerance=1e-6 if function is spellings.softmax_in_float32 else 1e-12)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("function", spellings.CAUSAL)
@pytest.mark.parametrize("rows, columns", [(6, 6), (4, 7), (7, 4), (1, 5)])
def test_causal_spellings_mean_what_eager_computes(function, rows, columns):
    check(function, *tensors(rows=rows, columns=columns), tolerance=1e-6)


@pytest.mark.parametrize("function", spellings.GROUPED)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_spellings_mean_what_eager_computes(function, kv_heads):
    check(function, *tensors(kv_heads=kv_heads))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", ["PLAIN", "CAUSAL", "GROUPED"])
@pytest.mark.parametrize("width", [16, 80])
def test_spellings_of_one_attention_are_one_term(group, width):
    inputs = tensors(rows=8, width=width, kv_heads=2 if group == "GROUPED" else None)
    terms = {f.__name__: normal(f, *inputs) for f in getattr(spellings, group)}
    first, *others = terms
    assert [name for name in others if terms[name] is not terms[first]] == []


@pytest.mark.sampled(7)
@pytest.mark.parametrize("function", spellings.PLAIN)
def test_in_bfloat16_spellings_differ_by_casts_only(function):
    def without_casts(root):
        bare = rebuild(root, lambda n, args: args[0] if n.op == "cast" else make(n.op, args, n.attrs))
        return canonical_names(normalise(bare, rules.NORMAL))

    inputs = tensors(dtype=torch.bfloat16)
    plain, this = (translate(program_of(f, *inputs)).term for f in (spellings.attend, function))
    assert this.dtype == "bfloat16"
    assert without_casts(this) is without_casts(plain)


def alibi(q, k, v):
    position, slopes = torch.arange(q.shape[-2]), 2.0 ** -torch.arange(1, 5).to(q.dtype)
    bias = (position[None] - position[:, None]).to(q.dtype) * slopes.view(-1, 1, 1)
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


def differential(q, k, v):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.split(8, dim=-1)
    return (torch.softmax(q1 @ k1.mT / 3, -1) - 0.3 * torch.softmax(q2 @ k2.mT / 3, -1)) @ v


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def normalised_scores(q, k, v):
    scores = q @ k.mT
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)) @ v


def twisted(q, k, v):
    q = q.permute(2, 0, 1, 3).transpose(0, 1).reshape(2, -1, 64).view(2, -1, 4, 16).transpose(1, 2)
    return (q @ k.flip(-2).movedim(-1, -2)).relu().square() @ v.flip(-2)


ZOO = {
    "alibi": alibi,
    "differential": differential,
    "linear_attention": linear_attention,
    "normalised_scores": normalised_scores,
    "twisted": twisted,
    "linear_chain": lambda q, k, v: (q @ k.mT) @ v,
    "other_order": lambda q, k, v: q @ (k.mT @ v),
    "log_softmax": lambda q, k, v: torch.log_softmax(q @ k.mT, -1).exp() @ v,
    "softcap": lambda q, k, v: torch.softmax(20 * torch.tanh(q @ k.mT / 20), -1) @ v,
    "sigmoid": lambda q, k, v: torch.sigmoid(q @ k.mT - 2.0) @ F.silu(v),
    "window": lambda q, k, v: spellings.masked_attend(q, k, v, (torch.arange(8)[:, None] - torch.arange(8)).abs() > 2),
    "mean": lambda q, k, v: (q @ k.mT - (q @ k.mT).mean(-1, keepdim=True)).pow(2).mean((-1,), keepdim=True) * q,
    "repeat": lambda q, k, v: spellings.attend(q, k[:, :2].repeat(1, 2, 1, 1), v[:, ::2].tile(1, 2, 1, 1)),
    "select": lambda q, k, v: spellings.attend(q[:, -1], k.select(1, 0), v.unbind(1)[1]),
    "last_rows": lambda q, k, v: spellings.attend(q[..., -3:, :], k, v),
    "gelu": lambda q, k, v: F.gelu(q @ k.mT, approximate="tanh") @ F.gelu(v),
    "constants": lambda q, k, v: torch.where(torch.eye(8) == 1, torch.tensor(0.5), q @ k.mT).clamp(-1, 2) @ v,
    "dropout": lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.5, training=False) @ v,
    "baddbmm": lambda q, k, v: torch.baddbmm(q[0, 0], q[0], k[0].mT[..., :16], beta=0.5, alpha=2.0) @ v[0, :, :1].mT,
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", ZOO)
def test_zoo_means_what_eager_computes(name):
    inputs = [x.double() for x in tensors(rows=16 if name == "baddbmm" else 8, columns=16 if name == "baddbmm" else 8)]
    check(ZOO[name], *inputs, tolerance=1e-7)


def test_biases_documents_and_gathers_are_loads():
    q, k, v = tensors(rows=8)
    document = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]] * 2, dtype=torch.int32)
    positions, bias = torch.tensor([1, -3, 5]), torch.randn(2, 1, 1, 8)
    keep = lambda q, k, v, d: spellings.masked_attend(q, k, v, d[:, None, :, None] != d[:, None, None])
    check(keep, q, k, v, document)
    check(lambda q, k, v, p: spellings.attend(q, k[:, :, p], v[:, :, p]), q, k, v, positions)
    check(lambda q, k, v, b: torch.softmax(q @ k.mT + b, -1) @ v, q, k, v, bias)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_row_that_the_mask_empties_is_zero_in_sdpa(dtype):
    q, k, v = tensors(rows=8)
    mask = torch.arange(8)[:, None] > torch.arange(8)  # the first row keeps nothing
    if dtype != torch.bool:
        mask = torch.zeros(8, 8).masked_fill(~mask, -math.inf)
    masked = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)
    captured = check(masked, q, k, v, mask, tolerance=1e-6)
    assert captured.term.op == "where"


def test_an_emptied_row_of_softmax_is_nan():
    check(lambda q, k, v: spellings.masked_attend(q, k, v, torch.ones(8, 8).triu() > 0), *tensors(rows=8))


def test_equal_reductions_share_one_dim():
    captured = translate(program_of(spellings.attend, *tensors()))
    assert [d.name for d in captured.order] == ["b", "h", "i", "e"]
    bound = {t.attrs[1].name for t in subterms(captured.term) if t.op == "reduce"}
    assert bound == {"j", "d"}
    assert len([t for t in subterms(captured.term) if t.op == "load"]) == 3


def test_a_tensor_passed_twice_is_two_inputs():
    x = torch.randn(1, 2, 4, 8)
    program = program_of(spellings.attend, x, x, x)
    assert [i.name for i in program.inputs] == ["q", "k", "v"]
    other = torch.randn_like(x)
    torch.testing.assert_close(program.run(x, other, x), spellings.attend(x, other, x))


# Programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(16)
@pytest.mark.parametrize("function", spellings.ALL, ids=lambda f: f.__name__)
def test_a_program_survives_json_and_runs(function):
    inputs = tensors(rows=8, kv_heads=2 if function in spellings.GROUPED else None)
    program = program_of(function, *inputs)
    stored = Program.from_json(program.to_json())
    assert stored == program and stored.digest() == program.digest()
    torch.testing.assert_close(stored.run(*inputs), function(*inputs), rtol=0, atol=0)


def test_the_digest_is_of_the_content_only():
    inputs = tensors()
    same = program_of(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1) @ v, *inputs)
    other = program_of(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 5.0, dim=-1) @ v, *inputs)
    plain = program_of(spellings.attend, *inputs)
    assert plain.digest() == same.digest() != other.digest()
    assert plain.nodes[0].where != same.nodes[0].where


def test_a_program_says_where_the_user_wrote_it():
    program = program_of(spellings.attend, *tensors())
    assert all(n.where.partition(":")[0].endswith("spellings.py") for n in program.nodes)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 0}', '{"version": 1, "inputs": [[1]]}'])
def test_what_is_no_program_is_refused(text):
    with pytest.raises(ProgramError):
        Program.from_json(text)


@pytest.mark.parametrize("target", ["os.system.default", "aten.softmax", "aten.no_such_thing.int", "aten.a.b.c"])
def test_a_program_calls_nothing_but_aten(target):
    with pytest.raises(ProgramError):
        operation(target)


# Refusals -------------------------------------------------------------------------------------------------------------

REFUSED = {
    "operation": lambda q, k, v: torch.cumsum(q @ k.mT, -1) @ v,
    "random": lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v,
    "in-place": lambda q, k, v: (q @ k.mT).mul_(2.0).softmax(-1) @ v,
    "outputs": lambda q, k, v: (q @ k.mT, 3),
    "dtype": lambda q, k, v: (q @ k.mT) > 0,
    "complex": lambda q, k, v: torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2)).real,
    "empty": lambda q, k, v: q @ k[:, :, :0].mT @ v[:, :, :0],
    "constant": lambda q, k, v: q * torch.tensor([0.5, 0.25] * 8) @ k.mT,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_says_why_and_where(kind):
    with pytest.raises(Refusal) as raised:
        translate(program_of(REFUSED[kind], *tensors()))
    assert raised.value.kind == kind
    if kind != "outputs":
        assert "test_trace.py:" in raised.value.where


def test_autocast_is_refused():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refusal, match="autocast"):
        program_of(spellings.attend, *tensors())


def test_a_handler_is_registered_once():
    with pytest.raises(AssertionError, match="registered twice"):
        HANDLERS(next(iter(HANDLERS)))(lambda call: None)


@pytest.mark.sampled(165)
@pytest.mark.parametrize("target", sorted(HANDLERS))
def test_every_handler_is_of_an_operation_that_exists(target):
    if target != "getitem":
        assert operation(target)._schema is not None


# Index terms ----------------------------------------------------------------------------------------------------------

B, H, I = Dim("b", 3), Dim("h", 8), Dim("i", 40)
b, h, i = map(iota, (B, H, I))
FLAT = b * const(8) + h


@pytest.mark.parametrize(
    "term, simple",
    [
        (FLAT // const(8), b),
        (FLAT % const(8), h),
        ((FLAT // const(4)) * const(4) + FLAT % const(4), FLAT),
        ((h // const(2)) * const(2) + h % const(2), h),
        (((FLAT * const(40) + i) // const(40)) // const(8), b),
        ((FLAT // const(2)) // const(4), b),
        ((FLAT % const(8)) % const(2), h % const(2)),
        (h // const(9), const(0)),
        (le(h, const(7)), const(True)),
    ],
)
def test_index_terms_become_simple(term, simple):
    assert simplify_index(term) is simple


def test_symbolic_sizes_divide_out():
    size, t = make("size", (), ("s0",)), iota(Dim("t", "s0"))
    flat = b * size + t
    assert simplify_index(flat // size) is b
    assert simplify_index(flat % size) is t


@pytest.mark.slow
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_reshapes_move_no_element(shape, random):
    count = math.prod(shape)
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    first = random.choice(divisors)
    second = count // first
    target = random.choice([[count], [first, second], [1, first, second], [first, 1, second, 1]])
    check(lambda x: (x * 2.0).reshape(target) + 0.0, torch.arange(count, dtype=torch.float64).reshape(shape))


def test_simplifying_changes_whole_terms():
    x = Tensor("x", "float32", (3, 8))
    j = Dim("j", 8)
    body = load(x, FLAT // const(8), iota(j))
    term = sum_over(j, body - max_over(j, body))
    simple = load(x, b, iota(j))
    assert simplify_index(term) is sum_over(j, simple - max_over(j, simple))
