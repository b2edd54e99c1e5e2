"""Lines of a report that readers asked for: who stores what between kernels, whose names are shown, what is assumed."""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass import process_state
from onepass.cli.commands import main
from onepass.report.records import LawReport, Report
from onepass.wording.text import region_laws

FILE = "import torch\ndef attend(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"


def tensors(*sizes, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(sizes or (1, 2, 40, 16), dtype=dtype) for _ in range(3)]


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def weighed(q, k, v):
    weight = (q @ k.mT * 0.5).double().float()
    return weight @ v, weight


DIVIDED = "nothing overflows before it is divided"


def turned(q, k, v, cos, sin):
    def turn(x):
        return x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin

    return torch.softmax(turn(q) @ turn(k).mT, -1) @ v


def biased(q, k, v, bias):
    return torch.softmax(q @ k.mT + bias, -1) @ v


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    process_state.forget("runners", "regions")


def test_a_result_that_is_returned_is_called_so_and_by_what_made_it():
    (refused,) = onepass.explain(weighed, *tensors()).refusals
    assert refused.reason.startswith("the result of mul is also returned: written it is anyway")


NOTHING = "not used: it matched nothing"


@pytest.mark.parametrize(
    "law, said",
    [
        (LawReport("a", True, 3), "used"),
        (LawReport("a", False, 1), "not used: it matched once, and the form chosen does without it"),
        (LawReport("a", False, 2), "not used: it matched 2 times, and the form chosen does without it"),
        (LawReport("a", False), NOTHING),
        (LawReport("a", False, 0, (), "node limit"), f"{NOTHING} before the search stopped (node limit)"),
        (LawReport("a", False, declined=(("no", 2), ("never", 1))), "not used: it declined: no (2 times); never"),
    ],
)
def test_a_law_that_was_given_is_used_or_it_is_said_why_not(law, said):
    assert str(law) == said


def test_derivatives_that_use_a_law_are_named():
    region = onepass.explain(attend, *tensors(), gradients=True).regions[0]
    laws = tuple(LawReport(name, False) for name in (region.gradients.rules[0].rule, "another"))
    said = [sentence for _, sentence in region_laws(replace(region, laws=laws))]
    assert said == [f"{NOTHING}; used in the gradients", NOTHING]


def test_autocast_inside_points_to_autocast_around():
    def inside(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attend(q, k, v)

    (refused,) = onepass.explain(inside, *tensors()).refusals
    assert refused.reason.endswith("autocast around the whole call is captured")


def test_what_kernels_store_for_each_other_is_told():
    def both(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v, weights

    (region,) = onepass.explain(both, *tensors(4, 8, 600, 16)).regions
    assert len(region.kernels) == 2
    part, *_, without = region.between
    assert part.startswith("part0[b, h, i] is stored between kernels by the law read_of_stored: it is the same for")
    assert without.startswith("without part1 the plan would take ")
    assert float(without.removeprefix("without part1 the plan would take ").partition(" ")[0]) > 2
    assert f"between     {region.between[0]}" in str(region)


def test_a_bias_may_mask_and_a_rotation_may_not():
    halves = [torch.randn(40, 16) for _ in range(2)]
    always = {"fuse_loads": "always"}
    assert onepass.explain(turned, *tensors(), *halves, options=always).assumptions == (DIVIDED,)
    assert "masked values are finite" in onepass.explain(biased, *tensors(), torch.randn(40, 40)).assumptions


def test_the_names_of_another_region_are_said_to_be():
    def other(a, b, c):
        return torch.softmax(a @ b.mT, -1) @ c

    assert "names" not in onepass.explain(attend, *tensors()).regions[0].cache
    for _ in range(2):  # from this process, from the disk
        assert "names of the equal region" in onepass.explain(other, *tensors()).regions[0].cache
        assert "names" not in onepass.explain(attend, *tensors()).regions[0].cache
        process_state.forget("runners", "regions")


def test_the_form_on_hopper_names_the_types():
    form = lambda dtype: onepass.explain(attend, *tensors(1, 2, 300, 64, dtype=dtype)).kernels[0].form
    assert form(torch.float32) == "plain Triton: its tensors are float32; the form multiplies half precision and bytes"
    assert form(torch.bfloat16).startswith("warp-specialised")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (["executor=tiled", "strict=true"], 0, "runs by     tiled"),
        (["fuse=always"], 2, "onepass explain: "),
        (["fuse_loads"], 2, "onepass explain: 'fuse_loads' is not NAME=VALUE"),
    ],
)
def test_the_command_takes_options_of_the_backend(given, status, said, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(FILE)
    options = [word for text in given for word in ("--option", text)]
    assert main(["explain", f"{tmp_path}/mine.py:attend", *options]) == status
    assert said in "".join(capsys.readouterr())


def test_laws_of_several_regions_say_which():
    region = onepass.explain(attend, *tensors()).regions[0]
    with_laws = lambda *laws: replace(region, laws=tuple(LawReport(name, used) for name, used in laws))
    regions = (with_laws(("a", True), ("b", False)), with_laws(("a", True), ("b", False)), with_laws(("c", False)))
    report = Report(regions, given=("a", "b", "c", "d"))
    assert report.laws == (
        "a: used in region 1, 2", f"b: {NOTHING} (region 1, 2)", f"c: {NOTHING} (region 3)",
        "d: not used: there is no region",
    )  # fmt: skip
    assert [line.strip() for line in str(report).splitlines()][2] == "law a: used in region 1, 2"
