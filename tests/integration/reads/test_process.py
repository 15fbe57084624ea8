"""Tests of the reads process: its start and end, its errors, corruption that stops a stream only where it is, and memory that is
released after a scan.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.reads_process import (
    ROOT,
    TIME,
    FakeGateway,
    LogMaker,
    ReadsProcess,
    ask,
    offsets_of,
    read,
    refusal,
)
from tests.support.waiting import wait_until
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.schema import BATCH_SCHEMA, HEADERS, TIMESTAMP, compression_flags, encode_batch
from tutti.log.files.layout import list_positions, segment_path
from tutti_gateway.reads.main import HOUSEKEEPING_S


def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tutti_gateway.reads", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


def options(log: LogMaker, reads: str = "127.0.0.1:0", admin: str = "127.0.0.1:0") -> list[str]:
    return ["--data", str(log.path), "--client", "tutti://127.0.0.1:1", "--reads", reads, "--admin", admin]


@pytest.mark.parametrize("which", ["reads", "admin"])
def test_a_port_in_use_is_named(log: LogMaker, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = run(*options(log, **{which: address}))
    assert code == 3
    assert f"the {which} port {address} cannot be opened" in said


def test_wrong_directory_and_wrong_use(log: LogMaker, tmp_path: Path) -> None:
    code, said = run(*options(log)[2:], "--data", str(tmp_path / "nothing"))
    assert code == 2
    assert "is not the data directory of a gateway" in said
    code, said = run(*options(log, reads="here"))
    assert code == 2
    assert "'here' has no host or no port: write HOST:PORT" in said
    assert run("--data", "x")[0] == 2


def test_ctrl_c_is_the_gateways_matter(process: ReadsProcess, client: flight.FlightClient) -> None:
    process.process.send_signal(signal.SIGINT)
    assert ask(client, "frontier")["frontier"] == 0
    assert process.end() == 0


def test_a_suspended_gateway_continues(process: ReadsProcess) -> None:
    """It took being continued for its end."""
    process.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5 * HOUSEKEEPING_S)
    process.process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.process.wait(3 * HOUSEKEEPING_S)
    assert process.page("/healthz")[0] == 200
    assert process.end() == 0


def test_sigterm_waits_for_the_thread_that_ends_the_process_in_order(process: ReadsProcess) -> None:
    blocked = {}
    for task in Path(f"/proc/{process.process.pid}/task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        blocked[task.name] = (lines["Name"], int(lines["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1)
    assert len(blocked) > 2
    main = str(process.process.pid)  # which waits for it, and blocks it but while it waits
    assert [name for task, (name, block) in blocked.items() if not block and task != main] == []


def test_the_process_runs_at_low_priority(process: ReadsProcess) -> None:
    assert os.getpriority(os.PRIO_PROCESS, process.process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5


def test_readers_get_the_advertised_address(log: LogMaker, gateway: FakeGateway) -> None:
    program = ("-m", "tutti_gateway.reads", "--advertise", "gateway-1.example:7402")
    process = ReadsProcess(log.path, gateway, log.read_fd, program=program).ready()
    log.add("flights", 5)
    with flight.connect(process.url) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(b""))
    assert [location.uri for endpoint in info.endpoints for location in endpoint.locations] == [b"grpc://gateway-1.example:7402"]
    assert process.end() == 0


def test_damage_ends_a_stream_where_it_is(log: LogMaker, process: ReadsProcess, client: flight.FlightClient) -> None:
    log.add("flights", 100, frames=10)
    assert read(client, columns=["value"]).num_rows == 1000
    path = Path(segment_path(str(log.path), list_positions(str(log.path), "seg")[0]))
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"%09d" % 555))
        file.write(b"X")

    def scan(start: int, follow: bool = False) -> list[int]:
        offsets: list[int] = []
        ticket = {"columns": ["offset"], "start": start, "follow": follow}
        stream = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
        with pytest.raises(flight.FlightInternalError) as damage:  # noqa: PT012 - what came before it counts
            for chunk in stream:
                offsets += offsets_of(chunk)
        info = json.loads(damage.value.extra_info)
        assert (info["code"], info["offset"]) == ("damaged", max(500, start))
        assert path.name in info["message"]
        assert "position" in info["message"]
        assert "tutti log verify" in info["message"]
        return offsets

    assert scan(0) == list(range(500))
    assert scan(40, follow=True) == list(range(40, 500))
    assert not scan(550)  # nothing of the damaged frame is given
    assert read(client, start=600).num_rows == 400
    assert process.page("/healthz")[0] == 200
    assert refusal(lambda: read(client, start=599))[1]["code"] == "damaged"
    wait_until(lambda: any("damaged" in line for line in process.lines))


def test_damage_sends_a_reader_to_intact_gateways_and_is_reported_to_the_gateway(
    log: LogMaker, gateway: FakeGateway, process: ReadsProcess, client: flight.FlightClient
) -> None:
    log.add("flights", 100, frames=10)
    gateway.gateways = {"jfk": "tutti://127.0.0.1:7400", "lga": "tutti://127.0.0.1:7410"}
    path = Path(segment_path(str(log.path), list_positions(str(log.path), "seg")[0]))
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"%09d" % 555))
        file.write(b"X")
    assert read(client, start=600).num_rows == 400
    refused, info = refusal(lambda: read(client, start=599))
    assert refused is flight.FlightUnavailableError
    assert info["code"] == "unavailable"
    assert "this gateway fetches it from another one" in info["message"]
    wait_until(lambda: gateway.unreadable)
    assert len(gateway.unreadable) == 1


def test_a_scan_releases_its_memory(log: LogMaker, process: ReadsProcess, client: flight.FlightClient) -> None:
    """Mapped pages of the log count as this process's memory, and a scan releases them as it proceeds."""
    log.bulk("flights", 2000, 600)  # 140 MB
    before = process.pss_mb()
    most = 0.0
    stream = client.do_get(flight.Ticket(b'{"columns": ["offset", "value"]}'))
    for number, _ in enumerate(stream):
        if number % 4 == 0:
            most = max(most, process.pss_mb())
    assert most < before + 60
    wait_until(lambda: process.pss_mb() < before + 25)


def test_a_new_process_over_the_same_log_shows_no_less(log: LogMaker, gateway: FakeGateway) -> None:
    """The gateway restarts a dead reads process; readers continue from the frontier that they have seen."""
    log.add("flights", 10)
    process = ReadsProcess(log.path, gateway, log.read_fd).ready()
    process.process.kill()
    process.end()
    again = ReadsProcess(log.path, gateway, log.read_fd).ready()
    log.add("flights", 1)
    with flight.connect(again.url) as client:
        assert read(client, seen=11).num_rows == 11
    began = time.monotonic()
    assert again.end() == 0
    assert time.monotonic() - began < 5


FEW_PLACES = (
    "import os; from tutti_gateway.core import limits as l; "
    "l.STREAMS_MAX, l.FOLLOWERS_MAX, l.CALLS_MAX, l.BUSY_WAIT_US_MAX = 2, 2, 2, 200_000; "
    "from tutti_gateway.reads.main import main; os._exit(main())"
)


LITTLE_ROOM = (
    "import os; from tutti_gateway.core import limits as l; "
    "l.READ_HELD_BYTES_MAX, l.READ_MAKING_BYTES, l.BUSY_WAIT_US_MAX = 160 << 20, 40 << 20, 300_000; "
    "from tutti_gateway.reads.main import main; os._exit(main())"
)


def test_readers_that_stall_on_compressed_bombs_get_busy(log: LogMaker, gateway: FakeGateway) -> None:
    arrays: list[pa.Array[Any]] = [
        pa.nulls(8, pa.binary()),
        pa.array([b"x" * (2 << 20)] * 8, pa.binary()),
        pa.array([TIME] * 8, TIMESTAMP),
        pa.nulls(8, HEADERS),
    ]
    body = memoryview(encode_batch(pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA), "zstd"))
    topic, producer = log.topic("flights"), log.producer("ewr")
    frames = [
        Frame(
            Kind.BATCH,
            body,
            flags=compression_flags("zstd"),
            topic=topic,
            producer=producer,
            epoch=1,
            origin=1,
            count=8,
            first_sequence=1 + 8 * number,
            min_timestamp=TIME,
            max_timestamp=TIME,
            raw_length=16 << 20,
        )
        for number in range(6)
    ]
    log.put(frames)
    process = ReadsProcess(log.path, gateway, log.read_fd, program=("-c", LITTLE_ROOM)).ready()
    with flight.connect(process.url) as client:
        streams = [client.do_get(flight.Ticket(b'{"columns": ["value"]}')) for _ in range(12)]
        wait_until(lambda: process.page("/v1/status")[1]["reads_served"]["streams"]["failed"] > 0)
        told = process.page("/v1/status")[1]["reads_served"]
        assert told["memory"]["private_bytes"] < 320 << 20
        assert told["busy"]["room"] > 0
        assert 16 << 20 < told["memory"]["batches_bytes"] <= told["memory"]["private_bytes"]
        for stream in streams:
            stream.cancel()
        del streams
        wait_until(lambda: served(client, b'{"columns": ["value"]}'))
        assert read(client, columns=["value"]).num_rows == 48
    assert process.end() == 0


def served(client: flight.FlightClient, ticket: bytes) -> bool:
    """Return whether a slot was free for a stream."""
    try:
        return client.do_get(flight.Ticket(ticket)).read_chunk() is not None
    except flight.FlightUnavailableError:
        return False


def test_one_reader_too_many_gets_an_error(log: LogMaker, gateway: FakeGateway) -> None:
    log.bulk("flights", 2000, 200)  # 45 MB: more than lies in sockets
    process = ReadsProcess(log.path, gateway, log.read_fd, program=("-c", FEW_PLACES)).ready()
    with flight.connect(process.url) as client:
        for ticket in (b"{}", b'{"follow": true}'):
            held = [client.do_get(flight.Ticket(ticket)) for _ in range(2)]
            for stream in held:
                stream.read_chunk()
            kind, info = refusal(lambda ticket=ticket: client.do_get(flight.Ticket(ticket)).read_chunk())  # type: ignore[misc]  # bound at once
            assert (kind, info["code"]) == (flight.FlightUnavailableError, "busy")
            held[0].cancel()
            wait_until(lambda ticket=ticket: served(client, ticket))  # type: ignore[misc]  # bound at once
            held[1].cancel()
        waits = {"beyond": log.offset, "timeout_ms": 30_000}
        polls = [threading.Thread(target=lambda: ask(client, "frontier", **waits)) for _ in range(2)]
        for poll in polls:
            poll.start()
        wait_until(lambda: process.page("/v1/status")[1]["reads_served"]["calls"]["action"] == 2)
        assert refusal(lambda: ask(client, "topics"))[1]["code"] == "busy"
        log.add("flights", 1)
        for poll in polls:
            poll.join()
        assert ask(client, "topics")[0]["name"] == "flights"
    assert process.end() == 0
