"""Compiles and checks theory and laws in Rocq, and compares their assumptions with the committed list: `make theory`.

Every Theorem of theory/*.v is in theory/assumptions.toml with exactly the hypotheses and axioms that Rocq reports for
it, and every axiom is in the list's `allowed`. Every shipped law is proved, or is in the list with the reason why not;
its theorem has no hypotheses but those of its statement. The same tactics prove no wrong law, and the meanings of
operations agree with float64 at chosen points. It installs Debian's coq if Rocq is missing. With --quick it leaves out
Rocq's second checker, coqchk, and the wrong derivatives: half of the time, and no law.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from ..egraph.derivation.ledger import entries
from ..egraph.rewrite.rule import Rule
from ..rules import ALL
from .rocq import examples, laws
from .rocq.compiler import (
    LOGICAL,
    THEORY,
    TheoryError,
    check_again,
    compile_file,
    compile_theory,
    install,
    modules,
    processes,
    source,
    write,
)
from .unsound_rules import ZOO

LIST = THEORY / "assumptions.toml"
CLOSED = "Closed under the global context"


class Assumptions(NamedTuple):
    """What one theorem assumes: hypotheses of its section, and axioms of Rocq's library."""

    hypotheses: tuple[str, ...]
    axioms: tuple[str, ...]


@dataclass(frozen=True)
class Committed:
    """The committed list: allowed axioms, theorems without any, each theorem's hypotheses, and laws not checked."""

    allowed: frozenset[str]
    closed: frozenset[str]
    hypotheses: dict[str, tuple[str, ...]]
    unchecked: dict[str, str]


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
    return Committed(frozenset(table["allowed"]), frozenset(closed), closed | over_reals, table["unchecked"])


def query(names: Iterable[str]) -> str:
    """The Rocq commands whose answer `answered` reads."""
    names = list(names)
    files = dict.fromkeys(name.partition(".")[0] for name in names)
    lines = [f"From {LOGICAL} Require {' '.join(files)}."]
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


def assumptions(module: str, names: Iterable[str]) -> dict[str, Assumptions]:
    """What compiled theorems assume, by Rocq's answer. module: the file that asks."""
    write(module, query(names))
    return answered(compile_file(module), hypothesis_names())


def law_complaints(found: list[laws.CheckedLaws], listed: Committed, assumed: dict[str, Assumptions]) -> list[str]:
    """Laws that are not proved and not listed as such, or proved and listed, or that assume what is not allowed."""
    failed = {name: why for module in found for name, why in module.why_not.items()}
    proved = {name for module in found for name in module.checked}
    unlisted = failed.keys() - listed.unchecked.keys()
    wrong = [f"the law {name} is not proved in Rocq: {failed[name]}" for name in unlisted]
    wrong += [f"{name} is listed as unchecked and is proved" for name in listed.unchecked.keys() & proved]
    gone = listed.unchecked.keys() - proved - failed.keys()
    wrong += [f"{name} is listed as unchecked and is no law" for name in gone]
    return sorted(wrong) + _axioms_of_laws([m.module for m in found if m.checked], listed, assumed)


def _axioms_of_laws(files: list[str], listed: Committed, assumed: dict[str, Assumptions]) -> list[str]:
    """The files of laws that assume what is not allowed, or about which there is no answer."""
    wrong = []
    for name in (f"{file}.{laws.EVERY}" for file in files):
        hypotheses, axioms = assumed.get(name, Assumptions(("no answer",), ()))
        if new := sorted({*hypotheses, *axioms} - listed.allowed):
            wrong.append(f"{name} assumes {', '.join(new)}, which is not allowed")
    return wrong


def show_laws(found: list[laws.CheckedLaws], listed: Committed) -> None:
    """Prints how many laws, and rows of derivatives, are checked, by module, and which are not."""
    for module in found:
        print(f"{module.module.lower()}: {len(module.checked)} of {len(module.checked) + len(module.why_not)}")
    for name, why in ((n, w) for module in found for n, w in module.why_not.items()):
        print(f"not checked: {name}: {listed.unchecked.get(name, why)}")
    shipped = [module for module in found if module.module != laws.ROWS]
    checked, theorems_of_laws = sum(len(m.checked) for m in shipped), sum(m.theorems for m in shipped)
    print(f"{checked} of {len(ALL)} laws are kernel-checked, by {theorems_of_laws} theorems")


def wrong_laws() -> list[list[Rule]]:
    """The zoo in two halves, without the laws that are wrong about equal bits alone: numbers here are reals."""
    return [[rule for rule in half if rule.exact != "bitwise"] for half in (ZOO[0::2], ZOO[1::2])]


def run(listed: Committed, quick: bool = False) -> list[str]:
    """Runs Rocq on everything, prints the results, and returns what is wrong. Raises TheoryError."""
    if not entries():
        return ["the ledger is of other meanings: run `python -m onepass prove`, then `make theory`"]
    compile_theory()
    with processes() as pool:
        rows = pool.submit(laws.prove_rows)
        running = [pool.submit(laws.prove_module, *item) for item in laws.by_module(ALL).items()]
        trying = [pool.submit(laws.attempts, half, f"Wrong_{n}") for n, half in enumerate(wrong_laws())]
        again = [] if quick else [pool.submit(check_again, modules())]
        trying += [] if quick else [pool.submit(wrong_rows)]
        about_theory = pool.submit(assumptions, "query", theorems())
        evaluating = pool.submit(examples.check)
        found = [*(job.result() for job in running), rows.result()]
        compiled = [module.module for module in found if module.checked]
        again += [] if quick else [pool.submit(check_again, compiled, alone=True)]
        of_laws = assumptions("query_laws", (f"{module}.{laws.EVERY}" for module in compiled))
        theory, values = about_theory.result(), evaluating.result()
        tried = dict(chain.from_iterable(job.result().items() for job in trying))
        for job in again:
            job.result()
    print(f"{values} values of operations are those of float64")
    show_theory(theory)
    show_laws(found, listed)
    print(f"{len(tried)} wrong laws were tried, {sum(tried.values())} proved")
    wrong = [f"the wrong law {name} is proved" for name, proved in tried.items() if proved]
    return [*complaints(theory, listed), *law_complaints(found, listed, of_laws), *wrong]


def show_theory(found: dict[str, Assumptions]) -> None:
    """Prints on what the theorems stand."""
    closed = sum(not assumed.axioms for assumed in found.values())
    print(f"{len(found)} theorems: {closed} closed, {len(found) - closed} over Rocq's reals and nothing else")


def wrong_rows() -> dict[str, bool]:
    """Whether a row of derivatives with twice the slope is proved, by what is said of it; none may be."""
    return {f"twice the slope of {name}": proved for name, proved in laws.attempted_rows().items()}


def main(arguments: list[str] | None = None) -> int:
    """Prints the result. Returns 1 if theory or laws fail, or their assumptions differ from the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without coqchk and the wrong derivatives")
    given = parser.parse_args(arguments)
    try:
        install()
        wrong = run(committed(), given.quick)
    except TheoryError as error:
        wrong = [str(error)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
