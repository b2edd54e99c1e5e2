"""The suites as lists of cases: full and causal; FlexAttention's variants; what is beyond it; Flashlight's two; decode.

What a case computes is in flex_variants.py, beyond_flex.py and problems.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from .beyond_flex import Form, form, of_heads, pairs, places, points, structures
from .flex_variants import variants
from .problems import BenchProblem, Shape, Variant, differential, evoformer, problem
from .scales import Scale


@dataclass(frozen=True)
class Case:
    """One row of a suite: `make(device, dtype)` makes its tensors."""

    suite: str
    variant: str
    shape: str
    make: Callable[[str, torch.dtype], BenchProblem]


def cases(suite: str, scale: Scale) -> list[Case]:
    """The rows of a suite, or of "all", in the order in which they are measured."""
    known = {"peers": _peers, "variants": _variants, "flashlight": _flashlight, "beyond": _beyond, "decode": _decode}
    return [case for name in (known if suite == "all" else (suite,)) for case in known[name](scale)]


def _peers(scale: Scale) -> list[Case]:
    known = variants(scale)
    shapes = [_shape(scale, n, d) for n in (scale.middle, *scale.lengths) for d in scale.widths]
    return [_case("peers", v, known[v], shape) for shape in dict.fromkeys(shapes) for v in ("full", "causal")]


def _variants(scale: Scale) -> list[Case]:
    """All but full and causal, which are the suite of the peers; the window also at the greatest length."""
    widths, longest, name = scale.widths[:2], scale.lengths[-1], f"window{scale.window}"
    known = {name: v for name, v in variants(scale).items() if name not in ("full", "causal")}
    found = [_case("variants", n, v, _shape(scale, scale.middle, d)) for d in widths for n, v in known.items()]
    longer = [_case("variants", name, known[name], _shape(scale, longest, d)) for d in widths]
    return found + [case for case in longer if longest != scale.middle]


def _flashlight(scale: Scale) -> list[Case]:
    heads = [(scale.hidden // d, d) for d in scale.widths[:2]]
    lengths = sorted({scale.middle, scale.middle // 2, scale.lengths[-1]})
    shapes = [Shape(max(1, scale.tokens // n), h, n, d) for h, d in heads for n in lengths]
    rows = [(b, d) for d in scale.widths[:2] for b in scale.batches]
    return [_differential("flashlight", s) for s in shapes] + [_evoformer("flashlight", b, scale, d) for b, d in rows]


def _beyond(scale: Scale) -> list[Case]:
    """At half the middle length; a latent cache also for one query; Evoformer's at the middle one of its batches."""
    batch, known = scale.batches[len(scale.batches) // 2], of_heads(scale)
    found = []
    for d in scale.widths[:2]:
        shape = _shape(scale, scale.middle // 2, d)
        step = Shape(scale.rows // 8, shape.heads, 1, d, columns=scale.middle)
        shapes = {"sinks": replace(shape, group=min(8, shape.heads)), "latent_decode": step}
        found += [_form(name, f, shapes.get(name, shape)) for name, f in known.items()]
        found += [_differential("beyond", shape), _evoformer("beyond", batch, scale, d)]
        found += [_form(name, f, Shape(batch, 4, scale.rows, d)) for name, f in structures().items()]
        found += [_form(name, f, Shape(batch, 4, 2 * scale.rows, d)) for name, f in pairs().items()]
        found += [_form(name, f, Shape(batch, 8, 4 * scale.rows, d)) for name, f in places().items()]
    return [*found, _form("invariant_points", points(), Shape(batch, 12, scale.rows, 16))]


def _decode(scale: Scale) -> list[Case]:
    """One query a sequence against caches of the middle length, 4 and 16 times that: a key head for each head, for
    eight of them, and a latent row for all. What would take more keys in all than 32 of the middle length is left out.
    """
    width, full, latent = scale.widths[-2:][0], variants(scale)["full"], of_heads(scale)["latent_decode"]
    heads, found = 2 * scale.hidden // width, []
    for batch, keys in ((b, n * scale.middle) for n in (1, 4, 16) for b in (1, 4, 32)):
        step = Shape(batch, heads, 1, width, columns=keys)
        if batch * keys <= 32 * scale.middle:
            found.append(_peer("decode", "decode", full, step))
            found.append(_form("latent_decode", latent, step, "decode"))
        found.append(_peer("decode", "gqa8_decode", full, replace(step, group=min(8, heads))))
    return found


def _shape(scale: Scale, length: int, width: int) -> Shape:
    return Shape(max(1, scale.tokens // length), scale.hidden // width, length, width)


def _case(suite: str, name: str, variant: Variant, shape: Shape) -> Case:
    columns = shape.length // variant.fewer_keys if variant.fewer_keys > 1 else 0
    return _peer(suite, name, variant, replace(shape, group=min(variant.group, shape.heads), columns=columns))


def _peer(suite: str, name: str, variant: Variant, shape: Shape) -> Case:
    return Case(suite, name, str(shape), partial(problem, variant, shape))


def _form(name: str, given: Form, shape: Shape, suite: str = "beyond") -> Case:
    return Case(suite, name, str(shape), partial(form, given, shape))


def _differential(suite: str, shape: Shape) -> Case:
    return Case(suite, "differential", str(shape), partial(differential, shape))


def _evoformer(suite: str, batch: int, scale: Scale, width: int) -> Case:
    return Case(suite, "evoformer", f"b{batch}n{scale.rows}h4d{width}", partial(evoformer, batch, scale.rows, 4, width))
