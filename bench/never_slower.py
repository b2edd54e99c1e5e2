"""Programs of ordinary models that no suite has, on one GPU: onepass beside torch.compile, with its own overhead.

`python bench/never_slower.py --out results.csv [--only swin space]`. Each program is plain PyTorch: windows with a bias
by a table, strided heads, short rows, few queries, heads that are mixed, products that no second product follows.
Results are compared with float64. `--dynamic` gives sizes as symbols, where onepass does not time torch.compile as a
rival of its kernels. With `--gradients` a call is forward and backward. Milliseconds are medians of rounds in turns,
with a cold L2 cache; a ratio below 1 is a program that onepass makes slower. "first" is the seconds of the first call.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor

import onepass
from onepass import process_state
from onepass.bench.results import write_rows
from onepass.bench.timing import ContestantResult, in_turns, said

ROUNDS = 5
FIELDS = ("program", "contestant", "milliseconds", "ratio", "first", "error", "ran", "where")
CONTESTANTS = {"onepass": onepass.onepass_backend, "torch.compile": "inductor"}
PROGRAMS: dict[str, Callable[[], tuple[Callable, list[Tensor]]]] = {}


def program(make: Callable[[], tuple[Callable, list[Tensor]]]) -> Callable:
    PROGRAMS[make.__name__] = make
    return make


def drawn(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def packed_heads(heads: int, width: int) -> Callable[[Tensor], Tensor]:
    """Attention over the axis before the last one, which holds queries, keys and values of all heads."""

    def run(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(-1, (3, heads, width)).movedim(-3, 0).transpose(-3, -2)
        return attend(q, k, v).transpose(-3, -2).flatten(-2)

    return run


@program
def swin():
    """Shifted windows of 7 x 7: a bias by a table, and a mask of 64 kinds of windows."""

    def run(qkv: Tensor, table: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        windows, rows = qkv.shape[:2]
        q, k, v = qkv.view(windows, rows, 3, 4, 32).permute(2, 0, 3, 1, 4)
        bias = table[index.view(-1)].view(rows, rows, 4).permute(2, 0, 1)
        score = q * 32**-0.5 @ k.mT + bias
        score = score.view(-1, 64, 4, rows, rows) + mask[:, None]
        found = score.view(-1, 4, rows, rows).softmax(-1) @ v
        return found.transpose(1, 2).reshape(windows, rows, -1)

    places = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")).flatten(1)
    far = (places[:, :, None] - places[:, None]) + 6
    mask = torch.where(torch.rand(64, 49, 49, device="cuda") < 0.2, -100.0, 0.0).bfloat16()
    return run, [drawn(4096, 49, 384), drawn(169, 4), (far[0] * 13 + far[1]).cuda(), mask]


@program
def swin_plain():
    """Windows without bias and mask."""
    return packed_heads(4, 32), [drawn(4096, 49, 384)]


@program
def space():
    """Attention within each frame of a video."""
    return packed_heads(12, 64), [drawn(8, 8, 196, 2304)]


@program
def over_time():
    """Attention of each patch of a video over 8 frames."""

    def run(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(-1, (3, 12, 64)).permute(3, 0, 2, 4, 1, 5)
        return attend(q, k, v).permute(0, 3, 1, 2, 4).flatten(3)

    return run, [drawn(8, 8, 196, 2304)]


@program
def last_stride_three():
    """Queries, keys and values that lie element by element beside each other."""

    def run(packed: Tensor) -> Tensor:
        return attend(*packed.unbind(-1))

    return run, [drawn(4, 16, 1024, 64, 3)]


@program
def axial():
    """Rows of an image, of 64 pixels each."""
    return packed_heads(8, 32), [drawn(16, 64, 64, 768)]


@program
def vision():
    """A vision transformer's layer."""
    return packed_heads(12, 64), [drawn(64, 197, 2304)]


@program
def padded():
    """BERT: 32 sequences of up to 128 tokens, padding as an added tensor."""

    def run(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return ((q @ k.mT) / 8 + padding[:, None, None]).softmax(-1) @ v

    lengths = torch.randint(20, 129, (32, 1), device="cuda")
    padding = torch.where(torch.arange(128, device="cuda") < lengths, 0.0, torch.finfo(torch.bfloat16).min).bfloat16()
    return run, [*(drawn(32, 12, 128, 64) for _ in range(3)), padding]


@program
def small():
    """One short sequence, where the host's time counts."""
    return attend, [drawn(1, 8, 128, 64) for _ in range(3)]


@program
def small_softcap():
    """The same with a form that no library has."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (20 * torch.tanh(q @ k.mT / 160)).softmax(-1) @ v

    return run, [drawn(1, 8, 128, 64) for _ in range(3)]


@program
def text():
    """Cross attention of an image to 77 tokens."""
    return attend, [drawn(8, 8, 4096, 40), drawn(8, 8, 77, 40), drawn(8, 8, 77, 40)]


@program
def latents():
    """256 learned queries of a Perceiver, and long inputs."""
    return attend, [drawn(4, 8, 256, 64), drawn(4, 8, 16384, 64), drawn(4, 8, 16384, 64)]


@program
def pooled():
    """One learned query a head, over 1024 elements."""
    return attend, [drawn(64, 8, 1, 64), drawn(64, 8, 1024, 64), drawn(64, 8, 1024, 64)]


@program
def points():
    """Each point attends to its 16 neighbours, by vectors of weights."""

    def run(q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
        near_k, near_v = (x.gather(1, places.flatten(1)[..., None].expand(-1, -1, x.shape[-1])) for x in (k, v))
        near_k, near_v = (x.unflatten(1, places.shape[1:]) for x in (near_k, near_v))
        return ((q[:, :, None] - near_k).softmax(2) * near_v).sum(2)

    return run, [*(drawn(8, 4096, 64) for _ in range(3)), torch.randint(4096, (8, 4096, 16), device="cuda")]


@program
def groups():
    """Decoding, four queries to a head of keys."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return run, [drawn(16, 32, 1, 128), drawn(16, 8, 2048, 128), drawn(16, 8, 2048, 128)]


@program
def dual():
    """LoFTR: a softmax over rows times one over columns."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        score = x @ y.mT / 16
        return score.softmax(1) * score.softmax(2)

    return run, [drawn(2, 4800, 256), drawn(2, 4800, 256)]


@program
def contrast():
    """CLIP's loss, of both directions."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        score = x @ y.T * 14.3
        here = score.diagonal()
        return (score.logsumexp(0) + score.logsumexp(1) - 2 * here).float().mean()

    return run, [F.normalize(drawn(8192, 512), dim=-1) for _ in range(2)]


@program
def cross_entropy():
    """A language model's last layer and its loss."""

    def run(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy((x @ w.T).float(), y)

    return run, [drawn(4096, 1024), drawn(32000, 1024) / 32, torch.randint(32000, (4096,), device="cuda")]


@program
def bias_of_pairs():
    """Short triangles: 128 rows of 128, with a bias that all rows share."""

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT * 32**-0.5 + bias).softmax(-1) @ v

    return run, [*(drawn(128, 4, 128, 32) for _ in range(3)), drawn(4, 128, 128)]


@program
def single():
    """Full attention in float32."""
    return attend, [drawn(4, 8, 512, 64, dtype=torch.float32) for _ in range(3)]


@program
def capped():
    """Gemma 2: a soft cap and a window."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = torch.arange(2048, device=q.device)[:, None] - torch.arange(2048, device=q.device)
        score = 50 * torch.tanh(q @ k.mT / 800)
        return score.masked_fill((far < 0) | (far >= 1024), -math.inf).softmax(-1) @ v

    return run, [drawn(2, 8, 2048, 256) for _ in range(3)]


def mix_heads(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor) -> Tensor:
    score = torch.einsum("gh,bhij->bgij", before, q @ k.mT / math.sqrt(q.shape[-1]))
    return torch.einsum("gh,bhij->bgij", after, score.softmax(-1)) @ v


@program
def mixed():
    """Talking heads of float32: 8 heads of 512 rows."""
    return mix_heads, [
        *(drawn(2, 8, 512, 16, dtype=torch.float32) for _ in range(3)),
        *(drawn(8, 8, dtype=torch.float32) for _ in range(2)),
    ]


@program
def mixed_wide():
    """The same with heads of 64, and 256 rows."""
    return mix_heads, [
        *(drawn(4, 8, 256, 64, dtype=torch.float32) for _ in range(3)),
        *(drawn(8, 8, dtype=torch.float32) for _ in range(2)),
    ]


def call_of(made: Callable, given: list[Tensor], gradients: bool) -> Callable[[], tuple[Tensor, ...]]:
    """A call of a program. With gradients, it returns those of all floating inputs behind the result."""
    if not gradients:
        return lambda: (made(*given),)
    leaves = [x.requires_grad_() for x in given if x.is_floating_point()]

    def step() -> tuple[Tensor, ...]:
        result = made(*given)
        return (result, *torch.autograd.grad(result, leaves, result.detach()))

    return step


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest difference of a result, over its largest value."""
    return max(float((x.float() - y.float()).abs().max() / y.abs().max()) for x, y in zip(found, exact, strict=True))


def measured(
    name: str, function: Callable, given: list[Tensor], dynamic: bool = False, gradients: bool = False
) -> Iterator[dict[str, object]]:
    """A row for each contestant. One that fails has the reason in its row."""
    wide = [x.double() if x.is_floating_point() else x for x in given]
    exact = call_of(function, wide, gradients)()
    calls, rows = {}, {}
    for contestant, backend in CONTESTANTS.items():
        process_state.forget()
        torch._dynamo.reset()
        row: dict[str, object] = {"program": name, "contestant": contestant, "where": torch.cuda.get_device_name()}
        try:
            call = call_of(torch.compile(function, backend=backend, dynamic=dynamic), given, gradients)
            start = time.perf_counter()
            found = call()
            torch.cuda.synchronize()
            row["first"] = time.perf_counter() - start
            call()
            row["error"] = relative_error(found, exact)
            calls[contestant] = call
            row["ran"] = ""
            if contestant == "onepass":
                regions = onepass.reports()[-1].regions
                row["ran"] = "; ".join(region.ran for region in regions) or "nothing fused"
        except Exception as error:
            row["where"] = said(error)
        rows[contestant] = row
    for contestant, taken in in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult())).items():
        rows[contestant]["milliseconds"] = statistics.median(taken)
    times = [row.get("milliseconds") for row in rows.values()]
    if None not in times:
        rows["onepass"]["ratio"] = times[1] / times[0]
    yield from rows.values()


def show(row: Mapping[str, object], fields: Sequence[str]) -> None:
    """Prints a row, with four figures of each number."""
    shown = (row.get(field, "") for field in fields)
    print(*(f"{x:.4g}" if isinstance(x, float) else x for x in shown), sep="  ", flush=True)


def measure(
    programs: Mapping[str, Callable[[], tuple[Callable, list[Tensor]]]],
    out: Path | None,
    dynamic: bool = False,
    gradients: bool = False,
) -> None:
    """Prints the rows of these programs, and writes them to the file as they come."""
    rows = []
    print(*FIELDS, sep="  ")
    for name, make in programs.items():
        torch.manual_seed(0)
        for row in measured(name, *make(), dynamic, gradients):
            rows.append(row)
            show(row, FIELDS)
            if out:
                write_rows(out, FIELDS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--only", nargs="*", choices=PROGRAMS, default=list(PROGRAMS), help="these programs")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    parser.add_argument("--gradients", action="store_true", help="a call is forward and backward")
    asked = parser.parse_args()
    measure({name: PROGRAMS[name] for name in asked.only}, asked.out, asked.dynamic, asked.gradients)


if __name__ == "__main__":
    main()
