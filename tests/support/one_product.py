"""Programs that read reductions alone of one product, each with hostile inputs; and how they are run.

Each takes the rows, the columns and a label for each row. Example: PROGRAMS["cross entropy"](x, w, y).
"""

import math

import torch
import torch.nn.functional as F

from onepass.graph import reduced_products


def _scores(x, w):
    return x @ w.T


def _square(x, w):
    return x @ w[: x.shape[0]].T * 14.3


def _clip(x, w, y):
    labels = torch.arange(x.shape[0], device=x.device)
    return (F.cross_entropy(_square(x, w), labels) + F.cross_entropy(_square(x, w).T, labels)) / 2


def _contrast(x, w, y):
    score = _square(x, w)
    return (score.logsumexp(0) + score.logsumexp(1) - 2 * score.diagonal()).mean()


def _entropy(x, w, y):
    logarithm = _scores(x, w).log_softmax(-1)
    return logarithm.gather(-1, y[:, None]).squeeze(-1), -(logarithm.exp() * logarithm).sum(-1)


def _assignment(x, w, y):
    return (x.square().sum(-1, keepdim=True) - 2 * _scores(x, w) + w.square().sum(-1)).amin(-1)


PROGRAMS = {
    "log-sum-exp": lambda x, w, y: _scores(x, w).logsumexp(-1),
    "log-sum-exp of columns": lambda x, w, y: _scores(x, w).logsumexp(0),
    "both directions": lambda x, w, y: (_square(x, w).logsumexp(0), _square(x, w).logsumexp(1)),
    "maximum": lambda x, w, y: _scores(x, w).max(-1).values,
    "statistics of a softmax": lambda x, w, y: (_scores(x, w).amax(-1), _scores(x, w).softmax(-1).amax(-1)),
    "cross entropy": lambda x, w, y: F.cross_entropy(_scores(x, w), y),
    "cross entropy of a layer": lambda x, w, y: F.cross_entropy(F.linear(x, w), y, reduction="none"),
    "cross entropy, summed": lambda x, w, y: F.cross_entropy(_scores(x, w), y, reduction="sum"),
    "cross entropy, smoothed": lambda x, w, y: F.cross_entropy(_scores(x, w), y, label_smoothing=0.1),
    "cross entropy, weighted": lambda x, w, y: F.cross_entropy(_scores(x, w), y, weight=w.detach()[:, 0].abs()),
    "cross entropy, some ignored": lambda x, w, y: F.cross_entropy(_scores(x, w), y, ignore_index=3),
    "likelihood": lambda x, w, y: F.nll_loss(_scores(x, w).log_softmax(-1), y),
    "contrast": _contrast,
    "CLIP": _clip,
    "logarithms and entropy": _entropy,
    "assignment": _assignment,
}


def inputs(rows=70, columns=300, width=24, dtype=torch.float32, seed=0):
    """Rows, columns and labels."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(n, width, generator=generator) / math.sqrt(math.sqrt(width)) for n in (rows, columns))
    return *(x.to(dtype) for x in drawn), torch.randint(columns, (rows,), generator=generator)


def fused(function, *given, executor="tiled", least=1, monkeypatch):
    """What a function gives compiled by onepass, which must fuse all of it, and the report."""
    import onepass

    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", least)
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": executor, "libraries": False, "require": "all"}
    found = torch.compile(function, backend="onepass", options=options, dynamic=False)(*given)
    return found, onepass.reports()[-1]


def in_float64(function, *given):
    """What eager gives in float64."""
    return function(*(x.double() if x.is_floating_point() else x for x in given))
