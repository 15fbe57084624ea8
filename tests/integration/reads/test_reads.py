"""Tests of reads with the real process and a real log: ranges, columns, topics, splits and actions return the committed records,
and an unreadable range is refused with its code.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.reads_process import (
    LOG,
    TIME,
    VIEW,
    FakeGateway,
    LogMaker,
    ReadsProcess,
    ask,
    read,
    records,
    refusal,
    value,
)
from tutti.data.frames.columns import COLUMNS, schema_of


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogMaker]:
    """320 records: 300 of `flights` in frames of different sizes and codecs, 20 of `weather` among them, and two ticks."""
    log = LogMaker(tmp_path_factory.mktemp("data") / "jfk")
    log.add("flights", 50, frames=3)
    log.tick()
    log.add("weather", 20, producer="lga")
    log.add("flights", 100, compression="zstd")
    log.tick()
    log.add("flights", 1, frames=50)
    log.save("spark", 170)
    yield log
    log.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[FakeGateway]:
    gateway = FakeGateway()
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def process(log: LogMaker, gateway: FakeGateway) -> Iterator[ReadsProcess]:
    process = ReadsProcess(log.path, gateway, log.read_fd).ready()
    yield process
    assert process.end() == 0


@pytest.fixture(scope="module")
def client(process: ReadsProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(process.url) as client:
        yield client


def test_the_whole_log(log: LogMaker, client: flight.FlightClient) -> None:
    table = read(client)
    assert table.schema.remove_metadata() == schema_of(COLUMNS)
    assert table.num_rows == log.offset == 320
    assert table["offset"].to_pylist() == list(range(320))
    expected = records(0, 320)
    for name in ("key", "value", "timestamp", "headers"):
        assert table[name].combine_chunks() == expected.column(name)
    assert table["topic"].to_pylist() == ["flights"] * 150 + ["weather"] * 20 + ["flights"] * 150
    assert table["producer"].to_pylist() == ["ewr"] * 150 + ["lga"] * 20 + ["ewr"] * 150
    assert table["sequence"].to_pylist() == [*range(1, 151), *range(1, 21), *range(151, 301)]
    assert set(table["gateway"].to_pylist()) == {"jfk"}
    assert set(table["view"].to_pylist()) == {VIEW}
    assert table["tick"].to_pylist() == [0] * 150 + [1] * 120 + [2] * 50
    about = json.loads(table.schema.metadata[b"tutti"])
    assert about == {"log": LOG.hex(), "start": 0, "frontier": 320, "range": [0, 320]}


@pytest.mark.parametrize(
    ("ticket", "low", "high"),
    [
        ({"start": 7, "end": 193}, 7, 193),
        ({"start": 49, "end": 50}, 49, 50),
        ({"start": 300}, 300, 320),
        ({"end": 10}, 0, 10),
        ({"start": "latest"}, 320, 320),
        ({"start": 320, "end": 320}, 320, 320),
        ({"start": "earliest", "end": "latest"}, 0, 320),
        ({"start": {"time_us": TIME + 160_001}, "end": {"time_us": TIME + 10**9}}, 161, 320),
        ({"start": {"time_us": -5}, "end": {"time_us": TIME + 3000}}, 0, 3),
    ],
)
def test_ranges_are_exact(client: flight.FlightClient, ticket: dict[str, Any], low: int, high: int) -> None:
    table = read(client, columns=["offset", "value"], **ticket)
    assert table["offset"].to_pylist() == list(range(low, high))
    assert table["value"].to_pylist() == [value(offset) for offset in range(low, high)]
    assert json.loads(table.schema.metadata[b"tutti"])["range"] == [low, high]


def test_columns_come_in_the_order_asked_for(client: flight.FlightClient) -> None:
    assert read(client, columns=["value", "tick", "offset"]).column_names == ["value", "tick", "offset"]
    assert read(client, columns=["topic"], end=0).schema.remove_metadata() == schema_of(["topic"])


def test_topics(client: flight.FlightClient) -> None:
    assert read(client, topics=["weather"])["offset"].to_pylist() == list(range(150, 170))
    assert read(client, topics=["weather", "flights"]).num_rows == 320
    assert read(client, topics=["weather", "none-yet"], absent_ok=True).num_rows == 20
    assert read(client, topics=["weather"], start=170).num_rows == 0


@pytest.mark.parametrize(
    ("ticket", "code", "said"),
    [
        ({"start": 321}, "beyond_frontier", "321"),
        ({"start": 5, "end": 400}, "beyond_frontier", "follow"),
        ({"start": 321, "follow": True}, "beyond_frontier", "321"),
        ({"start": 9, "end": 5}, "malformed", "ends before it begins"),
        ({"start": 9, "end": 5, "follow": True}, "malformed", "ends before it begins"),
        ({"topics": ["flihgts"]}, "unknown_topic", "did you mean 'flights'"),
        ({"columns": ["offset", "valeu"]}, "unknown_column", "did you mean 'value'"),
        ({"start": "5"}, "malformed", "start"),
        ({"start": -5}, "malformed", "start"),
        ({"offset": 5}, "malformed", "offset"),
    ],
)
def test_an_unreadable_range_is_refused(client: flight.FlightClient, ticket: dict[str, Any], code: str, said: str) -> None:
    kind, info = refusal(lambda: read(client, **ticket))
    assert (kind, info["code"]) == (flight.FlightServerError, code)
    assert said in info["message"]
    if code == "beyond_frontier":
        assert (info["start"], info["frontier"]) == (0, 320)


def test_a_reader_that_has_seen_more_is_not_served_less(client: flight.FlightClient) -> None:
    kind, info = refusal(lambda: read(client, seen=321))
    assert (kind, info["code"]) == (flight.FlightUnavailableError, "behind")
    assert (info["frontier"], info["seen"]) == (320, 321)
    assert read(client, seen=320, columns=["offset"]).num_rows == 320


ACTIONS: dict[str, dict[str, Any]] = {
    "frontier": {},
    "offset_for_time": {"time_us": 0},
    "ticks": {},
    "tick_end": {"start": 0, "limit": 1, "end": 2},
    "bytes_end": {"start": 0, "end": 2, "bytes": 1},
    "plan": {},
    "lanes": {},
    "topics": {},
    "producers": {},
    "readers": {},
    "save_offset": {"reader": "spark", "offset": 170},
    "passed": {"reader": "spark", "offset": 170},
    "report": {"run": "1", "offset": 170},
    "queries": {},
}


def test_no_action_is_answered_below_the_seen_frontier_or_for_another_log(
    client: flight.FlightClient, gateway: FakeGateway
) -> None:
    """The log is checked first, because a frontier of another log means nothing here and is not waited for."""
    assert {action.type for action in client.list_actions()} == set(ACTIONS)
    saved = list(gateway.saved)
    for action, body in ACTIONS.items():
        known = {**body, "seen": 320, "log": LOG.hex()}
        assert ask(client, action, **known) is not None
        kind, info = refusal(lambda a=action, k=known: ask(client, a, **{**k, "seen": 400, "log": "0" * 32}))  # type: ignore[misc]  # bound at once
        assert (kind, info["code"], info["log"]) == (flight.FlightServerError, "other_log", LOG.hex())
    assert gateway.saved[len(saved) :] == [("spark", 170)]
    assert refusal(lambda: read(client, log="0" * 32))[1]["code"] == "other_log"
    assert refusal(lambda: ask(client, "topics", seen=321))[1]["code"] == "behind"


def test_a_gateway_that_confirms_its_frontier_answers_linearizably(client: flight.FlightClient, gateway: FakeGateway) -> None:
    for action, body in ACTIONS.items():
        ask(client, action, **body, linearizable=True)
    assert ask(client, "frontier", linearizable=True)["confirmed"] is True
    assert "confirmed" not in ask(client, "frontier")
    assert read(client, linearizable=True, columns=["offset"]).num_rows == 320
    assert gateway.indexes


def test_a_gateway_that_lags_answers_nothing_that_is_acted_upon(client: flight.FlightClient, gateway: FakeGateway) -> None:
    gateway.confirms = False
    for action in ("readers", "topics", "producers", "queries", "plan"):
        assert refusal(lambda a=action: ask(client, a, linearizable=True))[1]["code"] == "behind"  # type: ignore[misc]  # bound at once
        assert ask(client, action) is not None
    told = ask(client, "frontier", linearizable=True)
    assert (told["frontier"], told["confirmed"]) == (320, False)
    found = {"time_us": TIME + 5000}
    assert ask(client, "offset_for_time", **found, linearizable=True) == ask(client, "offset_for_time", **found)
    later = {"time_us": 2 * TIME}
    assert refusal(lambda: ask(client, "offset_for_time", **later, linearizable=True))[1]["code"] == "behind"
    assert ask(client, "offset_for_time", **later) == {"offset": 320}
    beyond = (
        lambda: ask(client, "save_offset", reader="r", offset=321),
        lambda: ask(client, "report", run="1", offset=321),
        lambda: read(client, start=321),
        lambda: read(client, topics=["nope"]),
    )
    assert [refusal(call)[1]["code"] for call in beyond] == ["behind"] * 4
    gateway.confirms = True
    assert [refusal(call)[1]["code"] for call in beyond] == [*["beyond_frontier"] * 3, "unknown_topic"]


@pytest.mark.parametrize("how", [{"splits": 4}, {"split_bytes": 8000}, {}])
def test_splits_read_side_by_side_give_the_range(client: flight.FlightClient, process: ReadsProcess, how: dict[str, int]) -> None:
    command = {"start": 20, "end": 310, "columns": ["offset", "value"], **how}
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))
    assert info.schema == schema_of(["offset", "value"])
    assert info.total_records == 290
    assert json.loads(info.app_metadata)["range"] == [20, 310]
    assert len(info.endpoints) > 1 or not how
    offsets: list[int] = []
    for endpoint in info.endpoints:
        about = json.loads(endpoint.app_metadata)
        assert [location.uri for location in endpoint.locations] == [process.url.encode()]
        with flight.connect(endpoint.locations[0]) as near:
            table = near.do_get(endpoint.ticket).read_all()
        assert (about["start"], about["end"] - about["start"], about["rows"]) == (20 + len(offsets), table.num_rows, table.num_rows)
        offsets += [int(offset.as_py()) for offset in table["offset"]]
    assert offsets == list(range(20, 310))
    planned = ask(client, "plan", **{key: value for key, value in command.items() if key != "columns"})
    assert [(part["start"], part["end"]) for part in planned["ranges"]] == [
        (json.loads(e.app_metadata)["start"], json.loads(e.app_metadata)["end"]) for e in info.endpoints
    ]
    assert (planned["log"], planned["start"], planned["end"], planned["frontier"]) == (LOG.hex(), 20, 310, 320)


def test_an_answer_of_many_tickets_with_many_topics_is_refused(client: flight.FlightClient) -> None:
    """Proves that thousands of topics are read, and planned in parts, but not given in the ticket of each part without a bound."""
    topics = ["flights", *(f"{number:06}{'x' * 200}" for number in range(30_000))]
    assert read(client, topics=topics, columns=["topic"], absent_ok=True)["topic"].unique().to_pylist() == ["flights"]
    command = {"topics": topics, "absent_ok": True}
    assert len(ask(client, "plan", **command, splits=32)["ranges"]) > 10
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({**command, "splits": 1}).encode()))
    assert len(info.endpoints) == 1
    many = flight.FlightDescriptor.for_command(json.dumps({**command, "splits": 32}).encode())
    told = refusal(lambda: client.get_flight_info(many))[1]
    assert (told["code"], "tickets with 30001 topics each" in told["message"]) == ("malformed", True)


def test_schema_and_listing(client: flight.FlightClient) -> None:
    descriptor = flight.FlightDescriptor.for_command(b'{"columns": ["tick", "value"]}')
    answer: Any = client.get_schema(descriptor)  # the stubs have the schema itself
    assert answer.schema == schema_of(["tick", "value"])
    (listed,) = client.list_flights()
    assert sum(client.do_get(endpoint.ticket).read_all().num_rows for endpoint in listed.endpoints) == 320
    assert {action.type for action in client.list_actions()} >= {"frontier", "plan", "topics", "save_offset"}
    path = flight.FlightDescriptor.for_path("flights")
    assert refusal(lambda: client.get_flight_info(path))[1]["code"] == "malformed"
    with pytest.raises(pa.ArrowException, match="use a command"):  # the library loses the JSON of this call's errors
        client.get_schema(path)


def test_no_call_answers_with_a_traceback_or_a_path(log: LogMaker, client: flight.FlightClient) -> None:
    wrong = [flight.FlightDescriptor.for_command(text) for text in (b"{x", b'{"columns": ["nope"]}', b"[" * 5000, b"\xff")]
    wrong += [flight.FlightDescriptor.for_path("x"), flight.FlightDescriptor.for_path("../../etc/passwd")]
    calls: list[Callable[[], object]] = [
        *(lambda one=one: client.get_schema(one) for one in wrong),
        *(lambda one=one: client.get_flight_info(one) for one in wrong),
        *(lambda one=one: client.do_exchange(one)[1].read_chunk() for one in wrong),
        *(lambda one=one: client.do_put(one, pa.schema([]))[0].close() for one in wrong),
        *(lambda text=text: client.do_get(flight.Ticket(text)).read_all() for text in (b"{x", b'{"start": 10000}', b" " * 70_000)),
        *(lambda kind=kind: list(client.do_action(flight.Action(kind, b"{x"))) for kind in ("nope", "é" * 5000, *ACTIONS)),
        lambda: client.authenticate_basic_token("a", "b"),
    ]
    for call in calls:
        with pytest.raises((flight.FlightError, pa.ArrowException)) as error:
            call()
        text = str(error.value)
        assert not any(word in text for word in ("Traceback", ".py", str(log.path), str(Path.cwd())))


def test_actions(log: LogMaker, client: flight.FlightClient) -> None:
    frontier = ask(client, "frontier")
    assert frontier == {
        "log": LOG.hex(),
        "start": 0,
        "frontier": 320,
        "position": log.state.position,
        "time_us": TIME + 270_000,
        "tick": 2,
        "state": "primary",
        "gateways": {"jfk": "tutti://127.0.0.1:7400"},
        "silent": [],
    }
    assert ask(client, "offset_for_time", time_us=TIME + 5000) == {"offset": 5}
    assert ask(client, "offset_for_time", time_us=TIME + 10**9) == {"offset": 320}
    ticks = [[1, TIME + 150_000, 150], [2, TIME + 270_000, 270]]
    assert ask(client, "ticks") == ticks
    assert ask(client, "ticks", from_tick=2) == ticks[1:]
    assert ask(client, "ticks", start=0, end=200) == ticks[:1]
    for start, limit, end, every, found in (
        (0, 320, 320, 1, 270),
        (0, 200, 320, 1, 150),
        (150, 200, 320, 1, 270),
        (0, 320, 320, 3, 0),
    ):
        assert ask(client, "tick_end", start=start, limit=limit, end=end, every=every) == {"offset": found}
    sizes = {(start, end): ask(client, "plan", start=start, end=end)["ranges"][0]["bytes"] for start, end in ((0, 150), (0, 320))}
    for start, end, size, found in (
        (0, 320, sizes[0, 320], 320),
        (0, 320, sizes[0, 150], 150),
        (150, 320, sizes[0, 320], 320),
        (0, 100, sizes[0, 150], 100),
    ):
        assert ask(client, "bytes_end", start=start, end=end, bytes=size) == {"offset": found}
    assert ask(client, "bytes_end", start=0, end=320, bytes=1, topics=["weather"])["offset"] == 320
    flights, weather = ask(client, "topics")
    assert (flights["name"], flights["records"], flights["first_offset"], flights["last_offset"]) == ("flights", 300, 0, 319)
    assert (weather["name"], weather["records"], weather["first_time_us"]) == ("weather", 20, TIME + 150_000)
    producers = {line["name"]: line for line in ask(client, "producers")}
    assert producers["ewr"]["sequence"] == 300
    assert producers["lga"]["epoch"] == 1
    assert ask(client, "readers") == {"spark": 170}


def test_refused_actions(client: flight.FlightClient) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("fronteer", {}, "unknown_action"),
        ("frontier", {"beyon": 5}, "malformed"),
        ("ticks", {"end": 999}, "beyond_frontier"),
        ("topics", {"name": "x"}, "malformed"),
        ("plan", {"start": 999}, "beyond_frontier"),
        ("save_offset", {"reader": "spark", "offset": 999}, "beyond_frontier"),
        ("save_offset", {"reader": "a b", "offset": 1}, "malformed"),
    ]
    for action, body, code in cases:
        assert refusal(lambda a=action, b=body: ask(client, a, **b))[1]["code"] == code  # type: ignore[misc]  # bound at once


def test_records_are_not_accepted_at_this_port(client: flight.FlightClient) -> None:
    def put() -> None:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("flights"), pa.schema([("value", pa.binary())]))
        writer.close()

    assert refusal(put)[1]["code"] == "read_only"


def test_saved_offsets_go_through_the_gateway(
    client: flight.FlightClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(client, "save_offset", reader="spark", offset=170) == {"reader": "spark", "offset": 170}
    assert gateway.saved[-1] == ("spark", 170)
    monkeypatch.setattr(gateway, "denies", "space")
    kind, info = refusal(lambda: ask(client, "save_offset", reader="spark", offset=171))
    assert (kind, info["code"], info["reason"]) == (flight.FlightServerError, "refused", "space")
    monkeypatch.setattr(gateway, "state", None)
    kind, info = refusal(lambda: ask(client, "save_offset", reader="spark", offset=171))
    assert (kind, info["code"]) == (flight.FlightUnavailableError, "unavailable")
