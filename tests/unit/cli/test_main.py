"""Tests of the `tutti` command: the list of commands is correct and fast to print, and each error is one sentence with its exit
code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from tutti.common.gateway_url import DEFAULT_URL
from tutti.errors import ConfigError, Damaged, TuttiError, Unavailable
from tutti_gateway.cli import commands as entry
from tutti_gateway.cli.lazy_group import CommandPath
from tutti_gateway.cli.main import main
from tutti_gateway.cli.records.producers import _COLUMNS


def run(*arguments: str) -> int:
    return main(arguments)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Adds a command `planted` that raises."""

    def plant_it(error: BaseException) -> None:
        @click.command()
        def planted() -> None:
            raise error

        monkeypatch.setitem(sys.modules, "planted_commands", SimpleNamespace(planted=planted))
        monkeypatch.setitem(entry.COMMANDS, "planted", CommandPath("planted_commands:planted", ""))

    return plant_it


@pytest.mark.parametrize("name", list(entry.COMMANDS))
def test_each_commands_summary_is_the_one_in_the_list(name: str) -> None:
    context = click.Context(entry.tutti)
    command = entry.tutti.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == entry.COMMANDS[name].summary


HELP_WIDTH = 78  # click's width on a terminal of 80 columns


def _command_lists() -> Iterator[tuple[str, str]]:
    """Yield each group's name and its command list."""
    groups: list[tuple[click.Group, click.Context]] = [(entry.tutti, click.Context(entry.tutti, info_name="tutti"))]
    for group, context in groups:
        formatter = click.HelpFormatter(width=HELP_WIDTH)
        group.format_commands(context, formatter)
        yield context.command_path, formatter.getvalue()
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                groups.append((command, click.Context(command, parent=context, info_name=name)))


@pytest.mark.parametrize(("group", "shown"), list(_command_lists()))
def test_a_summary_is_one_line_that_is_not_cut(group: str, shown: str) -> None:
    lines = [line for line in shown.splitlines() if line.startswith(" ")]
    assert [line for line in lines if not line.endswith(".") or line.endswith("...") or line.startswith("    ")] == [], group


def test_every_command_is_in_one_section_of_the_help() -> None:
    assert [name for section in entry.SECTIONS.values() for name in section] == list(entry.COMMANDS)


def test_help_lists_the_commands_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and place.summary in shown for name, place in entry.COMMANDS.items())
    heavy = "import sys; from tutti_gateway.cli.main import main; main(['--help']); sys.exit(any(m in sys.modules for m in %r))"
    loaded = ["pyarrow", "numpy", "zmq", "rich", "msgspec", "tutti_gateway.cli.group.topics", "tutti.producer", "tutti.sources"]
    assert subprocess.run([sys.executable, "-c", heavy % loaded], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tial"], "error: no command 'tial': did you mean tail?; see `tutti --help`"),
        (["zzzzz"], "error: no command 'zzzzz': there are dev, demo, doctor"),
        (["serve"], "error: missing option '--config'; see `tutti serve --help`"),
        (["serve", "--confg", "x"], "error: no such option '--confg'"),
        (["completion", "tcsh"], "error: invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["dev", "--gateways", "0"], "error: invalid value for '--gateways'"),
        (["dev", "--gateways", "8"], "error: invalid value for '--gateways': 8 is not in the range 1<=x<=7"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUTTI_URL", raising=False)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "url", "hint"),
    [
        (["status"], None, True),
        (["members", "remove", "g9"], None, True),
        (["topics", "describe", "t"], None, True),
        (["replay", "--out", "x.jsonl"], None, True),
        (["backfill", "--table", "lake"], None, True),
        (["status"], "", True),
        (["status"], "tutti://127.0.0.1:7400", False),
        (["status", "--url", "tutti://127.0.0.1:7400"], None, False),
        (["producers", "--url", "tutti://127.0.0.1:7400", "list"], None, False),
    ],
)
def test_the_error_at_the_default_address_says_how_to_name_another(
    arguments: list[str],
    url: str | None,
    hint: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    refused, asked = "no gateway answered: 127.0.0.1:7400: connection refused", list[str]()

    def refuse(_self: object, url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise Unavailable(refused)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tutti.io.admin.AdminClient.__init__", refuse)
    monkeypatch.setattr("tutti.sources.flight.FlightSource.__init__", refuse)
    if url is not None:
        monkeypatch.setenv("TUTTI_URL", url)
    assert run(*arguments) == 3
    assert asked == [DEFAULT_URL]
    words = "; 127.0.0.1:7400 is the default: start gateways with `tutti dev`, or name others with --url or TUTTI_URL\n"
    assert capsys.readouterr().err == f"error: {refused}{words if hint else chr(10)}"


@pytest.mark.parametrize("source", ["--archive", "--path"])
def test_a_replay_of_files_uses_no_default_address(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tutti.sources.flight.FlightSource.__init__", lambda *_, **__: pytest.fail("it asked a gateway"))
    assert run("replay", source, str(tmp_path / "nowhere"), "--out", "x.jsonl") == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (TuttiError("it failed"), 1, "error: it failed\n"),
        (ConfigError("wrong"), 2, "error: wrong\n"),
        (Unavailable("nobody there"), 3, "error: nobody there\n"),
        (Damaged("frame 7"), 4, "error: frame 7\n"),
        (OSError(28, "No space left on device", "/x/y"), 1, "error: /x/y: no space left on device\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: /x: permission denied\n"),
        (ZeroDivisionError("oops"), 1, "error: a defect in tutti, ZeroDivisionError: oops (set TUTTI_TRACEBACK=1"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(
    error: BaseException,
    code: int,
    message: str,
    plant: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(error)
    monkeypatch.delenv("TUTTI_TRACEBACK", raising=False)
    assert run("planted") == code
    assert capsys.readouterr().err.startswith(message)


def test_a_defect_shows_its_place_when_asked(plant: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(ZeroDivisionError("oops"))
    monkeypatch.setenv("TUTTI_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run("planted")


def test_a_reader_of_the_output_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m tutti_gateway completion bash | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n"
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    assert "_TUTTI_COMPLETE" in capsys.readouterr().out


def test_the_shell_gets_the_list_of_commands() -> None:
    environment = os.environ | {"_TUTTI_COMPLETE": "fish_complete", "COMP_WORDS": "tutti t", "COMP_CWORD": "t"}
    code = "from tutti_gateway.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    told = [line.split("\t")[0].removeprefix("plain,") for line in done.stdout.splitlines()]
    assert told == ["tail", "topics", "trace", "tokens"]


def test_the_columns_of_producers_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("producers", "list", "--help") == 0
    explained = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [name for name in explained if name in _COLUMNS] == list(_COLUMNS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("tutti ")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "Start here:" in capsys.readouterr().err


def test_on_other_systems_than_linux_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run("topics") == 1
    assert capsys.readouterr().err == "error: Tutti needs Linux; this system is darwin\n"


#: What an installed `tutti` is.
SCRIPT = "from tutti_gateway.cli.main import main; sys.exit(main())"
#: Ctrl-C strikes while `struck` is imported.
STRIKE = """
import runpy, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == {struck!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Strike())
sys.argv = ["tutti", "topics", "--url", "tutti://127.0.0.1:1"]
{start}
"""


@pytest.mark.parametrize("start", ["runpy.run_module('tutti_gateway', run_name='__main__')", SCRIPT])
@pytest.mark.parametrize(
    "struck",
    [
        "tutti_gateway.cli.common.interrupts",
        "tutti_gateway.cli.common.closed_streams",
        "click",
        "tutti_gateway.cli.lazy_group",
        "tutti.errors",
        "tutti_gateway.cli.group.topics",
        "msgspec",
        "tutti.io.zmtp_connection",
    ],
)
def test_an_interrupt_while_it_loads_ends_as_any_other(start: str, struck: str) -> None:
    code = STRIKE.format(struck=struck, start=start)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


#: Ctrl-C comes once more while things are put in order for the first, and while the process ends.
AGAIN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tutti_gateway.cli import commands; from tutti_gateway.cli.common import interrupts as loading
from tutti_gateway.cli.main import main
loading._SAME_S = {same_s}
def run(arguments):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        time.sleep({pause_s})
        signal.raise_signal(signal.SIGINT)
        print("in order", flush=True)
commands.run = run
code = main()
signal.raise_signal(signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.parametrize(("pause_s", "said"), [(0.0, "in order\n"), (0.5, "")])
def test_a_second_interrupt_ends_at_once_and_one_that_is_the_first_again_is_none(pause_s: float, said: str) -> None:
    """It was a traceback, or the end by a signal."""
    done = subprocess.run(
        [sys.executable, "-c", AGAIN.format(pause_s=pause_s, same_s=0.25 if pause_s else 60.0)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, said, "interrupted\n")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("topics --json >&-", 2, "error: standard output is closed: redirect it to a file or to /dev/null\n"),
        ("serve --config x >&- <&-", 2, "error: standard output is closed"),
        ("produce --topic q <&-", 2, "error: standard input is closed: give a FILE, or connect standard input\n"),
        ("nonsense 2>&-", 2, ""),
        ("topics --url tutti://127.0.0.1:1 --json 2>&-", 3, ""),
        ("log verify . 2>&-", 2, ""),
        ("produce --topic q <&- 2>&-", 2, ""),
    ],
)
def test_a_closed_stream_is_reported_and_nothing_is_written_elsewhere(line: str, code: int, said: str) -> None:
    command = f"{sys.executable} -m tutti_gateway {line}"
    environment = os.environ | {"TUTTI_URL": "tutti://127.0.0.1:1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_the_descriptor_numbers_of_closed_streams_are_not_reused() -> None:
    told = "import os, sys; from tutti_gateway.cli.common.closed_streams import replace_closed_streams as fill; "
    told += "fill(); os.write(int(sys.argv[1]), b'x'); print(os.open('/', 0) > 2)"
    command = f'{sys.executable} -c "{told}" 3 3>&1 <&- 2>&-'
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout == "xTrue\n"


@pytest.mark.parametrize(("module", "package"), [("msgspec", "."), ("uvicorn.config", "'.[gateway]'")])
def test_a_missing_module_is_named_with_what_installs_it(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(entry, "_run", fail)
    assert entry.run(["topics"]) == 2
    assert (
        f"this command needs {module}, which is not installed: run pip install {package} in a checkout of Tutti"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("name", ["delete", "drop", "remove", "rm"])
def test_an_attempt_to_delete_a_topic_names_retention(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topics", name, "orders") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: tutti topics {name}: a topic cannot be deleted, because all topics share one log.")
    assert "[retention]" in said
    assert run("topics", "destroy", "orders") == 2
    assert "cannot be deleted" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["delete", "drop", "remove", "rm"])
def test_a_completion_after_an_attempt_to_delete_a_topic_reports_no_error(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"tutti topics {name} ")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv(entry.COMPLETION_VARIABLE, "bash_complete")
    assert run() == 0
    assert capsys.readouterr().err == ""
