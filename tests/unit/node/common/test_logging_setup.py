"""Tests of a log output that cannot be written: it blocks nothing, and later lines report how many are missing."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from tutti_gateway.node.common import logging_setup


@pytest.fixture(autouse=True)
def _for_this_test_alone() -> Iterator[None]:
    """What `set_up` configures holds for the process: tests that look at lines would see none."""
    yield
    structlog.reset_defaults()


class Disk(io.StringIO):
    """A file whose disk may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_lines_that_cannot_be_written_are_counted_in_those_that_can() -> None:
    disk = Disk()
    with redirect_stderr(disk):
        log = logging_setup.set_up("g1")
        log.info("one")
        disk.full = True
        log.error("two")
        log.error("three")
        disk.full = False
        log.info("four")
    lines = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert [(line["event"], line.get("log_lines_lost")) for line in lines] == [("one", None), ("four", 2)]


def test_a_closed_file_blocks_nothing() -> None:
    file = io.StringIO()
    with redirect_stderr(file):
        log = logging_setup.set_up("g1")
    file.close()
    log.info("nobody hears this")


def test_a_pipe_without_a_reader_blocks_nothing() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        with redirect_stderr(file):
            log = logging_setup.set_up("g1")
        size = fcntl.fcntl(into, fcntl.F_GETPIPE_SZ)
        for number in range(size // 50):  # a line has more bytes than that
            log.info("somebody should read this", number=number)
        told = reader.read(size)
        log.info("read again")
        last = json.loads(reader.read(size).splitlines()[-1])
    assert last["event"] == "read again"
    assert last["log_lines_lost"] == size // 50 - len(told.splitlines()) > 0
