"""The command line names its version, and the command that was probably meant."""

import gc
import json
import subprocess
import sys
from contextlib import nullcontext

import pytest

from onepass import __version__
from onepass.cli import commands
from onepass.cli.commands import COMMANDS, MISUSED, main
from onepass.wording.report_text import QUESTION


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0 and capsys.readouterr().out == f"onepass {__version__}\n"


def test_a_command_that_is_nearly_right_is_named(capsys):
    with pytest.raises(SystemExit) as left:
        main(["explian"])
    assert left.value.code == MISUSED
    assert capsys.readouterr().err.endswith("there is no command 'explian'; did you mean 'explain'?\n")


def test_a_command_that_is_like_none_is_answered_by_all(capsys):
    with pytest.raises(SystemExit) as left:
        main(["zebra"])
    said = capsys.readouterr().err
    assert left.value.code == MISUSED and "there is no command 'zebra'" in said and len(said.splitlines()) == 1
    assert all(name in said for name, _, _ in COMMANDS)


@pytest.mark.parametrize(("words", "said"), [
    (["demo", "--size", "-3"], "onepass demo: --size: it takes a whole number from 1, not '-3'"),
    (["demo", "--size", "0"], "not '0'"),
    (["bench", "--only", "["], "onepass bench: --only: '[' is no regular expression: unterminated character set"),
    (["bench", "--variants", "("], "--variants: '(' is no regular expression"),
    (["bench", "--shapes", "*"], "--shapes: '*' is no regular expression"),
    (["bench", "--rounds", "0"], "onepass bench: --rounds: it takes a whole number from 1, not '0'"),
    (["bench", "--rounds", "2.5"], "not '2.5'"),
    (["bench", "--seconds", "-1"], "--seconds: it takes a number of seconds above 0, not '-1'"),
    (["bench", "--suite", "peer"], "onepass bench: --suite: there is no 'peer'; did you mean 'peers'?"),
    (["tune", "a.py:f", "--trials", "0"], "--trials: it takes a whole number from 1"),
    (["cache", "lst"], "onepass cache: action: there is no 'lst'; did you mean 'list'?"),
    (["explain", "a.py:f", "--jsn"], "onepass explain: there is no option '--jsn'; did you mean '--json'?"),
    (["explain", "a.py:f", "--shape", "1,x"], "--shape: it takes [NAME=]SIZES[:DTYPE]"),
    (["explain", "a.py:f", "--shape", "8:flaot32"], "there is no dtype 'flaot32'; did you mean 'float32'?"),
    (["explain", "a.py:f", "--dtype", "half"], "--dtype: there is no 'half'; there are bfloat16, "),
    (["explain"], "onepass explain: the following arguments are required: FILE:FUNC"),
    (
        ["explain", "a.py:f", "--shape", "64,8", "32,8"],
        "onepass explain: '32,8' belongs to no option; give --shape once for each input: --shape 32,8",
    ),
    (["--verson"], "onepass: there is no option '--verson'; did you mean '--version'?"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_what_cannot_be_read_is_one_line_before_anything_runs(words, said, capsys, monkeypatch):
    for name, _, _ in COMMANDS:
        monkeypatch.setattr(commands, f"_{name}", lambda chosen: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as left:
        main(words)
    printed = capsys.readouterr()
    assert left.value.code == MISUSED and said in printed.err
    assert printed.out == "" and len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(("on_gpu", "said"), [(False, "there is no GPU here"), (True, "needs scikit-learn")])
def test_tune_says_first_that_it_needs_a_gpu(on_gpu, said, capsys, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    assert main(["tune", "a.py:f"]) == MISUSED
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err and len(printed.err.splitlines()) == 1


def test_sizes_are_symbols_where_that_is_asked_for(tmp_path, capsys):
    path = tmp_path / "users.py"
    path.write_text("import torch\ndef f(q, k, v): return torch.softmax(q @ k.mT, -1) @ v\n")
    seen = {}
    for option in ([], ["--dynamic"]):
        assert main(["explain", f"{path}:f", "--shape", "2,3,40,8", "--json", *option]) == 0
        (region,) = json.loads(capsys.readouterr().out)["regions"]
        seen[bool(option)] = region["kernels"][0]["source"], region["passes"]
    assert seen[False][0] != seen[True][0] and seen[False][1] == seen[True][1] == [3, 1]


def test_rules_are_shown_that_have_the_words(capsys):
    assert main(["rules", "--filter", "mask", "--filter", "sum"]) == 0
    *laws, last = capsys.readouterr().out.splitlines()
    assert laws and all("mask" in law.lower() and "sum" in law.lower() for law in laws)
    assert last.startswith(f"{len(laws)} laws of ")


def test_an_interruption_ends_with_a_line(capsys, monkeypatch):
    def interrupted(chosen):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "COMMANDS", (("rules", interrupted, ""),))
    assert main(["rules"]) == 130
    assert capsys.readouterr().err == "\nonepass rules: interrupted\n"


@pytest.mark.parametrize(("text", "said"), [("", "has no rule"), ("1 +", "does not import: line 1")])
def test_a_file_without_rules_is_said(text, said, tmp_path, capsys):
    path = tmp_path / "laws.py"
    path.write_text(text)
    assert main(["explain", "a.py:f", "--rules", str(path)]) == MISUSED
    assert said in capsys.readouterr().err


def test_a_command_leaves_the_collector_as_it_was(capsys):
    before = gc.get_threshold()
    assert main(["rules"]) == 0
    assert gc.get_threshold() == before


def test_a_terminal_is_told_what_takes_its_time(capsys, monkeypatch):
    assert isinstance(commands._working("searching"), nullcontext)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with commands._working("searching"):
        pass
    assert capsys.readouterr().out == ""


LATE = """
import atexit, sys, threading
from onepass.cli import commands
sys.argv = ["onepass", "rules"]
atexit.register(lambda: print("at exit"))
class Held:
    def __del__(self): print("freed")
held = Held()
if MORE:
    threading.Thread(target=lambda: (threading.main_thread().join(), print("thread done"))).start()
commands.run()
"""


@pytest.mark.parametrize("more", [[], ["thread"]])
def test_the_process_ends_without_freeing_but_loses_nothing(more):
    """What is printed through a pipe arrives, functions of atexit run, and a thread that still runs is waited for."""
    ran = subprocess.run([sys.executable, "-c", f"MORE = {more}{LATE}"], capture_output=True, text=True, check=True)
    last = ran.stdout.splitlines()[-3:]
    assert "at exit" in last and "rescale_sum" in ran.stdout
    assert ("thread done" in last, "freed" in last) == ((True, True) if more else (False, False))


def test_the_status_of_a_command_is_that_of_the_process():
    ran = subprocess.run([sys.executable, "-m", "onepass", "explain", "missing.py:f"], capture_output=True, text=True)
    assert ran.returncode == 2 and "there is no file missing.py" in ran.stderr


def test_a_report_has_relative_paths_and_on_a_terminal_its_width(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = f"onepass: 1 fused\n  at          {tmp_path}/model.py:3\n  note        {'word ' * 30}end"
    assert "  at          model.py:3\n" in commands._shown(text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    lines = commands._shown(text).splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 14 + "word") for line in lines[3:])
    text = f"Why not?              {'word ' * 30}end\n{' ' * QUESTION}{'more ' * 30}end"
    lines = commands._shown(text).splitlines()
    assert len(lines) == 6 and max(map(len, lines)) <= 80 and lines[0].startswith("Why not?              word")
    assert all(line.startswith((" " * QUESTION + "word", " " * QUESTION + "more")) for line in lines[1:])


def test_what_the_engine_did_is_printed_where_it_is_asked_for(tmp_path, capsys):
    (tmp_path / "m.py").write_text("import torch\ndef f(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n")
    said = {}
    for option in ([], ["--verbose"]):
        assert commands.main(["explain", f"{tmp_path}/m.py:f", *option]) == 0
        said[bool(option)] = capsys.readouterr().out
    assert said[False].startswith("Is it fused?          Yes: 1 region\n")
    labels = {verbose: {line[:14].strip() for line in text.splitlines()} for verbose, text in said.items()}
    assert labels[True] - labels[False] == {"planned", "shape", "plan", "search", "cache", "seconds of the"}
    assert labels[False] < labels[True]
