"""States of attention as values: attention to some of the keys, from which attention to all of them follows.

The law is that of a merged softmax: for disjoint sets of keys, the weighted mean and the logarithm of the sum of
exponentials determine those of their union, in any order and any tree (`Softmax.merge_any_tree` in
proofs/theory/Softmax.v). These functions are plain PyTorch, so any backend runs them, and onepass fuses them.
Example: `merge(state(q, k1, v1), state(q, k2, v2))` is `state(q, cat([k1, k2], -2), cat([v1, v2], -2))`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor


class State(NamedTuple):
    """Attention to a set of keys.

    output: [..., queries, width], the mean of the values by softmax weights, in the dtype of the values. logsumexp:
    [..., queries, 1], the natural logarithm of the sum of exponentials of the scores, in float32 or float64. Without
    any key the output is 0 and the logarithm is -inf.

    >>> import onepass, torch
    >>> q, k, v = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 4)
    >>> output, logsumexp = onepass.state(q, k, v)
    >>> output.shape, logsumexp.shape
    (torch.Size([3, 4]), torch.Size([3, 1]))
    """

    output: Tensor
    logsumexp: Tensor


def state(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, mask: Tensor | None = None) -> State:
    """The state of attention from queries [..., queries, d] to keys [..., keys, d] with values [..., keys, width].

    scale: a factor of the scores; without it, one over the square root of d. mask: true where a key counts, or a
    number that is added to its score; of a shape that broadcasts to [..., queries, keys]. Other scores: `state_of`.

    >>> import onepass, torch
    >>> q, k, v = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 4)
    >>> causal = torch.arange(5) <= torch.arange(3)[:, None]
    >>> attend = torch.nn.functional.scaled_dot_product_attention
    >>> torch.allclose(onepass.state(q, k, v, mask=causal).output, attend(q, k, v, causal), atol=1e-6)
    True
    """
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None and mask.dtype != torch.bool:
        scores, mask = scores + mask, mask != -inf  # a choice ends the gradient of a row without keys, which is NaN
    return state_of(scores if mask is None else scores.masked_fill(~mask, -inf), v)


def state_of(scores: Tensor, v: Tensor) -> State:
    """The state of scores [..., queries, keys], whatever they are made of, with values [..., keys, width].

    Gradients need scores that are hidden by a choice, `masked_fill` or `where`: where -inf is added to all scores of a
    row, that row's gradient is NaN.

    >>> import onepass, torch
    >>> onepass.state_of(torch.zeros(1, 2), torch.tensor([[1.0], [3.0]])).output
    tensor([[2.]])
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    total = wide.logsumexp(-1, keepdim=True)
    absent = total == -inf
    weights = wide.softmax(-1)
    if v.requires_grad:
        weights = torch.where(absent, 0.0, weights)  # so the gradient of the values is 0 as well, not NaN
    return State(torch.where(absent, 0.0, weights.to(v.dtype) @ v).to(v.dtype), total)


def merge(*states: State) -> State:
    """The state of the union of disjoint sets of keys. One state is itself. Raises ValueError without any.

    >>> import onepass, torch
    >>> q, k, v = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6, 4)
    >>> merged = onepass.merge(onepass.state(q, k[:2], v[:2]), onepass.state(q, k[2:], v[2:]))
    >>> torch.allclose(merged.output, onepass.state(q, k, v).output, atol=1e-6)
    True
    """
    if not states:
        raise ValueError("merge needs at least one state: there is no shape to make an empty one of")
    top = states[0].logsumexp
    for other in states[1:]:
        top = torch.maximum(top, other.logsumexp)
    weights = [_weight(one.logsumexp, top) for one in states]
    return _merged(top, sum(weights), sum(one.output * w for one, w in zip(states, weights, strict=True)), states[0])


def merge_over(states: State, dim: int) -> State:
    """The state of the union along a dim of stacked states, as they are for parts of a split sequence.

    dim: an axis of both tensors, none of their last two. Raises ValueError for one of these, and for no axis.

    >>> import onepass, torch
    >>> q, k, v = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6, 4)
    >>> parts = onepass.state(q, k.view(2, 3, 8), v.view(2, 3, 4))  # two parts of three keys
    >>> torch.allclose(onepass.merge_over(parts, 0).output, onepass.state(q, k, v).output, atol=1e-6)
    True
    """
    axes = states.output.ndim
    if not -axes <= dim < axes:
        raise ValueError(f"dim {dim} is no axis: the states have {axes}")
    if dim % axes >= axes - 2:
        raise ValueError(f"dim {dim} is one of the last two axes, which are the queries and their values")
    dim %= axes
    top = states.logsumexp.amax(dim, keepdim=True)
    weights = _weight(states.logsumexp, top)
    return _merged(top.squeeze(dim), weights.sum(dim), (states.output * weights).sum(dim), states)


def _weight(total: Tensor, top: Tensor) -> Tensor:
    """exp(total - top), and 0 where there is no key: there both may be -inf."""
    return torch.where(total == -inf, 0.0, torch.exp(total - top))


def _merged(top: Tensor, weight: Tensor, output: Tensor, like: State) -> State:
    absent = weight == 0
    mean = torch.where(absent, 0.0, output / weight)
    return State(mean.to(like.output.dtype), torch.where(absent, -inf, top + torch.log(weight)))

