"""What no template says: other normalisations, sinks, several softmaxes, gates, reassociated and structured forms."""

import math

import torch
import torch.nn.functional as F

from tests.support.spellings import attend
from tests.variants import Variant, heads
from tests.variants.masks import masked, positions, scores_of


def softmax_plus_one(q, k, v):
    scores = scores_of(q, k)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    weights = torch.exp(scores - top)
    return weights / (torch.exp(-top) + weights.sum(-1, keepdim=True)) @ v


def softmax_plus_one_by_padding(q, k, v):
    scores = F.pad(scores_of(q, k), (1, 0))
    return scores.softmax(-1)[..., 1:] @ v


def sink_column(q, k, v, sinks):
    """The sink's logit as one more column, dropped after the softmax."""
    scores = scores_of(q, k)
    column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
    weights = torch.softmax(torch.cat([scores, column], -1), -1)
    return weights[..., :-1] @ v


def sink_column_shifted(q, k, v, sinks):
    """The same with the maximum taken off before."""
    scores = scores_of(q, k)
    column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
    combined = torch.cat([scores, column], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    return F.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1] @ v


def sink_in_denominator(q, k, v, sinks):
    scores, sink = scores_of(q, k), sinks[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - top)) @ v


def sink_by_logsumexp(q, k, v, sinks):
    scores = scores_of(q, k)
    share = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])
    return (scores.softmax(-1) @ v) * share


def two_key_sets(q, k1, v1, k2, v2):
    return attend(q, torch.cat([k1, k2], -2), torch.cat([v1, v2], -2))


def two_key_sets_by_scores(q, k1, v1, k2, v2):
    scores = torch.cat([scores_of(q, k1), scores_of(q, k2)], -1)
    weights = scores.softmax(-1)
    return weights[..., : k1.shape[-2]] @ v1 + weights[..., k1.shape[-2] :] @ v2


def two_key_sets_merged(q, k1, v1, k2, v2):
    s1, s2 = scores_of(q, k1), scores_of(q, k2)
    o1, o2 = s1.softmax(-1) @ v1, s2.softmax(-1) @ v2
    l1, l2 = s1.logsumexp(-1, keepdim=True), s2.logsumexp(-1, keepdim=True)
    top = torch.maximum(l1, l2)
    w1, w2 = torch.exp(l1 - top), torch.exp(l2 - top)
    return (o1 * w1 + o2 * w2) / (w1 + w2)


def two_key_sets_and_log_of_both_sums(q, k1, v1, k2, v2):
    """The merged state itself: what a next set would be merged into."""
    s1, s2 = scores_of(q, k1), scores_of(q, k2)
    o1, o2 = s1.softmax(-1) @ v1, s2.softmax(-1) @ v2
    l1, l2 = s1.logsumexp(-1, keepdim=True), s2.logsumexp(-1, keepdim=True)
    both = torch.logaddexp(l1, l2)
    return o1 * torch.exp(l1 - both) + o2 * torch.exp(l2 - both), both.squeeze(-1)


def sigmoid_attention(q, k, v):
    return torch.sigmoid(scores_of(q, k) - math.log(k.shape[-2])) @ v


def relu_squared(q, k, v):
    return F.relu(scores_of(q, k)).square() / k.shape[-2] @ v


def relu_squared_by_power(q, k, v):
    return torch.relu(scores_of(q, k)).pow(2) / k.shape[-2] @ v


def relu_normalised(q, k, v):
    weights = F.relu(scores_of(q, k))
    return (weights @ v) / (weights.sum(-1, keepdim=True) + 1e-6)


def retention(q, k, v):
    i, j = positions(q, k)
    decay = 1.0 - 2.0 ** (-5.0 - torch.arange(q.shape[1]))
    rate = torch.where(i >= j, decay[:, None, None] ** (i - j).clamp(min=0), 0.0)
    return (q @ k.mT * rate) @ v


def retention_given_decay(q, k, v, decay):
    return (q @ k.mT * decay) @ v


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ k.mT) @ v


def linear_attention_causal(q, k, v):
    return (q @ k.mT).tril() @ v


def linear_attention_normalised(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weights = q @ k.mT
    return (weights @ v) / weights.sum(-1, keepdim=True)


def cosine(q, k, v, temperature):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return torch.softmax(q @ k.mT * temperature.clamp(max=math.log(100.0)).exp(), -1) @ v


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def qk_norm(q, k, v, a, b):
    return attend(rms_norm(q, a), rms_norm(k, b), v)


def rotate_half(x):
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


def rope(q, k, v, cos, sin):
    q, k = (x * cos + rotate_half(x) * sin for x in (q, k))
    return attend(q, k, v)


def rope_interleaved(q, k, v, cos, sin):
    """Even and odd channels as real and imaginary parts."""

    def rotate(x):
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    return attend(rotate(q), rotate(k), v)


def latent(q, c, up_keys, up_values):
    """MLA: keys and values are one latent row, raised per head."""
    k = torch.einsum("bjc,hcd->bhjd", c, up_keys)
    v = torch.einsum("bjc,hcd->bhjd", c, up_values)
    return attend(q, k, v)


def latent_absorbed(q, c, up_keys, up_values):
    """MLA with the rises moved to the queries and behind the sum: keys and values are the latent row itself."""
    absorbed = torch.einsum("bhid,hcd->bhic", q, up_keys)
    scores = torch.einsum("bhic,bjc->bhij", absorbed, c) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bjc,hcd->bhid", scores.softmax(-1), c, up_values)


def talking_heads(q, k, v, before, after):
    scores = torch.einsum("hg,bgij->bhij", before, scores_of(q, k))
    return torch.einsum("hg,bgij->bhij", after, scores.softmax(-1)) @ v


def talking_heads_by_linear(q, k, v, before, after):
    """As with layers of weights: heads last, as many places as rows times columns."""
    mix = lambda x, weight: F.linear(x.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)
    return mix(mix(scores_of(q, k), before).softmax(-1), after) @ v


def talking_heads_by_convolution(q, k, v, before, after):
    """As a convolution of one place by one, whose channels are the heads."""
    mix = lambda x, weight: F.conv2d(x, weight[:, :, None, None])
    return mix(mix(scores_of(q, k), before).softmax(-1), after) @ v


def differential(q, k, v, weight):
    (q1, q2), (k1, k2) = q.chunk(2, 1), k.chunk(2, 1)
    return (scores_of(q1, k1).softmax(-1) - weight * scores_of(q2, k2).softmax(-1)) @ v


def differential_twice(q, k, v, weight):
    (q1, q2), (k1, k2) = q.chunk(2, 1), k.chunk(2, 1)
    return scores_of(q1, k1).softmax(-1) @ v - weight * (scores_of(q2, k2).softmax(-1) @ v)


def gated(q, k, v, gate):
    return torch.sigmoid(gate) * attend(q, k, v)


def linear_behind(q, k, v, weight):
    """A linear map of every head's values, after the sum."""
    return torch.einsum("bhid,hde->bhie", attend(q, k, v), weight)


def evoformer_row(q, k, v, mask, pair, gate):
    """b n s h d: attention along s, a mask per row, one bias for all rows, gated."""
    q, k, v, gate = (x.transpose(-2, -3) for x in (q, k, v, gate))
    scores = scores_of(q, k) + mask[:, :, None, None, :] + pair[:, None]
    return (torch.sigmoid(gate) * (scores.softmax(-1) @ v)).transpose(-2, -3)


def evoformer_row_by_einsum(q, k, v, mask, pair, gate):
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", q / math.sqrt(q.shape[-1]), k)
    weights = torch.softmax(scores + mask[:, :, None, None, :] + pair[:, None], -1)
    return torch.einsum("bnhqk,bnkhd->bnqhd", weights, v) * gate.sigmoid()


def evoformer_column(q, k, v, mask, gate):
    q, k, v, gate = (x.permute(0, 2, 3, 1, 4) for x in (q, k, v, gate))
    scores = scores_of(q, k) + mask.transpose(1, 2)[:, :, None, None, :]
    return (torch.sigmoid(gate) * (scores.softmax(-1) @ v)).permute(0, 3, 1, 2, 4)


def triangle_start(q, k, v, bias):
    """b i k h d: from every start i, over k; the bias is that of the edge (j, k)."""
    scores = torch.einsum("bijhd,bikhd->bhijk", q, k) / math.sqrt(q.shape[-1]) + bias[:, :, None]
    return torch.einsum("bhijk,bikhd->bijhd", scores.softmax(-1), v)


def triangle_end(q, k, v, bias):
    scores = torch.einsum("bijhd,bkjhd->bhijk", q, k) / math.sqrt(q.shape[-1]) + bias.transpose(-1, -2)[:, :, :, None]
    return torch.einsum("bhijk,bkjhd->bijhd", scores.softmax(-1), v)


def invariant_points(q, k, v, q_points, k_points, v_points, pair_bias, pair, weight):
    """IPA: scalars, points in space and pairs under one softmax, with all three results."""
    scores = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(q.shape[-1]) + pair_bias.permute(0, 3, 1, 2)
    apart = (q_points[:, :, None] - k_points[:, None]).square().sum((-1, -2))
    scores = scores - 0.5 * weight[:, None, None] * apart.permute(0, 3, 1, 2)
    weights = torch.softmax(scores * math.sqrt(1 / 3), -1)
    scalars = torch.einsum("bhij,bjhc->bihc", weights, v)
    points = torch.einsum("bhij,bjhpx->bihpx", weights, v_points)
    pairs = torch.einsum("bhij,bijc->bihc", weights, pair)
    return scalars, points, pairs


def decode_step(q, k, v, length):
    """One query against a cache that is filled up to a length."""
    return masked(q, k, v, torch.arange(k.shape[-2]) < length)


def _with(*shapes, count=2, **sizes):
    return lambda: [*heads(count, **sizes), *(torch.randn(*shape) for shape in shapes)]


_two_sets = lambda: [x for x in (*heads(2, columns=260), *heads(2, columns=300)[1:])]
_five = [(1, 3, 40, 2, 16)] * 3
_many = lambda *shapes: lambda: [torch.randn(*shape) for shape in shapes]
_latent = _many((1, 2, 300, 16), (1, 300, 32), (2, 32, 16), (2, 32, 16))
_latent_step = _many((1, 2, 1, 16), (1, 300, 320), (2, 320, 16), (2, 320, 16))
_points = [(1, 20, 2, 4, 3)] * 3
VARIANTS = [
    Variant("softmax plus one", softmax_plus_one, _with(), spellings=(softmax_plus_one_by_padding,)),
    Variant(
        "attention sink",
        sink_in_denominator,
        _with((2,)),
        spellings=(sink_column, sink_column_shifted, sink_by_logsumexp),
    ),
    Variant("two key sets", two_key_sets, _two_sets, spellings=(two_key_sets_by_scores, two_key_sets_merged)),
    Variant("two key sets, log-sum-exp beside the output", two_key_sets_and_log_of_both_sums, _two_sets),
    Variant("sigmoid", sigmoid_attention, _with()),
    Variant("ReLU squared", relu_squared, _with(), spellings=(relu_squared_by_power,)),
    Variant("ReLU, normalised", relu_normalised, _with()),
    Variant("retention", retention, _with()),
    Variant("retention, decay given", retention_given_decay, _with((2, 300, 300))),
    Variant("linear, reassociated", linear_attention, _with(), kernels=2),
    Variant("linear, causal", linear_attention_causal, _with()),
    Variant("linear, normalised", linear_attention_normalised, _with(), kernels=2),
    Variant("cosine, learned temperature", cosine, _with((2, 1, 1))),
    Variant("QK-norm", qk_norm, _with((16,), (16,)), outside=("mean",)),
    Variant("RoPE, halves", rope, _with((300, 16), (300, 16)), outside=("cat",)),
    Variant("RoPE, interleaved", rope_interleaved, _with((300, 8), (300, 8)), outside=("stack",)),
    Variant("MLA", latent, _latent, outside=("einsum", "einsum")),
    Variant("MLA, absorbed", latent_absorbed, _latent, outside=("einsum",)),
    Variant("MLA, one query", latent, _latent_step, kernels=3),
    Variant(
        "talking heads",
        talking_heads,
        _with((8, 8), (8, 8), count=8),
        kernels=5,
        passes=2,
        spellings=(talking_heads_by_linear, talking_heads_by_convolution),
    ),
    Variant("talking heads, two", talking_heads, _with((2, 2), (2, 2)), kernels=3),
    Variant(
        "differential",
        differential,
        lambda: [torch.randn(1, 4, 300, 16), torch.randn(1, 4, 300, 16), torch.randn(1, 2, 300, 32), torch.rand(1)],
        spellings=(differential_twice,),
    ),
    Variant("gate after the sum", gated, _with((1, 2, 300, 16))),
    Variant("linear map after the sum", linear_behind, _with((2, 16, 16))),
    Variant(
        "Evoformer, rows",
        evoformer_row,
        _many(*_five, (1, 3, 40), (1, 2, 40, 40), _five[0]),
        spellings=(evoformer_row_by_einsum,),
    ),
    Variant("Evoformer, columns", evoformer_column, _many(*_five, (1, 3, 40), _five[0])),
    Variant("triangle, starting", triangle_start, _many(*[(1, 20, 20, 2, 16)] * 3, (1, 2, 20, 20))),
    Variant("triangle, ending", triangle_end, _many(*[(1, 20, 20, 2, 16)] * 3, (1, 2, 20, 20))),
    Variant(
        "invariant points",
        invariant_points,
        _many(*[(1, 20, 2, 16)] * 3, *_points, (1, 20, 20, 2), (1, 20, 20, 8), (2,)),
        kernels=2,  # scores and what they weight of each head, what they weight of each pair
    ),
    Variant("one query, filled cache", decode_step, lambda: [*heads(2, rows=1), torch.tensor(123)]),
]
