"""Tests of readers that return a range as one table: of Arrow, pandas or Polars, with the columns and types of the batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, always
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.errors import Unavailable, UsageError
from tutti.reader import Reader

OLD, NEW, OTHER = "1-" + "0" * 32, "1-" + "1" * 32, "2-" + "2" * 32


@pytest.fixture
def gateway() -> Iterator[ReadableGateway]:
    with ReadableGateway(records=20) as fake:
        yield fake


def offsets(table: pa.Table) -> list[int | None]:
    return table.column("offset").to_pylist()


def test_a_table_has_the_range_with_the_types_of_the_batches(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=3, end=15) as reader:
        table = reader.to_arrow()
        assert reader.position == 15
        assert reader.to_arrow().num_rows == 0  # the range has no more records
    assert table.schema.equals(schema_of(COLUMNS))
    assert offsets(table) == list(range(3, 15))
    with Reader(gateway.url, start=3, end=15) as reader:
        assert table.equals(pa.Table.from_batches(list(reader)))


def test_a_table_continues_after_batches_that_were_read_before(gateway: ReadableGateway) -> None:
    with Reader(gateway.url) as reader:
        first = next(reader).num_rows
        assert offsets(reader.to_arrow()) == list(range(first, 20))


def test_a_table_shares_the_memory_of_the_batches(gateway: ReadableGateway) -> None:
    with Reader(gateway.url) as reader:
        batches = list(reader)
    with Reader(gateway.url) as reader:
        table = reader.to_arrow()
    with Reader(gateway.url) as reader:
        frame = reader.to_polars()
    assert len(batches) > 1
    # Merged chunks would be a copy.
    assert {column.num_chunks for column in table.itercolumns()} == {len(batches)} == {frame.n_chunks()}


def test_topics_and_columns(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, topics=["b"], columns=["value", "topic"]) as reader:
        table = reader.to_arrow()
    assert table.schema.equals(schema_of(("value", "topic")))
    assert table.column("value").to_pylist() == [b"%d" % number for number in range(1, 20, 2)]


def test_an_empty_range_is_an_empty_table_with_the_schema(gateway: ReadableGateway) -> None:
    columns = ["offset", "key", "timestamp"]
    with Reader(gateway.url, start=7, end=7, columns=columns) as reader:
        table, pandas, polars = reader.to_arrow(), reader.to_pandas(), reader.to_polars()
    assert table.schema.equals(schema_of(columns))
    assert table.num_rows == 0
    assert (pandas.shape, list(pandas.columns)) == ((0, 3), columns)
    assert (polars.shape, polars.columns) == ((0, 3), columns)


def test_pandas_and_polars_have_the_same_records(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=5) as reader:
        pandas = reader.to_pandas()
    with Reader(gateway.url, start=5) as reader:
        polars = reader.to_polars()
    assert pandas["offset"].tolist() == polars["offset"].to_list() == list(range(5, 20))
    assert pandas["value"].tolist() == polars["value"].to_list() == [b"%d" % number for number in range(5, 20)]
    assert pandas["timestamp"].tolist() == polars["timestamp"].to_list()
    assert (str(pandas["offset"].dtype), str(pandas["timestamp"].dtype)) == ("int64", "datetime64[us, UTC]")
    assert polars["headers"].to_list()[0] == [{"key": "h", "value": b"v"}]


@pytest.mark.parametrize("origin", [None, "jfk"])
def test_unordered_records(gateway: ReadableGateway, origin: str | None) -> None:
    lanes = {OLD: ("jfk", False, 2), NEW: ("jfk", True, 9), OTHER: ("lga", True, 5)}
    for lane, (name, newest, count) in lanes.items():
        gateway.reads.lanes_there[lane] = (name, newest, [("a", b"%d" % number) for number in range(count)])
    with Reader(gateway.url, ordering="unordered", origin=origin) as reader:
        table = reader.to_arrow()
    assert table.schema.equals(schema_of(COLUMNS))
    assert table.num_rows == (16 if origin is None else 9)


@pytest.mark.parametrize("end", [None, 10])
@pytest.mark.parametrize("make", [Reader.to_arrow, Reader.to_pandas, Reader.to_polars])
def test_a_reader_that_follows_has_no_table(gateway: ReadableGateway, make: Callable[[Reader], object], end: int | None) -> None:
    with Reader(gateway.url, end=end, follow=True) as reader:
        with pytest.raises(UsageError, match="a reader with follow=True has no table"):
            make(reader)
        assert reader.position == 0


def test_a_closed_reader_has_no_table(gateway: ReadableGateway) -> None:
    with Reader(gateway.url) as reader:
        pass
    with pytest.raises(UsageError, match="the reader is closed"):
        reader.to_arrow()


@pytest.mark.parametrize(("name", "make"), [("pandas", Reader.to_pandas), ("polars", Reader.to_polars)])
def test_a_missing_library_is_an_error_before_anything_is_read(
    gateway: ReadableGateway, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Reader], object]
) -> None:
    with Reader(gateway.url) as reader:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError, match=rf"to_{name}\(\) needs the package {name}.*pip install '\.\[{name}\]'"):
            make(reader)
        assert reader.position == 0


def test_a_second_call_continues_after_an_error(gateway: ReadableGateway) -> None:
    served = 0

    def fail_after_a_while(what: str) -> None:
        nonlocal served
        served += what == "do_get"
        if served > 1:
            always("unavailable")(what)

    with Reader(gateway.url, patience=0.3) as reader:
        gateway.reads.fail, gateway.reads.cut_after = fail_after_a_while, 8
        with pytest.raises(Unavailable):
            reader.to_arrow()
        assert 0 < reader.position < 20
        for call in (reader.poll, reader.save, lambda: next(reader), lambda: next(reader.records())):
            with pytest.raises(UsageError, match="to_arrow failed"):
                call()
        gateway.reads.fail = lambda what: None
        assert offsets(reader.to_arrow()) == list(range(20))
        assert reader.to_arrow().num_rows == 0
