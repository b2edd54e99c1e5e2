"""What makes two regions the same: their calls, and the kinds of their inputs; names and places do not count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import fx

from ..graph.trace import size_of, value_of_node
from .find import Region


def signature(region: Region) -> str:
    """Equal for regions that do the same to inputs of the same kind: layers of a model share one plan."""
    if region.refusal is not None:  # its nodes may have changed since: an earlier region was replaced
        return hashlib.sha256(repr((region.refusal.kind, str(region.refusal))).encode()).hexdigest()
    place = {node: k for k, node in enumerate((*region.inputs, *region.nodes))}
    parts = [[place[n] for n in region.outputs], [_kind(value_of_node(n)) for n in region.inputs]]
    parts += [[n.op, str(n.target), _plain(n.args, place), _plain(n.kwargs, place)] for n in region.nodes]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _plain(value, place: dict[fx.Node, int]):
    if isinstance(value, fx.Node):
        return ("node", place[value])
    if isinstance(value, tuple | list):
        return [_plain(v, place) for v in value]
    if isinstance(value, dict):
        return sorted((k, _plain(v, place)) for k, v in value.items())
    if isinstance(value, slice):
        return ["slice", *(_plain(v, place) for v in (value.start, value.stop, value.step))]
    return (type(value).__name__, str(value))


def _kind(value):
    if not isinstance(value, torch.Tensor):
        return str(value)
    return str(value.dtype), str(value.device), _texts(value.shape), _texts(value.stride())


def _texts(sizes: Iterable) -> tuple[str, ...]:
    return tuple(str(size_of(s)) for s in sizes)
