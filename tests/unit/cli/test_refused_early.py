"""What a command can refuse by itself is refused before a gateway hears of it: no producer is made for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.main import main


@pytest.fixture
def untouched() -> Iterator[str]:
    """The address of a gateway that nobody may have connected to."""
    with socket.socket() as gateway:
        gateway.bind(("127.0.0.1", 0))
        gateway.listen()
        yield f"tutti://127.0.0.1:{gateway.getsockname()[1]}"
        gateway.setblocking(False)
        with pytest.raises(BlockingIOError):
            gateway.accept()


@pytest.mark.parametrize(
    ("options", "text", "said"),
    [
        (["--topic", "my topic"], "a\n", "the topic name 'my topic' has ' ' in it"),
        (["--topic", "t", "--key", "k"], "a\n", "--key k names a field, and lines have none"),
        (["--topic", "t", "--format", "json"], "{bad\n", "line 1 of the input is no JSON"),
        (["--topic", "t", "--format", "csv", "--key", "k"], "a,b\n1,2\n", "--key k is no field of the input"),
    ],
)
def test_input_that_is_refused(
    untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str, said: str
) -> None:
    file = tmp_path / "input"
    file.write_text(text)
    assert main(["produce", "--url", untouched, *options, str(file)]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_file_without_records(untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "input"
    file.touch()
    assert main(["produce", "--url", untouched, "--topic", "t", str(file)]) == 0
    assert capsys.readouterr().err == "nothing to send to t\n"


def test_a_replay_into_a_directory_that_is_missing(untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "no" / "dir" / "r.jsonl"
    assert main(["replay", "--url", untouched, "--out", str(out)]) == 2
    said = f"error: --out {out}: there is no directory {out.parent}; make it first, or name another file\n"
    assert capsys.readouterr().err == said
