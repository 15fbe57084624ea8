"""Posts over HTTP beside the plain Producer: records a second in posts of a thousand, and how long a single one waits at a pace."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import gateways
from benchmarks.ingest import _paced
from tutti import Producer
from tutti.runtime.child_processes import end_with_this_process

MEMBERS = 3
RECORDS = 1000
VALUE = b"x" * 100
RATE = 200
SHARE_MIN = 30.0  # target: % of the rate of send_batch() in the same round
CONNECTIONS = 4
_LINE = json.dumps({"value": VALUE.decode()}).encode() + b"\n"


class Link:
    """One connection that is kept; requests are made of bytes, so that what is measured is the other side."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, body: bytes, headers: str = "") -> None:
        """Post a body, and wait for the answer; SystemExit when it is no 200."""
        head = (
            "POST /v1/topics/bench/records HTTP/1.1\r\nhost: bench\r\ncontent-type: application/x-ndjson\r\n"
            f"content-length: {len(body)}\r\n{headers}\r\n"
        )
        self._socket.sendall(head.encode() + body)
        answer = b""
        while b"}" not in answer:
            answer += self._socket.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a post was answered with {answer!r}")

    def close(self) -> None:
        """Close."""
        self._socket.close()


@contextmanager
def _front(directory: Path, url: str) -> Iterator[int]:
    """A process of the connector; its port."""
    file = directory / "http.toml"
    file.write_text(f'name = "bench"\ngateways = "{url}"\nlisten = "127.0.0.1:0"\n')
    command = [sys.executable, "-m", "tutti_gateway", "connect", "http", "--config", str(file)]
    dying_too = end_with_this_process(signal.SIGKILL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=dying_too)  # noqa: PLW1509 - it calls prctl(2) alone
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]  # a pipe was asked for
        yield int(json.loads(line)["url"].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()  # type: ignore[union-attr]  # as above


def http(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """One process of the connector before three gateways, and the plain Producer in the same rounds."""
    seconds = 2.0 if quick else 5.0
    names = ("posts", "posts with a sequence", "send_batch()")
    rates: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {"half": [], "most": [], "once half": [], "once most": [], "plain half": [], "plain most": []}
    foreign: list[float] = []
    with gateways(MEMBERS, directory) as running, _front(directory, running[0].url) as port, Producer(running[0].url) as producer:
        for measured in running:
            measured.wait_prepared(1)
        producer.send("bench", b"up").result(60)
        for number in range(rounds):
            with foreign_load(foreign):
                rates["posts"].append(_posted(port, seconds, ""))
                rates["posts with a sequence"].append(_posted(port, seconds, f"r{number}"))
                rates["send_batch()"].append(_sent(producer, seconds))
                for kind, times in (
                    ("", _paced_posts(port, seconds, "")),
                    ("once ", _paced_posts(port, seconds, f"p{number}")),
                    ("plain ", _paced(producer, RATE, seconds)),
                ):
                    times.sort()
                    waits[f"{kind}half"].append(percentile(times, 0.5))
                    waits[f"{kind}most"].append(percentile(times, 0.99))
    state = f"{MEMBERS} members, {RECORDS} records of 100 B a post, {CONNECTIONS} connections, foreign CPU {max(foreign):.2f}"
    plain = rates["send_batch()"]
    out = [figure("http: send_batch() of the same batches", plain, "records/s", beside=state)]
    for name in names[:2]:
        shares = [100 * ours / theirs for ours, theirs in zip(rates[name], plain, strict=True)]
        out.append(figure(f"http: {name}, NDJSON", rates[name], "records/s"))
        out.append(figure("  share of send_batch()", shares, "%", SHARE_MIN))
    for kind, name in (("plain ", "send()"), ("", "single post"), ("once ", "single post with a sequence")):
        of_plain = "" if kind == "plain " else _times(waits[f"{kind}most"], waits["plain most"])
        out.append(figure(f"http: {name} at {RATE}/s, p50", waits[f"{kind}half"], "ms", better="less"))
        out.append(figure(f"http: {name} at {RATE}/s, p99", waits[f"{kind}most"], "ms", None, "less", of_plain))
    return out


def _times(ours: list[float], theirs: list[float]) -> str:
    return f"{median(mine / plain for mine, plain in zip(ours, theirs, strict=True)):.1f} times that of send()"


def _posted(port: int, seconds: float, producer: str) -> float:
    """Records a second, over some connections; each posts for a producer of its own."""
    body = _LINE * RECORDS
    counts = [0] * CONNECTIONS
    until = time.perf_counter() + seconds

    def post(number: int) -> None:
        link = Link(port)
        while time.perf_counter() < until:
            link.post(body, _once(producer and f"{producer}-{number}", counts[number] + 1))
            counts[number] += RECORDS
        link.close()

    begin = time.perf_counter()
    _all([threading.Thread(target=post, args=(number,)) for number in range(CONNECTIONS)])
    return sum(counts) / (time.perf_counter() - begin)


def _sent(producer: Producer, seconds: float) -> float:
    """The same by `send_batch`, as many at a time."""
    batch = pa.record_batch({"value": pa.array([VALUE] * RECORDS, pa.binary())})
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        for receipt in [producer.send_batch("bench", batch) for _ in range(CONNECTIONS)]:
            receipt.result(60)
        count += CONNECTIONS * RECORDS
    return count / (time.perf_counter() - begin)


def _paced_posts(port: int, seconds: float, producer: str) -> list[float]:
    """What single posts waited, ms, each counted from when it was due: a pause is seen by all posts in it."""
    times: list[float] = []
    begin = time.perf_counter() + 0.1
    each = RATE // CONNECTIONS

    def post(number: int) -> None:
        link = Link(port)
        for count in range(int(each * seconds)):
            due = begin + number / RATE + count / each
            time.sleep(max(0.0, due - time.perf_counter()))
            link.post(_LINE, _once(producer and f"{producer}-{number}", count + 1))
            times.append((time.perf_counter() - due) * 1000)
        link.close()

    _all([threading.Thread(target=post, args=(number,)) for number in range(CONNECTIONS)])
    return times


def _once(producer: str, first: int) -> str:
    return f"tutti-producer: {producer}\r\ntutti-sequence: {first}\r\n" if producer else ""


def _all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
