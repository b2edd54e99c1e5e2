"""Records of what is emitted for many programs, to hold one version of the code against another.

`python -m tests.frozen DIR` writes a file for each program: plans, notes, Triton and Gluon texts, digests of the laws.
`--every 20` takes each 20th program only, for a quick look.
`--against OTHER` compares the programs of DIR with those of the folder OTHER and prints the first difference of each.
Names of modules, classes and fields are in no record, so that a rename changes none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

import torch

SEEDS = 200
OF_PLANNING = ("plan_passes", "shape_reasons", "read_back", "chosen")  # of a plan and a report: how it was made
UNSTABLE = ("key", "statistics", "cache", "certificates", "places")  # of a report: times, digests of sources, lines


def programs() -> Iterator[tuple[str, object]]:
    """A name and what makes (function, inputs, dynamic) for every variant, case of a suite, and seed."""
    from onepass.bench.scales import SCALES
    from onepass.bench.suites import cases
    from tests.fuzz.programs import SMALL
    from tests.fuzz.run import DRAWN
    from tests.variants import every

    for variant in every():
        for number, function in enumerate(variant.functions):
            yield f"variant {variant.name} {number}", lambda f=function, v=variant: (f, v.inputs(), False)
    for suite in ("peers", "variants", "flashlight", "beyond", "decode"):
        for case in cases(suite, SCALES["cpu"]):
            yield f"{suite} {case.variant} {case.shape}", lambda c=case: _of_case(c)
    for seed in range(SEEDS):
        yield f"seed {seed}", lambda s=seed: _of_seed(Random(s), DRAWN, SMALL)


def _of_case(case):
    problem = case.make("cpu", torch.bfloat16)
    return problem.plain, problem.arguments, False


def _of_seed(random, drawn, extents):
    program = random.choice(drawn)(random, extents)
    return program.function(), program.tensors(), program.dynamic


class _Seen(Exception):
    """The graph was looked at; there is no need to run it."""


def record(function, inputs, dynamic: bool) -> dict:
    """What becomes of each graph of a function, and of each plan."""
    from onepass import process_state
    from onepass.api.backend import rewrite_module
    from onepass.compiler import compiled_region
    from onepass.compiler.options import Options

    process_state.forget()
    torch._dynamo.reset()
    reports = []

    def backend(graph, _):
        reports.append(rewrite_module(graph, Options.read({"libraries": False}), dry=True))
        raise _Seen

    try:
        torch.compile(function, backend=backend, dynamic=dynamic or None)(*inputs)
    except Exception as error:
        if not reports:
            return {"failed": type(error).__name__}
    return {
        "reports": [_of_report(r) for r in reports],
        "plans": [_of_plan(found.plan) for found in compiled_region._BY_KEY.values()],
    }


def _of_report(found) -> dict:
    data = json.loads(re.sub(r"\([^()\s]+\.py:\d+\)", "(FILE:LINE)", found.json()))
    for region in data["regions"]:
        for name in (*UNSTABLE, *OF_PLANNING):
            region.pop(name, None)
        for kernel in region["kernels"]:
            kernel.pop("source", None)
    return data


def _of_plan(plan) -> dict:
    return {"plan": plain(plan), "triton": [_triton(k, plan) for k in plan.kernels], "gluon": _gluon(plan)}


def _triton(kernel, plan) -> dict:
    from onepass.lowering.plan.queries import map_name
    from onepass.lowering.triton.kernel import Facts, emit
    from onepass.lowering.triton.launch import default_for

    mapped = frozenset(map_name(kernel, loop) for loop in kernel.loops if loop.map)
    return {
        "plain": _or_error(lambda: emit(kernel, plan).text),
        "mapped": _or_error(lambda: emit(kernel, plan, Facts(mapped=mapped)).text) if mapped else "",
        "config": _or_error(lambda: plain(default_for(kernel, "sm_90"))),
    }


def _gluon(plan) -> list:
    from onepass.lowering.gluon.launch import fits
    from onepass.lowering.hopper.kernel_form import bind
    from onepass.lowering.hopper.split_states import with_split_states

    kernels = _or_error(lambda: with_split_states(plan, fits).kernels)
    if isinstance(kernels, str):
        return [kernels]
    return [_or_error(lambda n=n, k=k: _gluon_text(plan, n, bind(k))) for n, k in enumerate(kernels)]


def _gluon_text(plan, number: int, binding):
    from tests.support.gluon_ahead_of_time import source_of

    if isinstance(binding, str):
        return binding
    _, schedule, source = source_of(plan, number=number)
    lines = [line for line in source.text.splitlines() if not re.match(r"\s*(from|import) ", line)]
    return {"schedule": plain(schedule), "text": "\n".join(lines)}


def _or_error(make):
    """What is made, or the error; of errors only those that say why."""
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def plain(value):
    """Records as lists of their fields' values, terms and dims as text; sets are sorted."""
    from onepass.egraph.rewrite.serialization import to_json
    from onepass.egraph.terms.printing import show_let
    from onepass.egraph.terms.term import Term

    if isinstance(value, Term):
        return [show_let(value), json.dumps(to_json(value))]
    if is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in fields(value) if field.name not in OF_PLANNING]
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, dict):
        return sorted(([str(plain(k)), plain(v)] for k, v in value.items()), key=str)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _write(task) -> str:
    name, folder, make = task
    torch.manual_seed(0)
    with torch.no_grad():
        found = _or_error(lambda: record(*make()))
    path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True, default=str))
    return name


def _share(task) -> int:
    folder, number, of, every = task
    os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()
    torch.set_num_threads(1)
    chosen = [task for k, task in enumerate(programs()) if k % every == 0]
    return sum(1 for name, make in chosen[number::of] if _write((name, folder, make)))


def laws() -> dict[str, str]:
    """The digest of every law."""
    from onepass.egraph.derivation.ledger import digest_of
    from onepass.rules import ALL

    return {law.name: digest_of(law) for law in ALL}


def differences(one: Path, other: Path) -> Iterator[str]:
    """For each program of the first folder that differs: its name and the first lines that do."""
    names = sorted(p.name for p in one.glob("*.json"))
    for name in names:
        paths = (folder / name for folder in (one, other))
        texts = [path.read_text().splitlines() if path.exists() else [] for path in paths]
        if texts[0] != texts[1]:
            pairs = ((a, b) for a, b in zip(*texts) if a != b)
            a, b = next(pairs, (f"{len(texts[0])} lines", f"{len(texts[1])} lines"))
            yield f"{name}\n  {a.strip()[:300]}\n  {b.strip()[:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.against is None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "laws.json").write_text(json.dumps(laws(), indent=1))
        with get_context("spawn").Pool(chosen.jobs) as pool:
            counts = pool.map(_share, [(str(chosen.folder), n, chosen.jobs, chosen.every) for n in range(chosen.jobs)])
        print(f"{sum(counts)} programs written to {chosen.folder}")
        return 0
    found = list(differences(chosen.folder, chosen.against))
    print("\n".join([*found[:20], f"{len(found)} programs differ"]))
    return int(bool(found))
