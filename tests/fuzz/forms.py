"""Further random programs: what the grammar of programs.py cannot say, each form a function of its own.

Concatenated keys, sinks, rotations, more batch dims, groups by reshape, operands that come transposed, odd orders of
letters, sums over a dim that is not last, axes of one element, chains, several results, points, pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.programs import LAYOUTS, REGIMES, SMALL, Extents, Fuzzed, change, mask, normalise, values


@dataclass
class Draft:
    """A program being drawn: sizes by letter, lines and inputs so far."""

    pick: Callable
    size: dict[str, int]
    lines: list[str] = field(default_factory=list)
    inputs: dict = field(default_factory=dict)

    def take(self, name: str, letters: str, kind: str = "float") -> None:
        """An input whose axes have the sizes of the letters; 1 stands for one element."""
        self.inputs[name] = (kind, tuple(1 if letter == "1" else self.size[letter] for letter in letters))

    def say(self, *lines: str) -> None:
        self.lines += lines

    def middle(self, lead: str, plain: bool = False) -> None:
        """Changes of the scores s[lead, i, j], masks, and a normalised p."""
        sizes, rows, columns = tuple(self.size[x] for x in lead), self.size["i"], self.size["j"]
        for _ in range(self.pick(0, 0, 1, 2)):
            change(self.pick, self.inputs, sizes, 1, rows, columns, self.lines)
        for _ in range(self.pick(0, 0, 1)):
            mask(self.pick, self.inputs, sizes, rows, columns, self.lines)
        if plain:
            self.say("p = torch.softmax(s, -1)")
        else:
            normalise(self.pick, self.inputs, rows, self.lines)

    def end(self) -> None:
        values(self.pick, self.inputs, 4, self.lines)


def _joined_keys(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje"), d.take("k2", "bhld"), d.take("v2", "bhle")
    d.say(d.pick("k, v = torch.cat([k, k2], -2), torch.cat([v, v2], -2)",
                 "k, v = torch.cat((k2, k), dim=2), torch.cat((v2, v), dim=2)"), "s = q @ k.mT * 0.3")  # fmt: skip
    d.size["j"] += d.size["l"]
    d.middle("bh", plain=True)
    d.end()


def _joined_scores(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje"), d.take("k2", "bhld"), d.take("v2", "bhle")
    d.say("n = k.shape[-2]", "s = torch.cat([q @ k.mT, q @ k2.mT], -1) * 0.3", "p = s.softmax(-1)")
    d.say(d.pick("o = p[..., :n] @ v + p[..., n:] @ v2", "o = p @ torch.cat([v, v2], -2)"), "return o")


def _sink(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje"), d.take("sink", d.pick("h", "1"))
    d.say("s = q @ k.mT * 0.3", "z = sink.reshape(1, -1, 1, 1)")
    if d.pick(True, False):
        d.say("s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)")
    d.say(*d.pick(
        ("c = z.expand(s.shape[0], s.shape[1], s.shape[2], 1)", "p = torch.cat([s, c], -1).softmax(-1)[..., :-1]"),
        ("c = z.expand(s.shape[0], s.shape[1], s.shape[2], 1)", "p = torch.cat([c, s], -1).softmax(-1)[..., 1:]"),
        ("m = torch.maximum(s.amax(-1, keepdim=True), z)", "e = torch.exp(s - m)",
         "p = e / (e.sum(-1, keepdim=True) + torch.exp(z - m))"),
        ("p = torch.exp(s - torch.logaddexp(s.logsumexp(-1, keepdim=True), z))",),
        ("p = F.pad(s, (1, 0)).softmax(-1)[..., 1:]",),
    ))  # fmt: skip
    d.end()


def _rotated(d: Draft) -> None:
    d.size["d"], d.size["i"] = 2 * d.size["d"], d.size["j"]
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje"), d.take("cos", "id"), d.take("sin", "id")
    d.say(*d.pick(
        ("half = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)",
         "q, k = (x * cos + half(x) * sin for x in (q, k))"),
        ("c, n = cos[:, ::2], sin[:, ::2]", "q, k = (torch.stack([x[..., ::2] * c - x[..., 1::2] * n, "
         "x[..., ::2] * n + x[..., 1::2] * c], -1).flatten(-2) for x in (q, k))"),
    ), "s = q @ k.mT * 0.3")  # fmt: skip
    d.middle("bh")
    d.end()


def _rows_of_sequences(d: Draft) -> None:
    d.take("q", "bnihd"), d.take("k", "bnjhd"), d.take("v", "bnjhe"), d.take("pair", d.pick("bhij", "1hij", "bh1j"))
    d.take("row", d.pick("bnj", "1nj"))
    d.say("s = torch.einsum('bnihd,bnjhd->bnhij', q, k) * 0.3")
    d.say(
        *d.pick(
            ("s = s + pair[:, None]",),
            ("s = s + row[:, :, None, None, :]",),
            ("s = s + pair[:, None] + row[:, :, None, None]",),
            ("s = s + pair.unsqueeze(1)", "s = s.tanh()"),
        )
    )
    d.say("p = s.softmax(-1)", d.pick("o = torch.einsum('bnhij,bnjhe->bnihe', p, v)",
                                      "o = (p @ v.transpose(-2, -3)).transpose(-2, -3)"))  # fmt: skip
    d.say(d.pick("return o", "return o.flatten(-2)", "return o * torch.sigmoid(q.sum(-1, keepdim=True))"))


def _groups_by_reshape(d: Draft) -> None:
    d.size["g"] = d.size["h"] * d.pick(1, 2, 3)
    d.take("q", "bgid"), d.take("k", "bhjd"), d.take("v", "bhje")
    d.say("b, h, n, w = k.shape", d.pick("q = q.view(b, h, -1, *q.shape[2:])", "q = q.unflatten(1, (h, -1))"))
    d.say(d.pick("s = q @ k[:, :, None].mT", "s = torch.einsum('bhgid,bhjd->bhgij', q, k)"), "s = s * 0.3")
    if d.pick(True, False):
        d.say("s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), -math.inf)")
    d.say("p = s.softmax(-1)", d.pick("o = p @ v.unsqueeze(2)", "o = torch.einsum('bhgij,bhje->bhgie', p, v)"))
    d.say(d.pick("return o.flatten(1, 2)", "return o.reshape(b, -1, *o.shape[3:])", "return o"))


def _transposed(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhdj"), d.take("v", d.pick("bhje", "bhej"))
    d.say("s = torch.matmul(q, k) * 0.3")
    if d.inputs["v"][1][-1] == d.size["j"] and d.inputs["v"][1][-2] == d.size["e"]:
        d.say("v = v.transpose(-1, -2)")
    d.middle("bh")
    d.end()


def _other_dim(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje")
    d.say(*d.pick(
        ("s = k @ q.mT * 0.3", "p = s.softmax(-2)", "o = p.mT @ v"),
        ("s = k @ q.mT * 0.3", "e = (s - s.amax(-2, keepdim=True)).exp()", "o = (e / e.sum(-2, keepdim=True)).mT @ v"),
        ("s = torch.einsum('bhid,bhjd->jbhi', q, k)", "p = s.softmax(0)", "o = torch.einsum('jbhi,bhje->bhie', p, v)"),
        ("s = torch.einsum('bhid,bhjd->bjih', q, k)", "p = F.softmax(s, 1)",
         "o = torch.einsum('bjih,bhje->ihbe', p, v)"),
        ("s = q @ k.mT", "p = s.softmax(1)", "o = p @ v"),
        ("s = q @ k.mT", "p = s.softmax(-2)", "o = p @ v"),
        ("s = q @ k.mT", "p = s.flatten(2).softmax(-1).view_as(s)", "o = p @ v"),
    ), "return o")  # fmt: skip


def _letters(d: Draft) -> None:
    """Every operand and the scores have their axes in an order of their own."""
    order = lambda letters: "".join(d.pick(*_orders(letters)))
    q, k, v, s, o = order("bhid"), order("bhjd"), order("bhje"), order("bhij"), order("bhie")
    d.take("q", q), d.take("k", k), d.take("v", v)
    d.say(f"s = torch.einsum('{q},{k}->{s}', q, k) * 0.3", f"p = s.softmax({s.index('j')})")
    d.say(f"o = torch.einsum('{s},{v}->{o}', p, v)", "return o")


def _orders(letters: str) -> list[str]:
    return [letters] if len(letters) < 2 else [x + r for x in letters for r in _orders(letters.replace(x, ""))]


def _broadcast(d: Draft) -> None:
    d.take("q", d.pick("bhid", "1hid")), d.take("k", d.pick("1hjd", "b1jd", "11jd", "jd"))
    d.take("v", d.pick("b1je", "bhje", "1hje", "je")), d.take("bias", d.pick("b11j", "1hij", "b1i1", "1111", "ij"))
    d.say("s = q @ k.mT * 0.3 + bias", "p = s.softmax(-1)", "o = p @ v", "return o")


def _chained(d: Draft) -> None:
    d.size["e"] = d.size["d"]
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje")
    d.say("a = lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -1) @ v")
    d.say(d.pick("o = a(a(q, k, v), k, v)", "o = a(q, a(k, k, v), v)", "o = a(q, k, a(k, k, v))",
                 "o = a(q, k, v) + a(q, v, k)", "o = a(q, k, v) * a(k, q, q).mean(-2, keepdim=True)",
                 "o = F.layer_norm(q + a(q, k, v), q.shape[-1:])\n    o = o + a(o, k, v)"))  # fmt: skip
    d.say(d.pick("return o", "return o, o.sum(-1)"))


def _several(d: Draft) -> None:
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje")
    d.say("s = q @ k.mT * 0.3")
    d.middle("bh", plain=True)
    d.say("o = p @ v.to(p.dtype)")
    d.say(d.pick("return o, s", "return o, p", "return o, s.logsumexp(-1)", "return o, s.amax(-1)",
                 "return o, s.argmax(-1)", "return o, s.argmin(-1)",
                 "return o, p.sum(-2)", "return o, p.mean(1)", "return o, o.sum(-1)",
                 "return o, p @ v.to(p.dtype).square()", "return s, o, p", "return o, (p * p).sum(-1)",
                 "return o, -(p * (p + 1e-9).log()).sum(-1)"))  # fmt: skip


def _points(d: Draft) -> None:
    """Distances of points in the scores, values of two dims, pairs that each query has of its own."""
    d.size |= {"n": d.pick(1, 3, 4, 17), "c": d.pick(2, 3, 5)}
    d.take("q", "bihd"), d.take("k", "bjhd"), d.take("v", "bjhe"), d.take("x", "bihnc"), d.take("y", "bjhnc")
    d.take("w", "bjhnc"), d.take("pair", "bijl"), d.take("bias", "bijh")
    d.say("s = torch.einsum('bihd,bjhd->bhij', q, k) * 0.3", "z = x[:, :, None] - y[:, None]")
    apart = d.pick("z.square().sum((-1, -2))", "z.abs().sum(-1).amax(-1)", "(z * z).sum(-1).mean(-1)",
                   "z.abs().amax(-1).sum(-1)", "z.square().sum(-1).sqrt().sum(-1)")  # fmt: skip
    d.say(f"z = {apart}.permute(0, 3, 1, 2)")
    d.say(d.pick("s = s - 0.2 * z", "s = s - 0.2 * z + bias.permute(0, 3, 1, 2)", "s = -0.3 * z"))
    d.middle("bh", plain=True)
    d.say("p = p.to(v.dtype)", "a = torch.einsum('bhij,bjhe->bihe', p, v)")
    d.say("o = torch.einsum('bhij,bjhnc->bihnc', p, w)", "u = torch.einsum('bhij,bijl->bihl', p, pair)")
    d.say(d.pick("return a, o, u", "return o", "return u", "return a, u", "return o * w[:, :1].sigmoid(), u"))


def _pairs(d: Draft) -> None:
    """Scores that no product makes: of each pair, point by point."""
    d.size["d"] = d.pick(3, 16, 24)
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje"), d.take("w", "d")
    d.take("a", "bhi"), d.take("c", "bhj")
    d.say("z = lambda f: f(q[:, :, :, None], k[:, :, None])")
    d.say("s = " + d.pick(
        "torch.tanh(z(torch.add)) @ w", "F.linear(F.gelu(q.unsqueeze(3) + k.unsqueeze(2)), w[None]).squeeze(-1)",
        "(w * torch.sigmoid(z(torch.add))).sum(-1)", "F.leaky_relu(a[..., None] + c[..., None, :], 0.2)",
        "a[..., None] * c.unsqueeze(-2)", "-torch.cdist(q, k)", "-torch.cdist(q, k, p=1.0)",
        "-z(torch.sub).norm(dim=-1)", "-z(torch.sub).abs().amax(-1)", "-z(torch.sub).square().mean(-1)",
        "z(torch.minimum).sum(-1)",
        "torch.einsum('bhid,d->bhi', q, w)[..., None] + torch.einsum('bhjd,d->bhj', k, w)[:, :, None]",
    ))  # fmt: skip
    d.middle("bh")
    d.end()


def _places(d: Draft) -> None:
    """Vectors of places in the scores and in the values, given by row and column or looked up."""
    d.take("q", "bhid"), d.take("k", "bhjd"), d.take("v", "bhje")
    looked_up = d.pick(True, False)
    d.size["t"] = d.size["i"] + d.size["j"] - 1
    d.take("x", "td" if looked_up else "ijd"), d.take("y", "te" if looked_up else "ije")
    if looked_up:
        d.say("at = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2]) + k.shape[-2] - 1")
        d.say("x, y = x[at.to(x.device)], y[at.to(y.device)]")
    d.say("s = (q @ k.mT + torch.einsum('bhid,ijd->bhij', q, x)) * 0.3")
    d.say(d.pick("s = s + torch.einsum('bhjd,ijd->bhij', k, x) * 0.1", "s = s * 0.5",
                 "s = s + torch.einsum('bhid,bhjd,ijd->bhij', q, k, x) * 0.1"))  # fmt: skip
    d.middle("bh", plain=True)
    d.say("p = p.to(v.dtype)", d.pick("o = p @ v", "o = p @ v + torch.einsum('bhij,ije->bhie', p, y)",
                                      "o = torch.einsum('bhij,ije->bhie', p, y)"))  # fmt: skip
    d.say(d.pick("return o", "return o, s", "return o, s.logsumexp(-1)"))


FORMS = (_joined_keys, _joined_scores, _sink, _rotated, _rows_of_sequences, _groups_by_reshape, _transposed, _other_dim,
         _letters, _broadcast, _chained, _several, _points,
         _pairs, _places)  # fmt: skip


def random_form(random: Random, extents: Extents = SMALL) -> Fuzzed:
    """A program of one of the forms, with layouts of the inputs in memory, and in some with symbolic sizes."""
    return form(lambda *options: random.choice(options), random.randint, extents)


def form(pick: Callable, integer: Callable, extents: Extents = SMALL) -> Fuzzed:
    """Choices as in fuzz_programs.program."""
    size = {"b": integer(1, 3), "h": integer(1, 3), "n": integer(1, 3), "l": integer(1, 9)}
    size |= {"i": integer(1, extents.longest), "j": integer(1, extents.longest)}
    size |= {"d": pick(*extents.widths), "e": pick(*extents.widths)}
    size["j"] = size["i"] if pick(True, False) else size["j"]
    draft = Draft(pick, size)
    pick(*FORMS)(draft)
    inputs = {name: (kind, shape) for name, (kind, shape) in draft.inputs.items()}
    layouts = {name: layout for name in inputs if (layout := pick("", "", "", *LAYOUTS))}
    dtype, regime = pick(*extents.dtypes), pick(*REGIMES[:1], *REGIMES[:1], *REGIMES)
    return Fuzzed(tuple(draft.lines), inputs, dtype, regime, integer(0, 999), layouts, pick(False, False, True))
