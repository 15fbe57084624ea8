"""Tests of random input at the port: noise, almost valid requests and bodies, and callers that disconnect never stop the process,
make it grow, or commit an unposted record, and other callers are served meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from benchmarks.figures import proportional_memory_bytes
from tests.faults.almost import attack, mutations
from tests.integration.http.connector import ARROW, JSON, NDJSON, Front
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.reader import Reader

pytestmark = pytest.mark.faults
GROWTH_BYTES_MAX = 64_000_000
COUNT = 100


@pytest.fixture(scope="module")
def front(group: RunningGroup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("fuzz"), group.url, name="fuzz") as front:
        yield front


@pytest.fixture
def _sound(front: Front) -> Iterator[None]:
    """After each attack: the same process, serving, no larger, with nothing left over."""
    assert front.process is not None
    assert front.post("sound", ["before"]).status == 200
    process = front.process
    before = proportional_memory_bytes([process.pid])
    yield
    assert process.poll() is None
    assert front.post("sound", ["after"]).status == 200
    wait_until(lambda: _left(front) == 0)
    wait_until(lambda: proportional_memory_bytes([process.pid]) < before + GROWTH_BYTES_MAX)
    assert "Traceback" not in front.told()
    assert front.measured()['tutti_http_failures_total{connector="fuzz"}'] == 0


def _left(front: Front) -> float:
    measured = front.measured()
    return sum(
        measured[f'tutti_http_{name}{{connector="fuzz"}}'] for name in ("posts", "body_bytes", "receipts_pending", "streams")
    )


def request(content_type: str, body: bytes, more: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n{more}\r\n"
    head = f"POST /v1/topics/fuzzed/records HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\n{length}"
    return head.encode() + body


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array([b"arrow"] * 20, pa.binary())})
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


ONCE = "tutti-producer: p\r\ntutti-sequence: 1\r\n"
ALMOST = [
    request(JSON, b'[{"key":"k","value":"json","headers":[{"key":"h","value":"x"}]}]', ONCE),
    request(NDJSON, b'{"value":"line","timestamp":"2026-01-31T12:00:00Z"}\n{"value_base64":"AAA="}\n'),
    request(ARROW, arrow()),
    b"POST /v1/topics/fuzzed/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    b'5\r\n[{"va\r\nc\r\nlue":"cut"}]\n\r\n0\r\n\r\n',
    b"GET /v1/records?start=0&limit=5&key=k HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n"
    b"GET /v1/records/stream HTTP/1.1\r\nhost: x\r\n\r\n",
]


@pytest.mark.usefixtures("_sound")
def test_noise(front: Front) -> None:
    chance = random.Random(1)
    beginnings = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET ",
        b"POST / HTTP/1.1\r\n",
        b"\xff\0\0\0\0\0\0\0\1\x7f",
        b"\x16\x03\x01",
    ]
    for _ in range(COUNT):
        attack(front.port, chance.choice(beginnings) + chance.randbytes(chance.randint(0, 500)))


@pytest.mark.usefixtures("_sound")
@pytest.mark.parametrize(("seed", "made"), list(enumerate(ALMOST, 2)))
def test_requests_that_are_almost_right(front: Front, seed: int, made: bytes) -> None:
    for data in mutations(made, seed, COUNT):
        attack(front.port, data)


@pytest.mark.usefixtures("_sound")
def test_bodies_that_are_almost_right(group: RunningGroup, front: Front) -> None:
    """Each is accepted or refused, never with an error of the process; accepted ones are in the log, and no other is."""
    taken = 0
    for content_type, body in ((ARROW, arrow()), (NDJSON, b'{"key":"k","value":"a"}\n{"value":"b"}\n'), (JSON, b'{"value":"c"}')):
        for data in (body, *mutations(body, 7, COUNT)):
            answer = front.ask("POST", "/v1/topics/bodies/records", data, content_type=content_type)
            assert answer.status in (200, 400, 413), answer.body
            taken += answer.json["count"] if answer.status == 200 else 0
    assert taken > 0
    with Reader(group.url, topics=["bodies"], start="earliest") as reader:
        assert sum(batch.num_rows for batch in reader) == taken
