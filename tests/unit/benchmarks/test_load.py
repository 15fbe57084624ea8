"""Tests of how the load generator is compiled, and of what benchmarks do on a machine without a compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load import generator
from benchmarks.load.generator import Load, compiler, lacking, program
from benchmarks.load.sessions import message_of
from benchmarks.path import __main__ as path
from tutti.data.client_protocol import decode_submit
from tutti.data.frames.frame import check_payload
from tutti.data.frames.schema import validate_body
from tutti.zmtp import framing


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(generator, "KEPT", tmp_path / "kept")
    program.cache_clear()
    yield tmp_path / "kept"
    program.cache_clear()


def compiler_that(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cc"
    path.write_text(f"#!{sys.executable}\nimport sys\nout = sys.argv[sys.argv.index('-o') + 1]\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))


def test_the_program_is_compiled_once_for_each_source(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler_that("open(out, 'w').write('made')", tmp_path, monkeypatch)
    made = program()
    assert made.read_text() == "made"
    assert list(kept.iterdir()) == [made]
    made.write_text("kept")
    program.cache_clear()
    assert program() == made
    assert made.read_text() == "kept"
    monkeypatch.setattr(generator, "SOURCE", tmp_path / "other.c")
    (tmp_path / "other.c").write_text("int main;")
    program.cache_clear()
    assert program() != made


def test_an_error_of_the_compiler_is_reported_and_leaves_nothing(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that("open(out, 'w').write('half'); sys.exit('no stdio.h')", tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match=r"cc cannot compile generator\.c: no stdio\.h"):
        program()
    assert list(kept.iterdir()) == []


def test_a_missing_compiler_is_named_with_what_to_install(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler() is None
    assert lacking() == "a C compiler (cc, gcc or clang)"
    with pytest.raises(SystemExit, match=r"the load generator needs a C compiler .*: install one, for example the Debian package"):
        program()
    monkeypatch.setenv("CC", "nothing")
    assert lacking() == "the C compiler 'nothing' that the variable CC names"
    assert not kept.exists()


def test_the_first_compiler_of_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang", "gcc"):
        (tmp_path / name).touch(0o755)
    assert compiler() == os.fspath(tmp_path / "gcc")
    assert lacking() == ""


def test_without_a_compiler_the_other_works_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "nothing")
    assert path.measurable(["many-load", "many", "one-load", "100B"]) == ["many", "100B"]
    told = capsys.readouterr().out
    assert told == "left out, because the C compiler 'nothing' that the variable CC names is missing: many-load, one-load\n"
    assert path.measurable(["many"]) == ["many"]
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit, match="nothing is left to measure"):
        path.measurable(["one-load"])


def test_the_fields_of_a_message_are_where_the_load_generator_sets_them() -> None:
    for size in (0, 100, 20_000):
        message = message_of(5, size)
        data = bytearray(message.data)
        for at, length, value in ((message.producer_at, 8, 77), (message.sequence_at, 8, 88), (message.epoch_at, 4, 99)):
            data[at : at + length] = value.to_bytes(length, "little")
        parts = []
        while data:
            head = 9 if data[0] & framing.LONG else 2
            length = int.from_bytes(data[1:9], "big") if head == 9 else data[1]
            parts.append(bytes(data[head : head + length]))
            del data[: head + length]
        (frame,) = decode_submit(parts)
        assert (frame.producer, frame.first_sequence, frame.epoch, frame.count, frame.topic) == (77, 88, 99, 1, 5)
        check_payload(frame)
        assert validate_body(frame, 1 << 20).column("value").to_pylist() == [bytes(size)]


def test_a_result_has_its_rate_and_its_percentiles() -> None:
    load = Load(4, 2.0, 0.1, np.array([1.0, 2.0, 3.0, 4.0]))
    assert load.rate == 2
    assert (load.at_ms(0.5), load.at_ms(0.99)) == (3.0, 4.0)
