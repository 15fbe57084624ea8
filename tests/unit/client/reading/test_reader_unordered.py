"""Tests of readers of unordered records: each lane in order and once, for one or all lanes, also for lanes that appear later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, error_of, values
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.errors import OffsetOutOfRange, Unavailable, UsageError
from tutti.reader import Reader

OLD, NEW, OTHER = "1-" + "0" * 32, "1-" + "1" * 32, "2-" + "2" * 32
WAIT_S = 10.0


def some(first: int, count: int) -> list[tuple[str, bytes]]:
    """Records of the topics a and b in turn."""
    return [("ab"[number % 2], b"%d" % number) for number in range(first, first + count)]


@pytest.fixture
def gateway() -> Iterator[ReadableGateway]:
    with ReadableGateway(records=3) as fake:
        lanes = {OLD: ("jfk", False, some(100, 5)), NEW: ("jfk", True, some(200, 20)), OTHER: ("lga", True, some(300, 10))}
        fake.reads.lanes_there.update(lanes)
        yield fake


def add(gateway: ReadableGateway, lane: str, *records: tuple[str, bytes]) -> None:
    gateway.reads.lanes_there[lane][2].extend(records)


def test_one_origin_is_its_newest_lane_with_the_usual_columns_and_offsets(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered", origin="jfk") as reader:
        assert (reader.position, reader.end) == (0, 20)
        batches = list(reader)
        assert reader.position == 20
    assert values(batches) == list(range(200, 220))
    assert all(batch.schema == schema_of(COLUMNS) for batch in batches)
    assert {name for batch in batches for name in batch.column("gateway").to_pylist()} == {"jfk"}
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(20))


def test_an_origin_may_be_a_lane_with_a_limited_range(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered", origin=OLD) as reader:
        assert values(reader) == list(range(100, 105))
        assert reader.lane == OLD
    with Reader(gateway.url, ["b"], 5, 15, columns=["value", "topic"], ordering="unordered", origin="jfk") as reader:
        records = list(reader.records())
        assert [(record.topic, record.value) for record in records] == [("b", b"%d" % number) for number in range(205, 215, 2)]
        assert reader.position == 15
    with Reader(gateway.url, start=datetime.fromtimestamp(8, UTC), ordering="unordered", origin="lga") as reader:
        assert values(reader) == [308, 309]
    with pytest.raises(OffsetOutOfRange, match="is above the frontier"):
        Reader(gateway.url, start=11, ordering="unordered", origin="lga")
    with pytest.raises(UsageError, match="the gateways with lanes are jfk, lga"):
        Reader(gateway.url, ordering="unordered", origin="ewr")


@pytest.mark.parametrize("origin", [None, "lga"])
def test_topics_are_requested_if_no_lane_has_records_in_the_range(gateway: ReadableGateway, origin: str | None) -> None:
    def fail(what: str) -> None:
        if what == "do_get":
            raise error_of("unknown_topic", "this log has no topic 'nope'")

    gateway.reads.fail = fail
    with pytest.raises(UsageError, match="no topic 'nope'"):
        Reader(gateway.url, topics=["nope"], start="latest", ordering="unordered", origin=origin)
    Reader(gateway.url, topics=["nope"], start="latest", follow=True, ordering="unordered", origin=origin).close()


def test_one_origin_is_followed(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start="latest", follow=True, ordering="unordered", origin="lga") as reader:
        assert reader.poll(0.05) is None
        add(gateway, OTHER, *some(310, 3))
        assert values([reader.poll(WAIT_S)]) == [310, 311, 312]
        assert (reader.position, reader.end) == (13, None)


def test_all_lanes_come_one_after_another_each_in_order(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered") as reader:
        assert (reader.position, reader.lane) == ({OLD: 0, NEW: 0, OTHER: 0}, "")
        batches, lanes = zip(*((batch, reader.lane) for batch in reader), strict=True)
        assert reader.position == reader.end == {OLD: 5, NEW: 20, OTHER: 10}
        assert reader.poll(0) is None
        assert next(reader, None) is None
    assert values(batches) == [*range(100, 105), *range(200, 220), *range(300, 310)]
    assert list(dict.fromkeys(lanes)) == [OLD, NEW, OTHER]
    assert [lane for batch, lane in zip(batches, lanes, strict=True) if 300 in values([batch])] == [OTHER]
    assert all(len(set(batch.column("gateway").to_pylist())) == 1 for batch in batches)


def test_all_lanes_have_places_and_topics(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ["a"], ordering="unordered", start=datetime.fromtimestamp(4, UTC)) as reader:
        assert values(reader) == [104, *range(204, 220, 2), *range(304, 310, 2)]
        assert reader.position == reader.end
    with Reader(gateway.url, ordering="unordered", start="latest") as reader:
        assert values(reader) == []
    with Reader(gateway.url, ordering="unordered", end=datetime.fromtimestamp(2, UTC)) as reader:
        assert values(reader) == [100, 101, 200, 201, 300, 301]


def test_all_are_followed_and_new_ones_come_from_their_beginning(gateway: ReadableGateway) -> None:
    new = "3-" + "3" * 32
    with Reader(gateway.url, ordering="unordered", follow=True, start="latest", columns=["value"]) as reader:
        assert reader.end is None
        assert reader.poll(0.05) is None
        add(gateway, NEW, *some(220, 2))
        assert values([reader.poll(WAIT_S)]) == [220, 221]
        gateway.reads.lanes_there[new] = ("ewr", True, some(400, 3))
        assert values([reader.poll(WAIT_S)]) == [400, 401, 402]
        add(gateway, OTHER, *some(310, 1))
        add(gateway, new, *some(403, 1))
        assert sorted(values([reader.poll(WAIT_S), reader.poll(WAIT_S)])) == [310, 403]
        assert reader.position == {OLD: 5, NEW: 22, OTHER: 11, new: 4}


def test_all_lanes_of_a_group_without_any_are_followed_until_there_is_one() -> None:
    with ReadableGateway() as gateway, Reader(gateway.url, ordering="unordered", follow=True) as reader:
        assert reader.position == {}
        assert reader.poll(0.05) is None
        gateway.reads.lanes_there[NEW] = ("jfk", True, some(0, 4))
        assert values([reader.poll(WAIT_S)]) == [0, 1, 2, 3]
    with ReadableGateway() as gateway, Reader(gateway.url, ordering="unordered") as reader:
        assert list(reader) == []


def test_it_continues_after_the_last_returned_record(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered") as reader:
        records = reader.records()
        assert [next(records).value for _ in range(7)] == [b"100", b"101", b"102", b"103", b"104", b"200", b"201"]
        assert reader.position == {OLD: 5, NEW: 2, OTHER: 0}
        batch = reader.poll(WAIT_S)
        assert batch is not None
        assert values([batch])[0] == 202
        rest = values(reader)
        assert values([batch]) + rest == [*range(202, 220), *range(300, 310)]
        assert list(records) == []


def test_a_broken_stream_continues_at_its_position(gateway: ReadableGateway) -> None:
    for kwargs in ({"origin": "jfk"}, {}):
        gateway.reads.cut_after = 8
        arguments: dict[str, Any] = kwargs
        with Reader(gateway.url, ordering="unordered", **arguments) as reader:
            found = values(reader)
        assert [value for value in found if 200 <= value < 300] == list(range(200, 220))


def test_a_gateway_that_lacks_the_lane_or_some_of_it_is_passed_by(gateway: ReadableGateway) -> None:
    """What is asked is asked with what was seen of that lane, not of the log or another lane."""
    with Reader(gateway.url, ordering="unordered", patience=1) as reader:
        list(reader)
        gateway.reads.asked.clear()
    with Reader(gateway.url, ordering="unordered") as reader:
        list(reader)
    tickets = [asked for what, asked in gateway.reads.asked if what == "do_get"]
    assert {(asked["lane"], asked["seen"]) for asked in tickets} == {(OLD, 5), (NEW, 20), (OTHER, 10)}
    reader = Reader(gateway.url, ordering="unordered", origin="jfk", patience=0.5)

    def fail(what: str) -> None:
        if what == "do_get":
            raise error_of("unknown_lane", "this gateway has no such lane")

    gateway.reads.fail = fail
    with pytest.raises(Unavailable, match="this gateway has no such lane"):
        next(reader)


def test_a_closed_reader_saves_nothing_and_returns_nothing(gateway: ReadableGateway) -> None:
    reader = Reader(gateway.url, ordering="unordered")
    with pytest.raises(UsageError, match="store its `position` yourself"):
        reader.save()
    reader.close()
    assert reader.position == {OLD: 0, NEW: 0, OTHER: 0}
    with pytest.raises(UsageError, match="closed"):
        reader.poll(0)


def test_a_follower_of_all_lanes_reports_a_lost_gateway(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered", follow=True, start="latest", patience=0.3) as reader:
        gateway.reads.stop()
        gateway.gateway.stop()
        with pytest.raises(Unavailable, match="no gateway answered a read"):
            reader.poll(WAIT_S)


@pytest.fixture
def both(gateway: ReadableGateway) -> Iterator[tuple[str, ReadableGateway]]:
    """The url of two gateways with the same lanes, and the other one."""
    with ReadableGateway(records=3) as other:
        for lane, (name, newest, found) in gateway.reads.lanes_there.items():
            other.reads.lanes_there[lane] = (name, newest, list(found))
        yield f"{gateway.url},{other.url.removeprefix('tutti://')}", other


WHOLE = [*range(100, 105), *range(200, 220), *range(300, 310)]


@pytest.mark.parametrize("follow", [False, True])
def test_a_lane_that_is_lost_at_one_gateway_is_read_at_another(
    gateway: ReadableGateway, both: tuple[str, ReadableGateway], follow: bool
) -> None:
    gateway.reads.lost[NEW] = "its directory is gone"
    with Reader(both[0], ordering="unordered", follow=follow, end="latest" if follow else None) as reader:
        assert reader.end == {OLD: 5, NEW: 20, OTHER: 10}
        assert sorted(values(reader)) == WHOLE
    with Reader(both[0], ordering="unordered", origin="jfk", end=20) as one:
        assert values(one) == list(range(200, 220))


def test_a_lane_that_is_halted_at_one_gateway_is_read_as_far_as_another_has_it(
    gateway: ReadableGateway, both: tuple[str, ReadableGateway]
) -> None:
    gateway.reads.halted[NEW] = "it takes nothing more"
    del gateway.reads.lanes_there[NEW][2][15:]
    with Reader(both[0], ordering="unordered") as reader:
        assert values(reader) == WHOLE
    with Reader(both[0], ordering="unordered", origin="jfk") as one:
        assert values(one) == list(range(200, 220))
    both[1].reads.stop()
    both[1].gateway.stop()
    with Reader(gateway.url, ordering="unordered") as alone:
        assert values(alone) == [*range(100, 105), *range(200, 215), *range(300, 310)]


def test_a_lane_that_is_lost_everywhere_is_reported(gateway: ReadableGateway) -> None:
    gateway.reads.lost[NEW] = "its directory is gone"
    for origin in (None, "jfk"):
        with pytest.raises(Unavailable, match="its directory is gone"):
            Reader(gateway.url, ordering="unordered", origin=origin, connect_timeout=0.3)


def test_a_lane_lost_while_all_are_followed_is_reported_although_others_continue(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered", follow=True, start="latest", patience=0.5) as reader:
        gateway.reads.lost[OLD] = "its directory is gone"
        add(gateway, OTHER, *some(310, 1))
        assert values([reader.poll(WAIT_S)]) == [310]

        def go_on() -> None:
            while (number := len(gateway.reads.lanes_there[OTHER][2])) < 10_000:
                add(gateway, OTHER, *some(300 + number, 1))
                reader.poll(WAIT_S)

        with pytest.raises(Unavailable, match=f"lane {OLD} of gateway jfk has been unreadable.*its directory is gone"):
            go_on()
        gateway.reads.lost.clear()
        add(gateway, OLD, *some(105, 1))
        left = reader.poll(WAIT_S)
        while left is not None and 105 not in values([left]):
            left = reader.poll(WAIT_S)
        assert left is not None


def test_a_lane_trimmed_before_its_first_read_is_read_from_its_new_start(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered") as reader:
        assert values([reader.poll(WAIT_S)]) == [100, 101, 102, 103]
        gateway.reads.begins |= {NEW: 7, OTHER: 10}
        assert values(reader) == [104, *range(207, 220)]
        assert reader.position == reader.end == {OLD: 5, NEW: 20, OTHER: 10}
    gateway.reads.begins.clear()
    with Reader(gateway.url, ordering="unordered", follow=True, start="earliest") as follower:
        assert values([follower.poll(WAIT_S)]) == [100, 101, 102, 103]
        add(gateway, OTHER, *some(310, 2))
        gateway.reads.begins |= {NEW: 20, OTHER: 11}
        assert values([follower.poll(WAIT_S), follower.poll(WAIT_S)]) == [104, 311]


def test_nothing_that_another_gateway_still_holds_of_a_lane_is_passed_over(
    gateway: ReadableGateway, both: tuple[str, ReadableGateway]
) -> None:
    with Reader(both[0], ordering="unordered") as reader:
        assert values([reader.poll(WAIT_S)]) == [100, 101, 102, 103]
        gateway.reads.begins |= {NEW: 9, OTHER: 8}
        both[1].reads.begins |= {OTHER: 3}
        assert values(reader) == [104, *range(200, 220), *range(303, 310)]


def test_a_gateway_that_announces_more_and_does_not_send_it_is_not_asked_without_end(
    gateway: ReadableGateway, both: tuple[str, ReadableGateway]
) -> None:
    def fail(what: str) -> None:
        if what == "do_get":
            raise error_of("busy", "there are too many readers")

    with Reader(both[0], ordering="unordered") as reader:
        assert values([reader.poll(WAIT_S)]) == [100, 101, 102, 103]
        gateway.reads.begins[NEW] = 9
        both[1].reads.fail = fail
        assert values(reader) == [104, *range(209, 220), *range(300, 310)]


def test_the_unread_rest_of_a_started_lane_is_reported(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, ordering="unordered") as reader:
        assert values([reader.poll(WAIT_S) for _ in range(3)]) == [*range(100, 105), *range(200, 204)]
        gateway.reads.begins[NEW] = 8
        reader.close()
    with Reader(gateway.url, ordering="unordered", follow=True) as follower:
        assert sorted(values(iter([follower.poll(WAIT_S) for _ in range(8)]))) == sorted(
            [*range(100, 105), *range(208, 220), *range(300, 310)]
        )
        add(gateway, OLD, *some(105, 4))
        gateway.reads.begins[OLD] = 7
        with pytest.raises(OffsetOutOfRange, match="this log begins at 7"):
            follower.poll(WAIT_S)
    gateway.reads.lanes_there[OLD][2].clear()
    gateway.reads.begins.clear()
    with Reader(gateway.url, ordering="unordered", follow=True) as early:
        assert [early.poll(WAIT_S) is not None for _ in range(8)] == [True] * 8
        add(gateway, OLD, *some(100, 4))
        gateway.reads.begins[OLD] = 2
        with pytest.raises(OffsetOutOfRange, match="this log begins at 2"):
            early.poll(WAIT_S)
