"""Runs trials in a process of their own: a crash, a hang or an exception loses one trial and nothing else.

A worker is started once and kept while its trials behave; after a crash or a time-out the next trial has a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """status: "ok" with the value, or "error", "crash", "time-out" with a note of one line."""

    status: str
    value: Any = None
    note: str = ""


class Worker:
    """Calls `function` in a spawned process; a trial that takes longer than `seconds` is killed."""

    def __init__(self, function: Callable, seconds: float):
        self.function, self.seconds = function, seconds
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None

    def __call__(self, task: Any) -> Outcome:
        if self.process is None or not self.process.is_alive():
            self._start()
        try:
            self.connection.send(task)
            if not self.connection.poll(self.seconds):
                self.close()
                return Outcome("time-out", note=f"no result after {self.seconds:g} s")
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            self.close()
            return Outcome("crash", note=f"the process ended with code {code}")

    def _start(self) -> None:
        self.close()
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.function), daemon=True)
        self.process.start()
        other.close()

    def close(self) -> None:
        """Ends the process; the next call starts another."""
        if self.process is not None:
            self.connection.close()
            self.process.kill()
            self.process.join()
            self.process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _serve(connection: Connection, function: Callable) -> None:
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(function, task))


def _outcome(function: Callable, task) -> Outcome:
    try:
        return Outcome("ok", function(task))
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return Outcome("error", note=f"{type(error).__name__}: {first}"[:200])
