"""Tests of the encoder: values of the application arrive unchanged, and wrong values are reported before they are sent."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import (
    check_progress,
    check_record,
    drop_committed,
    encode_open,
    encode_record_batch,
    largest_record,
    to_us,
    validated_batch,
)
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Batch
from tutti.data.frames.frame import Flag, Frame, Kind, payload_crc
from tutti.data.frames.schema import BATCH_SCHEMA, decode_batch, validate_body
from tutti.errors import UsageError

NOW_US = 1_700_000_000_000_000


def frame_of(batch: Batch, flags: int = 0) -> Frame:
    """The batch as a gateway gets it."""
    return Frame(
        Kind.BATCH,
        batch.body,
        progress=batch.progress,
        flags=flags,
        count=batch.remaining,
        first_sequence=1,
        min_timestamp=batch.min_timestamp,
        max_timestamp=batch.max_timestamp,
        raw_length=batch.raw_length,
        body_crc=batch.crc,
    )


def arrives(batch: Batch, flags: int = 0) -> list[dict[str, Any]]:
    """Records of the batch after every check that a gateway makes."""
    frame = frame_of(batch, flags)
    assert payload_crc(frame.progress, frame.body) == frame.body_crc
    return validate_body(frame, limits.RAW_BYTES_MAX).to_pylist()


records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=10),
        st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


@given(records, st.sampled_from([None, "lz4", "zstd"]), st.binary(max_size=256))
def test_records_arrive_as_they_were_sent(rows: list[Any], compression: Any, progress: bytes) -> None:
    feed = Accumulator(BatchingOptions(compression=compression, linger=1.0))
    for number, (value, key, stamp, headers) in enumerate(rows):
        last = number == len(rows) - 1
        feed.add("t", check_record(value, key, stamp, headers), progress if last else b"", None)
    with feed.lock:
        feed.close_open()
    (batch,) = feed.queue
    arrived = arrives(batch, {None: 0, "lz4": int(Flag.LZ4), "zstd": int(Flag.ZSTD)}[compression])
    assert [
        (
            row["value"],
            row["key"],
            to_us(row["timestamp"]),
            [(entry["key"], entry["value"]) for entry in row["headers"] or ()],
        )
        for row in arrived
    ] == [(value, key, stamp, headers) for value, key, stamp, headers in rows]
    assert batch.progress == progress


def test_the_present_time_is_that_of_the_send() -> None:
    feed = Accumulator(BatchingOptions(linger=1.0))
    before = datetime.now(UTC)
    feed.add("t", check_record(b"x", None, None, ()), b"", None)
    with feed.lock:
        feed.close_open()
    (row,) = arrives(feed.queue[0])
    assert before - timedelta(microseconds=1) <= row["timestamp"] <= datetime.now(UTC) + timedelta(microseconds=1)


def test_the_rest_of_a_split_batch() -> None:
    batch = Batch("t", 1000, 0.0)
    batch.progress = b"p"
    table = pa.record_batch({"value": pa.array([b"%d" % number for number in range(10)], pa.binary())})
    encode_record_batch(batch, validated_batch(table, NOW_US), "lz4")
    batch.first_sequence = 21
    drop_committed(batch, 3, "lz4")
    drop_committed(batch, 2, "lz4")
    assert (batch.first_sequence, batch.last_sequence, batch.remaining, batch.count) == (26, 30, 5, 10)
    assert [row["value"] for row in arrives(batch, int(Flag.LZ4))] == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("text", None, None, ()), r"value must be bytes or None, not str \('text'\)"),
        ((5, None, None, ()), "not int"),
        ((b"", "key", None, ()), "key must be bytes or None, not str"),
        ((b"", None, datetime(2024, 1, 1), ()), "has no zone"),  # noqa: DTZ001 - what is tested
        ((b"", None, 1.5, ()), "not float"),
        ((b"", None, "now", ()), "not str"),
        ((b"", None, True, ()), "not bool"),
        ((b"", None, 1_700_000_000_000_000_000, ()), "check its unit"),
        ((b"", None, None, {"a": b"b"}), "headers must be a list of pairs"),
        ((b"", None, None, "ab"), "headers must be a list of pairs"),
        ((b"", None, None, 5), "headers must be a list of pairs"),
        ((b"", None, None, [("\ud800", b"x")]), "a header must be a pair"),
        ((b"", None, 10**5000, ()), "of 16610 bits is outside of the years 1 to 9999"),
        ((b"", None, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), ()), "outside of the years 1 to 9999"),
        ((b"", None, datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), ()), "outside of the years 1 to 9999"),
        ((b"", None, None, [("a",)]), "pair"),
        ((b"", None, None, [(b"a", b"b")]), "pair"),
        ((b"", None, None, [("a", "b")]), "header 'a' must be bytes"),
        ((b"", None, None, [5]), "pair"),
    ],
)
def test_a_wrong_record_is_reported(arguments: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_record(*arguments)


def test_bytes_like_values_are_accepted() -> None:
    headers: Any = [("h", bytearray(b"c"))]
    record = check_record(bytearray(b"a"), memoryview(b"b"), None, headers)
    assert (record.value, record.key, record.stamp, record.headers) == (b"a", b"b", None, [("h", b"c")])
    assert to_us(datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 1_704_067_200_000_000
    assert check_progress(None) == b""
    assert check_progress(bytearray(b"p")) == b"p"


@pytest.mark.parametrize(
    ("progress", "said"), [("p", "not str"), (b"", "empty"), (b"x" * 257, "257 bytes, and at most 256"), (5, "not int")]
)
def test_wrong_progress_is_reported(progress: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_progress(progress)


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


VALUE = pa.array([b"a", None], pa.binary())
PAIRS = [[{"key": "h", "value": b"v"}], None]


@pytest.mark.parametrize(
    "columns",
    [
        {"value": VALUE},
        {"value": pa.array([b"a", None], pa.large_binary())},
        {"value": pa.array([b"a", b"b"], pa.binary(1))},
        {"value": pa.array([b"a", b"b"], pa.binary_view())},
        {"key": pa.nulls(2), "value": VALUE},
        {"value": VALUE, "timestamp": pa.array([1, 2], pa.timestamp("us", "UTC")), "key": VALUE},
        {"value": VALUE, "timestamp": pa.array([1, 2], pa.timestamp("ms", "America/New_York"))},
        {"value": VALUE, "timestamp": pa.array([1000, 2000], pa.timestamp("ns", "UTC"))},
        {"headers": pa.array(PAIRS), "value": VALUE},
        {"headers": pa.nulls(2), "value": VALUE},
        {
            "headers": pa.array(PAIRS, pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))),
            "value": VALUE,
        },
    ],
    ids=lambda columns: " ".join(f"{name}:{array.type}" for name, array in columns.items()),
)
def test_good_record_batches(columns: dict[str, Any]) -> None:
    conformed = validated_batch(batch_of(**columns), NOW_US)
    assert conformed.batch.schema == BATCH_SCHEMA
    batch = Batch("t", 0, 0.0)
    encode_record_batch(batch, conformed, None)
    rows = arrives(batch)
    assert [row["value"] for row in rows] == columns["value"].to_pylist()
    if "headers" in columns:
        assert [row["headers"] for row in rows] == columns["headers"].to_pylist()
    if "timestamp" not in columns:
        assert {to_us(row["timestamp"]) for row in rows} == {NOW_US}


def test_a_slice_arrives_as_the_slice() -> None:
    whole = batch_of(value=pa.array([b"%d" % n for n in range(100)], pa.binary()), headers=pa.array(PAIRS * 50))
    batch = Batch("t", 0, 0.0)
    encode_record_batch(batch, validated_batch(whole.slice(11, 3), NOW_US), None)
    rows = arrives(batch)
    assert [row["value"] for row in rows] == [b"11", b"12", b"13"]
    assert [row["headers"] for row in rows] == [None, PAIRS[0], None]
    assert batch.size < 2000


@pytest.mark.parametrize(
    ("given_batch", "said"),
    [
        ([b"a"], "needs a pyarrow.RecordBatch, not list"),
        (pa.table({"value": VALUE}), "not Table"),
        (batch_of(value=VALUE).slice(0, 0), "empty"),
        (batch_of(key=VALUE), "no column 'value', only key"),
        (batch_of(value=VALUE, topic=VALUE), "column 'topic' is unknown"),
        (pa.RecordBatch.from_arrays([VALUE, VALUE], ["value", "value"]), "has a column twice: value, value"),
        (batch_of(value=pa.array(["a"])), "column 'value' has type string; it must be binary"),
        (batch_of(value=pa.array([1])), "column 'value' has type int64"),
        (batch_of(value=VALUE, key=pa.array(["a", "b"])), "column 'key' has type string"),
        (batch_of(value=VALUE, timestamp=pa.array([1, 2])), "column 'timestamp' has type int64"),
        (batch_of(value=VALUE, timestamp=pa.array([1, 2], pa.timestamp("us"))), "must be timestamp"),
        (batch_of(value=VALUE, timestamp=pa.array([1, None], pa.timestamp("us", "UTC"))), "has 1 nulls"),
        (batch_of(value=VALUE, timestamp=pa.array([1, 2], pa.timestamp("ns", "UTC"))), "does not fit"),
        (batch_of(value=VALUE, timestamp=pa.array([1, 2**60], pa.timestamp("us", "UTC"))), "years 1 to 9999"),
        (batch_of(value=VALUE, headers=pa.array([{"a": b"b"}, None])), "column 'headers' has type struct"),
        (
            batch_of(
                value=VALUE,
                headers=pa.array(
                    [[{"key": None, "value": b"b"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            ),
            "has no name",
        ),
    ],
)
def test_a_wrong_record_batch_is_reported(given_batch: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        validated_batch(given_batch, NOW_US)


def test_malformed_arrow_is_not_sent() -> None:
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 3, 1, 5)))
    bad = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"short")])
    with pytest.raises(UsageError, match="malformed"):
        validated_batch(pa.RecordBatch.from_arrays([bad], ["value"]), NOW_US)


def test_the_largest_record() -> None:
    batch = validated_batch(
        batch_of(value=pa.array([b"12345", None, b"1"], pa.binary()), key=pa.array([None, b"123456", b"1"], pa.binary())), 1
    )
    assert largest_record(batch.batch) == 6


def test_sending_does_not_import_pandas() -> None:
    program = (
        "import sys\n"
        "from tutti.batching.accumulator import Accumulator as Feed\n"
        "from tutti.batching.options import BatchingOptions as FeedOptions\n"
        "from tutti.batching.encoder import check_record\n"
        "feed = Feed(FeedOptions())\n"
        "feed.add('t', check_record(b'v', b'k', None, [('h', b'v')]), b'p', None)\n"
        "print(len(feed.queue), 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_an_open_batch_has_the_announced_size() -> None:
    batch = Batch("t", 1000, 0.0)
    batch.values = [b"x" * 100] * 2000
    batch.times = [1.5] * 2000
    encode_open(batch, None)
    assert 100 * 2000 < batch.size < 122 * 2000
    assert batch.min_timestamp == batch.max_timestamp == 1_500_000
    assert decode_batch(batch.body).num_rows == batch.count == 2000


def test_subclasses_count_by_their_content() -> None:
    class Short(bytes):
        def __len__(self) -> int:
            return 3

        def __bytes__(self) -> bytes:
            return b"?"

    record = check_record(Short(b"longer than three"), Short(b"the key"), None, ())
    assert (record.value, record.key) == (b"longer than three", b"the key")
    assert type(record.value) is type(record.key) is bytes
    assert record.payload == 17 + 7
