"""Signals while the main thread is inside of the client."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.fake import until
from tests.unit.client.fake_reads import ReadableGateway

ROOT = Path(__file__).resolve().parents[3]
HEAR = "import signal, sys, tutti\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever was inherited


@pytest.fixture
def readable() -> Iterator[ReadableGateway]:
    with ReadableGateway(10) as fake:
        yield fake


@pytest.mark.parametrize("way", ["for batch in r: pass", "r.poll(60)", "for record in r.records(): pass"])
def test_ctrl_c_ends_a_reader_that_follows_a_quiet_log(readable: ReadableGateway, way: str) -> None:
    """No signal is heard while Flight waits for an answer, and half a minute of waiting was asked of the gateway at once."""
    text = f"{HEAR}with tutti.Reader(sys.argv[1], start='latest', follow=True) as r:\n    {way}\n"
    with subprocess.Popen([sys.executable, "-c", text, readable.url], stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            until(lambda: any("beyond" in asked for _, asked in readable.reads.asked))
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=5)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in told
