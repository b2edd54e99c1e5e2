"""Runs Rocq on the sources of theory/ and on files that are written for it, in build/theory, which is made anew.

Nothing that Rocq compiles is committed but theory/*.v, so no compiled file is older than its source. Example:
`compile_file("Monoid")` compiles build/theory/Monoid.v.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THEORY = Path(__file__).resolve().parent.parent / "theory"
BUILD = THEORY.parent.parent / "build" / "theory"
LOGICAL = "Onepass"
COMMENT = re.compile(r"\(\*.*?\*\)", re.DOTALL)
UNPROVED = re.compile(r"\b(Admitted|admit|give_up|Axioms?|Parameters?|Conjectures?|bypass_check|Unset \w+ Checking)\b")
INSTALL = (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", "coq"))
TRIES = 2  # a mirror may fail once


class TheoryError(Exception):
    """The theory does not compile, does not check, or assumes what the list does not."""


def install() -> None:
    """Installs Debian's coq if coqc or coqchk is missing. Raises TheoryError if that fails."""
    for _ in range(TRIES):
        if shutil.which("coqc") and shutil.which("coqchk"):
            return
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        if not shutil.which("apt-get") or (root and not shutil.which("sudo")):
            break
        for command in INSTALL:
            subprocess.run([*root, *command], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
    if not (shutil.which("coqc") and shutil.which("coqchk")):
        raise TheoryError("coqc and coqchk are missing and could not be installed: install Debian's coq (Rocq 8.16)")


def modules() -> list[str]:
    """The files' stems in dependency order, as _CoqProject lists them."""
    return [Path(line).stem for line in (THEORY / "_CoqProject").read_text().split() if line.endswith(".v")]


def source(module: str) -> str:
    """A file's text without comments. Raises TheoryError for an axiom and for an unfinished proof."""
    text = COMMENT.sub(" ", (THEORY / f"{module}.v").read_text())
    if found := UNPROVED.search(text):
        raise TheoryError(f"{module}.v says {found.group()}: every theorem is proved, hypotheses belong to a section")
    return text


def rocq(*command: str) -> str:
    """The output of a command. Raises TheoryError with the output if the command fails."""
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TheoryError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def compile_file(module: str) -> str:
    """What Rocq prints when it compiles a file of the build folder. Raises TheoryError if it does not compile."""
    return rocq("coqc", "-Q", ".", LOGICAL, f"{module}.v")


def write(module: str, text: str) -> None:
    """Writes a file of the build folder."""
    (BUILD / f"{module}.v").write_text(text, encoding="utf-8")


def compile_theory() -> None:
    """Compiles every file of theory/ in an empty build folder."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for module in modules():
        source(module)
        shutil.copy(THEORY / f"{module}.v", BUILD)
        compile_file(module)


def check_again(names: Iterable[str], alone: bool = False) -> None:
    """Checks compiled files with coqchk, which shares no code with tactics. alone: not what they require.

    Raises TheoryError.
    """
    which = [f"{LOGICAL}.{name}" for name in names]
    rocq("coqchk", "-silent", "-Q", ".", LOGICAL, *(["-norec", *" -norec ".join(which).split()] if alone else which))


def processes() -> ThreadPoolExecutor:
    """Runs functions that each wait for a process of their own, on as many processors as there are."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))
