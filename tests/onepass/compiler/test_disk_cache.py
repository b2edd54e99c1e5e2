"""The disk cache: hits skip the search, everything that can be wrong with a file is a miss."""

import json
import math
import os

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region, disk_cache
from onepass.egraph.rewrite.serialization import digest, from_json, rule_from_json, rule_to_json, to_json
from onepass.egraph.terms.term import TermError
from onepass.report import records
from onepass.rules import ALL


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    new_process()
    torch.manual_seed(0)
    return tmp_path / "cache"


def new_process():
    torch._dynamo.reset()
    process_state.forget()


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def run(size=300):
    """Compiles and runs once, as in a new process; how it was found, and whether it is right."""
    new_process()
    arguments = [torch.randn(1, 2, size, 16) for _ in range(3)]
    compiled = torch.compile(attention, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(compiled(*arguments), attention(*arguments), rtol=1e-4, atol=1e-5)
    (region,) = records.reports()[0].regions
    return region


def entries(folder):
    return sorted(folder.glob("*/*.json"))


@pytest.fixture
def no_search(monkeypatch):
    def fail(*a):
        raise AssertionError("searched")

    return lambda: monkeypatch.setattr(compiled_region, "_search", fail)


def test_the_second_process_does_not_search(folder, no_search):
    first = run()
    assert "stored" in first.cache and len(entries(folder)) == 1
    no_search()
    second = run()
    assert "found on disk" in second.cache
    assert (second.captured, second.extracted, second.derivation) == (first.captured, first.extracted, first.derivation)
    assert (second.passes, second.bytes, second.kernels) == (first.passes, first.bytes, first.kernels)
    assert (second.between, second.shape_reasons) == (first.between, first.shape_reasons)


def test_entries_are_data_and_name_no_user_file_as_code(folder):
    run()
    (entry,) = entries(folder)
    body = json.loads(entry.read_text())["body"]
    assert set(body) == {"names", "derivations", "normal", "passes", "statistics", "chosen"}
    assert from_json(body["derivations"][0]["goal"]).dims


# Entries that somebody without this user's key changed or put there ---------------------------------------------------


def damage_json(path):
    path.write_text("{")


def damage_content(path):
    path.write_text(path.read_text().replace('"statistics"', '"satistics"', 1))


def an_older_signature(path):
    """As entries were signed once: by what everybody can work out."""
    entry = json.loads(path.read_text())
    entry["signature"] = entry["digest"] = digest(entry["body"])
    path.write_text(json.dumps(entry))


def no_signature(path):
    entry = json.loads(path.read_text())
    del entry["signature"]
    path.write_text(json.dumps(entry))


def another_key(path):
    (key,) = path.parent.parent.glob("key*")
    key.unlink()


def empty(path):
    path.write_text("")


def binary(path):
    path.write_bytes(b"\xff\xfe\x00" * 100)


def other_key(path):
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "key": "0" * 40}))


def of_another_name(path):
    """Whole and signed, but as the entry of another name."""
    body = disk_cache.read(path.stem)
    disk_cache.write("0" * 40, body)
    path.write_text((path.parent.parent / "00" / f"{'0' * 40}.json").read_text().replace("0" * 40, path.stem))


def too_large(path):
    path.write_text(path.read_text() + " " * disk_cache.MAX_BYTES_OF_AN_ENTRY)


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_link(path):
    """What is not this user's to read must not be read through an entry, so no link is followed."""
    path.rename(path.with_suffix(".whole"))
    path.symlink_to(path.with_suffix(".whole"))


DAMAGES = [damage_json, damage_content, an_older_signature, no_signature, another_key, empty, binary, other_key]
DAMAGES += [of_another_name, too_large, a_folder, a_link]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss(folder, damage):
    run()
    (entry,) = entries(folder)
    damage(entry)
    assert "searched now" in run().cache
    if damage is not a_folder:
        assert "found on disk" in run().cache, "the entry was written anew"


# Entries of equal programs, and folders that keep nothing -------------------------------------------------------------


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


@pytest.mark.parametrize("below", [False, True], ids=["a file", "in a file"])
def test_a_folder_that_cannot_be_there_is_said_once(below, tmp_path, monkeypatch, caplog):
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("ONEPASS_CACHE", str(file / "cache" if below else file))
    arguments = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    for factor in (1.0, 2.0):
        scaled = lambda q, k, v, factor=factor: attention(q * factor, k, v)
        assert onepass.explain(scaled, *arguments).fused == 1
    why = "Not a directory" if below else f"{file} is a file, not a folder"
    (line,) = [record.message for record in caplog.records if record.name.startswith("onepass")]
    assert line.startswith("onepass: $ONEPASS_CACHE cannot be used, so nothing is kept there: ") and why in line


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
    assert disk_cache.folder() is None
    assert "not stored" in run().cache


def test_versions_and_devices_have_keys_of_their_own(monkeypatch):
    before = disk_cache.key("text", "cpu")
    assert before == disk_cache.key("text", "cpu") != disk_cache.key("other", "cpu")
    monkeypatch.setattr(disk_cache, "versions", lambda: {"torch": "other"})
    assert disk_cache.key("text", "cpu") != before
    monkeypatch.undo()
    monkeypatch.setattr(disk_cache, "capability", lambda device: "sm_90")
    assert disk_cache.key("text", "cpu") != before


def test_equal_programs_under_other_names_share_an_entry(folder):
    run()

    def renamed(queries, keys, values):
        scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
        return torch.softmax(scores, dim=-1) @ values

    arguments = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    new_process()
    result = torch.compile(renamed, backend=onepass_backend, options={"inner": "eager"})(*arguments)
    assert len(entries(folder)) == 1 and "found on disk" in records.reports()[0].regions[0].cache
    torch.testing.assert_close(result, renamed(*arguments), rtol=1e-4, atol=1e-5)


def test_what_was_written_first_goes_where_all_is_over_the_limit(folder, monkeypatch, caplog):
    names = [f"00{n:038x}" for n in range(10)]  # of names that begin so, each write looks
    for age, name in enumerate(names):
        assert disk_cache.write(name, {"text": "x" * 10_000})
        os.utime(folder / "00" / f"{name}.json", (age, age))
    assert len(disk_cache.entries()) == 10 and disk_cache.hold_to_limit() == 0
    monkeypatch.setenv("ONEPASS_CACHE_MB", "0.05")
    last = "00" + "f" * 38
    assert disk_cache.write(last, {"text": "x" * 10_000})
    kept = [entry.name for entry in disk_cache.entries()]
    assert kept == [last, *names[:-4:-1]] and disk_cache.read(last) and disk_cache.read(names[0]) is None
    monkeypatch.setenv("ONEPASS_CACHE_MB", "much")
    assert disk_cache.limit() == 500e6 and "ONEPASS_CACHE_MB=much is no number of megabytes" in caplog.text


def test_clear_removes_entries_and_nothing_else(folder, tmp_path):
    run()
    mine = [folder / "mine.txt", folder / "mine" / "mine.json", tmp_path / "elsewhere" / f"{'aa' * 20}.json"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("kept")
    (folder / "aa").symlink_to(tmp_path / "elsewhere")
    assert disk_cache.clear() == 1
    assert [path.read_text() for path in mine] == ["kept"] * 3


# Terms and rules as data ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(100)
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
    from onepass.egraph.terms.ops import const

    for value in (0.1, -0.0, math.inf, -math.inf, 1e-320, 3, True):
        again = from_json(json.loads(json.dumps(to_json(const(value)))))
        assert again is const(value)
