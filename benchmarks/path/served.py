"""A group of gateways of one checkout and its clients, in a process that does the work that lines of stdin request.

    python benchmarks/path/served.py MEMBERS PREPARED DIRECTORY

The first line of stdout has the port of the coordinator, the processes, and their roles. Each further line answers one request. All
lines are JSON. For a checkout without this file, the benchmark runs its own copy of the file. This file therefore imports only
names that older checkouts have, and nothing else of its own folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from tutti import Producer

Spent = dict[str, tuple[float, float]]  # kind of thread -> CPU time in us, number of sleeps
Figures = dict[str, float]  # measure -> value
CLIENT, COORDINATOR, OTHERS = "client", "coordinator", "other members"
FLIGHT = 200
RATE = 1000
_WARM = 20  # records before each turn, because the turn of the other group has filled the processors' caches
_VALUE = bytes(100)


def threads(role: str, pid: int) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, CPU ns, sleeps) of each thread of a process."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # the process has ended meanwhile
    for task in tasks:
        place = f"/proc/{pid}/task/{task}"
        try:
            name = Path(f"{place}/comm").read_text().strip()
            cpu_ns = int(Path(f"{place}/schedstat").read_text().split()[0])
            status = Path(f"{place}/status").read_text()
        except OSError:
            continue  # the thread has ended meanwhile
        # A gateway's main thread only waits for the thread "loop"; in an older release the main thread runs the loop.
        kind = "ZeroMQ" if name.startswith("ZMQ") else "main thread" if int(task) == pid or name == "loop" else "other threads"
        sleeps = int(next(line for line in status.splitlines() if line.startswith("voluntary")).split()[1])
        yield f"{role}, {kind}", cpu_ns, sleeps


def spent(roles: Mapping[int, str]) -> Spent:
    """Return the CPU time and sleeps of the processes so far, by role and kind of thread."""
    found: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for pid, role in roles.items():
        for kind, cpu_ns, sleeps in threads(role, pid):
            cpu_us, before = found[kind]
            found[kind] = cpu_us + cpu_ns / 1000, before + sleeps
    return dict(found)


def spent_since(before: Spent, roles: Mapping[int, str], records: int) -> Spent:
    """Return the CPU time and sleeps of the processes since `before`, divided by `records`."""
    return {
        kind: ((cpu_us - before.get(kind, (0, 0))[0]) / records, (sleeps - before.get(kind, (0, 0))[1]) / records)
        for kind, (cpu_us, sleeps) in spent(roles).items()
    }


def _half_and_most(times_ms: list[float]) -> Figures:
    from benchmarks.figures import percentile

    found = sorted(times_ms)
    return {"p50": percentile(found, 0.5), "p99": percentile(found, 0.99)}


def _one(producers: list[Producer], count: int) -> Figures:
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        producers[0].send("bench", _VALUE).result(30)
        times.append((time.perf_counter_ns() - start) / 1e6)
    return _half_and_most(times)


def _paced(producers: list[Producer], count: int) -> Figures:
    from benchmarks.ingest import _paced

    return _half_and_most(_paced(producers[0], RATE, count / RATE))


def _many(producers: list[Producer], count: int) -> Figures:
    from benchmarks.peers.ours import _in_flight

    return {"k/s": _in_flight(producers, FLIGHT // len(producers), count) / 1e3}


def _bulk(size: int, ordering: str = "total") -> Callable[[list[Producer], int], Figures]:
    def send(producers: list[Producer], count: int) -> Figures:
        from benchmarks.ingest import _send

        return {"k/s": _send(producers[0], bytes(size), count, ordering) * 1e3 / size}

    return send


def _batches(size: int) -> Callable[[list[Producer], int], Figures]:
    def send(producers: list[Producer], count: int) -> Figures:
        from benchmarks.ingest import _send_batches

        return {"MB/s": _send_batches(producers[0], size, count)}

    return send


#: Work of the clients: the number of producers, and the function that sends a number of records or batches.
WORK: dict[str, tuple[int, Callable[[list[Producer], int], Figures]]] = {
    "many": (FLIGHT, _many),
    "one": (1, _one),
    "paced": (1, _paced),
    "flight": (1, _many),
    "100B": (1, _bulk(100)),
    "1KB": (1, _bulk(1000)),
    "unordered": (1, _bulk(100, "unordered")),
    "64KiB": (1, _batches(64 * 1024)),
    "256KiB": (1, _batches(256 * 1024)),
}


def _work(url: str, roles: Mapping[int, str], name: str, count: int) -> dict[str, Any]:
    from tutti import Producer

    number, work = WORK[name]
    with ExitStack() as opened:
        producers = [opened.enter_context(Producer(url, producer=f"path-{one}")) for one in range(number)]
        ordering = "unordered" if name == "unordered" else "total"
        for receipt in [producer.send("bench", b"up", ordering=ordering) for producer in producers for _ in range(_WARM)]:
            receipt.result(30)
        before = spent(roles)
        figures = work(producers, count)
        return {"figures": figures, "spent": spent_since(before, roles, count)}


def main() -> int:
    """Serve until stdin ends."""
    from benchmarks.figures import descendants
    from benchmarks.fleet import coordinator_of, gateways

    members, prepared, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    with gateways(members, directory, prepared) as running:
        for measured in running:
            measured.wait_prepared(prepared)  # the preparation of segments uses the disk too
        first = coordinator_of(running)
        roles: dict[int, str] = {}
        for measured in running:
            role = COORDINATOR if measured is first else OTHERS
            roles |= dict.fromkeys([measured.process.pid, *descendants(measured.process.pid)], role)
        print(orjson.dumps({"port": first.base, "roles": list(roles.items())}).decode(), flush=True)
        roles[os.getpid()] = CLIENT
        for line in sys.stdin:
            asked = orjson.loads(line)
            print(orjson.dumps(_work(first.url, roles, asked["work"], asked["records"])).decode(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
