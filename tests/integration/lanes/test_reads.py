"""Tests of lanes at the reads port: ranges, plans, times, followers and refusals work as for the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.lanes.sender import Sender
from tests.support.gateway_process import GatewayProcess
from tutti.io.admin import AdminClient

RECORDS = 120


class Reads:
    """A Flight client of one gateway."""

    def __init__(self, gateway: GatewayProcess) -> None:
        with AdminClient(gateway.url, timeout=20, learn=False) as control:
            self.status = control.status()
        self._client = flight.FlightClient(self.status["reads"])

    def act(self, kind: str, **asked: object) -> Any:
        """One action."""
        (result,) = self._client.do_action(flight.Action(kind, orjson.dumps(asked)))
        return orjson.loads(result.body.to_pybytes())

    def stream(self, **ticket: object) -> flight.FlightStreamReader:
        return self._client.do_get(flight.Ticket(orjson.dumps(ticket)))

    def table(self, **ticket: object) -> pa.Table:
        return self.stream(**ticket).read_all()

    def info(self, **command: object) -> flight.FlightInfo:
        return self._client.get_flight_info(flight.FlightDescriptor.for_command(orjson.dumps(command)))

    def get(self, endpoint: flight.FlightEndpoint) -> pa.Table:
        return self._client.do_get(endpoint.ticket).read_all()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    root: Path = tmp_path_factory.mktemp("lane")
    with GatewayProcess(root) as process:
        for topic in ("t", "u"):
            with closing(Sender(process.port, f"p-{topic}").open(topic)) as sender:
                sender.send_until(RECORDS)
        yield process


@pytest.fixture
def reads(gateway: GatewayProcess) -> Iterator[Reads]:
    with closing(Reads(gateway)) as made:
        yield made


def numbers(batch: pa.RecordBatch | pa.Table | None, column: str) -> list[int]:
    """A column of integers."""
    assert batch is not None
    return [int(one) for one in batch.column(column).cast(pa.int64()).to_pylist() if one is not None]


def fault(error: flight.FlightError) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(error.extra_info)
    return found


def test_a_lane_reads_as_the_log_does(reads: Reads) -> None:
    lane = reads.status["lane"]
    stream = reads.stream(lane="g1")
    about = orjson.loads(stream.schema.metadata[b"tutti"])
    assert (about["lane"], about["log"], about["range"]) == (lane, reads.status["log"], [0, 2 * RECORDS])
    table = stream.read_all()
    assert numbers(table, "offset") == list(range(2 * RECORDS))
    assert table.column("gateway").unique().to_pylist() == ["g1"]
    assert table.column("view").unique().to_pylist() == [1]
    assert table.column("tick").unique().to_pylist() == [0]
    rows = [row for row in table.select(["topic", "producer", "sequence", "value"]).to_pylist() if row["topic"] == "u"]
    assert rows == [{"topic": "u", "producer": "p-u", "sequence": at, "value": b"p-u-%d" % at} for at in range(1, RECORDS + 1)]
    assert reads.table(lane=lane, topics=["u"], columns=["value"]).column("value").to_pylist() == [row["value"] for row in rows]
    assert reads.table(lane=lane, start=10, end=13, columns=["offset"]).column("offset").to_pylist() == [10, 11, 12]


def test_the_ordered_log_holds_no_record_of_a_lane(reads: Reads) -> None:
    assert reads.table().num_rows == 0
    assert reads.act("frontier")["frontier"] == 0
    assert "lane" not in reads.act("frontier")


def test_a_lane_is_split_into_partitions(reads: Reads) -> None:
    lane = reads.status["lane"]
    plan = reads.act("plan", lane="g1", splits=3)
    assert (plan["lane"], plan["start"], plan["end"], len(plan["ranges"])) == (lane, 0, 2 * RECORDS, 3)
    info = reads.info(lane="g1", splits=3, columns=["offset"])
    offsets = [offset for endpoint in info.endpoints for offset in reads.get(endpoint).column("offset").to_pylist()]
    assert offsets == list(range(2 * RECORDS))
    assert orjson.loads(info.endpoints[0].ticket.ticket)["lane"] == lane


def test_the_lanes_are_listed(reads: Reads) -> None:
    lane = reads.status["lane"]
    (line,) = reads.act("lanes")
    assert line == {
        "lane": lane,
        "gateway": "g1",
        "number": 1,
        "incarnation": lane.partition("-")[2],
        "newest": True,
        "start": 0,
        "frontier": 2 * RECORDS,
        "position": 2 * RECORDS + 1,
        "halted": "",
        "lost": "",
    }


def test_a_lane_has_times_of_its_own(reads: Reads) -> None:
    times = numbers(reads.table(lane="g1", columns=["timestamp"]), "timestamp")
    assert reads.act("offset_for_time", lane="g1", time_us=times[0])["offset"] == 0
    assert reads.act("offset_for_time", lane="g1", time_us=max(times) + 1)["offset"] == 2 * RECORDS


def test_absent_names_are_refused(reads: Reads) -> None:
    for lane in ("g9", "1-" + 32 * "0", "-"):
        with pytest.raises(flight.FlightServerError) as caught:
            reads.act("frontier", lane=lane)
        assert (fault(caught.value)["code"], fault(caught.value)["name"]) == ("unknown_lane", lane)
    with pytest.raises(flight.FlightUnavailableError) as behind:
        reads.act("frontier", lane="g1", seen=10 * RECORDS)
    assert fault(behind.value)["code"] == "behind"
    with pytest.raises(flight.FlightServerError) as beyond:
        reads.table(lane="g1", start=10 * RECORDS)
    assert fault(beyond.value)["code"] == "beyond_frontier"
    with pytest.raises(flight.FlightServerError) as malformed:
        reads.act("topics", lane="g1")
    assert fault(malformed.value)["code"] == "malformed"


def test_followers_and_long_polls_are_woken_when_the_lane_moves(gateway: GatewayProcess, reads: Reads) -> None:
    start = reads.act("frontier", lane="g1")["frontier"]
    found: list[int] = []

    def follow() -> None:
        for chunk in reads.stream(lane="g1", start=start, end=start + 50, follow=True, columns=["offset"]):
            found.extend(numbers(chunk.data, "offset"))

    thread = Thread(target=follow)
    thread.start()
    with closing(Sender(gateway.port, "p-f").open()) as sender:
        for at in range(1, 51):
            sender.send_until(at)
            answer = reads.act("frontier", lane="g1", beyond=start + at - 1, timeout_ms=20_000)
            assert answer["frontier"] >= start + at
    thread.join(30)
    assert found == list(range(start, start + 50))
