"""Tests of errors that a command finds by itself: it reports them before it creates a producer or contacts a gateway."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tutti.errors import TuttiError
from tutti.limits import RECORD_BYTES_MAX
from tutti_gateway.cli.main import main
from tutti_gateway.cli.records import replay


@pytest.fixture
def untouched() -> Iterator[str]:
    """The address of a gateway that must get no connection."""
    with socket.socket() as gateway:
        gateway.bind(("127.0.0.1", 0))
        gateway.listen()
        yield f"tutti://127.0.0.1:{gateway.getsockname()[1]}"
        gateway.setblocking(False)
        with pytest.raises(BlockingIOError):
            gateway.accept()


@pytest.mark.parametrize(
    ("options", "text", "code", "said"),
    [
        (["--topic", "my topic"], "a\n", 2, "the topic name 'my topic' contains ' '"),
        (["--topic", "t", "--producer", "a b"], "a\n", 2, "the producer name 'a b' contains ' '"),
        (["--topic", "t", "--key", "k"], "a\n", 2, "--key k names a field, but lines have no fields"),
        (["--topic", "t", "--format", "csv", "--key", "k"], "a,b\n1,2\n", 2, "--key k is not a field of the input"),
        (["--topic", "t", "--format", "xml"], "a\n", 2, "'xml' is not one of 'lines', 'json', 'csv'"),
        (["--topic", "t", "--rate", "0"], "a\n", 2, "invalid value for '--rate'"),
        (["--topic", "t", "--speed", "1"], "a\n", 2, "no such option '--speed'"),
        (["--topic", "t", "/dev/null"], "a\n", 2, "unexpected extra argument"),
        (["--topic", "t", "--format", "json"], "{bad\n", 1, "line 1 of the input is not valid JSON"),
        (["--topic", "t", "--format", "json", "--key", "k"], "[1]\n", 1, "line 1 of the input is not a JSON object"),
        (["--topic", "t", "--format", "csv"], "a,b\n1\n", 1, "line 2 of the input has 1 field, but the header has 2"),
        (["--topic", "t", "--format", "csv"], "a,a\n", 1, "names the field 'a' twice"),
        (["--topic", "t", "--format", "csv"], 'a\n"open\n', 1, "line 2 of the input is not valid CSV"),
        (["--topic", "t"], "x" * (RECORD_BYTES_MAX + 1), 1, "the record at line 1 of the input exceeds the limit"),
    ],
)
def test_input_that_is_refused(
    untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str, code: int, said: str
) -> None:
    file = tmp_path / "input"
    file.write_text(text)
    assert main(["produce", "--url", untouched, *options, str(file)]) == code
    out, err = capsys.readouterr()
    assert said in err
    none = "0 records committed to t before it stopped: correct the input and run it again\n"
    assert (out, err.startswith(none)) == ("", code == 1)


@pytest.mark.parametrize("name", [None, "p"])
def test_the_commits_of_a_file_with_a_wrong_line_are_reported_in_json(
    untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    """No gateway was asked about the named producer, so the end of its commits is unknown."""
    file = tmp_path / "input"
    file.write_text("{}\n{bad\n")
    named = ["--producer", name] if name else []
    assert main(["produce", "--url", untouched, "--topic", "t", "--format", "json", "--json", *named, str(file)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["complete"], told["uncommitted_from"]) == (0, False, None if name else 1)


@pytest.mark.parametrize(("name", "said"), [("missing", "does not exist"), ("", "is a directory")])
def test_a_file_that_is_none(untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    assert main(["produce", "--url", untouched, "--topic", "t", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_without_records(untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "input"
    file.touch()
    assert main(["produce", "--url", untouched, "--topic", "t", str(file)]) == 0
    assert capsys.readouterr().err == "nothing to send to t\n"


def test_a_replay_into_a_directory_that_is_missing(untouched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "no" / "dir" / "r.jsonl"
    assert main(["replay", "--url", untouched, "--out", str(out)]) == 2
    said = f"error: --out {out}: the directory {out.parent} does not exist; create it, or choose another file\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet", "r.arrow"])
def test_a_replay_into_an_unwritable_directory(untouched: str, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["replay", "--url", untouched, "--out", f"/proc/{name}"]) == 2
    said = f"error: --out /proc/{name} cannot be written (no such file or directory): choose another file\n"
    assert capsys.readouterr().err == said


def test_a_replay_onto_a_full_disk_names_the_file_and_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(batch: object) -> None:
        raise OSError(errno.ENOSPC, f"Error writing bytes to file {batch}")

    monkeypatch.setitem(replay._WRITERS, ".jsonl", lambda path: contextlib.nullcontext(full))
    out = tmp_path / "r.jsonl"
    with pytest.raises(TuttiError) as error, replay._output_file(out) as write:
        write(pa.record_batch({"a": [1]}))
    assert str(error.value) == f"--out {out} cannot be written (no space left on device): free space on its file system"
    assert error.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null"])
def test_a_directory_that_cannot_be_made_is_named_with_its_option(capsys: pytest.CaptureFixture[str], place: str) -> None:
    assert main(["dev", "--data", place]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {place} cannot be created and written (")
    assert err.endswith("): choose another --data\n")
