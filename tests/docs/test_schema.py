"""The published schema is that of the records, and reports of every kind follow it."""

import json

import pytest
import torch

import onepass
from tests.docs.schema import PAGE, schema, text

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(1, 2, 20, 16)


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def left_and_broken(q, k, v):
    q = attend(q, k, v)
    torch._dynamo.graph_break()
    return torch.softmax(torch.cumsum(q @ k.mT, -1), -1) @ v


def test_it_is_made_from_the_records():
    assert PAGE.read_text(encoding="utf-8") == text(), "run `make schema`"


@pytest.mark.parametrize(
    ("function", "asked"),
    [(attend, {}), (attend, {"gradients": True, "tangents": True}), (left_and_broken, {}), (lambda q, k, v: q, {})],
)
def test_a_report_follows_it(function, asked):
    jsonschema = pytest.importorskip("jsonschema")
    written = json.loads(onepass.explain(function, X, X, X, **asked).json())
    jsonschema.validate(written, schema())
    for field in ("regions", "refusals", "breaks"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in written.items() if k != field}, schema())
