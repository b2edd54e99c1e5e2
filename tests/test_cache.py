"""The disk cache: hits skip the search, everything that can be wrong with a file is a miss."""

import json
import math
import os

import pytest
import torch

import onepass
from onepass import cache, fused, operator, report
from onepass.backend import onepass_backend
from onepass.egraph.serial import from_json, rule_from_json, rule_to_json, to_json
from onepass.egraph.term import TermError
from onepass.rules import ALL


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    new_process()
    torch.manual_seed(0)
    return tmp_path / "cache"


def new_process():
    torch._dynamo.reset()
    operator.forget()
    report.forget()


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def run(size=300):
    """Compiles and runs once, as in a new process; how it was found, and whether it is right."""
    new_process()
    arguments = [torch.randn(1, 2, size, 16) for _ in range(3)]
    result = torch.compile(attention, backend=onepass_backend, options={"inner": "eager"})(*arguments)
    torch.testing.assert_close(result, attention(*arguments), rtol=1e-4, atol=1e-5)
    (region,) = report.reports()[0].regions
    return region


def entries(folder):
    return sorted(folder.glob("*/*.json"))


@pytest.fixture
def no_search(monkeypatch):
    def fail(*a):
        raise AssertionError("searched")

    return lambda: monkeypatch.setattr(fused, "_search", fail)


def test_the_second_process_does_not_search(folder, no_search):
    first = run()
    assert "stored" in first.cache and len(entries(folder)) == 1
    no_search()
    second = run()
    assert "found on disk" in second.cache
    assert (second.captured, second.extracted, second.derivation) == (first.captured, first.extracted, first.derivation)
    assert (second.passes, second.bytes, second.kernels) == (first.passes, first.bytes, first.kernels)


def test_entries_are_data_and_name_no_user_file_as_code(folder):
    run()
    (entry,) = entries(folder)
    body = json.loads(entry.read_text())["body"]
    assert from_json(body["results"][0][0]).dims
    assert body["fired"]


def damage_json(path):
    path.write_text("{")


def damage_term(path):
    entry = json.loads(path.read_text())
    entry["body"]["results"][0][0]["nodes"][0][0] = "launch_missiles"
    entry["digest"] = onepass.egraph.serial.digest(entry["body"])
    path.write_text(json.dumps(entry))


def damage_digest(path):
    path.write_text(path.read_text().replace('"fired"', '"fried"', 1))


def redone(path, change):
    """An entry that somebody changed and signed again: only its certificate can tell."""
    entry = json.loads(path.read_text())
    change(entry["body"])
    entry["digest"] = onepass.egraph.serial.digest(entry["body"])
    path.write_text(json.dumps(entry))


def damage_goal(path):
    """The region as it was captured in place of the form that was derived: right, but not what is certified."""

    def change(body):
        body["results"][0][0] = body["report"]["certificates"][0]["derivation"]["start"]

    redone(path, change)


def damage_constant(path):
    assert '"0.25"' in path.read_text()
    redone(path, lambda body: body.update(json.loads(json.dumps(body).replace('"0.25"', '"0.5"'))))


def drop_a_step(path):
    redone(path, lambda body: body["report"]["certificates"][0]["derivation"]["steps"].pop())


def drop_certificate(path):
    redone(path, lambda body: body["report"].update(certificates=[]))


def empty(path):
    path.write_text("")


def binary(path):
    path.write_bytes(b"\xff\xfe\x00" * 100)


def other_key(path):
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "key": "0" * 40}))


def a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = [damage_json, damage_term, damage_digest, empty, binary, other_key, a_folder]
DAMAGES += [damage_goal, damage_constant, drop_a_step, drop_certificate]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss(folder, damage):
    run()
    (entry,) = entries(folder)
    damage(entry)
    assert "searched now" in run().cache
    if damage is not a_folder:
        assert "found on disk" in run().cache, "the entry was written anew"


def test_inputs_of_other_names_find_the_entry(folder, no_search):
    def renamed(n0, x1, q):
        return torch.softmax(n0 @ x1.mT / math.sqrt(n0.shape[-1]), dim=-1) @ q

    arguments = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    onepass.explain(attention, *arguments)
    new_process()
    no_search()
    (region,) = onepass.explain(renamed, *arguments).regions
    assert "found on disk" in region.cache


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ONEPASS_CACHE", str(blocked / "cache"))
    assert "not stored" in run().cache


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(folder):
    folder.mkdir()
    folder.chmod(0o500)
    assert "not stored" in run().cache
    folder.chmod(0o700)


def test_a_full_disk(monkeypatch, folder):
    def full(*a, **k):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "not stored" in run().cache
    monkeypatch.undo()
    assert not list(folder.rglob("*.tmp")), "the temporary file was removed"


def test_the_cache_can_be_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    assert cache.folder() is None
    assert "not stored" in run().cache


def test_versions_and_devices_have_keys_of_their_own(monkeypatch):
    before = cache.key("text", "cpu")
    assert before == cache.key("text", "cpu") != cache.key("other", "cpu")
    monkeypatch.setattr(cache, "versions", lambda: {"torch": "other"})
    assert cache.key("text", "cpu") != before
    monkeypatch.undo()
    monkeypatch.setattr(cache, "capability", lambda device: "sm_90")
    assert cache.key("text", "cpu") != before


def test_equal_programs_under_other_names_share_an_entry(folder):
    run()

    def renamed(queries, keys, values):
        scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
        return torch.softmax(scores, dim=-1) @ values

    arguments = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    new_process()
    result = torch.compile(renamed, backend=onepass_backend, options={"inner": "eager"})(*arguments)
    assert len(entries(folder)) == 1 and "found on disk" in report.reports()[0].regions[0].cache
    torch.testing.assert_close(result, renamed(*arguments), rtol=1e-4, atol=1e-5)


def test_clear_removes_entries_and_nothing_else(folder):
    run()
    (folder / "mine.txt").write_text("kept")
    assert cache.clear() == 1
    assert entries(folder) == [] and (folder / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_every_law_comes_back_from_json(law):
    again = rule_from_json(json.loads(json.dumps(rule_to_json(law))))
    assert again == law
    assert again.left is law.left and again.right is law.right


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, {"nodes": []}, {"nodes": [["add", [0, 1], []]]}, {"nodes": [["exec", [], ["1"]]]},
        {"nodes": [["const", [], [{"float": "x"}]]]}, {"nodes": [["const", [], [[1]]]]},
        {"nodes": [["iota", [], ["i"]]]},
        {"nodes": [["load", [], [{"tensor": ["q", "float32", [4]]}]]]}, {"nodes": 3},
    ],
)  # fmt: skip
def test_what_is_no_term_is_refused(data):
    with pytest.raises(TermError):
        from_json(data)


def test_numbers_come_back_exactly():
    from onepass.egraph.ops import const

    for value in (0.1, -0.0, math.inf, -math.inf, 1e-320, 3, True):
        again = from_json(json.loads(json.dumps(to_json(const(value)))))
        assert again is const(value)
