"""A package that AOTInductor made with GraphPass in it was built, and then every call of it failed."""

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.export import Dim, export
from torch.utils.cpp_extension import include_paths, library_paths

from onepass import GraphPass
from onepass.api.backend import onepass_backend
from onepass.errors import OptionError
from onepass.report import records
from tests.support.pages import batch as random_batch
from tests.support.pages import by_index, doubled, hostile, plain

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("fresh")


class Regions(torch.nn.Module):
    """Two regions, the second with two results; the length of `kept` is a number that none of their tensors states."""

    def forward(self, q, k, v, kept):
        first = torch.softmax(q @ k.mT / 3, -1) @ v
        shown = torch.arange(k.shape[-2], device=k.device) < kept.shape[0]
        scores = (first @ k.mT / 5).masked_fill(~shown, float("-inf"))
        return first, torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def given(batch=3, length=16, kept=5):
    tensor = lambda k: torch.sin(torch.arange(batch * 16.0 * length) * (k + 1)).view(batch, 2, length, 8)
    return *map(tensor, range(3)), torch.zeros(kept)


CALLS = {False: [given()], True: [given(), given(2, 33, 7), given(5, 7, 2)]}


def package(path: Path, dynamic: bool, aot: str) -> str:
    batch, length, kept = Dim("batch", min=2, max=64), Dim("length", min=2, max=4096), Dim("kept", min=2, max=64)
    shapes = ({0: batch, 2: length},) * 3 + ({0: kept},)
    with torch.no_grad():
        exported = export(Regions(), given(), dynamic_shapes=shapes if dynamic else None)
        configs = {"joint_custom_pre_pass": GraphPass(aot=aot)}
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=configs)


def assert_right(results, inputs):
    wanted = Regions()(*(x.double() for x in inputs))
    torch.testing.assert_close([r.double() for r in results], list(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic, aot, fused", [(False, "python", 2), (True, "python", 2), (True, "anywhere", 0)])
def test_a_package_runs_and_is_right(dynamic, aot, fused, tmp_path):
    path = package(tmp_path / "model.pt2", dynamic, aot)
    found = records.reports()[-1]
    assert len(found.regions) == fused and not found.failures
    assert [r.kind for r in found.refusals] == ([] if fused else ["package"])
    run = torch._inductor.aoti_load_package(path)
    loader = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
    for inputs in CALLS[dynamic]:
        assert_right(run(*inputs), inputs)
        assert_right(loader.boxed_run([*inputs]), inputs)
    assert all(r.ran for r in records.reports()[-1].regions)
    if dynamic:
        (in_another_process if fused else without_python)(path, tmp_path)


class Paged(torch.nn.Module):
    """Decoding from pages: lengths and tables are data."""

    forward = staticmethod(by_index)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["joint_custom_pre_pass", "pre_grad_custom_pass"])
def test_a_package_reads_pages_in_place(hook, tmp_path):
    batch, row, pages = Dim("batch", min=2, max=64), Dim("row", min=2, max=64), Dim("pages", min=2, max=4096)
    shapes = {0: batch}, {0: pages}, {0: pages}, {0: batch, 1: row}, {0: batch}
    with torch.no_grad():
        exported = export(Paged(), plain(random_batch()), dynamic_shapes=shapes)
        configs = {hook: GraphPass(aot="python", strict=True)}
        path = str(tmp_path / "model.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=configs)
    (region,) = records.reports()[-1].regions
    assert len(region.around) == 2 and all("computed in the kernel" in note for note in region.around)
    run = torch._inductor.aoti_load_package(path)
    wild, tame = hostile(random_batch(), negative=True)
    longer = random_batch(lengths=(1, 7, 8, 9, 96))
    longer = replace(longer, table=torch.randint(0, 13, (5, 12)))
    for given, same in ((wild, tame), (longer, longer)):
        wanted = by_index(*doubled(plain(same)))
        torch.testing.assert_close(run(*plain(given)).double(), wanted, atol=1e-5, rtol=1e-4)
    assert all(r.ran for r in records.reports()[-1].regions)


PROCESS = """
import importlib, sys, torch
for name in sys.argv[2:]: importlib.import_module(name)
run = torch._inductor.aoti_load_package(sys.argv[1])
torch.save([run(*inputs) for inputs in torch.load(sys.argv[1] + ".inputs")], sys.argv[1] + ".results")
"""


def in_another_process(path, folder):
    """A package says what it needs, and with that it runs in a process that has compiled nothing."""
    torch.save(CALLS[True], path + ".inputs")
    command = [sys.executable, "-c", PROCESS, path]
    without = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert without.returncode and "onepass::region.import_onepass_operator" in without.stderr
    done = subprocess.run([*command, "onepass.operator"], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    for results, inputs in zip(torch.load(path + ".results"), CALLS[True], strict=True):
        assert_right(results, inputs)


PROGRAM = """
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <iostream>
int main(int count, char** words) {
  c10::InferenceMode guard;
  torch::inductor::AOTIModelPackageLoader loader(words[1]);
  for (int64_t n : {16, 33}) {
    std::vector<at::Tensor> x;
    for (int k = 1; k < 4; k++) x.push_back(at::sin(at::arange(32 * n, at::kFloat) * k).view({2, 2, n, 8}));
    x.push_back(at::zeros({5}));
    auto found = loader.run(x)[0];
    auto scores = at::matmul(x[0].to(at::kDouble), x[1].mT().to(at::kDouble)) / 3;
    auto wanted = at::matmul(at::softmax(scores, -1), x[2].to(at::kDouble));
    if (!at::allclose(found.to(at::kDouble), wanted, 1e-5, 1e-5)) return 1;
  }
  std::cout << "right" << std::endl;
}
"""


def without_python(path, folder):
    """A C++ program that has no interpreter loads it."""
    if shutil.which("g++") is None:
        pytest.skip("no compiler")
    (folder / "run.cpp").write_text(PROGRAM)
    flags = [f"-I{place}" for place in include_paths()]
    for place in library_paths():
        flags += [f"-L{place}", f"-Wl,-rpath,{place}"]
    flags += ["-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    build = ["g++", str(folder / "run.cpp"), "-o", str(folder / "run"), *flags, "-ltorch", "-ltorch_cpu", "-lc10"]
    built = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[-3000:]
    done = subprocess.run([str(folder / "run"), path], capture_output=True, text=True, timeout=100)
    assert done.stdout == "right\n", done.stdout + done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["backend", "pass"])
def test_where_inductor_writes_cpp_it_gets_the_graph_as_written(way):
    inputs = given()[:3]
    function = lambda q, k, v: torch.softmax(q @ k.mT / 3, -1) @ v
    options = {"inner_options": {"cpp_wrapper": True}, "strict": True}
    if way == "pass":
        options = {"cpp_wrapper": True, "joint_custom_pre_pass": GraphPass(strict=True)}
    run = torch.compile(function, backend=onepass_backend if way == "backend" else "inductor", options=options)
    with torch.no_grad():
        result = run(*inputs)
    torch.testing.assert_close(result.double(), function(*(x.double() for x in inputs)), atol=1e-5, rtol=1e-5)
    assert [r.kind for r in records.reports()[-1].refusals] == ["wrapper"] and not records.reports()[-1].regions


def test_the_option_is_checked_kept_and_named():
    with pytest.raises(OptionError, match="anywhere, python"):
        GraphPass(aot=True)
    made = pickle.loads(pickle.dumps(GraphPass(aot="python")))
    assert made.aot == "python" and made.uuid() == GraphPass(aot="python").uuid() != GraphPass().uuid()
