"""How Rocq is found and run, without running it."""

import pytest

from onepass.proofs.rocq import compiler


@pytest.mark.parametrize("word", ["Admitted.", "Proof. admit. Qed.", "Axiom a : False.", "Parameters x : nat."])
def test_what_is_unproved_is_refused(word, tmp_path, monkeypatch):
    (tmp_path / "Wrong.v").write_text(f"(* nothing Admitted here *) Theorem t : True. {word}")
    (tmp_path / "Right.v").write_text("(* nothing Admitted here *) Theorem t : True. Proof. exact I. Qed.")
    monkeypatch.setattr(compiler, "THEORY", tmp_path)
    assert "Theorem t" in compiler.source("Right")
    with pytest.raises(compiler.TheoryError, match=r"Wrong\.v says"):
        compiler.source("Wrong")


TRIED = [(1, 1, False, 4), (1, 0, True, 4), (1, 0, False, 0), (0, 1, True, 0)]


@pytest.mark.parametrize("apt, sudo, root, runs", TRIED)
def test_installation_is_tried_twice_and_its_failure_said(apt, sudo, root, runs, monkeypatch):
    there, commands = {"apt-get": apt, "sudo": sudo}, []
    monkeypatch.setattr(compiler.shutil, "which", lambda name: "/bin/x" if there.get(name) else None)
    monkeypatch.setattr(compiler.os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(compiler.subprocess, "run", lambda command, **_: commands.append(command))
    with pytest.raises(compiler.TheoryError, match="install Debian's coq"):
        compiler.install()
    assert len(commands) == runs and all((command[0] == "sudo") != root for command in commands)


def test_what_is_there_is_not_installed(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: "/bin/x")
    monkeypatch.setattr(compiler.subprocess, "run", lambda *_, **__: pytest.fail("nothing was missing"))
    compiler.install()


def test_a_failure_of_rocq_is_an_error_with_its_words(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "BUILD", tmp_path)
    with pytest.raises(compiler.TheoryError, match="not so"):
        compiler.rocq("sh", "-c", "echo not so; exit 1")
    assert compiler.rocq("echo", "so") == "so\n"
