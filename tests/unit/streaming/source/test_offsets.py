"""Tests of offsets in a checkpoint: a batch is planned from its own end, also if Spark requests the initial offset again, and
foreign or corrupt offsets are refused.
"""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.errors import UsageError
from tutti_spark.source.offsets import StreamOffset, batch_range, check_log, next_end


def test_the_form_in_the_checkpoint() -> None:
    offset = StreamOffset("u", 7, 3)
    assert json.dumps(offset.data()) == '{"log": "u", "offset": 7, "from": 3}'
    assert StreamOffset.parse(json.loads(json.dumps(offset.data()))) == offset
    assert StreamOffset.initial("u", 7) == StreamOffset("u", 7, 7)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        5,
        {"topic": {"0": 5}},
        {"log": "u", "offset": 5},
        {"log": "u", "offset": 5, "from": 3, "more": 1},
        {"log": "u", "offset": "5", "from": 3},
        {"log": "u", "offset": True, "from": 0},
        {"log": 1, "offset": 5, "from": 3},
        {"log": "u", "offset": 5, "from": -1},
    ],
)
def test_invalid_offsets_are_refused(data: object) -> None:
    with pytest.raises(UsageError, match="not an offset of the source tutti"):
        StreamOffset.parse(data)


def test_offsets_of_another_log_are_refused() -> None:
    with pytest.raises(UsageError, match="log u and tutti://h:1 has log w"):
        check_log(StreamOffset("u", 1, 1), "w", "tutti://h:1")
    with pytest.raises(UsageError, match="log u"):
        batch_range(StreamOffset("u", 5, 5), StreamOffset("w", 9, 5))


@pytest.mark.parametrize("again", [0, 25, 30, 50, 100])
def test_batch_0_is_planned_from_its_end_whatever_the_initial_offset_is_now(again: int) -> None:
    end = StreamOffset("u", 50, 25)
    assert batch_range(StreamOffset.initial("u", again), end) == (25, 50)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (StreamOffset("u", 60, 50), StreamOffset("u", 50, 25)),
        (StreamOffset("u", 51, 25), StreamOffset("u", 60, 50)),
        (StreamOffset("u", 50, 25), StreamOffset("u", 40, 50)),
    ],
)
def test_a_batch_that_does_not_join_the_one_before_is_refused(start: StreamOffset, end: StreamOffset) -> None:
    with pytest.raises(UsageError, match="corrupt"):
        batch_range(start, end)


def test_a_batch_reads_the_earlier_batches_whose_ends_spark_did_not_keep() -> None:
    """Proves that after a failure with asynchronous progress tracking nothing between two kept ends is left out."""
    assert batch_range(StreamOffset("u", 30, 20), StreamOffset("u", 60, 50)) == (30, 60)


@given(cuts=st.lists(st.integers(0, 100), min_size=3, max_size=12, unique=True), kept=st.data())
def test_any_two_kept_ends_of_a_query_are_contiguous(cuts: list[int], kept: st.DataObject) -> None:
    """Proves that whichever ends Spark kept, a batch begins where the last kept one ended, and that a later start is refused."""
    ends = [StreamOffset("u", after, begin) for begin, after in pairwise(sorted(cuts))]
    first, last = sorted(kept.draw(st.lists(st.integers(0, len(ends) - 1), min_size=2, max_size=2, unique=True)))
    assert batch_range(ends[first], ends[last]) == (ends[first].offset, ends[last].offset)
    with pytest.raises(UsageError, match="corrupt"):
        batch_range(ends[last], ends[first])


def test_an_empty_first_batch_and_its_successor() -> None:
    empty = StreamOffset.initial("u", 0)
    assert batch_range(empty, empty) == (0, 0)
    assert batch_range(empty, StreamOffset("u", 9, 0)) == (0, 9)


@given(start=st.integers(0, 100), available=st.integers(0, 100), records_max=st.none() | st.integers(1, 50))
def test_ends_without_ticks(start: int, available: int, records_max: int | None) -> None:
    end = next_end(start, available, records_max)
    assert end >= start
    assert end <= max(start, available)
    assert records_max is None or end - start <= records_max
    assert end > start or available <= start
