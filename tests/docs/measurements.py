"""The tables of docs/measurements.md: `make measurements`, or `python -m tests.docs.measurements`.

Each that has a data file in bench/results stands between `<!-- table: NAME -->` and `<!-- end -->`, with machine and
versions as the file records them. A table without such marks says in front of it that no data file is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from statistics import geometric_mean

from .result_rows import OURS, ROOT, Case, Row, cases, figure, over, provenance, rows, sizes, table, times

PAGE = ROOT / "docs" / "measurements.md"
UNRECORDED = "*No data file is kept.*"
BLOCK = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


# Tables ---------------------------------------------------------------------------------------------------------------


def peers() -> str:
    file = "peers_h200.csv"
    found = {k: c for k, c in cases(file, "suite", "variant", "shape").items() if k[0] == "peers"}
    short = {k: c for k, c in found.items() if sizes(k[2])[2] == 1024}
    groups = [[c for k, c in found.items() if k not in short], list(short.values())]

    def spread(group: list[Case], *others: str) -> str:
        ratios = [min(over(case, other) or 0 for other in others) for case in group]
        return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    head = [f"{OURS} over"]
    head += [f"{text} ({len(g)} cases)" for text, g in zip(("lengths 4096 and 16384", "length 1024"), groups)]
    named = {"FlashAttention-3": ["fa3"], "cuDNN": ["sdpa_cudnn"], "the better of both": ["fa3", "sdpa_cudnn"]}
    lines = [[name, *(spread(group, *others) for group in groups)] for name, others in named.items()]
    return table(head, lines) + "\n" + provenance(file)


def backward() -> str:
    file = "peers_backward_h200.csv"
    lengths = {4096: 0, 16384: 1, 1024: 2}
    found = sorted(cases(file, "variant", "shape").items(), key=lambda item: lengths[sizes(item[0][1])[2]])
    lines = [
        [f"{variant} {sizes(shape)}", *(figure(c[n]["ms"]) for n in (OURS, "sdpa_cudnn")), times(over(c, "sdpa_cudnn"))]
        for (variant, shape), c in found
    ]
    mean = {short: _mean(c for (_, shape), c in found if (sizes(shape)[2] == 1024) == short) for short in (False, True)}
    said = f"The geometric mean over cuDNN is {mean[False]} at lengths 4096 and 16384, and {mean[True]} at 1024."
    head = ["case (batch, heads, length, D)", OURS, "cuDNN", "over cuDNN"]
    return table(head, lines) + f"\n{said}\n{provenance(file)}"


def _mean(group: Iterable[Case], other: str = "sdpa_cudnn") -> str:
    return f"{geometric_mean([r for c in group if (r := over(c, other))]):.2f}"


VARIANTS = {
    "gqa8_causal": "causal, grouped queries",
    "alibi": "ALiBi",
    "t5_bias": "T5's bias",
    "relative_bias": "clamped relative bias",
    "graphormer": "dense bias (Graphormer)",
    "added_mask": "added mask",
    "boolean_mask": "boolean mask",
    "key_padding": "key padding",
    "softcap": "softcap",
    "tree": "tree",
    "window256": "window of 256",
    "prefix1024": "prefix of 1024",
    "dilated256": "dilated window",
    "natten255": "NATTEN",
    "natten17x17": "NATTEN, 2-D",
    "document12": "twelve documents, causal",
    "packed12": "twelve documents, causal, in one run",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "evoformer": "Evoformer (rows of 256)",
}


def flex_backward() -> str:
    file = "flex_backward_h100.csv"
    found = cases(file, "variant", "shape")
    lines = [
        [
            f"{VARIANTS[variant]}, {sizes(shape)[-1]}",
            *(figure(c[name]["ms"]) for name in (OURS, "flex_max")),
            times(over(c, "flex_max")),
        ]
        for (variant, shape), c in sorted(found.items(), key=lambda item: list(VARIANTS).index(item[0][0]))
    ]
    said = f"The geometric mean of the last column is {_mean(found.values(), 'flex_max')}."
    head = ["variant, D", OURS, "FlexAttention", "over Flex"]
    return table(head, lines) + f"\n{said}\n{provenance(file)}"


LEARNED = {
    "sinks": ("sinks", "1.05"),
    "temperature": ("temperature of each head", "1.05"),
    "slopes": ("slopes (ALiBi)", "1.05"),
    "t5 table": ("T5's table, 32 buckets", "1.2"),
    "clamped table": ("clamped distances, 257 entries", "1.2"),
    "dense bias": ("dense bias", "1.4"),
    "dense bias, shared": ("dense bias that the batch shares", "1.4"),
    "graph table": ("table read by positions in a tensor, 64 entries", "1.2"),
}


def learned() -> str:
    kernels, steps = "learned_kernels_h100.csv", "learned_h100.csv"
    total = {(row["case"], row["shape"]): float(row["kernels_us"]) / 1e3 for row in rows(kernels)}
    lines = []
    for (case, shape), c in cases(steps, "case", "shape").items():
        if case in LEARNED:
            name, wanted = LEARNED[case]
            without = float(c[f"{OURS} without"]["ms"])
            measured = total.get((case, shape)) or float(c[OURS]["ms"])
            lines.append([name, figure(measured), figure(without), times(measured / without), wanted])
    lines.sort(key=lambda line: float(line[3]))
    head = ["learned input", "with, ms", "without, ms", "ratio", "goal"]
    said = f"Times with the gradient are of `{kernels}`; the others, and the shared bias, of `{steps}`."
    return table(head, lines) + f"\n{said}\n{provenance(kernels, steps)}"


def training_step() -> str:
    file = "models_train_h100.csv"
    lines = [
        [f"{model}, batch {batch}, length {length}"]
        + [f"{figure(c[n]['ms'])}, {float(c[n]['peak_mib']):.0f}" for n in (OURS, "flex", "sdpa", "compile")]
        for (model, batch, length), c in cases(file, "model", "batch", "length").items()
    ]
    return table(["model", OURS, "FlexAttention", "SDPA", "torch.compile"], lines) + "\n" + provenance(file)


def forward_mode() -> str:
    file = "jvp_h100.csv"
    found: dict[str, dict[str, Case]] = {}
    for (case, width), c in cases(file, "case", "width").items():
        found.setdefault(case, {})[width] = c
    ours, theirs = f"{OURS} jvp", "torch.compile jvp"
    lines = [
        [{"sink": "sinks"}.get(case, case)]
        + [f"{figure(c[ours]['ms'])}, {times(float(c[ours]['times_forward']))} times" for c in widths.values()]
        + [", ".join(figure(c[theirs]["ms"]) for c in widths.values())]
        for case, widths in found.items()
    ]
    head = ["", f"{OURS}, D 64", f"{OURS}, D 128", "torch.compile, D 64 and 128"]
    return table(head, lines) + "\n" + provenance(file)


def first_step() -> str:
    file = "first_step_h100.csv"
    runs: dict[str, Case] = {}
    for row in rows(file):
        runs.setdefault(row["note"].partition(";")[0].removeprefix("run "), {})[row["contestant"]] = row
    shown = lambda row: ", ".join(f"{float(row[column]):.2f}" for column in ("forward_s", "backward_s"))
    lines = [
        [run, shown(c[OURS]), shown(c["inductor"]), times(float(c["inductor"]["ratio"]))] for run, c in runs.items()
    ]
    head = ["run", f"{OURS}: forward, backward", "torch.compile: forward, backward", f"{OURS} over torch.compile"]
    return table(head, lines) + "\n" + provenance(file)


FIRST_CALLS = {
    "causal": "causal",
    "causal_training": "causal, with gradients",
    "alibi_training": "ALiBi, with gradients",
    "cross_entropy": "a layer with its cross entropy",
}


def first_calls() -> str:
    file = "first_call_h200.csv"
    known = cases(file, "program", "run", "caches")

    def both(program: str, run: str, caches: str) -> list[str]:
        case = known.get((program, run, caches), {})
        return [figure(_seconds(case[name])) if name in case else "" for name in (OURS, "inductor")]

    def ratio(program: str, run: str) -> str:
        case = known.get((program, run, "cold"), {})
        return times(float(case[OURS]["ratio"])) if OURS in case else ""

    lines = [
        [name, *both(p, "after", "cold"), ratio(p, "after"), ratio(p, "before"), *both(p, "before", "warm")]
        for p, name in FIRST_CALLS.items()
    ]
    head = ["program", OURS, "torch.compile", "ratio", "ratio before"]
    head += [f"{name}, filled caches" for name in (OURS, "torch.compile")]
    return table(head, lines) + "\n" + provenance(file)


def _seconds(row: Row) -> float:
    return float(row["forward"]) + float(row["backward"] or 0)


def over_flex() -> str:
    latest, dealt = "suites_latest_h200.csv", "dealt_h200.csv"
    keys = ("suite", "variant", "shape")
    found, newer = cases(latest, *keys), cases(dealt, *keys)
    # Where onepass alone was timed again, the ratio is to the earlier time of Flex.
    later = {k: {**found.get(k, {}), **c} for k, c in newer.items() if k[1] in AGAIN}
    ratios: dict[str, dict[int, str]] = {}
    for (suite, variant, shape), c in {**found, **later}.items():
        plain = suite == "variants" or (suite, variant, sizes(shape)[0]) == ("flashlight", "evoformer", 8)
        if plain and (ratio := over(c, "flex_max")):
            name = VARIANTS[variant] + (", length 16384" if "s16384" in shape else "")
            ratios.setdefault(name, {})[sizes(shape)[-1]] = times(ratio)
    order = list(VARIANTS.values())
    ordered = sorted(ratios.items(), key=lambda item: order.index(item[0].removesuffix(", length 16384")))
    lines = [[name, *(by_width.get(width, "") for width in (64, 128))] for name, by_width in ordered]
    return table(["mask or score", "D 64", "D 128"], lines) + "\n" + provenance(latest, dealt)


AGAIN = ("document12", "packed12", "tree", "bigbird", "longformer")
BEYOND = {
    "sinks": "sinks",
    "retention": "retention",
    "latent_decode": "MLA, one token",
    "norm_and_rope": "norms with rotations",
    "linear": "linear",
    "log_sum_exp": "log-sum-exp as a second result",
    "two_key_sets": "two sets of keys",
    "relu_squared": "squared ReLU",
    "latent": "latent",
    "triangle_start": "triangles, from the start",
    "triangle_end": "triangles, to the end",
    "evoformer": "Evoformer",
    "evoformer_rows": "Evoformer, gated",
    "gaussian": "Gaussian scores",
    "additive": "additive scores",
    "graph": "graph attention",
    "sigmoid": "sigmoid",
    "differential": "differential",
    "cosine": "cosine",
    "softmax_plus_one": "1 added to the divisor (softmax-1)",
    "gate": "a gate behind the values",
    "invariant_points": "invariant points (width 16)",
    "relative_shift": "Transformer-XL's shift, 8 heads of 1024",
    "talking_heads": "talking heads, 32 heads (D 64), 16 heads (D 128)",
}


def beyond() -> str:
    file = "suites_latest_h200.csv"
    ratios: dict[str, dict[int, float]] = {}
    for (suite, variant, shape), c in cases(file, "suite", "variant", "shape").items():
        if suite == "beyond" and variant in BEYOND and (ratio := over(c, "compile")):
            ratios.setdefault(BEYOND[variant], {})[max(64, sizes(shape)[-1])] = ratio
    ordered = sorted(ratios.items(), key=lambda item: -max(item[1].values()))
    lines = [[name, *(times(by_width.get(width)) for width in (64, 128))] for name, by_width in ordered]
    return table(["variant", "D 64", "D 128"], lines) + "\n" + provenance(file)


PROGRAMS = {
    "swin": "Swin: 4096 shifted windows of 49, a bias by a table, masks of 64 windows",
    "swin_plain": "the same without bias and mask",
    "space": "space attention of a video, 64 frames of 196",
    "over_time": "time attention of it, 1568 x 8 frames",
    "last_stride_three": "queries, keys, values packed element by element (`x.unbind(-1)`)",
    "axial": "axial attention, rows of 64",
    "vision": "vision transformer, 64 x 197",
    "padded": "padding as an added tensor, 32 x 128",
    "small": "one sequence of 128",
    "small_softcap": "the same with a soft cap",
    "text": "cross attention to 77 tokens",
    "latents": "256 latents, 16384 inputs",
    "pooled": "one learned query, 1024 elements",
    "groups": "decoding, groups of 4, 2048 keys",
    "bias_of_pairs": "128 rows of 128 with a shared bias",
    "single": "float32, 4 x 8 x 512",
    "capped": "a soft cap of 50 and a window, D 256",
    "mixed": "heads mixed before and after the softmax, float32 (nothing fused)",
    "mixed_wide": "the same, other sizes (nothing fused)",
    "points": "vector attention to 16 neighbours (nothing fused)",
    "dual": "dual softmax (nothing fused)",
    "contrast": "CLIP's loss",
    "cross_entropy": "cross entropy of 32000 words",
}


def marked(ratio: float) -> str:
    """A ratio, bold where it is below 0.99."""
    return times(ratio) if ratio > 0.99 else f"**{times(ratio)}**"


def beside_compile(
    file: str, names: Mapping[str, str], cell: Callable[[Row], str], more: Callable[[Case], list[str]] = lambda case: []
) -> list[list[str]]:
    """A line of each program: its cells of both contestants, the ratio, bold where it is below 0.99, and more."""
    lines, found = [], cases(file, "program")
    for program, name in names.items():
        case = found[(program,)]
        ratio = float(case[OURS]["ratio"])
        lines.append([name, *(cell(case[n]) for n in (OURS, "torch.compile")), marked(ratio), *more(case)])
    return lines


def programs() -> str:
    file = "never_slower_h200.csv"
    lines = beside_compile(file, PROGRAMS, lambda row: figure(row["milliseconds"]))
    return table(["program", OURS, "torch.compile", "ratio"], lines) + "\n" + provenance(file)


MOST_WRONG = 0.1  # of a result's largest value: who is off by more computes something else


def layouts() -> str:
    files = "layouts_h200.csv", "layouts_training_h200.csv"
    calls, steps = (cases(file, "program") for file in files)
    lines = [[*key, *_beside(calls[key]), *_beside(steps[key])] for key in calls]
    head = ["layout", OURS, "torch.compile", "ratio", f"step: {OURS}", "torch.compile", "ratio"]
    return table(head, lines) + "\n" + provenance(*files)


def _beside(case: Case) -> list[str]:
    """Milliseconds of both, and the ratio; no ratio to a wrong result."""
    both = [case[name] for name in (OURS, "torch.compile")]
    cells = [figure(row["milliseconds"]) + " (wrong)" * (float(row["error"]) > MOST_WRONG) for row in both]
    return [*cells, "" if "wrong" in "".join(cells) else marked(float(both[0]["ratio"]))]


PAGED = {
    "in place": "onepass, pages, captured",
    "pages copied first": "onepass, copied pages, captured",
    "contiguous keys": "onepass, contiguous, captured",
    "torch.compile": "torch.compile, captured",
    "the same with SDPA": "torch.compile, sdpa, captured",
}


def paged() -> str:
    file = "paged_decode_h100.csv"
    lines = []
    for (lengths, slots), c in cases(file, "lengths", "slots").items():
        if lengths == "random":
            speed = f" ({float(c[PAGED['in place']]['gigabytes_per_second']) / 1e3:.1f})"
            first, *rest = (figure(c[name]["milliseconds"]) for name in PAGED.values())
            lines.append([slots, first + speed, *rest])
    return table(["slots of a page", *PAGED], lines) + "\n" + provenance(file)


def unlike_lengths() -> str:
    file = "paged_decode_h100.csv"
    found = cases(file, "lengths", "slots")
    named = {
        "one of 65536, 31 of 1024": ("skewed", "as many, even"),
        "Zipf, 65536 to 2048": ("zipf", "as many as zipf, even"),
    }
    lines = []
    for name, pair in named.items():
        one, even = (float(found[lengths, "64"][PAGED["in place"]]["milliseconds"]) for lengths in pair)
        lines.append([name, figure(one), figure(even), times(one / even)])
    head = ["lengths", "in place", "as many tokens, all sequences alike", "ratio"]
    return table(head, lines) + "\n" + provenance(file)


def stored_parts() -> str:
    file = "stored_parts_h100.csv"
    columns = ("own", "chosen", "torch.compile")
    lines = [
        [program, *(figure(c.get(name, {}).get("milliseconds")) for name in columns)]
        for (program,), c in cases(file, "program").items()
    ]
    return table(["program", *columns], lines) + "\n" + provenance(file)


def vectors_of_pairs() -> str:
    file = "relative_vectors_h200.csv"
    lines = []
    for (program,), c in cases(file, "program").items():
        own, default, compiled = (float(c[name]["milliseconds"]) for name in ("own", "default", "torch.compile"))
        lines.append([program, *map(figure, (own, default, compiled)), times(compiled / own)])
    head = ["program", "own kernels", "default", "torch.compile", "torch.compile over own kernels"]
    return table(head, lines) + "\n" + provenance(file)


def models() -> str:
    file = "models_h200.csv"
    lines = []
    for (model, batch, length), c in cases(file, "model", "batch", "length").items():
        memory = [c[name]["peak_mib"] for name in (OURS, "compile")]
        ratios = [times(over(c, name)) or "has none" for name in ("compile", "sdpa", "flex")]
        held = ", ".join(f"{float(m):.0f}" for m in memory) if float(memory[0]) else "captured"
        lines.append([model, f"{batch} x {length}", figure(c[OURS]["ms"]), *ratios, held])
    head = ["model", "batch x length", OURS, "torch.compile", "SDPA", "FlexAttention", "memory"]
    return table(head, lines) + "\n" + provenance(file)


SERVING = {
    "pages, FlashInfer": "the same, by FlashInfer 0.6.4",
    "latents, 16 heads": "latents of 512 and 64 (MLA), 16 heads",
    "latents, 16 heads, FlashInfer": "the same, by FlashInfer",
    "latents, 128 heads": "the same, 128 heads",
    "latents, 128 heads, FlashInfer": "the same, by FlashInfer",
    "latents in one tensor, 16 heads": "latents of 576 in one tensor, 16 heads",
    "latents in one tensor, 128 heads": "the same, 128 heads",
    "latents with weights, 16 heads": "with the products of its weights on either side, 16 heads",
    "latents with weights, 128 heads": "the same, 128 heads",
}


def serving() -> str:
    file = "serving_programs_h200.csv"
    lines = []
    for row in rows(file):
        others = "FlashInfer" if row["program"].endswith("FlashInfer") else "the original calls"
        ran = row["how"] if row["how"] in ("triton", "gluon") else others
        columns = ("milliseconds", "terabytes_per_second", "of_copy", "of_read", "teraflops")
        lines.append([SERVING.get(row["program"], row["program"]), *(figure(row[c]) for c in columns), ran])
    head = ["program", "milliseconds", "TB/s", "of a copy", "of a read", "TFLOP/s", "ran"]
    return table(head, lines) + "\n" + provenance(file)


def decoding_step() -> str:
    file = "plan_step_h100.csv"
    columns = ("milliseconds", "replay_us", "call_us")
    lines = [
        [row["contestant"], *(figure(row[c]) for c in columns), figure(float(row["allocated_bytes"]) / 2**20)]
        for row in rows(file)
    ]
    head = ["way", "milliseconds", "host, a replay, us", "host, a call, us", "allocated, MiB"]
    return table(head, lines) + "\n" + provenance(file)


ONE_PRODUCT = {
    "contrast 128": "InfoNCE in both directions, 8192 x 8192, D 128",
    "contrast 768": "the same, D 768",
    "CLIP 512": "CLIP's loss, 8192, D 512",
    "linear 2048": "linear layer and cross entropy, 4096 x 32000, D 2048",
    "entropy 1024": "logarithms at labels and entropies, 4096 x 32000, D 1024",
    "retrieval 128": "the largest of 1,000,000 scores, 4096 queries, D 128",
    "k-means distance 64": "the least distance to 1024 means, 100,000 rows, D 64",
    "retrieval top-1 128": "the largest of these scores with its position",
    "k-means 64": "the position of the nearest of 1024 means, 100,000 rows, D 64",
    "words 4096": "the likeliest of 128,256 words, 2048 rows, D 4096",
    "router 4096": "the best of 64 experts with its score, 65,536 rows, D 4096",
}


def one_product() -> str:
    file = "one_product_h100.csv"
    cell = lambda row: f"{figure(row['milliseconds'])}, {row['peak']}"
    lines = beside_compile(file, ONE_PRODUCT, cell, lambda case: [figure(case["plan"]["first"])])
    return table(["program", OURS, "torch.compile", "ratio", "first call, s"], lines) + "\n" + provenance(file)


ONE_PRODUCT_IN_TRAINING = {
    "linear 2048 trained": "linear layer and cross entropy, 4096 x 32000, D 2048",
    "linear 50257 trained": "the same, 8192 x 50257, D 768",
    "linear 128256 trained": "the same, 4096 x 128256, D 4096",
    "CLIP 512 trained": "CLIP's loss, 8192, D 512",
    "contrast 768 trained": "InfoNCE in both directions, 8192, D 768",
    "contrast 128 trained": "the same, D 128",
    "contrast 16384 x 128 trained": "16384, D 128",
    "contrast 32768 x 64 trained": "32768, D 64",
}


def one_product_training() -> str:
    file = "one_product_training_h200.csv"
    names = ("memory", "torch.compile", "torch.compile in chunks", "liger", "cut-cross-entropy")
    cell = lambda case, name: f"{figure(case[name]['milliseconds'])}, {case[name]['peak']}" if name in case else ""
    found = cases(file, "program")
    lines = [[said, *(cell(found[(name,)], one) for one in names)] for name, said in ONE_PRODUCT_IN_TRAINING.items()]
    others = ("torch.compile", "torch.compile in chunks", "Liger's kernel", "cut-cross-entropy")
    return table(["program", 'onepass, `"prefer": "memory"`', *others], lines) + "\n" + provenance(file)


def products_of_bytes() -> str:
    file = "products_of_bytes_h200.csv"
    names = (OURS, "fa3", "weights in halves", "bfloat16")
    cell = lambda row: f"{figure(row['milliseconds'])}, {figure(row['teraflops'])}, {float(row['error']):.4f}"
    lines = [
        [f"{program}, {' x '.join(map(str, sizes(shape)))}", *(cell(case[n]) for n in names), times(_gain(case))]
        for (program, shape), case in cases(file, "program", "shape").items()
    ]
    others = ("FlashAttention-3, e4m3", "weights in halves", "bfloat16", "over bfloat16")
    return table(["program", 'onepass, `weights="e4m3"`', *others], lines) + "\n" + provenance(file)


def int8_of_heads() -> str:
    file, names = "int8_of_heads_h200.csv", (OURS, "plain triton", "bfloat16", "sdpa")
    lines = [
        [" x ".join(map(str, sizes(shape))), *(figure(case[n]["milliseconds"]) for n in names)]
        for (shape,), case in cases(file, "shape").items()
    ]
    others = ("plain Triton", "the same in bfloat16", "SDPA of torch.compile, on bfloat16")
    return table(["shape", OURS, *others], lines) + "\n" + provenance(file)


def _gain(case: Case) -> float | None:
    """How many times as long the same program takes with tensors in bfloat16."""
    return over(case, "bfloat16", "milliseconds")


def cpu() -> str:
    file, found = "cpu_beside_inductor.csv", dict[tuple[str, ...], dict[str, Row]]()
    keys = ("length", "dtype", "threads", "variant")
    for row in rows(file):
        found.setdefault(tuple(row[key] for key in keys), {})[row["step"]] = row
    steps = ("call", "training")
    lines = [[*key, *(_on_a_cpu(of[step]) if step in of else "" for step in steps)] for key, of in found.items()]
    return table([*keys, "call, ms (of torch.compile)", "training step"], lines) + "\n" + provenance(file)


def _on_a_cpu(row: Row) -> str:
    """Milliseconds, their ratio, and who runs it, without how that was chosen."""
    who = row["ran"].partition(",")[0].partition(" / ")[0]
    return f"{figure(row['ms'])} ({float(row['ratio']):.2f}), {who}"


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        *(peers, backward, flex_backward, learned, training_step, forward_mode, first_step, first_calls),
        *(over_flex, beyond),
        *(programs, layouts, one_product, one_product_training, products_of_bytes, int8_of_heads),
        *(paged, unlike_lengths, serving, decoding_step),
        *(stored_parts, vectors_of_pairs, models, cpu),
    )
}


def page(text: str) -> str:
    """The page's text, with each marked table made again."""
    return BLOCK.sub(lambda found: block(found[1]), text)


def block(name: str) -> str:
    return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end -->"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written: docs/{PAGE.name}, {len(TABLES)} tables from bench/results")
