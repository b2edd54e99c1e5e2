"""What the words of the command line mean: numbers, patterns and shapes, read before anything runs; typos.

A word that cannot be read gives one line, which says the option and what it takes. Example: "bench --rounds: it takes a
whole number from 1, not '0'".
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

DTYPES = ("float32", "bfloat16", "float16", "float64")
OTHER_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64")
SHAPE = re.compile(r"(?:(?P<name>\w+)=)?(?P<sizes>\d+(?:,\d+)*)(?::(?P<dtype>\w+))?")
ARGUMENT = r"(?:argument (?P<argument>\S+): )?"
CHOICE = re.compile(ARGUMENT + r"invalid choice: '(?P<typed>.*?)' \(choose from (?P<known>.*)\)", re.S)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and ends with status 2."""
        if found := CHOICE.fullmatch(message):
            known = re.findall(r"[\w-]+", found["known"])
            command = found["argument"] in (None, "COMMAND")
            begin = "there is no command" if command else f"{found['argument']}: there is no"
            message = f"{begin} {found['typed']!r}{meant(found['typed'], known)}"
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        sys.exit(2)

    def refuse_unknown(self, words: Iterable[str]) -> None:
        """Ends with status 2 if words are left that no argument takes."""
        for word in words:
            if re.fullmatch(r"\d+(,\d+)*", word) and "--shape" in self._option_string_actions:
                self.error(f"{word!r} belongs to no option; give --shape once for each input: --shape {word}")
            known = [option for option in self._option_string_actions if option.startswith("--")]
            self.error(f"there is no option {word.split('=')[0]!r}{meant(word.split('=')[0], known)}")


def meant(typed: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the word probably meant, or every word if none is near."""
    known = sorted(known)
    near = get_close_matches(typed, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def count(text: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"\+?\d{1,15}", text.strip()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it takes a whole number from 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A number above 0; infinite seconds are no limit."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"it takes a number of seconds above 0, not {text!r}")
    return number


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


@dataclass(frozen=True)
class GivenShape:
    """The sizes of an input, its name and its dtype; empty where they were not said."""

    sizes: tuple[int, ...]
    name: str = ""
    dtype: str = ""


def shape(text: str) -> GivenShape:
    """The shape of an input, as in "1,8,128,64", "mask=1,1,128,128:bool"."""
    found = SHAPE.fullmatch(text.replace(" ", ""))
    if found is None:
        form = "[NAME=]SIZES[:DTYPE], as 1,8,128,64 or mask=128,128:bool"
        raise argparse.ArgumentTypeError(f"it takes {form}, not {text!r}")
    dtype = found["dtype"] or ""
    if dtype and dtype not in (*DTYPES, *OTHER_DTYPES):
        raise argparse.ArgumentTypeError(f"there is no dtype {dtype!r}{meant(dtype, (*DTYPES, *OTHER_DTYPES))}")
    return GivenShape(tuple(map(int, found["sizes"].split(","))), found["name"] or "", dtype)
