"""FILE:FUNC with shapes, dtypes and devices of the command line."""

import pytest
import torch

from onepass.cli.commands import main
from onepass.cli.inputs import InputChoice, TargetError
from onepass.cli.target import target
from onepass.cli.values import shape

SCRIPT = """
import torch
def attention(q, k, v, mask=None, *, bias=0):
    return q
def positional(q, /, k):
    return q
def nothing():
    return 1
model = torch.nn.Linear(4, 4)
with_inputs = lambda x, n: x
with_inputs.example_inputs = lambda: (torch.ones(2), torch.ones(2, dtype=torch.int64))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("inputs") / "users_of_inputs.py"
    path.write_text(SCRIPT)
    return path


def read(script, name, *shapes, **more):
    return target(f"{script}:{name}", InputChoice(tuple(map(shape, shapes)), **more))


def sizes(found) -> dict:
    return {name: tuple(x.shape) for name, x in found.keywords.items()}


def test_one_shape_is_for_every_parameter_that_needs_an_input(script):
    found = read(script, "attention", "1,2,3")
    assert sizes(found) == dict.fromkeys("qkv", (1, 2, 3)) and found.inputs == () and found.guessed == ""
    assert not torch.equal(found.keywords["q"], found.keywords["k"])


def test_several_shapes_are_taken_in_turn_beside_those_by_name(script):
    found = read(script, "attention", "mask=9,9:bool", "1,2", "k=7,2", "3,4")
    assert sizes(found) == {"mask": (9, 9), "k": (7, 2), "q": (1, 2), "v": (3, 4)}
    assert found.keywords["mask"].dtype == torch.bool and found.keywords["mask"].unique().numel() == 2


def test_dtypes_by_name_stay_and_others_follow_the_option(script):
    found = read(script, "attention", "q=2,2:float16", "mask=2,2:int64", "2,2", dtype="bfloat16")
    kinds = {name: x.dtype for name, x in found.keywords.items()}
    assert kinds == {"q": torch.float16, "mask": torch.int64, "k": torch.bfloat16, "v": torch.bfloat16}


def test_parameters_by_position_get_theirs(script):
    found = read(script, "positional", "2", "3")
    assert [tuple(x.shape) for x in found.inputs] == [(2,)] and sizes(found) == {"k": (3,)}
    assert found.function(*found.inputs, **found.keywords) is found.inputs[0]


def test_given_inputs_and_modules_follow_dtype_and_device(script):
    found = read(script, "with_inputs", dtype="float64")
    assert [x.dtype for x in found.inputs] == [torch.float64, torch.int64]
    found = read(script, "model", "input=2,4", dtype="float64", device="cpu")
    assert found.function.weight.dtype == torch.float64 and found.keywords["input"].dtype == torch.float64
    found = read(script, "model", "2,4", device="meta")
    assert found.function.weight.is_meta and found.keywords["input"].is_meta


@pytest.mark.parametrize(("name", "shapes", "said"), [
    ("attention", ("maks=1,2",), "no parameter maks; did you mean 'mask'?"),
    ("attention", ("q=1,2",), "needs shapes for k, v; given: 0"),
    ("attention", ("1", "2"), "needs shapes for q, k, v; given: 2"),
    ("nothing", ("1", "2"), "needs shapes for nothing else; given: 2"),
])  # fmt: skip
def test_shapes_that_fit_no_parameter_are_refused(script, name, shapes, said):
    with pytest.raises(TargetError, match=name) as error:
        read(script, name, *shapes)
    assert said in str(error.value)


@pytest.mark.parametrize("device", ["cuda:99", "no such device", "cud"])
def test_a_device_that_is_not_there_is_one_line(script, device):
    with pytest.raises(TargetError) as error:
        read(script, "attention", "1", device=device)
    assert str(error.value).startswith(f"--device {device}: ") and "\n" not in str(error.value)
    assert "h100, h200, a100, b200, mi300x" in str(error.value)


@pytest.mark.parametrize(("device", "said"), [("h100", "elsewhere"), ("MI300X", "plain Triton"), ("cpu", "")])
def test_a_gpu_that_is_not_here_is_reported_from_afar(device, said, tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "import torch\ndef attention(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"
    )
    asked = [f"{tmp_path / 'model.py'}:attention", "--shape", "1,2,256,64", "--dtype", "bfloat16"]
    assert main(["explain", *asked, "--device", device]) == 0
    found = capsys.readouterr()
    assert "elsewhere   on a Hopper GPU, warp-specialised Gluon" in found.out
    assert (f"there is no {device.upper()} here" in found.err and said in found.err) == bool(said)
    assert ("--device meta computes nothing" in found.err) == bool(said)


def test_large_sizes_on_meta_take_no_time_and_have_the_estimates(tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "import torch\ndef attention(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"
    )
    asked = [f"{tmp_path / 'model.py'}:attention", "--shape", "64,64,16384,64", "--dtype", "bfloat16"]
    assert main(["explain", *asked, "--device", "meta", "--html", str(tmp_path / "out.html")]) == 0
    assert "At least " in capsys.readouterr().out.split("How much faster?")[1].splitlines()[0]
    assert "<svg class=\"schedule\"" in (tmp_path / "out.html").read_text(encoding="utf-8")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("device", ["h100", "cpu"])
def test_fusion_is_decided_as_on_the_gpu_that_was_asked_for(device, tmp_path, capsys):
    """A cache in int8 that one query reads: a kernel reads it as it is, torch's kernel on a CPU reads a copy."""
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def attention(q, k, v, scale):\n"
        "    return torch.softmax(q @ (k.to(q.dtype) * scale).mT, -1) @ v\n"
        "def example_inputs():\n"
        "    k = torch.randint(-9, 9, (1, 2, 2048, 64), dtype=torch.int8)\n"
        "    return torch.randn(1, 2, 1, 64), k, torch.randn(1, 2, 2048, 64), torch.rand(1, 2, 2048, 1)\n"
    )
    assert main(["explain", f"{tmp_path / 'model.py'}:attention", "--device", device]) == 0
    inside = "computed in the kernel" in " ".join(capsys.readouterr().out.split())
    assert inside == (device == "h100")


def test_from_afar_is_for_explain_alone(tmp_path, capsys):
    (tmp_path / "model.py").write_text("def attention(q):\n    return q @ q.mT\n")
    assert main(["bisect", f"{tmp_path / 'model.py'}:attention", "--shape", "4,4", "--device", "h100"]) == 2
    assert "--device h100" in capsys.readouterr().err


def test_inputs_that_do_not_fit_a_function_are_answered_by_how_to_give_it_its_own(tmp_path, capsys):
    text = "def f(x, y):\n    return x @ y\ndef g(x):\n    return x\ndef example_inputs():\n    return 1.0, 2.0\n"
    (tmp_path / "model.py").write_text(text)
    assert main(["explain", f"{tmp_path / 'model.py'}:g"]) == 2
    said = capsys.readouterr().err
    assert "does not fit g: explain calls g(x) with 2 inputs" in said and "write `g.example_inputs = ...`" in said
    (tmp_path / "model.py").write_text(text + "g.example_inputs = lambda: (3.0,)\n")
    assert main(["explain", f"{tmp_path / 'model.py'}:g"]) == 0
