"""Tests of a spool with real gateways: it survives a minority, an outage of all gateways, and kills of its own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.running_group import RunningGroup
from tutti import Producer, Reader
from tutti.runtime.child_processes import end_with_this_process

#: A source that cannot be read again: it counts, and says how far it is when that is safe. SIGTERM ends it in order.
SOURCE = """
import json, signal, sys
from tutti import Producer

url, spool = sys.argv[1:]
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
with Producer(url, producer="source", spool=spool, delivery_timeout=120, buffer_bytes=1 << 20) as p:
    number = int(p.spool.progress or b"0")
    while not ended:
        for _ in range(100):
            number += 1
            receipt = p.send("ab"[number % 1000 > 500], b"%d" % number, progress=b"%d" % number)
        receipt.spooled(60)
        print(json.dumps({"safe": number, "left": p.spool.records}), flush=True)
print(json.dumps({"safe": number, "left": len(p)}), flush=True)
"""


class Source:
    """The process, and the last that it said of all its lives."""

    def __init__(self, url: str, spool: Path) -> None:
        self.command = [sys.executable, "-c", SOURCE, url, str(spool)]
        self.heard = threading.Condition()
        self.safe = self.left = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
        )
        self.reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self.reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):
                said = json.loads(line)
                with self.heard:
                    self.safe, self.left = max(self.safe, said["safe"]), said["left"]
                    self.heard.notify_all()

    def goes_on(self, records: int) -> None:
        """Wait until so many more are safe."""
        with self.heard:
            wanted = self.safe + records
            assert self.heard.wait_for(lambda: self.safe >= wanted, 120), f"{self.safe} of {wanted} are safe"

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(150)
        self.reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def again(self) -> None:
        self.end(signal.SIGKILL)
        self.start()


@pytest.mark.soak
def test_outages_and_kills_of_every_kind(tmp_path: Path) -> None:
    with RunningGroup(tmp_path) as three:
        source = Source(three.url, tmp_path / "spool")
        try:
            source.goes_on(2000)
            source.again()
            source.goes_on(2000)
            for name in ("g1", "g2"):
                three[name].kill()  # a minority is left
            source.goes_on(3000)
            source.again()
            source.goes_on(3000)
            three["g3"].kill()  # and then nobody
            source.goes_on(3000)
            for _ in range(2):
                source.again()
                source.goes_on(2000)
            assert source.left > 8_000
            three.start()
            source.goes_on(1000)
            source.again()
            source.goes_on(1000)
        finally:
            source.end(signal.SIGTERM)
        assert source.process.returncode == 0
        assert source.left == 0
        with Reader(three.url) as r:
            numbers = [int(value or b"") for batch in r for value in batch.column("value").to_pylist()]
        assert numbers == list(range(1, source.safe + 1))
        with Producer(three.url, producer="source", spool=tmp_path / "spool") as p:
            assert p.resume() == (source.safe, b"%d" % source.safe)
