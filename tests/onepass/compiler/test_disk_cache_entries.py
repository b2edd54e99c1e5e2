"""What an entry of the disk cache may say once it is signed: only what follows from the program that is compiled."""

import json
import math
import re

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import disk_cache
from onepass.lowering.schedule.setting_values import SETTINGS
from onepass.report import records
from onepass.runtime import executors
from onepass.runtime.measurements import Measured

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def run(dynamic=False):
    """Compiles and runs once, as in a new process; the result is right, and the report says how it was found."""
    torch._dynamo.reset()
    process_state.forget()
    arguments = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    compiled = torch.compile(attention, backend=onepass_backend, dynamic=dynamic, options={"inner": "eager"})
    torch.testing.assert_close(compiled(*arguments), attention(*arguments), rtol=1e-4, atol=1e-5)
    (region,) = records.reports()[0].regions
    return region


def only_entry():
    (path,) = disk_cache.folder().glob("*/*.json")
    return path


# Changed by somebody who can sign -------------------------------------------------------------------------------------


def goal_as_captured(body):
    """The region as it was captured in place of the form that was derived: right, but not where the steps lead."""
    body["derivations"][0]["goal"] = body["derivations"][0]["start"]


def other_constant(body):
    assert '"0.25"' in json.dumps(body)
    body.update(json.loads(json.dumps(body).replace('"0.25"', '"0.5"')))


def other_operation(body):
    body["derivations"][0]["start"]["nodes"][0][0] = "launch_missiles"


def other_size(body):
    body.update(json.loads(json.dumps(body).replace("300", "299")))


def other_dtype(body):
    body.update(json.loads(json.dumps(body).replace('"float32"', '"float16"')))


def tensors_exchanged(body):
    """q and k change places in all terms, and keep their names in the program's order."""
    text = json.dumps(body["derivations"]).replace('"q"', '"-"').replace('"k"', '"q"').replace('"-"', '"k"')
    body["derivations"] = json.loads(text)


def names_exchanged(body):
    body["names"] = [body["names"][n] for n in (1, 0, 2)]


PARTS = ("names", "derivations", "normal", "passes", "statistics")
CHANGES = {
    "goal as captured": goal_as_captured,
    "another constant": other_constant,
    "another operation": other_operation,
    "another size": other_size,
    "another dtype": other_dtype,
    "a step less": lambda body: body["derivations"][0]["steps"].pop(),
    "a step of another rule": lambda body: body["derivations"][0]["steps"][0].__setitem__(0, "no_rule"),
    "no derivation": lambda body: body.update(derivations=[]),
    "a derivation more": lambda body: body["derivations"].append(body["derivations"][0]),
    "tensors exchanged": tensors_exchanged,
    "names exchanged": names_exchanged,
    "names alike": lambda body: body.update(names=["q", "q", "v"]),
    "a name less": lambda body: body["names"].pop(),
    "names that are numbers": lambda body: body.update(names=[0, 1, 2]),
    "names as a word": lambda body: body.update(names="qkv"),
    "the name of a call": lambda body: body.update(names=["node 0", "k", "v"]),
    "a negative number of passes": lambda body: body.update(passes=[-1, 1]),
    "a number of passes less": lambda body: body["passes"].pop(),
    "a normal form beyond the steps": lambda body: body.update(normal=[1000]),
    "a normal form before the start": lambda body: body.update(normal=[-1]),
    "statistics that are a list": lambda body: body.update(statistics=[1]),
    "statistics that do not print": lambda body: body["statistics"].update(stop={"a": {"b": "c"}}),
    "statistics of no rule": lambda body: body["statistics"].update(matches=3),
    **{f"{part} is nothing": lambda body, part=part: body.update({part: None}) for part in PARTS},
    **{f"without {part}": lambda body, part=part: body.pop(part) for part in PARTS},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_entry_that_does_not_fit_the_program_is_a_miss(change):
    run()
    entry = only_entry()
    body = disk_cache.read(entry.stem)
    change(body)
    assert disk_cache.write(entry.stem, body)
    assert "searched now" in run().cache
    assert "found on disk" in run().cache, "the entry was written anew"


def test_an_entry_of_another_symbol_is_a_miss():
    assert "searched now" in run(dynamic=True).cache
    entry = only_entry()
    text = json.dumps(disk_cache.read(entry.stem))
    symbol = re.search(r'"(s\d+)"', text).group()
    disk_cache.write(entry.stem, json.loads(text.replace(symbol, '"s1234"')))
    assert "searched now" in run(dynamic=True).cache
    assert "found on disk" in run(dynamic=True).cache


def test_what_an_entry_says_of_another_form_is_planned_and_reported_anew():
    """A derivation without a step is true: the region runs as it was captured, and the report says so."""
    first = run()
    entry = only_entry()
    body = disk_cache.read(entry.stem)
    (derivation,) = body["derivations"]
    body["derivations"] = [{**derivation, "goal": derivation["start"], "steps": []}]
    disk_cache.write(entry.stem, {**body, "normal": [0]})
    second = run()
    assert "found on disk" in second.cache and first.derivation and not second.derivation
    assert second.extracted == second.captured and len(second.kernels[0].loops) > len(first.kernels[0].loops)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "stored",
    [
        3, "abc", [1, None], {"a": 1}, {"cpu": ["x", "y"]}, {"cpu": ["nobody", 0.5]}, {"cpu": {"rows": [1]}},
        {"cpu": {"rows": 1 << 40}}, None,
    ],
)  # fmt: skip
def test_what_was_measured_is_nothing_where_it_is_not_as_it_is_written(stored):
    run()
    entry = only_entry()
    disk_cache.update(entry.stem, validated=stored, choices=stored, tuned=stored)
    found = Measured.read(entry.stem)
    assert all(isinstance(kind, str) for kind in found.validated)
    assert all(isinstance(name, str) and part * 1.0 == part for name, part in found.choices.values())
    assert all(isinstance(settings, dict) for settings in found.tuned.values())
    run()


def test_a_setting_that_the_tuner_would_not_try_does_not_run():
    usual = {name: values[0] for name, values in SETTINGS.items()}
    for settings in (
        {**usual, "row_tile": 1 << 40},
        {**usual, "row_tile": 0},
        {**usual, "executor": "mine"},
        {"row_tile": 64},
    ):
        with pytest.raises(executors.NotTuned):
            executors.tuned(settings)(None, [], None)
