"""Tests of the completion of names: it ends within its time limit, and no failure reaches the shell."""

from __future__ import annotations

import signal
import sys
import time

import click
import pytest
from click.shell_completion import ShellComplete

from tutti.errors import ConfigError, NotAllowed, Unavailable
from tutti_gateway.cli.commands import COMPLETION_VARIABLE, tutti
from tutti_gateway.cli.common import names
from tutti_gateway.cli.common.options import url_option


@click.command()
@url_option
@click.argument("name")
def command(url: str, name: str) -> None:
    """Stand for a command that takes a name."""


def complete(found: names.Names, incomplete: str = "", *arguments: str) -> list[str]:
    context = command.make_context("command", list(arguments), resilient_parsing=True)
    return names._completing(found)(context, command.params[1], incomplete)


def test_names_are_sorted_and_begin_with_what_is_typed() -> None:
    asked: list[str] = []

    def found(url: str) -> list[str]:
        asked.append(url)
        return ["b2", "a", "b1"]

    assert complete(found, "b", "--url", "tutti://h:1") == ["b1", "b2"]
    assert asked == ["tutti://h:1"]


@pytest.mark.parametrize(
    "error",
    [Unavailable("no gateway"), NotAllowed("no right", "rights"), ConfigError("bad url"), OSError(), ImportError("pyarrow")],
)
def test_a_failure_means_no_names(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: str) -> list[str]:
        print("a warning", file=sys.stderr)
        raise error

    assert complete(fail) == []
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_gateway_that_never_answers_costs_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: str) -> list[str]:
        while True:
            time.sleep(1)

    monkeypatch.setattr(names, "TIMEOUT_S", 0.01)
    before = signal.getsignal(signal.SIGALRM)
    assert complete(wait) == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    "words",
    [("replay", "--path"), ("replay", "--archive"), ("tail", "--archive"), ("produce", "--spool"), ("log", "verify"), ("spool",)],
)
def test_the_shell_completes_directories(words: tuple[str, ...]) -> None:
    complete_words = ShellComplete(tutti, {}, "tutti", COMPLETION_VARIABLE)
    assert [(item.type, item.value) for item in complete_words.get_completions(list(words), "da")] == [("dir", "da")]
