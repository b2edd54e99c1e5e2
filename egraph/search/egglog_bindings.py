"""Runs egglog: commands go in as text, plain data comes out. The only module that loads egglog.

egglog starts a pool of threads when it is loaded. A forked child does not have these threads, so egglog would hang
there. In such a child the engine runs in a process of its own: this file as a script, with one line of JSON for each
request. So this file imports nothing of onepass.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import ModuleType

NAME = "egglog.bindings"
SECONDS_TO_START = 60
_loaded_in = 0  # the process that loaded egglog here


class EngineError(RuntimeError):
    """egglog rejected a command or panicked, or the engine cannot represent a term or a rule."""


class Engine:
    """One e-graph in this process."""

    def __init__(self, module: ModuleType):
        self.egraph = module.EGraph()

    def run(self, text: str) -> dict:
        """Runs commands. The result is that of the first: {"sizes"} of tables, {"updated", "matches"}, or {}."""
        outputs = self.egraph.run_program(*self.egraph.parse_program(text))
        first = outputs[0] if outputs else None
        if hasattr(first, "sizes"):
            return {"sizes": list(first.sizes)}
        if hasattr(first, "report"):
            return {"updated": first.report.updated, "matches": dict(first.report.num_matches_per_rule)}
        return {}

    def nodes(self) -> dict:
        """Every node of the e-graph by its key."""
        state = self.egraph.serialize([], max_functions=None, max_calls_per_function=None)
        return json.loads(state.to_json())["nodes"]


class EngineProcess:
    """One e-graph in a process of its own, with the methods of Engine."""

    def __init__(self, process: subprocess.Popen):
        self.process = process

    def run(self, text: str) -> dict:
        """As Engine.run. Raises EngineError."""
        return self._ask("run", text)

    def nodes(self) -> dict:
        """As Engine.nodes. Raises EngineError."""
        return self._ask("nodes")

    def started(self) -> EngineProcess:
        """This engine, after its first answer. Raises EngineError if there is none in time."""
        watch = threading.Timer(SECONDS_TO_START, self.process.kill)
        watch.start()
        try:
            self._ask("run", "")
        finally:
            watch.cancel()
        return self

    def _ask(self, *request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            done, answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError) as error:
            raise EngineError(f"the engine's own process, {self.process.args[0]}, does not answer") from error
        if not done:
            raise EngineError(answer)
        return answer


@contextmanager
def new_engine() -> Iterator[Engine | EngineProcess]:
    """A new e-graph: in this process, or in its own process if egglog was loaded before a fork. Raises EngineError."""
    global _loaded_in
    if NAME not in sys.modules and "egglog" not in sys.modules:
        _load()
        _loaded_in = os.getpid()
    if _loaded_in == os.getpid():
        yield Engine(sys.modules[NAME])
        return
    if not sys.executable or getattr(sys, "frozen", False):
        raise EngineError("after a fork the search needs a process of its own, and there is no Python to start one")
    command = [sys.executable, "-I", "-S", __file__, _file()]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    except OSError as error:
        raise EngineError(f"the engine's own process, {sys.executable}, does not start: {error}") from error
    with process:
        try:
            yield EngineProcess(process).started()
        finally:
            process.kill()
            with suppress(OSError):  # unsent requests
                process.stdin.close()


def _file() -> str:
    """The path of egglog's shared object; "" if it is not found by the usual finder."""
    package = importlib.util.find_spec("egglog")
    found = package and PathFinder.find_spec(NAME, list(package.submodule_search_locations or ()))
    return (found.origin or "") if found else ""


def _load(path: str = ""):
    """Loads egglog's shared object without its Python package, whose import takes ten times as long."""
    path = path or _file()
    if not path:
        return importlib.import_module(NAME)
    loader = ExtensionFileLoader(NAME, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(NAME, path, loader=loader))
    sys.modules[NAME] = module  # it can be loaded only once: a later `import egglog` finds it here
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[NAME]
        raise
    return module


def error_text(error: BaseException) -> str:
    """The message of an error of egglog in one line. A Rust panic is a BaseException."""
    return f"egglog: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def _serve(path: str) -> None:
    """Answers requests, one line each, until the input ends."""
    engine = Engine(_load(path))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = True, getattr(engine, name)(*arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            answer = False, error_text(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        _serve(sys.argv[1])
    except KeyboardInterrupt:  # the parent process gets it, too
        pass
