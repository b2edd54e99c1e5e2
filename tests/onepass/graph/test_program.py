"""A program runs as a Python function that holds no text of the program and keeps no value longer than eager does."""

import json
import math
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from onepass.errors import ProgramError
from onepass.graph.program import Program
from onepass.graph.trace import program_of, trace

CPU = torch.device("cpu")


def fake(*tensors):
    mode = torch._subclasses.FakeTensorMode()
    return [mode.from_tensor(t) for t in tensors]


def chained(x):
    for _ in range(6):
        x = torch.sin(x) + 1
    return torch.cat([x, x * 2], dim=-1).clamp(min=-1.5, max=1.5), x


class Alive(TorchDispatchMode):
    """Counts how many tensors that operations made are alive when the next one is called."""

    def __init__(self):
        super().__init__()
        self.made, self.most = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.most = max(self.most, sum(reference() is not None for reference in self.made))
        result = function(*args, **kwargs or {})
        self.made.append(weakref.ref(result))
        return result


def test_results_are_eagers_and_values_are_let_go_after_their_last_reader():
    x = torch.randn(3, 5)
    program = trace(chained, fake(x))
    run = Program.from_json(program.to_json()).bound({}, CPU)
    for found, expected in zip(run([x]), chained(x), strict=True):
        torch.testing.assert_close(found, expected, atol=0, rtol=0)
    with Alive() as alive:
        run([x])
    assert len(program.nodes) > 12 and alive.most <= 3


def test_the_code_holds_no_text_of_the_program():
    document = json.loads(trace(chained, fake(torch.randn(3, 5))).to_json())
    text = json.dumps(document)
    for name in [entry[0] for entry in document["inputs"]] + [node[0] for node in document["nodes"]]:
        text = text.replace(f'"{name}"', f'"exit()#{name}"')
    x = torch.randn(3, 5)
    hostile = Program.from_json(text)
    torch.testing.assert_close(hostile.bound({}, CPU)([x])[0], chained(x)[0], atol=0, rtol=0)
    assert "exit" not in hostile._code[0]


@pytest.mark.parametrize("word", ["min=0, max", "lambda", "a.b", ""])
def test_an_argument_whose_name_is_no_name_is_refused(word):
    document = json.loads(trace(chained, fake(torch.randn(3, 5))).to_json())
    document["nodes"][-1][3] = [[word, 1]]
    with pytest.raises(ProgramError, match="not the name of an argument"):
        Program.from_json(json.dumps(document)).bound({}, CPU)


def test_a_program_that_has_run_can_be_pickled():
    program, x = trace(chained, fake(torch.randn(3, 5))), torch.randn(3, 5)
    program.run(x)
    again = pickle.loads(pickle.dumps(program))
    assert again == program and torch.equal(again.run(x), program.run(x))


def masked(fill, by_data=False):
    def attend(q, k, v):
        kept = k[..., 0] > 0 if by_data else torch.arange(k.shape[0]) <= torch.arange(q.shape[0])[:, None]
        return (q @ k.mT * 0.3).masked_fill(~kept, fill).softmax(-1) @ v

    return attend


def aged(q, k, v):
    return (q @ k.mT + torch.arange(k.shape[0])).softmax(-1) @ v


def chosen_scores(q, k, v):
    return torch.where(torch.arange(k.shape[0]) < 3, q @ k.mT * 0.3, q @ k.mT * 0.7).softmax(-1) @ v


def at_places(q, k, v):
    reversed_rows = q[q.shape[0] - 1 - torch.arange(q.shape[0])]
    return F.scaled_dot_product_attention(reversed_rows, k, v, torch.arange(k.shape[0]) < torch.arange(5)[:, None])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (masked(-math.inf), False),
        (at_places, False),
        (masked(-math.inf, by_data=True), False),
        (masked(-1e9), True),
        (masked(-1e9, by_data=True), True),
        (aged, True),
        (chosen_scores, True),
    ],
)
def test_whether_numbers_are_made_of_places(function, expected):
    program = program_of(function, *(torch.randn(n, 8) for n in (5, 7, 7)))
    assert program.numbers_by_place == expected
