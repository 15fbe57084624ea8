"""Tests that a shell completes the names of topics, gateways and producers from a running gateway, and stays silent without one."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
from click.shell_completion import ShellComplete

from tests.support.commands import TUTTI, DevGroup
from tests.support.commands import tutti as run
from tutti import Producer
from tutti_gateway.cli.commands import COMPLETION_VARIABLE, tutti
from tutti_gateway.cli.common import names


def completed(*words: str) -> list[str]:
    """Return what a shell offers for the last word."""
    complete = ShellComplete(tutti, {}, "tutti", COMPLETION_VARIABLE)
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(scope="module", autouse=True)
def _names(running: DevGroup) -> None:
    for topic in ("flights", "fuel", "weather"):
        assert run("topics", "create", topic, url=running.url).code == 0
    with Producer(running.url, producer="feed-1") as producer, Producer(running.url) as nameless:
        producer.send("flights", b"x").result(10)
        nameless.send("flights", b"x").result(10)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tail", "--topic", ""], ["flights", "fuel", "weather"]),
        (["tail", "--topic", "flights", "--topic", "f"], ["flights", "fuel"]),
        (["replay", "--topic", "w"], ["weather"]),
        (["produce", "--topic", "fu"], ["fuel"]),
        (["topics", "describe", "f"], ["flights", "fuel"]),
        (["topics", "create", "f"], []),
        (["leave", ""], ["g1"]),
        (["members", "remove", "g"], ["g1"]),
        (["members", "replace", "x"], []),
        (["members", "add", "g"], []),
        (["tail", "--unordered", "--origin", ""], ["g1"]),
        (["producers", "fence", ""], ["feed-1"]),
        (["produce", "--topic", "fuel", "--producer", "f"], ["feed-1"]),
    ],
)
def test_names_of_a_running_gateway(running: DevGroup, words: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_URL", running.url)
    monkeypatch.setattr(names, "TIMEOUT_S", 20.0)  # a busy machine is no reason to fail
    assert completed(*words) == found


@pytest.mark.parametrize("before", [["topics", "--url", "URL", "describe"], ["topics", "describe", "--url", "URL"]])
def test_a_url_on_the_line_wins_over_the_environment(running: DevGroup, before: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_URL", "tutti://127.0.0.1:1")
    monkeypatch.setattr(names, "TIMEOUT_S", 20.0)
    assert completed(*(running.url if word == "URL" else word for word in before), "w") == ["weather"]


@pytest.mark.parametrize("words", [["tail", "--topic", ""], ["leave", ""], ["producers", "forget", ""]])
@pytest.mark.parametrize("url", ["tutti://127.0.0.1:1", "nonsense", "SILENT"])
def test_without_an_answer_there_are_no_names_and_no_words(
    words: list[str], url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("TUTTI_URL", f"tutti://127.0.0.1:{silent.getsockname()[1]}" if url == "SILENT" else url)
        assert completed(*words) == []
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_shell_gets_the_names(running: DevGroup) -> None:
    """Proves that the script of `tutti completion` leads here."""
    words = {"COMP_WORDS": "tutti topics describe w", "COMP_CWORD": "w", COMPLETION_VARIABLE: "fish_complete"}
    environment = os.environ | {"TUTTI_URL": running.url} | words
    code = "import sys; from tutti_gateway.cli.common import names; names.TIMEOUT_S = 20.0; "
    code += "from tutti_gateway.cli.main import main; main()"
    done = subprocess.run([TUTTI[0], "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split("\t")[0].strip(), done.stderr) == ("plain,weather", "")
