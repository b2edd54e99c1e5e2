"""The key that entries of the disk cache are signed by: made once, its user's alone, and never one that others know."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from onepass.compiler import disk_cache
from onepass.lowering import source_folder as folders

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def folder():
    return disk_cache.folder()


def key_of(folder):
    return folder / "key"


def test_a_key_is_made_once_and_is_its_users_alone(folder):
    assert disk_cache.read("a" * 40) is None and not folder.exists(), "reading makes nothing"
    assert disk_cache.write("a" * 40, {"n": 1})
    key = key_of(folder).read_text()
    assert stat.S_IMODE(key_of(folder).stat().st_mode) == 0o600 and len(bytes.fromhex(key)) == 32
    assert disk_cache.write("b" * 40, {"n": 2}) and key_of(folder).read_text() == key
    assert disk_cache.read("a" * 40) == {"n": 1}


def readable_by_others(path):
    path.chmod(0o644)


def cut_off(path):
    path.write_text("abc")


def a_link_to_another(path):
    (path.parent / "other").write_text("0" * 64)
    (path.parent / "other").chmod(0o600)
    path.unlink()
    path.symlink_to(path.parent / "other")


def a_pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have neither owners nor modes")
@pytest.mark.parametrize("change", [readable_by_others, cut_off, a_link_to_another, a_pipe])
def test_a_key_that_others_may_know_signs_nothing(change, folder, caplog):
    disk_cache.write("a" * 40, {"n": 1})
    change(key_of(folder))
    assert disk_cache.read("a" * 40) is None and "not signed by this user" in caplog.text
    assert disk_cache.write("a" * 40, {"n": 2}), "with a new key"
    assert disk_cache.read("a" * 40) == {"n": 2} and stat.S_IMODE(key_of(folder).lstat().st_mode) == 0o600


def test_a_key_of_another_user_signs_nothing(monkeypatch, caplog):
    disk_cache.write("a" * 40, {"n": 1})
    monkeypatch.setattr(disk_cache, "is_own", lambda found: False)
    assert disk_cache.read("a" * 40) is None and "not signed by this user" in caplog.text
    assert not disk_cache.write("a" * 40, {"n": 2}) and "readable by this user alone" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners")
def test_a_folder_of_another_user_is_not_written_to(folder, monkeypatch, caplog):
    folder.mkdir()
    monkeypatch.setattr(folders, "is_own", lambda found: False)
    assert disk_cache.folder() == folder / f"user-{os.geteuid()}"
    assert not disk_cache.write("a" * 40, {"n": 2}) and "not a folder of this user" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be several users")
def test_users_of_one_folder_have_entries_of_their_own(monkeypatch, caplog):
    with tempfile.TemporaryDirectory() as shared:  # its parents can be entered by all
        os.chmod(shared, 0o1777)
        monkeypatch.setenv("ONEPASS_CACHE", shared)
        try:
            for user in (1001, 1002):
                os.seteuid(user)
                assert disk_cache.read("a" * 40) is None
                assert disk_cache.write("a" * 40, {"by": user}) and disk_cache.read("a" * 40) == {"by": user}
                os.seteuid(0)
            assert sorted(path.name for path in Path(shared).iterdir()) == ["user-1001", "user-1002"]
            planted = Path(shared, "user-1001", "aa", f"{'a' * 40}.json")
            shutil.copy(Path(shared, "user-1002", "aa", planted.name), planted)
            for owner, reason in ((1002, "belongs to another user"), (1001, "not what this user signed")):
                os.chown(planted, owner, owner)
                os.chmod(planted, 0o644)
                os.seteuid(1001)
                assert disk_cache.read("a" * 40) is None and reason in caplog.text
                os.seteuid(0)
        finally:
            os.seteuid(0)


def test_where_files_have_no_second_names_a_key_is_made_all_the_same(monkeypatch):
    def none(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    assert disk_cache.write("a" * 40, {"n": 1}) and disk_cache.read("a" * 40) == {"n": 1}


FIRST = "import sys; from onepass.compiler import disk_cache as cache; print(cache.write(sys.argv[1] * 40, {'n': 1}))"


def test_processes_that_start_at_once_have_one_key():
    start = lambda letter: subprocess.Popen([sys.executable, "-c", FIRST, letter], stdout=subprocess.PIPE, text=True)
    done = [process.communicate()[0].strip() for process in [start(letter) for letter in "abcd"]]
    assert done == ["True"] * 4
    assert [disk_cache.read(letter * 40) for letter in "abcd"] == [{"n": 1}] * 4


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.delenv("ONEPASS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert disk_cache.folder() is None and disk_cache.read("a" * 40) is None and not disk_cache.write("a" * 40, {})
