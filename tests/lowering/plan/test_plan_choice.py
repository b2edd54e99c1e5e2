"""What cost has chosen, as data: the plan is made again from it, and data of anything else are not used."""

import json
from dataclasses import fields

import pytest

from onepass.lowering.cost.cheapest_plan import cheapest_plan
from onepass.lowering.plan.records import Plan
from onepass.lowering.planning.planner import chosen_plan
from tests.lowering.cost.test_cheapest_plan import attention, distances, shared_prefix, state_of_keys

CASES = {  # by what is chosen
    "nothing": (attention(1024), set()),
    "rows": (state_of_keys(4096), {"rows"}),
    "stored scores": (distances(1024), {"stored"}),
    "a stored state with other rows": (shared_prefix(64), {"stored"}),
    "a stored state, sizes as symbols": (shared_prefix("n"), {"stored"}),
}
WRITTEN = {name: json.loads(json.dumps(cheapest_plan(stores).chosen)) for name, (stores, _) in CASES.items()}


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are equal in what they compute and in all that they say."""
    return all(getattr(one, field.name) == getattr(other, field.name) for field in fields(Plan))


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_made_again(name):
    stores, chosen = CASES[name]
    searched = cheapest_plan(stores, ("a law",))
    assert chosen <= {part for part in ("rows", "stored") if WRITTEN[name][part]}
    assert bool(chosen) == bool(WRITTEN[name]["note"])
    assert same(chosen_plan(stores, ("a law",), (), WRITTEN[name]), searched)


CHANGES = {
    "another digest": lambda data: data | {"digest": "0" * 64},
    "another share": lambda data: data | {"shares": [2.0]},
    "other alternatives": lambda data: data | {"others": data["others"][1:]},
    "another note": lambda data: data | {"note": "because"},
    "nothing stored": lambda data: data | {"stored": []},
    "another term stored": lambda data: data | {"stored": [place - 1 for place in data["stored"]]},
    "no term": lambda data: data | {"stored": [10**6]},
    "a place from behind": lambda data: data | {"computed": [-1]},
    "no place": lambda data: data | {"stored": ["0"]},
    "no rows": lambda data: data | {"rows": [[0, 0]]},
    "other rows": lambda data: data | {"rows": [[[{"dim": ["b", 3]}], {"dim": ["b", 3]}]], "stored": []},
    "a share too many": lambda data: data | {"shares": [*data["shares"], 1.0]},
    "no share": lambda data: data | {"shares": ["long"]},
    "no alternatives": lambda data: data | {"others": [1]},
    "nothing": lambda data: {},
    **{f"no {field}": lambda data, f=field: {k: v for k, v in data.items() if k != f} for field in WRITTEN["rows"]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_data_are_not_used(change):
    stores, _ = CASES["a stored state with other rows"]
    data = WRITTEN["a stored state with other rows"]
    assert chosen_plan(stores, (), (), data) is not None
    assert chosen_plan(stores, (), (), CHANGES[change](data)) is None


def test_what_was_chosen_for_other_terms_is_not_used():
    assert chosen_plan(shared_prefix(32), (), (), WRITTEN["a stored state with other rows"]) is None
