"""Random attention-like programs as PyTorch source: layouts, scores, masks, normalisers, values, endings, dtypes.

A Fuzzed is data: its text can be read, run, stored and shrunk by Hypothesis. Drawn by fuzz.py; nothing here knows what
onepass can do: a program that it refuses is a count, one that it gets wrong is a bug.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import torch
import torch._dynamo
from hypothesis import strategies as st

DTYPES = ("float32", "float32", "bfloat16", "float16", "float64")
REGIMES = ("normal", "large", "ties", "zero", "an empty row", "infinite value at the end")
REGIMES += ("a key is NaN", "a value is NaN", "near the end of half", "tiny")
COORDINATES = ("i, j = (torch.arange(n, device=s.device) for n in s.shape[-2:])", "i = i[:, None]")
# A row hidden by the least number of its type: -3.4e38 + log n is -3.4e38, so that its weights are all 1.
STABLE = {
    "torch.exp(s - torch.logsumexp(s, -1, keepdim=True))": "s.softmax(-1)",
    "torch.exp(s - s.logsumexp(-1, keepdim=True))": "s.softmax(-1)",
    # Of such a row eager's own gradient of the logarithm is 1 at each element.
    "torch.logsumexp(s, -1)": "s.logsumexp(-1)",
    "s.logsumexp(-1)": "((s - s.amax(-1, True).clamp(min=-1.7e308)).exp().sum(-1).log() + s.amax(-1))",
    # Twice float64's least number overflows where twice the narrower one of the program may not.
    "torch.finfo(s.dtype).min": "torch.finfo(s.dtype).min / 8",
}
FILLS = ("-math.inf", "-1e4", "torch.finfo(s.dtype).min")


@dataclass(frozen=True)
class Extents:
    """How large programs are: the longest sequence, head dims, dtypes."""

    longest: int
    widths: tuple[int, ...]
    dtypes: tuple[str, ...]


SMALL = Extents(40, (8, 16, 5), DTYPES)
LONG = Extents(420, (8, 16, 5), DTYPES)  # kernels loop over dims of more than 256 elements
LARGE = Extents(700, (64, 128, 96), ("bfloat16", "bfloat16", "float16"))  # what a GPU's matrix units are fed with


@dataclass(frozen=True)
class Fuzzed:
    """`lines` are the body of f(q, k, v, extra tensors by name); shapes and kinds of all inputs by name.

    layouts: how inputs lie in memory that are not contiguous; dynamic: compiled for symbolic sizes; later: the shapes
    of a second call, if there is one; axes that it leaves alone are then static.

    Of gradients: `wanted` are the inputs whose gradients are compared, `written` those that the program writes into;
    inner: who gets the rest of the graph; tiles: rows and columns of the tiled executor's first tiles.
    """

    lines: tuple[str, ...]
    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(hash=False)
    dtype: str
    regime: str
    seed: int
    layouts: dict[str, str] = field(default_factory=dict, hash=False)
    dynamic: bool = False
    later: dict[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    wanted: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    inner: str = "eager"
    tiles: tuple[int, int] = (256, 512)

    @property
    def source(self) -> str:
        head = f"def f({', '.join(self.inputs)}):"
        return "\n".join([head, *(f"    {line}" for line in self.lines)])

    def function(self, stable: bool = False):
        """As it is written, or (what results are compared with) without the spellings that rounding spoils."""
        space, source = {"torch": torch, "math": math, "F": torch.nn.functional}, self.source
        for spelling, other in STABLE.items() if stable else ():
            source = source.replace(spelling, other)
        exec(compile(source, "<fuzzed>", "exec"), space)
        return space["f"]

    def tensors(self, device: str = "cpu", later: bool = False) -> list[torch.Tensor]:
        """Random inputs of the regime, always the same for a record."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {name: shape for name, (_, shape) in self.inputs.items()} | (self.later if later else {})
        made = {name: _tensor(kind, shapes[name], self.dtype, generator) for name, (kind, _) in self.inputs.items()}
        floats = [t for t in made.values() if t.is_floating_point() and t.dim() > 1]
        _REGIME[self.regime]({**made, **{name: made.get(name, floats[0]) for name in "qkv"}})
        given = {name: t.to(device) for name, t in made.items()}
        given = {name: LAYOUTS[self.layouts[name]](t) if name in self.layouts else t for name, t in given.items()}
        for name, shape in self.later.items():  # a layer's widths and its parameters have known sizes
            for axis in (n for n, size in enumerate(shape) if size == self.inputs[name][1][n]):
                torch._dynamo.mark_static(given[name], axis)
        return list(given.values())

    def __str__(self) -> str:
        shapes = ", ".join(f"{n}: {kind}{list(shape)}" for n, (kind, shape) in self.inputs.items())
        how = f"{self.layouts or ''}{', dynamic' if self.dynamic else ''}"
        how += f", then {[list(shape) for shape in self.later.values()]}" if self.later else ""
        how += f", gradients of {', '.join(self.wanted)}; inner {self.inner}, tiles {self.tiles}" if self.wanted else ""
        return f"{self.source}\n# {shapes}; {self.dtype}, {self.regime}, seed {self.seed} {how}"


def _tensor(kind: str, shape, dtype: str, generator) -> torch.Tensor:
    if kind == "bool":
        return torch.rand(*shape, generator=generator) < 0.7
    if kind == "ids":
        return torch.randint(0, 3, shape, generator=generator).sort(-1).values
    if kind.startswith("<"):
        return torch.randint(0, max(1, int(kind[1:])), shape, generator=generator)
    if kind in ("int64", "int32", "uint8", "flags"):  # a mask as numbers; flags are of the program's dtype
        kept = torch.rand(*shape, generator=generator) < 0.7
        return kept.to(getattr(torch, dtype if kind == "flags" else kind))
    if kind == "positive":
        return (torch.rand(*shape, generator=generator) + 0.1).to(getattr(torch, dtype))
    drawn = torch.randn(shape, generator=generator) * (0.2 if kind == "small" else 1)
    return drawn.to(getattr(torch, "float32" if kind == "float32" else dtype))


_REGIME = {
    "normal": lambda t: None,
    "large": lambda t: t["q"].mul_(30),
    "ties": lambda t: t["k"].copy_(t["k"][..., :1, :].expand_as(t["k"])),
    "zero": lambda t: t["q"].zero_(),
    "an empty row": lambda t: [x[..., :1, :].zero_() for x in t.values() if x.dtype == torch.bool],
    "infinite value at the end": lambda t: t["v"][..., -1:, :].fill_(math.inf),
    "a key is NaN": lambda t: t["k"][..., -1:, :].fill_(math.nan),
    "a value is NaN": lambda t: t["v"][..., -1:, :].fill_(math.nan),
    "near the end of half": lambda t: t["k"].mul_(
        (6e3 if t["k"].dtype == torch.float16 else 300) ** (0.5 if t["k"] is t["q"] else 1)  # scores are its squares
    ),
    "tiny": lambda t: t["v"].mul_(1e-6),
}

# The same values elsewhere in memory.
LAYOUTS = {
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "reversed axes": lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim()))),
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "a part": lambda t: torch.nn.functional.pad(t, (3, 2))[..., 3:-2],
    "expanded": lambda t: t[:1].expand(t.shape),
}


@st.composite
def programs(draw) -> Fuzzed:
    """A program drawn by Hypothesis, for the tests that shrink."""
    return program(lambda *options: draw(st.sampled_from(options)), lambda low, high: draw(st.integers(low, high)))


def random_program(random: Random, extents: Extents = SMALL) -> Fuzzed:
    """A program drawn evenly, for long runs: Hypothesis would repeat and vary what it drew before."""
    return program(lambda *options: random.choice(options), random.randint, extents)


def shorter(program: Fuzzed) -> Iterator[Fuzzed]:
    """Programs that are simpler by one step; some of them do not run."""
    for n in range(len(program.lines) - 1):
        yield replace(program, lines=program.lines[:n] + program.lines[n + 1 :])
    if program.regime != "normal":
        yield replace(program, regime="normal")
    if program.dtype != "float32":
        yield replace(program, dtype="float32")
    if program.dynamic:
        yield replace(program, dynamic=False, later={})
    if program.later:
        yield replace(program, later={})
    for name in program.layouts:
        yield replace(program, layouts={n: how for n, how in program.layouts.items() if n != name})
    if program.inner != "eager":
        yield replace(program, inner="eager")
    if program.tiles != (256, 512):
        yield replace(program, tiles=(256, 512))
    if len(program.wanted) > 1:
        for name in program.wanted:
            yield replace(program, wanted=tuple(n for n in program.wanted if n != name))
    used = {name for name in program.inputs if any(name in line for line in program.lines)}
    if len(used) < len(program.inputs):
        kept = tuple(name for name in program.wanted if name in used)
        yield replace(program, inputs={n: i for n, i in program.inputs.items() if n in used}, wanted=kept)


def program(pick: Callable, integer: Callable, extents: Extents = SMALL) -> Fuzzed:
    """Choices come in the order of the computation."""
    rank = pick(2, 3, 4, 4, 4, 5)
    lead = tuple(integer(1, 3) for _ in range(rank - 2))
    rows, columns, width = integer(1, extents.longest), integer(1, extents.longest), pick(*extents.widths)
    columns = rows if pick(True, False) else columns
    group = pick(1, 1, 1, 2) if rank >= 3 else 1
    inputs = {
        "q": ("float", (*lead[:-1], lead[-1] * group, rows, width) if lead else (rows, width)),
        "k": ("float", (*lead, columns, width)),
        "v": ("float", (*lead, columns, pick(width, 24))),
    }
    lines: list[str] = []
    _layout(pick, rank, group, lines)
    _scores(pick, rank, lines)
    for _ in range(pick(0, 0, 1, 1, 2, 3)):
        change(pick, inputs, lead, group, rows, columns, lines)
    for _ in range(pick(0, 1, 1, 2)):
        mask(pick, inputs, lead, rows, columns, lines)
    normalise(pick, inputs, rows, lines)
    values(pick, inputs, rank, lines)
    return Fuzzed(tuple(lines), inputs, pick(*extents.dtypes), pick(*REGIMES[:1], *REGIMES), integer(0, 999))


def _layout(pick, rank: int, group: int, lines: list[str]) -> None:
    if group > 1 and pick(True, False):
        lines.append(f"k, v = k.repeat_interleave({group}, -3), v.repeat_interleave({group}, -3)")
    elif group > 1:
        lines.append(
            f"k, v = (x.unsqueeze(-3).expand(*x.shape[:-2], {group}, *x.shape[-2:]).flatten(-4, -3) for x in (k, v))"
        )
    if pick(False, False, True):
        lines.append(pick("q = q / math.sqrt(q.shape[-1])", "q = q * 0.3", "k = k * 0.5", "q = F.normalize(q, dim=-1)"))
    if rank >= 4 and pick(False, False, True):
        lines.append("q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, k, v))")


def _scores(pick, rank: int, lines: list[str]) -> None:
    spelled = [
        "s = q @ k.mT",
        "s = torch.matmul(q, k.transpose(-1, -2))",
        "s = torch.einsum('...id,...jd->...ij', q, k)",
    ]
    if rank == 3:
        spelled.append("s = torch.bmm(q, k.transpose(1, 2))")
    if pick(*range(6)) == 0:
        spelled = [
            "s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1)",
            "s = -(q.unsqueeze(-2) - k.unsqueeze(-3)).pow(2).sum(-1)",
        ]
    lines.append(pick(*spelled))
    if pick(True, True, False):
        lines.append(pick("s = s / math.sqrt(q.shape[-1])", "s = s * 0.25", "s *= 0.25", "s = s.div(4.0)"))


def change(pick, inputs, lead, group, rows, columns, lines: list[str]) -> None:
    """A pointwise operation on the scores, or a bias."""
    heads = (lead[-1] * group,) if lead else ()
    biases = [(rows, columns), (1, columns), (columns,), (rows, 1), (*heads, rows, columns), (*heads, 1, 1)]
    kind = pick("bias", "bias", "pointwise", "distance")
    if kind == "bias":
        name = f"bias{len(inputs)}"
        inputs[name] = ("float", pick(*biases))
        lines.append(f"s = s + {name}")
    elif kind == "pointwise":
        lines.append(f"s = {pick(*_POINTWISE)}")
    else:
        lines.append(
            "i, j = torch.arange(s.shape[-2], device=s.device)[:, None], torch.arange(s.shape[-1], device=s.device)"
        )
        lines.append(pick("s = s - 0.1 * (i - j).abs()", "s = s + 0.05 * (j - i)", "s = s * 0.9 ** (i - j).abs()"))


_POINTWISE = ("5 * torch.tanh(s / 5)", "s * torch.sigmoid(s)", "s.clamp(-4, 4)", "s.abs()", "-s", "F.relu(s)")
_POINTWISE += ("s.float()", "s + s.mean(-1, keepdim=True)")
_POSITIONS = ("j <= i", "j < i + 3", "j >= i", "i - j <= 4", "(i - j).abs() <= 3", "j < 5", "j >= 2")
_POSITIONS += ("i // 4 == j // 4", "(i + j) % 2 == 0", "(i - j) % 3 == 0", "i != j")
_POSITIONS += ("j * 2 <= i + 6", "(i // 8 - j // 8).abs() <= 1")


def mask(pick, inputs, lead, rows, columns, lines: list[str]) -> None:
    lines.append(
        "i, j = torch.arange(s.shape[-2], device=s.device)[:, None], torch.arange(s.shape[-1], device=s.device)"
    )
    parts = [f"({pick(*_POSITIONS)})" for _ in range(pick(1, 1, 2, 3))]
    if pick(False, True):
        name = f"mask{len(inputs)}"
        inputs[name] = ("bool", pick((rows, columns), (1, columns), (rows, 1)))
        parts.append(name)
    if rows == columns and pick(False, False, True):
        name = f"ids{len(inputs)}"
        inputs[name] = ("ids", (rows,))
        parts.append(f"({name}[:, None] == {name})")
    text = parts[0]
    for part in parts[1:]:
        text = f"{text} {pick('&', '|')} {part}"
    lines.append(f"keep = {pick('', '', '~')}({text})")
    fill = pick(*FILLS)
    added = f"s = s + torch.zeros_like(keep, dtype=s.dtype).masked_fill(~keep, {fill})"
    lines.append(pick(f"s = s.masked_fill(~keep, {fill})", f"s = torch.where(keep, s, {fill})", added))


def normalise(pick, inputs, rows: int, lines: list[str]) -> None:
    kind = pick(
        "softmax", "softmax", "softmax", "softmax", "by hand", "deferred", "log", "plain", "off by one", "none", "two"
    )
    if kind == "softmax":
        lines.append(
            pick(
                "p = torch.softmax(s, -1)",
                "p = s.softmax(dim=-1)",
                "p = F.softmax(s, -1, dtype=torch.float32).to(v.dtype)",
            )
        )
    elif kind in ("by hand", "deferred"):
        lines.append(
            pick(
                "e = torch.exp(s - s.amax(-1, keepdim=True))",
                "e = (s - s.max(-1, keepdim=True).values).exp()",
                "e = torch.exp(s - s.amax(-1, keepdim=True).detach())",
            )
        )
        lines.append(
            "p = e / e.sum(-1, keepdim=True)" if kind == "by hand" else "p, total = e, e.sum(-1, keepdim=True)"
        )
    elif kind == "log":
        lines.append(pick("p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))", "p = s.log_softmax(-1).exp()"))
    elif kind == "plain":
        lines.append(pick("p = torch.sigmoid(s)", "p = F.relu(s) ** 2 / s.shape[-1]", "p = F.relu(s)"))
    elif kind == "off by one":
        lines.append(pick("m = s.amax(-1, keepdim=True).clamp(min=0)", "m = s.detach().amax(-1, keepdim=True)"))
        lines.append("e = torch.exp(s - m)")
        lines.append("p = e / (torch.exp(-m) + e.sum(-1, keepdim=True))")
    elif kind == "none":
        lines.append("p = s.nan_to_num(neginf=0.0)" if any("inf" in line for line in lines) else "p = s")
    else:
        lines.append("p = torch.softmax(s, -1) - 0.3 * torch.softmax(s * 0.5, -1)")
    if pick(False, False, False, True):
        lines.append(
            pick("p = p * 2.0", "p = F.dropout(p, 0.1, training=False)", "p = p.to(v.dtype)", "p = p * (p > 0.01)")
        )


def values(pick, inputs, rank: int, lines: list[str]) -> None:
    lines.append("p, v = (x.to(torch.promote_types(p.dtype, v.dtype)) for x in (p, v))")
    lines.append(pick("o = p @ v", "o = torch.matmul(p, v)", "o = torch.einsum('...ij,...je->...ie', p, v)"))
    if any("total" in line for line in lines):
        lines.append("o = o / total")
    ending = pick("", "", "", "gate", "residual", "flatten", "lse", "weights", "scaled", "norm")
    if ending == "gate":
        lines.append("o = o * torch.sigmoid(q.sum(-1, keepdim=True))")
    elif ending == "residual":
        lines.append("o = o + 1.0")
    elif ending == "flatten" and rank >= 3:
        lines.append("o = o.transpose(-3, -2).flatten(-2)")
    elif ending == "scaled":
        lines.append("o = o * 0.5")
    elif ending == "norm":
        lines.append("o = F.layer_norm(o, o.shape[-1:])")
    lines.append({"lse": "return o, torch.logsumexp(s, -1)", "weights": "return o, p"}.get(ending, "return o"))
