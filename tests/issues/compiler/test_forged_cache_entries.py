"""An entry of the disk cache in which two tensors share a name passed the check of its certificate. The certificate
held for the program with one tensor in both places, and the region gave that program's result.
"""

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region, disk_cache
from onepass.report import records
from onepass.runtime import operator

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def run():
    """As in a new process: the result, what it should be, and what the report says of the cache."""
    process_state.forget()
    torch._dynamo.reset()
    x = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    result = torch.compile(attention, backend=onepass_backend, options=options)(*x)
    return result, attention(*x), records.reports()[-1].regions[0].cache


def forge(names):
    """Puts the entry of the same program, but on tensors of these names, in place of the program's."""
    run()
    known = compiled_region.carried(next(iter(operator._RUNNERS)))
    key = compiled_region.make(known.program, known.options, known.strides).key
    forged = compiled_region.TracedRegion(compiled_region.canonical(known.program, names))
    compiled_region._search("0" * 40, forged, known.options, known.strides, {})
    body = disk_cache.read("0" * 40)
    assert body["names"] == names and disk_cache.write(key, body)


def test_an_entry_whose_tensors_share_a_name_is_a_miss():
    forge(["q", "q", "v"])
    assert run()[2] == "searched now, stored"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [["q", "q", "v"], ["q", "k", "k"], ["q", "q", "q"], ["v", "k", "q"]])
def test_and_the_result_is_right(names):
    forge(names)
    result, expected, _ = run()
    torch.testing.assert_close(result, expected)


def test_what_was_edited_without_the_key_is_a_miss():
    run()
    for path in disk_cache.folder().glob("*/*.json"):
        path.write_text(path.read_text().replace('"passes": [3, 1]', '"passes": [3, 2]'))
    assert run()[2] == "searched now, stored" and run()[2].startswith("found on disk")
