"""Clients in processes of their own, so that their Python takes nothing from the one that measures.

    python -m benchmarks.laws.child ROLE URL NUMBER

A child says `ready` once all its clients are connected, and answers each line with a line: for the time that the line names (s) its
producers send, or it tells what its readers, or its steady load, had since the last line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.figures import percentile
from tutti import Producer, Reader
from tutti.runtime.child_processes import end_with_this_process

COLUMNS = ["offset", "value"]
_CLOSE_S = 60.0
_Answer = Callable[[float], list[float]]


class Child:
    """A child, as who measures sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Made by `child`."""
        self.process = process

    def tell(self, seconds: float) -> None:
        """Ask for a line; it comes in its own time."""
        self.process.stdin.write(f"{seconds}\n")  # type: ignore[union-attr]  # a pipe was asked for
        self.process.stdin.flush()  # type: ignore[union-attr]  # likewise

    def hear(self) -> list[float]:
        """Its next line."""
        line = self.process.stdout.readline()  # type: ignore[union-attr]  # likewise
        if not line:
            raise SystemExit("a process of clients ended; what it said of that stands above")
        return [float(word) for word in line.split()]


@contextmanager
def child(role: str, url: str, number: int) -> Iterator[Child]:
    """One of ROLES with `number` clients, or at that rate; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "benchmarks.laws.child", role, url, str(number)],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
    )
    try:
        if process.stdout.readline() != "ready\n":  # type: ignore[union-attr]  # a pipe was asked for
            raise SystemExit(f"the clients ({role}) did not start; what they said of that stands above")
        yield Child(process)
        process.stdin.close()  # type: ignore[union-attr]  # likewise
        process.wait(_CLOSE_S)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # likewise


def _crowd(stack: ExitStack, url: str, number: int) -> _Answer:
    """Producers with one record of 100 B under way each: records that had their receipts in the time."""
    producers = [stack.enter_context(Producer(url)) for _ in range(number)]
    for producer in producers:
        producer.send("bench", b"up").result(60)
    done = [0] * number

    def answer(seconds: float) -> list[float]:
        until = time.perf_counter() + seconds
        before = sum(done)
        for place, producer in enumerate(producers):
            _send_on(producer, place, done, until)
        time.sleep(seconds)
        counted = sum(done) - before
        for producer in producers:
            producer.flush()
        return [counted / seconds]

    return answer


def _send_on(producer: Producer, place: int, done: list[int], until: float) -> None:
    def told(error: object, _: object) -> None:
        if error is not None:
            _fail(error)
        done[place] += 1  # this producer's thread alone counts here
        if time.perf_counter() < until:
            producer.send("bench", bytes(100), on_delivery=told)

    producer.send("bench", bytes(100), on_delivery=told)


def _fail(error: object) -> None:
    """End the whole process, from whichever thread."""
    print(f"a record failed: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _followers(stack: ExitStack, url: str, number: int) -> _Answer:
    """Readers that follow: rows that they were given."""
    rows = [0] * number

    def follow(place: int, reader: Reader) -> None:
        for batch in reader:
            rows[place] += batch.num_rows

    for place in range(number):
        reader = stack.enter_context(Reader(url, start="latest", follow=True, columns=COLUMNS))
        threading.Thread(target=follow, args=(place, reader), daemon=True).start()
    stack.callback(os._exit, 0)  # the threads wait for records that do not come: nothing is left to be said
    return lambda _: [float(sum(rows))]


def _scan(stack: ExitStack, url: str, number: int) -> _Answer:
    """Readers that read everything again and again: rows that they were given."""
    rows = [0] * number

    def scan(place: int) -> None:
        while True:
            with Reader(url, start=0, columns=COLUMNS) as reader:
                for batch in reader:
                    rows[place] += batch.num_rows

    for place in range(number):
        threading.Thread(target=scan, args=(place,), daemon=True).start()
    stack.callback(os._exit, 0)
    return lambda _: [float(sum(rows))]


def _steady(stack: ExitStack, url: str, number: int) -> _Answer:
    """Records of 100 B at a pace, `number` a second: p50 and p99 (ms) since the last line, and how many."""
    producer = stack.enter_context(Producer(url))
    times: list[int] = []

    def send() -> None:
        begin, count = time.monotonic(), 0
        while True:
            count += 1
            time.sleep(max(0.0, begin + count / number - time.monotonic()))
            sent = time.monotonic_ns()

            def told(error: object, _: object, sent: int = sent) -> None:
                if error is not None:
                    _fail(error)
                times.append(time.monotonic_ns() - sent)

            producer.send("bench", bytes(100), on_delivery=told)

    def answer(_: float) -> list[float]:
        found = sorted(times[: len(times)])
        del times[: len(found)]  # what came meanwhile counts next time
        return [percentile(found, 0.5) / 1e6, percentile(found, 0.99) / 1e6, float(len(found))]

    producer.send("bench", b"up").result(60)
    threading.Thread(target=send, daemon=True).start()
    stack.callback(os._exit, 0)
    return answer


ROLES: dict[str, Callable[[ExitStack, str, int], _Answer]] = {
    "crowd": _crowd,
    "follow": _followers,
    "scan": _scan,
    "steady": _steady,
}


def main() -> int:
    """Be a child."""
    role, url, number = sys.argv[1:]
    with ExitStack() as stack:
        answer = ROLES[role](stack, url, int(number))
        print("ready", flush=True)
        for line in sys.stdin:
            print(*answer(float(line)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
