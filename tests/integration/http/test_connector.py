"""Tests of the HTTP connector over real connections: posts of every form, pages, streams, receipts, and errors with their codes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.http.connector import ARROW, JSON, NDJSON, Front, events
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.reader import Reader

Fronts = tuple[Front, Front]


def values_of(group: RunningGroup, topic: str) -> list[bytes | None]:
    with Reader(group.url, topics=[topic], start="earliest") as reader:
        return [record.value for record in reader.records()]


def test_every_form_of_a_post(group: RunningGroup, fronts: Fronts) -> None:
    front, _ = fronts
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array([b"arrow", b"\xff"], pa.binary()), "key": pa.array([None, b"k"], pa.binary())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    posts = [
        (JSON, b'{"value":"one"}', ""),
        (JSON + "; charset=utf-8", b'[{"value":"two"},{"value":null,"headers":[{"key":"h","value":"x"}]}]', ""),
        (NDJSON, b'{"value":"three"}\n{"value":"four"}\n', "?wait=true"),
        (NDJSON, b'{"a":1}\n', "?plain=true"),
        (ARROW, sink.getvalue().to_pybytes(), ""),
    ]
    answers = [front.ask("POST", f"/v1/topics/forms/records{query}", body, content_type=kind) for kind, body, query in posts]
    assert [answer.status for answer in answers] == [200] * 5
    assert [answer.json["count"] for answer in answers] == [1, 2, 2, 1, 2]
    assert values_of(group, "forms") == [b"one", b"two", None, b"three", b"four", b'{"a":1}', b"arrow", b"\xff"]
    first = answers[0].json["offset"]
    assert [answer.json["offset"] - first for answer in answers] == [0, 1, 3, 5, 6]
    parts = iter([b'[{"value":"chu', b'nked"}]'])
    assert front.ask("POST", "/v1/topics/forms/records", parts, content_type=JSON).status == 200


def test_pages_lead_from_one_to_the_next(fronts: Fronts) -> None:
    front, other = fronts
    for start in range(0, 100, 25):
        assert other.post("pages", range(start, start + 25)).status == 200
    front.ask("POST", "/v1/topics/pages/records", b'{"key":"rare","value":"it"}', content_type=JSON)
    found: list[Any] = []
    path: str | None = "/v1/records?topic=pages&limit=30"
    pages = 0
    while path:
        answer = front.get(path)
        assert (answer.status, answer.headers["content-type"]) == (200, NDJSON)
        found += answer.lines
        pages += 1
        path = answer.headers["link"].split(">")[0][1:] if "link" in answer.headers else None
    assert pages == 4
    assert [record["value"] for record in found] == [*map(str, range(100)), "it"]
    assert {"offset", "topic", "key", "value", "timestamp", "headers", "producer", "sequence"} <= set(found[0])
    offsets = [record["offset"] for record in found]
    assert front.get(f"/v1/records?start={offsets[3]}&end={offsets[5]}&topic=pages").lines == found[3:5]
    assert [record["value"] for record in front.get("/v1/records?topic=pages&key=rare").lines] == ["it"]
    assert front.get("/v1/records?start=latest").lines == []
    answer = front.get("/v1/records?topic=pages&limit=7", accept=ARROW)
    table = pa.ipc.open_stream(answer.body).read_all()
    assert (table.num_rows, answer.headers["tutti-next"]) == (7, str(offsets[7]))
    topics = {topic["topic"]: topic for topic in front.get("/v1/topics").json["topics"]}
    assert (topics["pages"]["records"], topics["pages"]["first_offset"]) == (101, offsets[0])


def test_posts_that_do_not_wait_have_receipts(fronts: Fronts) -> None:
    front, other = fronts
    answer = front.post("later", ["a", "b"], "?wait=false")
    assert answer.status == 202
    place = answer.headers["location"]
    wait_until(lambda: front.get(place).json["state"] == "committed")
    told = front.get(place).json
    assert told["count"] == 2
    assert front.get(f"/v1/records?start={told['offset']}&end={told['offset'] + 2}").lines[1]["value"] == "b"
    missing = other.get(place)
    assert missing.status == 404
    assert "repeat a post" in missing.json["message"]
    assert front.post_once("later", "later", 5, ["c"], "?wait=false").status == 409


def test_a_stream_delivers_commits_and_resumes(fronts: Fronts) -> None:
    front, _ = fronts
    begin = front.post("live", ["0"]).json["offset"]

    def follow(path: str, count: int, **headers: str) -> list[dict[str, str]]:
        link = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
        link.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = link.getresponse()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        found = []
        for event in events(answer):
            if "data" not in event:
                if "retry" in event:
                    front.post("live", ["late"])  # while it is followed
                continue
            found.append(event)
            if len(found) == count:
                break
        link.close()
        return found

    first, late = follow(f"/v1/records/stream?topic=live&start={begin}", 2)
    assert [json.loads(event["data"])["value"] for event in (first, late)] == ["0", "late"]
    assert int(first["id"]) == begin == json.loads(first["data"])["offset"]
    again, _ = follow("/v1/records/stream?topic=live", 2, Last_Event_ID=first["id"])
    assert again == late
    wait_until(lambda: front.measured()['tutti_http_streams{connector="web"}'] == 0)


def test_a_client_that_reconnects_before_the_first_record_misses_none(fronts: Fronts) -> None:
    """Proves that `latest` is resolved once, when the stream begins, also where the log has a record already."""
    front, _ = fronts
    front.post("again", ["before"])

    def opened(**headers: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        link = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
        link.request("GET", "/v1/records/stream?topic=again", headers={name.replace("_", "-"): it for name, it in headers.items()})
        return link, link.getresponse()

    link, answer = opened()
    front.post("again", ["with the head"])
    first = next(iter(events(answer)))
    link.close()
    front.post("again", ["while away"])
    link, answer = opened(Last_Event_ID=first["id"])
    found = (event for event in events(answer) if "data" in event)
    assert [json.loads(next(found)["data"])["value"] for _ in range(2)] == ["with the head", "while away"]
    link.close()
    link, answer = opened(Last_Event_ID="-1")
    assert json.loads(next(event for event in events(answer) if "data" in event)["data"])["value"] == "before"
    link.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "told"),
    [
        ("GET", "/nothing", {}, b"", 404, "/docs"),
        ("GET", "/v1/topics/t/records", {}, b"", 405, "POST"),
        ("PUT", "/v1/topics/t/records", {}, b"", 405, "POST"),
        ("POST", "/v1/topics/t/records", {}, b"x", 415, "content type ''"),
        ("POST", "/v1/topics/t/records", {"content-type": "text/html"}, b"x", 415, "text/html"),
        ("POST", "/v1/topics/t/records", {"content-type": JSON, "content-encoding": "gzip"}, b"x", 415, "gzip"),
        ("POST", "/v1/topics/t%20t/records", {"content-type": JSON}, b"{}", 400, "topic name 't t'"),
        ("POST", "/v1/topics/t/records?whait=false", {"content-type": JSON}, b"{}", 400, "'whait' is unknown"),
        ("POST", "/v1/topics/t/records?wait=no", {"content-type": JSON}, b"{}", 400, "true or false"),
        ("POST", "/v1/topics/t/records?plain=true", {"content-type": JSON}, b"{}", 400, NDJSON),
        ("POST", "/v1/topics/t/records", {"content-type": JSON, "tutti-producer": "p"}, b"{}", 400, "belong together"),
        (
            "POST",
            "/v1/topics/t/records",
            {"content-type": JSON, "tutti-producer": "p", "tutti-sequence": "0"},
            b"{}",
            400,
            "from 1",
        ),
        ("POST", "/v1/topics/t/records", {"content-type": JSON, "tutti-producer": "/", "tutti-sequence": "1"}, b"{}", 400, "'/'"),
        (
            "POST",
            "/v1/topics/t/records",
            {"content-type": JSON, "tutti-producer": "p" * 141, "tutti-sequence": "1"},
            b"{}",
            400,
            "140",
        ),
        (
            "POST",
            "/v1/topics/t/records",
            {"content-type": JSON, "tutti-producer": "p", "Tutti-Producer": "q", "tutti-sequence": "1"},
            b"{}",
            400,
            "Tutti-Producer is given 2 times",
        ),
        ("POST", "/v1/topics/t/records", {"content-type": JSON}, b"{}", 400, "record 1, field 'value'"),
        ("POST", "/v1/topics/t/records", {"content-type": JSON}, b'{"value":"' + b"x" * (5 << 20) + b'"}', 413, "4194304"),
        ("POST", "/v1/topics/t/records", {"content-type": JSON}, b" " * ((16 << 20) + 1), 413, "16777216"),
        ("GET", "/v1/records?start=1e3", {}, b"", 400, "start"),
        ("GET", "/v1/records?start=99999999", {}, b"", 416, "above the frontier"),
        ("GET", "/v1/records?start=99999999999999999999", {}, b"", 400, "the largest offset is"),
        ("GET", "/v1/records?limit=0", {}, b"", 400, "from 1 to 10000"),
        ("GET", "/v1/records?key=%FF", {}, b"", 400, "key is not UTF-8"),
        ("GET", "/v1/records?topic=never-there", {}, b"", 400, "never-there"),
        ("GET", "/v1/records?topic=a,", {}, b"", 400, "topic"),
        ("GET", "/v1/records", {"accept": "text/html"}, b"", 406, ARROW),
        ("GET", "/v1/records/stream?start=99999999", {}, b"", 416, "above the frontier"),
        ("GET", "/v1/records/stream", {"last-event-id": "x"}, b"", 400, "Last-Event-ID"),
        ("GET", "/v1/producers/a%20b", {}, b"", 400, "Tutti-Producer"),
        ("GET", "/v1/receipts/none", {}, b"", 404, "receipt"),
    ],
)
def test_each_error_has_its_code(
    fronts: Fronts, method: str, path: str, headers: dict[str, str], body: bytes, status: int, told: str
) -> None:
    answer = fronts[0].ask(method, path, body or None, **headers)
    assert answer.status == status, answer.body
    assert told in answer.json["message"]
    assert {"error", "message"} <= set(answer.json)
    assert answer.headers["content-type"] == "application/json"
    assert fronts[0].get("/healthz").status == 200


def test_nothing_of_a_post_is_committed_when_a_record_is_none(group: RunningGroup, fronts: Fronts) -> None:
    front, _ = fronts
    front.post("whole", ["first"])
    answer = front.ask("POST", "/v1/topics/whole/records", b'{"value":"1"}\n{"value":"2"}\n{"valu":"3"}\n', content_type=NDJSON)
    assert (answer.status, answer.json["where"]) == (400, {"record": 3, "line": 3, "field": "valu"})
    assert values_of(group, "whole") == [b"first"]


def test_it_describes_itself(fronts: Fronts) -> None:
    front, _ = fronts
    told = front.get("/v1/openapi.json").json
    assert told["openapi"].startswith("3.1")
    assert set(told["paths"]["/v1/topics/{topic}/records"]["post"]["requestBody"]["content"]) == {JSON, NDJSON, ARROW}
    assert {"Record", "Header", "Outcome", "Problem"} <= set(told["components"]["schemas"])
    page = front.get("/docs")
    assert b"/v1/records/stream" in page.body
    assert b"src=" not in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert front.get("/readyz").json == {"ready": True, "state": "primary", "message": ""}
    assert front.measured()['tutti_http_records_total{connector="web"}'] > 0


def said(port: int, data: bytes) -> bytes:
    """Send bytes, and return everything until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        link.sendall(data)
        answer = b""
        while part := link.recv(65_536):
            answer += part
    return answer


def test_a_slow_client_is_disconnected(group: RunningGroup, tmp_path: Path) -> None:
    """Heads and bodies that do not arrive, unread answers, one stream too many: each has its bound."""
    before = (
        "from tutti_connect.http import limits as l\n"
        "l.HEAD_S, l.BODY_S, l.SEND_S, l.STREAMS_MAX = 0.5, 0.5, 0.5, 2\n"
        "l.HEARTBEAT_S, l.STREAM_POLL_S = 0.2, 0.1"
    )
    with Front(tmp_path, group.url, before=before) as front:
        assert b" 408 " in said(front.port, b"GET /healthz HTTP/1.1\r\nx: ")
        assert front.measured()['tutti_http_turned_away_total{connector="web",why="408"}'] == 1
        assert b" 431 " in said(front.port, b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 17_000)
        body = said(
            front.port,
            b"POST /v1/topics/t/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n[",
        )
        assert b" 408 " in body
        assert b"(1 bytes did)" in body
        assert said(front.port, b"") == b""
        front.post("much", ["x" * 500_000] * 12)

        def stream(path: str, room: int) -> socket.socket:
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            link.settimeout(30)
            link.connect(("127.0.0.1", front.port))
            link.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            return link

        with stream("/v1/records/stream?topic=much&start=earliest", 4096), stream("/v1/records/stream", 65_536) as idle:
            assert b"200 OK" in idle.recv(65_536)
            third = wait_until(
                lambda: front.get("/v1/records/stream") if front.measured()['tutti_http_streams{connector="web"}'] == 2 else None
            )
            assert (third.status, third.headers["retry-after"]) == (429, "1")
            heard = b""
            while heard.count(b": heartbeat") < 2:
                heard += idle.recv(65_536)
            # Who takes nothing loses its place; who is only told that nothing happens keeps it.
            wait_until(lambda: front.measured()['tutti_http_streams{connector="web"}'] == 1)


def post_head(topic: str, length: int) -> bytes:
    """Return the head of a post."""
    head = f"POST /v1/topics/{topic}/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("query", ["", "?wait=false"])
def test_a_caller_that_closes_its_side_gets_the_result_of_its_post(group: RunningGroup, fronts: Fronts, query: str) -> None:
    """As `nc -N` does. Otherwise it would repeat a committed post."""
    body = b'{"value":"once"}'
    topic = f"half{len(query)}"
    head = post_head(topic, len(body)).replace(b"/records", f"/records{query}".encode())
    with socket.create_connection(("127.0.0.1", fronts[0].port), 60) as link:
        link.sendall(head + body)
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while part := link.recv(65_536):
            answer += part
    assert answer.split()[1] == (b"202" if query else b"200")
    if query:
        name = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        wait_until(lambda: fronts[0].get(f"/v1/receipts/{name}").json["state"] == "committed")
    assert values_of(group, topic) == [b"once"]


def test_a_stream_continues_after_its_caller_closes_its_side(group: RunningGroup, tmp_path: Path) -> None:
    """And ends soon after the caller disconnects, which looks the same until the next write."""
    before = "from tutti_connect.http import limits as l\nl.HEARTBEAT_S, l.STREAM_POLL_S = 600.0, 0.1"
    with Front(tmp_path, group.url, before=before) as front:
        front.post("half-stream", ["first"])
        with socket.create_connection(("127.0.0.1", front.port), 60) as link:
            link.sendall(b"GET /v1/records/stream?topic=half-stream&start=earliest HTTP/1.1\r\nhost: x\r\n\r\n")
            link.shutdown(socket.SHUT_WR)
            hear(link, b'"first"')
            front.post("half-stream", ["late"])
            hear(link, b'"late"')
            hear(link, b": heartbeat")
        wait_until(lambda: front.measured()['tutti_http_streams{connector="web"}'] == 0)


def hear(link: socket.socket, wanted: bytes) -> None:
    heard = b""
    while wanted not in heard:
        heard += (part := link.recv(65_536))
        assert part, "it goes on"


def test_a_stream_sends_heartbeats_while_no_record_matches(group: RunningGroup, tmp_path: Path) -> None:
    before = "from tutti_connect.http import limits as l\nl.HEARTBEAT_S, l.STREAM_POLL_S = 0.0, 600.0"
    with Front(tmp_path, group.url, before=before) as front:
        front.post("passing", ["first"])
        with socket.create_connection(("127.0.0.1", front.port), 60) as link:
            link.sendall(b"GET /v1/records/stream?topic=passing&key=none&start=earliest HTTP/1.1\r\nhost: x\r\n\r\n")
            hear(link, b": heartbeat\nid: ")


def test_idle_foreign_connections_block_no_post(group: RunningGroup, tmp_path: Path) -> None:
    """Connections without a request, with a part of a head, and with a part of a body: more of each than the limit."""
    before = (
        "from tutti_connect.http import limits as l\n"
        "l.HEAD_S = l.BODY_S = 600.0; l.CONNECTIONS_MAX = 20; l.POSTS_MAX = 3; l.BODIES_BYTES_MAX = 5_000_000"
    )
    part_of_one = post_head("never", 3_000_000) + b" " * 2_000_000
    with Front(tmp_path, group.url, before=before) as front, contextlib.ExitStack() as stack:
        for said in (b"", b"GET /healthz HTTP/1.1\r\nx: ", post_head("never", 10), part_of_one):
            for _ in range(10 if said == part_of_one else 30):
                link = stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 60))
                with contextlib.suppress(ConnectionError):  # it gave way to the next one
                    link.sendall(said)
            assert front.post("kept", [len(said)]).status == 200
        assert front.post("kept", ["x" * 3_000_000]).status == 200
        wait_until(lambda: front.measured()['tutti_http_body_bytes{connector="web"}'] <= 5_000_000)
        told = front.measured()
        assert told['tutti_http_turned_away_total{connector="web",why="crowded"}'] >= 50
        assert 'tutti_http_answers_total{connector="web",operation="post",status="408"}' not in told
        assert front.get("/v1/records?topic=never").status == 400, "no topic: nothing of theirs was committed"


def test_foreign_connections_that_exhaust_descriptors_block_no_post(group: RunningGroup, tmp_path: Path) -> None:
    before = (
        "from tutti_connect.http import limits as l\nimport resource\n"
        "l.HEAD_S = 600.0; resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))"
    )
    with Front(tmp_path, group.url, before=before) as front, contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 60))
        assert [front.post_once("kept", f"few-{number}", 1, ["x"]).status for number in range(5)] == [200] * 5


def test_slow_posts_do_not_block_others(group: RunningGroup, tmp_path: Path) -> None:
    before = "from tutti_connect.http import limits as l\nl.HEAD_S = l.BODY_S = 600.0; l.POSTS_MAX = 3"
    with Front(tmp_path, group.url, before=before) as front, contextlib.ExitStack() as stack:
        for _ in range(10):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 60))
            link.sendall(post_head("never", 10) + b"[")
        assert front.post("kept", ["quick"]).status == 200


def test_malformed_requests_are_counted(fronts: Fronts) -> None:
    front = fronts[0]
    before = front.measured()
    for said, status in (
        (b"\xff" + bytes(8) + b"\x7f", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"what is this\r\n\r\n", 400),
        (b"GET /v1/topics HTTP/1.1\nhost: x\n\n", 400),
        (post_head("t", 2).replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n") + b"{}", 400),
        (post_head("t", 5).replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"0\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\nhost: x\r\n\r\n", 505),
        (b"GET http://x/healthz HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"DELETE /v1/topics HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"GET /v1/topics HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    ):
        with socket.create_connection(("127.0.0.1", front.port), timeout=30) as connection:
            connection.sendall(said)
            assert connection.recv(100).split()[1] == str(status).encode(), said[:40]

    def more(name: str) -> float:
        return front.measured()[name] - before.get(name, 0)

    assert more('tutti_http_turned_away_total{connector="web",why="400"}') == 6
    assert more('tutti_http_turned_away_total{connector="web",why="505"}') == 1
    for operation, status in (("none", 404), ("none", 405), ("topics", 431)):
        assert more(f'tutti_http_answers_total{{connector="web",operation="{operation}",status="{status}"}}') == 1
