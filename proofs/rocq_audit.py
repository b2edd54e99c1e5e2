"""Compiles and checks the theory in Rocq, and compares its assumptions with the committed list: `make theory`.

Every Theorem of theory/*.v is in theory/assumptions.toml with exactly the hypotheses and axioms that Rocq reports for
it, and every axiom is in the list's `allowed`. It installs Debian's coq if Rocq is missing. Compiled files are in
build/, outside git and the wheel. It needs only the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

THEORY = Path(__file__).resolve().parent / "theory"
BUILD = THEORY.parent.parent / "build" / "theory"
LIST = THEORY / "assumptions.toml"
LOGICAL = "Onepass"
CLOSED = "Closed under the global context"
COMMENT = re.compile(r"\(\*.*?\*\)", re.DOTALL)
UNPROVED = re.compile(r"\b(Admitted|admit|give_up|Axioms?|Parameters?|Conjectures?|bypass_check|Unset \w+ Checking)\b")
INSTALL = (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", "coq"))
TRIES = 2  # a mirror may fail once


class TheoryError(Exception):
    """The theory does not compile, does not check, or assumes what the list does not."""


class Assumptions(NamedTuple):
    """What one theorem assumes: hypotheses of its section, and axioms of Rocq's library."""

    hypotheses: tuple[str, ...]
    axioms: tuple[str, ...]


@dataclass(frozen=True)
class Committed:
    """The committed list: axioms that are allowed, theorems that may use none, and each theorem's hypotheses."""

    allowed: frozenset[str]
    closed: frozenset[str]
    hypotheses: dict[str, tuple[str, ...]]


def modules() -> list[str]:
    """The files' stems in dependency order, as _CoqProject lists them."""
    return [Path(line).stem for line in (THEORY / "_CoqProject").read_text().split() if line.endswith(".v")]


def source(module: str) -> str:
    """A file's text without comments. Raises TheoryError for an axiom and for an unfinished proof."""
    text = COMMENT.sub(" ", (THEORY / f"{module}.v").read_text())
    if found := UNPROVED.search(text):
        raise TheoryError(f"{module}.v says {found.group()}: every theorem is proved, hypotheses belong to a section")
    return text


def theorems() -> list[str]:
    """Every theorem, as Module.name, in the files' order."""
    return [f"{m}.{name}" for m in modules() for name in re.findall(r"^\s*Theorem (\w+)", source(m), re.MULTILINE)]


def hypothesis_names() -> set[str]:
    """The named hypotheses of all sections."""
    return {name for m in modules() for name in re.findall(r"^\s*Hypothesis (\w+)", source(m), re.MULTILINE)}


def committed(text: str | None = None) -> Committed:
    """The committed list, theory/assumptions.toml."""
    table = tomllib.loads(LIST.read_text() if text is None else text)
    closed = {f"{m}.{name}": tuple(words) for m, rows in table["closed"].items() for name, words in rows.items()}
    over_reals = {f"{m}.{name}": () for m, names in table["reals"].items() for name in names}
    return Committed(frozenset(table["allowed"]), frozenset(closed), closed | over_reals)


def query(names: list[str]) -> str:
    """The Rocq commands whose answer `answered` reads."""
    lines = [f"From {LOGICAL} Require {' '.join(modules())}."]
    for name in names:
        full = f"{LOGICAL}.{name}"
        lines += [f"Locate {full}.", f"About {full}.", f"Print Assumptions {full}."]
    return "\n".join(lines) + "\n"


def answered(text: str, known: set[str]) -> dict[str, Assumptions]:
    """The answer of Rocq by theorem. known: the names of hypotheses, which are among a theorem's arguments."""
    found = {}
    blocks = re.split(rf"^Constant {LOGICAL}\.(\S+)\n", text, flags=re.MULTILINE)
    for name, block in zip(blocks[1::2], blocks[2::2]):
        about, _, rest = block.partition("Expands to:")
        arguments = about.partition("\nArguments ")[2]
        hypotheses = tuple(w for w in re.findall(r"\w+", arguments) if w in known)
        found[name] = Assumptions(hypotheses, axioms_in(name, rest))
    return found


def axioms_in(name: str, text: str) -> tuple[str, ...]:
    """The axioms in the answer to Print Assumptions, sorted."""
    if CLOSED in text:
        return ()
    listed = text.partition("Axioms:")[2]
    axioms = re.findall(r"^([\w.']+)(?=\s*:|\s*$)", listed, re.MULTILINE)
    if not axioms:
        raise TheoryError(f"Rocq's answer on {name} is not understood: {text.strip()}")
    return tuple(sorted(axioms))


def complaints(found: dict[str, Assumptions], listed: Committed) -> list[str]:
    """Every difference between the assumptions that Rocq found and the committed list."""
    wrong = [f"{name} is listed and not proved" for name in listed.hypotheses if name not in found]
    for name, (hypotheses, axioms) in found.items():
        if new := sorted(set(axioms) - (set() if name in listed.closed else listed.allowed)):
            wrong.append(f"{name} assumes {', '.join(new)}, which is not allowed")
        if name not in listed.hypotheses:
            wrong.append(f"{name} is proved and not listed")
        elif listed.hypotheses[name] != hypotheses:
            wrong.append(f"{name} is listed with {listed.hypotheses[name]} and uses {hypotheses}")
    return wrong


# Running Rocq --------------------------------------------------------------------------------------------------------


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


def rocq(*command: str) -> str:
    """The output of a command. Raises TheoryError with the output if the command fails."""
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TheoryError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def compiled() -> dict[str, Assumptions]:
    """Compiles every file, checks the compiled files with coqchk, and returns the assumptions of each theorem."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for module in modules():
        source(module)
        shutil.copy(THEORY / f"{module}.v", BUILD)
        rocq("coqc", "-Q", ".", LOGICAL, f"{module}.v")
    rocq("coqchk", "-silent", "-Q", ".", LOGICAL, *(f"{LOGICAL}.{m}" for m in modules()))
    (BUILD / "query.v").write_text(query(theorems()))
    return answered(rocq("coqc", "-Q", ".", LOGICAL, "query.v"), hypothesis_names())


def main() -> int:
    """Prints the result. Returns 1 if the theory fails or its assumptions differ from the list."""
    try:
        install()
        found = compiled()
        wrong = complaints(found, committed())
    except TheoryError as error:
        wrong = [str(error)]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        closed = sum(not assumed.axioms for assumed in found.values())
        print(f"{len(found)} theorems hold: {closed} closed, {len(found) - closed} over Rocq's reals and nothing else")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
