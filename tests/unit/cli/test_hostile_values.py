"""Tests that every command and every connector ends with one line and a documented exit code for any value. The commands and
options come from click, so a new one is tested without an entry here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tutti.security import user_files
from tutti_gateway.cli.commands import tutti
from tutti_gateway.cli.main import main

EXIT_CODES = {0, 1, 2, 3, 4}

#: What no text can hold. A call in this process can pass a NUL, the system cannot.
NOT_TEXT = ["\0", "a\0b", "\udcff", "a\udc80"]
#: What is not a number, a name, an address, a time or a pattern.
WRONG = [
    "",
    " ",
    "-1",
    "9" * 400,
    "1e400",
    "nan",
    "é" * 300,
    "tutti://",
    "tutti://h:99999",
    "tutti://[::1",
    "[[[",
    ",",
    "%s",
    "{0}",
]
#: What is not a file to read, nor a directory with a log, an archive or a spool. "zeros" has 64 MiB.
NO_FILES = [
    "directory",
    "empty",
    "binary",
    "fifo",
    "zeros",
    "loop",
    "/dev/zero",
    "/dev/null",
    "p/" * 2500,
    "q" * 5000,
    "text/below",
]
#: These wait for gateways, start them, or look at the machine: they are called with what is not text alone.
SLOW = {"demo", "dev", "doctor", "leave", "members", "roster"}
#: A pipe is an input of these: they wait for the process that writes into it.
READS_PIPES = {"produce"}
#: Options without which these refuse the command before they take up what it names.
COMPLETE = {
    "backfill": ["--table", "table"],
    "replay": ["--out", "out.jsonl"],
    "tokens new": ["--admin"],
    "trace": ["--offset", "1"],
}


def _commands(command: click.Command, path: list[str], context: click.Context) -> Iterator[tuple[list[str], click.Command]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, [*path, name], click.Context(inner, parent=context, info_name=name))
    else:
        yield path, command


COMMANDS = [(path, command) for path, command in _commands(tutti, [], click.Context(tutti))]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with hostile files, and an address that is refused, so that no command waits for a gateway."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUTTI_URL", "tutti://")
    monkeypatch.setattr(user_files, "FILE_WAIT_S", 0.001)
    monkeypatch.setattr("tutti_spark.backfill.spark_session.check_spark", lambda: None)
    (tmp_path / "text").write_text("x\n")
    (tmp_path / "directory").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    os.mkfifo("fifo")
    (tmp_path / "zeros").touch()
    os.truncate("zeros", 1 << 26)
    (tmp_path / "loop").symlink_to("loop")


def _calls(path: list[str], command: click.Command, values: list[str]) -> Iterator[list[str]]:
    """The command with each value in place of each option and argument, and a text file in place of all that is required."""
    options = [option for option in command.params if isinstance(option, click.Option) and not option.is_flag]
    arguments = [argument for argument in command.params if isinstance(argument, click.Argument)]
    required = [text for option in options if option.required for text in (option.opts[0], "text")]
    required += COMPLETE.get(" ".join(path), [])
    for value in values:
        for option in options:
            yield [*path, *required, *("text" for argument in arguments if argument.required), option.opts[0], value]
        for hostile in arguments:
            yield [*path, *required, "--", *(value if argument is hostile else "text" for argument in arguments)]


def _names(given: list[tuple[list[str], click.Command]]) -> list[str]:
    return [" ".join(path) for path, _ in given]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=_names(COMMANDS))
def test_invalid_text_is_refused_before_any_action(
    path: list[str], command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for call in _calls(path, command, NOT_TEXT):
        assert main(call) == 2, call
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("error: argument ")
        assert error.count("\n") == 1


TRIED = [(path, command) for path, command in COMMANDS if path[0] not in SLOW]


@pytest.mark.parametrize(("path", "command"), TRIED, ids=_names(TRIED))
def test_a_hostile_value_ends_with_an_error_of_its_own(
    path: list[str], command: click.Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUTTI_TRACEBACK", "1")  # a defect raises
    for call in _calls(path, command, [*WRONG, *NO_FILES]):
        if path[0] in READS_PIPES and call[-1] == "fifo":
            continue
        code = main(call)
        error = capsys.readouterr().err
        assert code in EXIT_CODES, call
        assert code == 0 or "error: " in error or command.name == "check", call


def test_bytes_that_are_not_utf_8_are_refused_as_a_shell_passes_them() -> None:
    done = subprocess.run([sys.executable, "-m", "tutti_gateway", "tail", "--key", b"\xff"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: argument 3, '\\udcff', is not UTF-8 text: convert it, and rename any file with such a name\n"


NUMBERS = [
    (path, option)
    for path, command in COMMANDS
    for option in command.params
    if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType)
]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(("path", "option"), NUMBERS, ids=[f"{' '.join(path)} {option.name}" for path, option in NUMBERS])
def test_a_number_is_finite(path: list[str], option: click.Option, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, option.opts[0], value]) == 2
    assert f"invalid value for '{option.opts[0]}'" in capsys.readouterr().err
