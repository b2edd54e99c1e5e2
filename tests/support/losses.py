"""Losses over one product as people write them, each with its inputs, of which the first two need gradients.

Example: LOSSES["next word"].run(*LOSSES["next word"].given()).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, TIME, WIDTH, WORDS = 4, 12, 16, 150
ROWS = BATCH * TIME
IGNORED = -100


@dataclass(frozen=True)
class Loss:
    """derived: whether its gradients are. left: the code of the refusal of one that is left as written."""

    run: Callable[..., Tensor | tuple[Tensor, ...]]
    given: Callable[[], tuple[Tensor, ...]]
    derived: bool = True


def drawn(*sizes: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)) * scale


def labels(*sizes: int, count: int = WORDS, ignored: int = 0) -> Tensor:
    found = torch.randint(count, sizes, generator=torch.Generator().manual_seed(5))
    found.view(-1)[:ignored] = IGNORED
    return found


def states(*more: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Hidden states of a batch, the words' weights, and what else a loss reads."""
    return lambda: (drawn(BATCH, TIME, WIDTH), drawn(WORDS, WIDTH, seed=1, scale=0.5), *more)


def rows(*more: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (drawn(ROWS, WIDTH), drawn(WORDS, WIDTH, seed=1, scale=0.5), *more)


def pairs(*more: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (drawn(ROWS, WIDTH, scale=0.7), drawn(ROWS, WIDTH, seed=3, scale=0.7), *more)


# Language models ------------------------------------------------------------------------------------------------------


def of_next_words(logits, labels, count=None):
    """The loss of causal language models of `transformers`."""
    logits = logits.float()
    shifted = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    logits, shifted = logits.view(-1, WORDS), shifted.view(-1)
    reduction = "mean" if count is None else "sum"
    loss = F.cross_entropy(logits, shifted, ignore_index=IGNORED, reduction=reduction)
    return loss if count is None else loss / count


def cut(h, w, y):
    return F.cross_entropy(F.linear(h, w).float()[:, :-1].reshape(-1, WORDS), y[:, 1:].reshape(-1))


def cut_and_viewed(h, w, y):
    logits = F.linear(h, w)
    scores, target = logits[..., :-1, :].contiguous(), y[..., 1:].contiguous()
    return nn.CrossEntropyLoss()(scores.view(-1, WORDS), target.view(-1))


def cut_with_bias(h, w, y, b):
    return F.cross_entropy(F.linear(h, w, b)[:, :-1].flatten(0, 1), y[:, 1:].flatten())


def last_words(h, w, y):
    return F.cross_entropy(F.linear(h, w)[:, -1], y[:, -1])


def transposed(h, w, y):
    return F.cross_entropy(F.linear(h, w).transpose(1, 2), y)


def permuted(h, w, y):
    return F.cross_entropy(F.linear(h[:, :-1], w).permute(0, 2, 1), y[:, 1:], label_smoothing=0.1)


def transposed_probabilities(h, w, p):
    return F.cross_entropy(F.linear(h, w).transpose(1, 2), p.transpose(1, 2))


def of_kept_words(h, w, y):
    logits, kept = F.linear(h, w).float(), y != IGNORED
    losses = F.cross_entropy(logits.view(-1, WORDS), y.view(-1), reduction="none").view(BATCH, TIME)
    return (losses * kept).sum() / kept.sum()


def soft_capped(h, w, y):
    return of_next_words(30 * torch.tanh(F.linear(h, w) / 30), y)


def with_large_sums(h, w, y):
    logits = F.linear(h, w).float()
    return F.cross_entropy(logits.view(-1, WORDS), y.view(-1)) + 1e-2 * logits.logsumexp(-1).square().mean()


# Classes --------------------------------------------------------------------------------------------------------------


def focal(x, w, y):
    losses = F.cross_entropy(x @ w.T, y, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def by_hand(x, w, p):
    return -(p * (x @ w.T).log_softmax(-1)).sum(-1).mean()


# Distillation ---------------------------------------------------------------------------------------------------------


def distilled(x, w, teacher):
    return F.kl_div(F.log_softmax(x @ w.T / 2, -1), F.softmax(teacher / 2, -1), reduction="batchmean") * 4


def distilled_from_logarithms(x, w, teacher):
    student = F.log_softmax(x @ w.T / 2, -1)
    return F.kl_div(student, F.log_softmax(teacher / 2, -1), reduction="batchmean", log_target=True) * 4


def distilled_from_a_layer(x, w, t, u):
    with torch.no_grad():
        target = F.softmax(t @ u.T / 2, -1)
    return F.kl_div(F.log_softmax(x @ w.T / 2, -1), target, reduction="batchmean") * 4


def distilled_and_labelled(x, w, teacher, y):
    return 0.5 * F.cross_entropy(x @ w.T, y) + 0.5 * distilled(x, w, teacher)


def distilled_by_row(x, w, teacher):
    return F.kl_div(F.log_softmax(x @ w.T, -1), F.softmax(teacher, -1), reduction="none").sum(-1)


# Policies -------------------------------------------------------------------------------------------------------------


def logarithms(h, w, y):
    return F.linear(h, w).log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def logarithms_of_next_words(h, w, y):
    scores = F.linear(h, w)[:, :-1, :]
    return torch.gather(scores.log_softmax(-1), 2, y[:, 1:].unsqueeze(2)).squeeze(2)


def selected(h, w, y):
    """As in `trl`."""
    scores, index = F.linear(h, w)[:, :-1] / 0.9, y[:, 1:]
    return torch.gather(scores, -1, index.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scores, -1)


def divided_in_place(h, w, y):
    scores = F.linear(h, w)[:, :-1]
    scores.div_(0.7)
    return scores.log_softmax(-1).gather(-1, y[:, 1:, None]).squeeze(-1)


def clipped(h, w, y, old, advantage, mask):
    found = F.linear(h, w).float().log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    ratio, advantage = (found - old).exp(), advantage[:, None]
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (loss * mask).sum() / mask.sum()


def with_entropy(h, w, y, old, advantage, mask):
    logarithm = F.log_softmax(F.linear(h, w).float(), -1)
    entropy = -(logarithm.exp() * logarithm).sum(-1)
    ratio = (logarithm.gather(-1, y[..., None])[..., 0] - old).exp()
    clip = torch.max(-advantage[:, None] * ratio, -advantage[:, None] * ratio.clamp(0.8, 1.2))
    return ((clip - 0.01 * entropy) * mask).mean()


def preferred(h, w, y, reference, kept):
    scores, y, kept = F.linear(h, w)[:, :-1].float(), y[:, 1:].masked_fill(~kept[:, 1:], 0), kept[:, 1:]
    found = (scores.log_softmax(-1).gather(2, y.unsqueeze(2)).squeeze(2) * kept).sum(-1)
    before = (reference[:, 1:] * kept).sum(-1)
    chosen, rejected = (found - before).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


# Pairs ----------------------------------------------------------------------------------------------------------------


def sigmoid_pairs(x, y, t, b):
    sign = 2 * torch.eye(ROWS, device=x.device) - 1
    return -F.logsigmoid(sign * (x @ y.T * t.exp() + b)).sum() / len(x)


def binary(x, y, target):
    return F.binary_cross_entropy_with_logits(x @ y.T, target)


def binary_weighted(x, y, target, positive):
    return F.binary_cross_entropy_with_logits(x @ y.T, target, target + 0.5, "sum", pos_weight=positive)


def hardest(x, y):
    score = x @ y.T
    others = score.masked_fill(torch.eye(ROWS, dtype=torch.bool), -math.inf)
    return F.relu(0.2 + others.amax(-1) - score.diagonal()).mean()


def every_margin(x, y):
    score = x @ y.T
    return F.relu(0.2 + score - score.diagonal()[:, None]).sum()


def hardest_by_position(x, y):
    """`max` of a dim has a position, and with it a gradient of one element alone."""
    score = x @ y.T
    others = score.masked_fill(torch.eye(ROWS, dtype=torch.bool), -math.inf)
    return F.relu(0.2 + others.max(-1).values - score.diagonal()).mean()


def nearest(x, y):
    """The least score of each column, whose axis is kept."""
    return (x @ y.T).min(0, keepdim=True).values


def hardest_of_both(x, y):
    """As in VSE++."""
    score = x @ y.T
    own = score.diag().view(-1, 1)
    same = torch.eye(ROWS) > 0.5
    one = (0.2 + score - own.expand_as(score)).clamp(min=0).masked_fill(same, 0)
    other = (0.2 + score - own.t().expand_as(score)).clamp(min=0).masked_fill(same, 0)
    return one.max(1)[0].sum() + other.max(0)[0].sum()


def supervised(x, _, y):
    z = F.normalize(x, dim=-1)
    score, own = z @ z.T / 0.1, torch.eye(ROWS, dtype=torch.bool)
    score = score - score.max(1, keepdim=True)[0].detach()
    same = ((y[:, None] == y[None]) & ~own).float()
    logarithm = score - (score.exp() * ~own).sum(1, keepdim=True).log()
    return -((same * logarithm).sum(1) / same.sum(1).clamp(min=1)).mean()


WEIGHTS = drawn(WORDS, seed=8).abs()
TEACHER = drawn(ROWS, WORDS, seed=9)
OLD = drawn(BATCH, TIME, seed=12, scale=0.1) - 5
POLICY = (OLD, drawn(BATCH, seed=13), (drawn(BATCH, TIME, seed=14) > -1).float())
WORDS_OF_BATCH, WORDS_OF_ROWS = labels(BATCH, TIME, ignored=3), labels(ROWS, ignored=5)
TARGETS = (drawn(ROWS, ROWS, seed=7) > 1).float()

LOSSES = {
    "next word": Loss(lambda h, w, y: of_next_words(F.linear(h, w), y), states(WORDS_OF_BATCH)),
    "next word, counted": Loss(
        lambda h, w, y, n: of_next_words(F.linear(h, w), y, n), states(WORDS_OF_BATCH, torch.tensor(37))
    ),
    "last places": Loss(
        lambda h, w, y: of_next_words(F.linear(h[:, slice(-8, None), :], w), y[:, -8:]), states(WORDS_OF_BATCH)
    ),
    "cut": Loss(cut, states(WORDS_OF_BATCH)),
    "cut and viewed": Loss(cut_and_viewed, states(WORDS_OF_BATCH)),
    "cut, with bias": Loss(cut_with_bias, states(WORDS_OF_BATCH, drawn(WORDS, seed=4))),
    "last words": Loss(last_words, states(WORDS_OF_BATCH)),
    "transposed": Loss(transposed, states(WORDS_OF_BATCH)),
    "permuted": Loss(permuted, states(WORDS_OF_BATCH)),
    "transposed probabilities": Loss(transposed_probabilities, states(TEACHER.softmax(-1).view(BATCH, TIME, -1))),
    "kept words": Loss(of_kept_words, states(WORDS_OF_BATCH)),
    "soft-capped": Loss(soft_capped, states(WORDS_OF_BATCH)),
    "scaled": Loss(lambda h, w, y: of_next_words(F.linear(h, w) * 0.25, y), states(WORDS_OF_BATCH)),
    "with large sums": Loss(with_large_sums, states(WORDS_OF_BATCH)),
    "smoothed": Loss(lambda x, w, y: F.cross_entropy(x @ w.T, y, label_smoothing=0.1), rows(WORDS_OF_ROWS)),
    "weighted": Loss(lambda x, w, y, c: F.cross_entropy(x @ w.T, y, weight=c), rows(WORDS_OF_ROWS, WEIGHTS)),
    "each row": Loss(lambda x, w, y: F.cross_entropy(x @ w.T, y, reduction="none"), rows(WORDS_OF_ROWS)),
    "with bias": Loss(lambda x, w, y, b: F.cross_entropy(F.linear(x, w, b), y), rows(WORDS_OF_ROWS, WEIGHTS)),
    "probabilities": Loss(lambda x, w, p: F.cross_entropy(x @ w.T, p), rows(TEACHER.softmax(-1))),
    "probabilities, smoothed": Loss(
        lambda x, w, p, c: F.cross_entropy(x @ w.T, p, c, label_smoothing=0.1), rows(TEACHER.softmax(-1), WEIGHTS)
    ),
    "probabilities by hand": Loss(by_hand, rows(TEACHER.softmax(-1))),
    "focal": Loss(focal, rows(labels(ROWS))),
    "distilled": Loss(distilled, rows(TEACHER)),
    "distilled from logarithms": Loss(distilled_from_logarithms, rows(TEACHER)),
    "distilled from a layer": Loss(
        distilled_from_a_layer, rows(drawn(ROWS, WIDTH, seed=9), drawn(WORDS, WIDTH, seed=10))
    ),
    "distilled and labelled": Loss(distilled_and_labelled, rows(TEACHER, WORDS_OF_ROWS)),
    "distilled by row": Loss(distilled_by_row, rows(TEACHER)),
    "logarithms": Loss(logarithms, states(labels(BATCH, TIME))),
    "logarithms of next words": Loss(logarithms_of_next_words, states(labels(BATCH, TIME))),
    "selected": Loss(selected, states(labels(BATCH, TIME))),
    "divided in place": Loss(divided_in_place, states(labels(BATCH, TIME))),
    "clipped": Loss(clipped, states(labels(BATCH, TIME), *POLICY)),
    "with entropy": Loss(with_entropy, states(labels(BATCH, TIME), *POLICY)),
    "preferred": Loss(preferred, states(labels(BATCH, TIME), OLD, POLICY[2] > 0)),
    "sigmoid of pairs": Loss(sigmoid_pairs, pairs(torch.tensor(2.3), torch.tensor(-10.0))),
    "binary": Loss(binary, pairs(TARGETS)),
    "binary, weighted": Loss(binary_weighted, pairs(TARGETS, WEIGHTS[:ROWS])),
    "hardest": Loss(hardest, pairs(), derived=False),
    "every margin": Loss(every_margin, pairs()),
    "hardest of both": Loss(hardest_of_both, pairs()),
    "hardest by its position": Loss(hardest_by_position, pairs()),
    "nearest": Loss(nearest, pairs()),
    "supervised": Loss(supervised, pairs(labels(ROWS, count=6))),
}
