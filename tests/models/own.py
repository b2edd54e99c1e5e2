"""Models as people write them by hand, without a library: a vision transformer, an Evoformer block, torch's own layers.

Records like those of records.py, read by test_models.py and by survey.py.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.records import Model


class Attention(nn.Module):
    """Self-attention of image models: one projection for queries, keys and values, unbound after a permutation."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        weights = (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)
        x = F.dropout(weights, 0.1, self.training) @ v
        return self.proj(x.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm attention and a two-layer network, with learned scales of both branches."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.scales = nn.Parameter(torch.full((2, width), 0.1))

    def forward(self, x):
        x = x + self.scales[0] * self.attn(self.norm1(x))
        return x + self.scales[1] * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, blocks; the logits come from the class token."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        return (self.head(self.norm(self.blocks(x))[:, 0]),)


class GatedAttention(nn.Module):
    """Attention of the Evoformer over the last but one axis, with a gate, a mask and, where asked, a bias of pairs."""

    def __init__(self, width: int, heads: int, pairs: int = 0):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Linear(pairs, heads, bias=False) if pairs else None

    def forward(self, x, mask, pair=None):
        x = self.norm(x)
        split = lambda y: y.view(*y.shape[:-1], self.heads, -1).transpose(-2, -3)
        q, k, v = split(self.q(x)) / math.sqrt(x.shape[-1] // self.heads), split(self.k(x)), split(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) + (1e9 * (mask - 1))[..., :, None, None, :]
        if self.bias is not None:
            scores = scores + self.bias(pair).permute(0, 3, 1, 2)[:, None]
        o = torch.matmul(torch.softmax(scores, -1), v).transpose(-2, -3)
        o = o * torch.sigmoid(self.gate(x)).view(o.shape)
        return self.out(o.flatten(-2))


class EvoformerBlock(nn.Module):
    """Attention along rows with pairs, along columns, around triangles from both ends; two transitions."""

    def __init__(self, width: int = 32, pairs: int = 16, heads: int = 2):
        super().__init__()
        self.row, self.column = GatedAttention(width, heads, pairs), GatedAttention(width, heads)
        self.start, self.end = GatedAttention(pairs, heads, pairs), GatedAttention(pairs, heads, pairs)
        transition = lambda w: nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.ReLU(), nn.Linear(2 * w, w))
        self.first, self.second = transition(width), transition(pairs)

    def forward(self, sequences, pair, mask):
        sequences = sequences + self.row(sequences, mask, pair)
        turned = sequences.transpose(1, 2)
        sequences = sequences + self.column(turned, mask.transpose(1, 2)).transpose(1, 2)
        sequences = sequences + self.first(sequences)
        edges = mask[:, 0, :, None] * mask[:, 0, None, :]
        pair = pair + self.start(pair, edges, pair)
        turned = pair.transpose(1, 2)
        pair = pair + self.end(turned, edges.transpose(1, 2), turned).transpose(1, 2)
        return torch.cat([sequences.flatten(), (pair + self.second(pair)).flatten()]), pair


class Layers(nn.Module):
    """torch's own encoder and decoder layers. Without gradients torch runs the encoder layer as one operation."""

    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(width, heads, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(width, heads, 128, dropout=0.0, batch_first=True)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
        return (self.decoder(target, self.encoder(source), tgt_mask=causal, tgt_is_causal=True),)


def _evoformer():
    mask = torch.ones(2, 5, 11)
    mask[1, :, 8:] = 0
    return {"sequences": torch.randn(2, 5, 11, 32), "pair": torch.randn(2, 11, 11, 16), "mask": mask}


OWN = (
    Model("ViT by hand", lambda: VisionTransformer().eval(), lambda: {"images": torch.randn(2, 3, 32, 32)}),
    Model("Evoformer block", lambda: EvoformerBlock().eval(), _evoformer, 4),
)
# Its attention modules are opened, so that what stands in the graph changes: for the survey.
LAYERS = Model(
    "torch's layers",
    lambda: Layers().eval(),
    lambda: {"source": torch.randn(2, 9, 64), "target": torch.randn(2, 7, 64)},
)
