"""NATS JetStream: three servers, a stream with three replicas on file; the clients are those of its own `nats bench`, in Go."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.errors import Error as NatsError

from benchmarks.fleet import free_bases
from benchmarks.peers import fetched
from benchmarks.peers.work import FLIGHT, MS_PER_NS, PACED_RATE, Client, Latency, Running, gap_s, latency
from tutti.runtime.child_processes import end_with_this_process

_SERVER = "nats-server", "github.com/nats-io/nats-server/v2@v2.15.2"
_CLIENT = "nats", "github.com/nats-io/natscli/nats@v0.5.0"
_CONFIG = """server_name: n{number}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: {store}, max_file: 100GB{sync} }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""
STREAM = "benchstream"  # as `nats bench` calls it
_LOAD = Path(__file__).with_name("jetstream_load")
_START_S = 60.0
_RUN_S = 300.0
_WARM = 100  # records before the first measured record
_BATCH = 4000  # of its asynchronous publisher: the best of 500, 1,000, 4,000, 16,000 on two processors
_SAID = re.compile(r"stats: ([\d,]+) msgs/sec")
_TIMES = re.compile(r"P50: ([\d,.]+)us.*?P99: ([\d,.]+)us")


class _Servers(Running):
    def __init__(self, client: Path, urls: list[str], processes: list[subprocess.Popen[bytes]]) -> None:
        self._client, self._urls, self._processes = client, urls, processes
        self._made = False

    def _bench(self, way: str, size: int, count: int, *options: str) -> str:
        made = () if self._made else ("--create", "--replicas=3", "--maxbytes=64GB")
        command = [self._client, "-s", self._urls[0], "bench", "js", "pub", way, "bench", "--no-progress", f"--size={size}B", *made]
        ran = subprocess.run([*command, f"--msgs={count}", *options], capture_output=True, text=True, timeout=_RUN_S, check=False)
        said = ran.stdout + ran.stderr
        if ran.returncode or not _SAID.search(said):
            raise SystemExit(f"nats bench failed: {said[-1000:]}")
        self._made = True
        return said

    def rate(self, size: int, count: int) -> float:
        return _rate(self._bench("async", size, count, f"--batch={_BATCH}"))

    def one_at_a_time(self, count: int) -> Latency:
        return _latency(self._bench("sync", 100, count))

    def paced(self, seconds: float) -> Latency:
        return _latency(self._bench("sync", 100, int(seconds * PACED_RATE), f"--throughput={PACED_RATE}"))

    def small(self, count: int) -> float:
        return _rate(self._bench("async", 100, count, f"--batch={FLIGHT}"))

    def small_each(self, count: int) -> float:
        return _rate(self._bench("sync", 100, count, f"--clients={FLIGHT}"))

    def compiled(self) -> Client | None:
        """NATS' Go client, with the load of the load generator. `nats bench` cannot send at a pace without a wait for receipts."""
        program = fetched.built(_LOAD)
        if program is None:
            print(f"JetStream: no compiled client, because Go cannot build {_LOAD.name} or fetch its modules", flush=True)
            return None
        self._bench("sync", 100, 10)  # creates the stream

        def load(connections: int, in_flight: int, count: int, rate: int = 0) -> tuple[float, Latency]:
            command = [str(program), self._urls[0], *map(str, (connections, in_flight, count, rate))]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, check=False)
            if ran.returncode:
                raise SystemExit(ran.stderr.strip()[-1000:])
            records, elapsed_ns, half, most = map(int, ran.stdout.split())
            return records / elapsed_ns * 1e9, Latency(half * MS_PER_NS, most * MS_PER_NS)

        return Client(
            lambda count: load(FLIGHT, 1, count)[0],
            lambda count: load(1, 1, count)[1],
            lambda seconds: load(1, PACED_RATE, int(seconds * PACED_RATE), PACED_RATE)[1],
        )

    def python(self) -> Client:
        """nats-py, in an event loop of this process."""
        self._bench("sync", 100, 10)  # creates the stream
        url = self._urls[0]  # the server that `nats bench` uses
        return Client(
            lambda count: asyncio.run(_python_each(url, count)),
            lambda count: asyncio.run(_python_one(url, count)),
            lambda seconds: asyncio.run(_python_paced(url, seconds)),
        )

    def gap(self) -> float:
        """The leader of the stream is killed under the Python client; `nats bench` ends with it."""
        self._bench("sync", 100, 10)  # creates the stream
        client = _Client(self._urls)
        try:
            leader = client.leader()
            return gap_s(client.send, time.sleep, self._processes[int(leader.removeprefix("n")) - 1].kill)
        finally:
            client.close()

    def members(self) -> Sequence[int]:
        return [process.pid for process in self._processes]


class _Client:
    """NATS' Python client with its loop in a thread. Each record waits for its own receipt; one that fails is not sent again."""

    def __init__(self, urls: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        options = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "error_cb": _ignore}
        self._connection = self._run(nats.connect(servers=urls, **options))
        self._stream = self._connection.jetstream(timeout=2)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    def leader(self) -> str:
        """The name of the server that leads the stream."""
        return str(self._run(self._stream.stream_info(STREAM)).cluster.leader)

    def send(self, told: Callable[[], None]) -> None:
        """Send a record; `told` is called when its receipt is there."""

        async def one() -> None:
            with suppress(NatsError, TimeoutError, OSError):  # sent while nobody led
                await self._stream.publish("bench", bytes(100))
                told()

        asyncio.run_coroutine_threadsafe(one(), self._loop)

    def close(self) -> None:
        """Close the connection, end the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        await self._connection.close()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def _streams(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Open `count` connections of the Python client, and return the JetStream context of each."""
    connections = [await nats.connect(url) for _ in range(count)]
    try:
        yield [connection.jetstream(timeout=_START_S) for connection in connections]
    finally:
        for connection in connections:
            await connection.close()


async def _python_each(url: str, count: int) -> float:
    """Return records a second over 200 connections, with one record in flight on each."""

    async def send(stream: Any) -> None:
        for _ in range(count // FLIGHT):
            await stream.publish("bench", bytes(100))

    async with _streams(url, FLIGHT) as streams:
        begin = time.perf_counter()
        await asyncio.gather(*map(send, streams))
        return count // FLIGHT * FLIGHT / (time.perf_counter() - begin)


async def _python_one(url: str, count: int) -> Latency:
    times = []
    async with _streams(url, 1) as (stream,):
        for number in range(count + _WARM):
            begin = time.perf_counter_ns()
            await stream.publish("bench", bytes(100))
            if number >= _WARM:
                times.append(time.perf_counter_ns() - begin)
    return latency(times)


async def _python_paced(url: str, seconds: float) -> Latency:
    """Send each record when it is due, also while earlier records wait for their receipts. Return the latency."""
    times: list[int] = []

    async def send(stream: Any, counts: bool) -> None:
        begin = time.perf_counter_ns()
        await stream.publish("bench", bytes(100))
        if counts:
            times.append(time.perf_counter_ns() - begin)

    async with _streams(url, 1) as (stream,), asyncio.TaskGroup() as tasks:
        begin = time.perf_counter()
        for number in range(PACED_RATE + int(PACED_RATE * seconds)):
            while (wait := begin + number / PACED_RATE - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.create_task(send(stream, number >= PACED_RATE))
    return latency(times)


async def _ignore(_: Exception) -> None:
    """That a server is gone is what is measured."""


def _rate(said: str) -> float:
    found = _SAID.search(said)
    assert found is not None  # asked before
    return float(found[1].replace(",", ""))


def _latency(said: str) -> Latency:
    found = _TIMES.search(said)
    if found is None:
        raise SystemExit(f"nats bench told no times: {said[-1000:]}")
    return Latency(*(float(one.replace(",", "")) / 1000 for one in found.groups()))


class JetStream:
    """Three servers that sync always, or as they come (every two minutes)."""

    def __init__(self, *, synced: bool) -> None:
        """Nothing is started yet."""
        self._synced = synced
        self.name = "JetStream R3" + (", synced" if synced else "")
        self.promise = "synced on two of three" if synced else "in memory of two of three"

    def lacking(self) -> str:
        """Go, or its modules."""
        return "" if fetched.program(*_SERVER) and fetched.program(*_CLIENT) else "Go, or its modules"

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        """Start them."""
        server, client = fetched.program(*_SERVER), fetched.program(*_CLIENT)
        assert server is not None  # asked before
        assert client is not None
        own = Path(tempfile.mkdtemp(prefix="nats-", dir=directory))
        bases = free_bases(3)
        routes = ", ".join(f'"nats://127.0.0.1:{base + 1}"' for base in bases)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number, base in enumerate(bases, start=1):
                config, sync = own / f"{number}.conf", ", sync_interval: always" if self._synced else ""
                store = json.dumps(str(own / str(number)))
                config.write_text(_CONFIG.format(number=number, port=base, route=base + 1, routes=routes, store=store, sync=sync))
                with (own / f"{number}.log").open("wb") as log:
                    started = subprocess.Popen([server, "-c", config], stderr=log, preexec_fn=end_with_this_process(signal.SIGKILL))  # noqa: PLW1509 - it calls prctl(2) alone
                processes.append(started)
            _wait(bases, processes)
            yield _Servers(client, [f"nats://127.0.0.1:{base}" for base in bases], processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            shutil.rmtree(own, ignore_errors=True)


def _wait(bases: list[int], processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _START_S
    for base, process in zip(bases, processes, strict=True):
        while True:
            try:
                socket.create_connection(("127.0.0.1", base), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("a NATS server did not start") from None
                time.sleep(0.1)
    time.sleep(5)  # until they have elected who keeps the list of streams
