"""Proves that staged batches are read where a TXN makes them visible, and nowhere else, whatever is left of a log's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.log.corruption import rotten_indexes
from tests.unit.log.history import (
    NOW_US,
    SMALL,
    History,
    decide,
    expected,
    no_change,
    no_indexes,
    no_snapshots,
    opened,
    other_boot,
    sample,
    seen,
    settle,
    write_log,
)
from tutti.data.frames.bodies import TxnBody, decode_body, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState
from tutti.errors import Damaged, FormatError, OffsetOutOfRange
from tutti.log.files.layout import list_positions, segment_path
from tutti.log.format.snapshot import newest_snapshot
from tutti.log.read.micro_batch_ends import bytes_end
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.log.read.segment_view import sealed_header
from tutti.log.read.sequence_lookup import SequenceRun
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.upkeep import retention

STATES: list[Callable[[Path], None]] = [no_change, other_boot, no_indexes, no_snapshots, rotten_indexes]
HISTORY = sample(120, size=1500, txns=True)
TXNS = [frame for frame in HISTORY.frames if frame.kind == Kind.TXN]
END = len(HISTORY.records)


def staged(frame: Frame) -> tuple[int, ...]:
    return decode_body(TxnBody, frame.body).staged


def reach_back(first: int) -> list[Frame]:
    """TXNs that make visible, from a position on, what stands before it."""
    return [txn for txn in TXNS if min(staged(txn)) < first <= txn.position]


@pytest.fixture(scope="module", params=STATES, ids=lambda state: state.__name__)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    path = tmp_path_factory.mktemp("log")
    write_log(path, HISTORY)
    assert any(reach_back(first) for first in list_positions(str(path), "seg")), "some reach back into segments before their own"
    request.param(path)
    return LogReader(path)


def test_every_visible_record_is_there_in_order(reader: LogReader) -> None:
    assert reader.frontier().offset == END
    assert seen(scan(reader, 0, END)) == expected(HISTORY)
    assert HISTORY.staged, "some of what is staged is visible nowhere"


@pytest.mark.parametrize("rows_max", [1, 7, 65_536])
def test_a_range_is_cut_within_a_transaction(reader: LogReader, rows_max: int) -> None:
    for txn in TXNS[:2]:
        begin = HISTORY.offset_after(txn.position - 1)
        for start, end in (
            (begin - 2, begin + 3),
            (begin + 1, begin + txn.count - 1),
            (begin + txn.count - 1, begin + txn.count + 4),
        ):
            assert seen(scan(reader, start, end, rows_max=rows_max)) == expected(HISTORY, start, end)


def test_topics_are_told_apart_within_a_transaction(reader: LogReader) -> None:
    wanted = [record for record in expected(HISTORY) if record["topic"] == "topic2"]
    assert seen(scan(reader, 0, END, topics=["topic2"])) == wanted


def test_the_state_and_topics_count_what_is_visible(reader: LogReader) -> None:
    state = reader.state()
    assert set(state.staged) == set(HISTORY.staged)
    for topic in reader.topics():
        offsets = [at for at, record in enumerate(HISTORY.records) if record.topic == topic.name]
        times = [HISTORY.records[at].timestamp for at in offsets]
        assert (topic.records, topic.first_offset, topic.last_offset) == (len(offsets), offsets[0], offsets[-1])
        assert (topic.first_time, topic.last_time) == (times[0], max(times))


def test_a_time_is_found_within_a_transaction(reader: LogReader) -> None:
    for record in HISTORY.records[::37]:
        wanted = next(at for at, other in enumerate(HISTORY.records) if other.timestamp >= record.timestamp)
        assert reader.offset_for_time(record.timestamp) == wanted


def test_sequences_of_who_made_it_visible_have_offsets_and_staged_batches_positions(reader: LogReader) -> None:
    txn = TXNS[1]
    begin = HISTORY.offset_after(txn.position - 1)
    part = HISTORY.frames[staged(txn)[0] - 1]
    runs = [SequenceRun(txn.producer, txn.first_sequence, txn.count), SequenceRun(part.producer, part.first_sequence, part.count)]
    assert reader.find_all(runs) == [begin, part.position]


def test_plans_and_limits_of_bytes_go_between_the_batches_of_a_transaction(reader: LogReader) -> None:
    txn = TXNS[1]
    begin = HISTORY.offset_after(txn.position - 1)
    counts = decode_body(TxnBody, txn.body).counts
    borders = {begin + sum(counts[:at]) for at in range(len(counts) + 1)}
    parts = reader.plan(begin, begin + txn.count, splits=3)
    assert len(parts) == 3
    assert {part.start for part in parts} <= borders
    assert bytes_end(reader.rows(begin, begin + txn.count), begin, begin + txn.count, 1) == begin + counts[0]


def test_digest_and_verify_and_inspect_go_by_what_is_visible(tmp_path: Path) -> None:
    write_log(tmp_path, HISTORY)
    report = verify(tmp_path)
    assert not report.damage
    assert report.records == END
    assert digest(tmp_path).end == END
    told = {info.position: (info.kind, info.fate) for info in inspect(tmp_path)}
    assert {position for position, (_, fate) in told.items() if fate == "staged"} == {
        frame.position for frame in HISTORY.frames if frame.staged
    }
    assert told[TXNS[0].position] == ("TXN", "decided")
    # The same records without a transaction have the same digest.
    plain, other = History(), tmp_path / "plain"
    for record in HISTORY.records[:40]:
        plain.batch(record.producer, record.topic, [record.value])
    staging, both = History(), tmp_path / "staging"
    for name in ("topic0", "topic1", "topic2"):
        staging.topic(name)
    frames = [staging.batch("task", record.topic, [record.value], staged=True) for record in HISTORY.records[:40]]
    staging.txn("all", frames)
    for path, history in ((other, plain), (both, staging)):
        path.mkdir()
        write_log(path, history)
    values = [[record["value"] for record in seen(scan(LogReader(path), 0, 40, columns=["value"]))] for path in (other, both)]
    assert values[0] == values[1]


def test_a_transaction_keeps_its_order_where_some_rows_of_its_batches_are_made_again(tmp_path: Path) -> None:
    """In the newest segment after a reboot: rows up to the snapshot are those of the index, the others come from the frames."""
    history = History()
    early = history.batch("task", "t", [b"1", b"2"], staged=True)
    for _ in range(30):
        history.batch("p", "t", [b"between"])
    late = history.batch("task", "t", [b"3"], staged=True)
    history.txn("query", [late, early])
    write_log(tmp_path, history, replace(SMALL, snapshot_frames=25))
    other_boot(tmp_path)
    assert early.position < newest_snapshot(str(tmp_path), len(history.frames)).position <= late.position
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)


def test_batches_of_a_transaction_are_joined_in_whichever_order_it_names_them(tmp_path: Path) -> None:
    """As plain small batches of one segment are: tasks that stage side by side have theirs stand in any order."""
    history = History()
    parts = [history.batch(f"task{number % 8}", "t", [b"%d" % number] * 3, staged=True) for number in range(64)]
    history.txn("query", sorted(parts, key=lambda frame: (frame.producer, -frame.position)))
    write_log(tmp_path, history, replace(SMALL, segment_bytes=1 << 20))
    [batch] = scan(LogReader(tmp_path), 0, len(history.records))
    assert seen([batch]) == expected(history)


def test_times_of_what_is_only_staged_say_nothing_of_their_segment(tmp_path: Path) -> None:
    history = History()
    history.batch("p", "t", [b"first"])
    history.clock += 10**9
    late = history.batch("task", "t", [b"waits"], staged=True)
    history.clock -= 10**9
    for number in range(200):
        history.batch("p", "t", [b"%d" % number * 900])
    history.txn("query", [late])
    write_log(tmp_path, history)
    first, second, *_ = list_positions(str(tmp_path), "seg")
    sealed = sealed_header(str(tmp_path), first)
    assert sealed is not None
    assert first < late.position < second
    assert sealed.max_timestamp == max(record.timestamp for record in history.records if record.position < second)
    assert LogReader(tmp_path).offset_for_time(late.min_timestamp) == len(history.records) - 1


def test_what_a_transaction_needs_is_damage_where_it_stands(tmp_path: Path) -> None:
    """A bad body of a staged batch fails reads that come to it, and none before."""
    write_log(tmp_path, HISTORY)
    txn = TXNS[1]
    part = HISTORY.frames[staged(txn)[2] - 1]
    first = max(first for first in list_positions(str(tmp_path), "seg") if first <= part.position)
    path = segment_path(str(tmp_path), first)
    data = bytearray(Path(path).read_bytes())
    place = data.index(part.header)
    data[place + 96 + 40] ^= 1
    Path(path).write_bytes(data)
    begin = HISTORY.offset_after(txn.position - 1) + sum(decode_body(TxnBody, txn.body).counts[:2])
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, begin)) == expected(HISTORY, 0, begin)
    with pytest.raises(Damaged, match=f"position {part.position} "):
        list(scan(reader, begin, begin + 1))


def test_a_transaction_whose_batches_are_in_a_missing_first_segment_says_so(tmp_path: Path) -> None:
    """Proves that they are not told as trimmed, which nobody would mend."""
    history = History()
    part = history.batch("task", "t", [b"early"], staged=True)
    for number in range(60):
        history.batch("p", "t", [b"%d" % number * 300] * 3)
    txn = history.txn("query", [part])
    write_log(tmp_path, history)
    first, second, *_ = list_positions(str(tmp_path), "seg")
    assert part.position < second <= txn.position
    (tmp_path / "log" / f"{first:020d}.seg").unlink()
    with pytest.raises(Damaged, match=rf"{first:020d}\.seg is missing: the log continues only at position {second}"):
        list(scan(LogReader(tmp_path), history.offset_after(txn.position - 1), len(history.records)))


def test_a_start_goes_on_with_what_is_staged(tmp_path: Path) -> None:
    """A TXN after the start of a gateway names what was staged before it."""
    history = sample(30, txns=True)
    left = [history.frames[position - 1] for position in history.staged]
    write_log(tmp_path, history)
    end = len(history.frames)
    writer, recovered, close = opened(tmp_path)
    assert set(recovered.state.staged) == set(history.staged)
    history.txn("late", left)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    close()
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)


@pytest.mark.parametrize("state", [no_change, other_boot, no_indexes])
def test_retention_takes_nothing_that_is_still_to_be_read(tmp_path: Path, state: Callable[[Path], None]) -> None:
    history = sample(160, size=1500, txns=True)
    history.txn("last", [history.frames[position - 1] for position in history.staged])
    write_log(tmp_path, history)
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=3 * SMALL.segment_bytes))
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    txns = [frame for frame in history.frames if frame.kind == Kind.TXN]
    for position, offset in proposed.places:
        over = [history.offset_after(txn.position) for txn in txns if min(staged(txn)) < position <= txn.position]
        assert offset == max([history.offset_after(position - 1), *over])
    moved = [place for place in proposed.places if place[1] > history.offset_after(place[0] - 1)]
    position, offset = moved[-1]
    end = len(history.frames)
    history.trim(position, offset)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    settle(writer)
    close()
    assert list_positions(str(tmp_path), "seg", include_trimmed=True)[0] == position
    state(tmp_path)
    reader = LogReader(tmp_path)
    assert seen(scan(reader, offset, len(history.records))) == expected(history, offset)
    with pytest.raises(OffsetOutOfRange):
        list(scan(reader, offset - 1, offset))


def test_retention_leaves_what_waits_for_a_transaction_up_to_twice_its_bytes(tmp_path: Path) -> None:
    history = History()
    waiting = history.batch("task", "t", [b"waits"], staged=True)

    def grow(batches: int) -> None:
        for number in range(batches):
            history.batch("p", "t", [b"%d" % number * 900])

    grow(200)
    write_log(tmp_path, history)
    held = len(list_positions(str(tmp_path), "seg"))
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=(held - 2) * SMALL.segment_bytes))
    assert writer.retention.propose(NOW_US) is None
    end = len(history.frames)
    grow(400)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    proposed = writer.retention.propose(NOW_US)
    close()
    assert proposed is not None
    assert proposed.forced == proposed.places[-1][0] > waiting.position
    state = LogState()
    history.trim(*proposed.places[-1])
    for frame in history.frames:
        state.apply(frame)
    assert not state.staged


def test_retention_by_bytes_keeps_its_bytes_behind_a_transaction_that_reaches_back(tmp_path: Path) -> None:
    history = History()
    waiting = history.batch("task", "t", [b"waits"], staged=True)
    for number in range(200):
        history.batch("p", "t", [b"%d" % number * 900])
    history.txn("query", [waiting])
    write_log(tmp_path, history)
    held = len(list_positions(str(tmp_path), "seg"))
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=(held - 2) * SMALL.segment_bytes))
    assert writer.retention.propose(NOW_US) is None, "all before the transaction would go with what it reaches back to"
    close()


def grown(history: History, batches: int = 100) -> None:
    """Some segments more."""
    for number in range(batches):
        history.batch("p", "t", [b"%d" % number * 900])


def test_retention_goes_by_the_last_of_several_transactions_that_reach_back(tmp_path: Path) -> None:
    history = History()
    parts = [history.batch("task", "t", [b"waits"], staged=True) for _ in range(3)]
    txns = []
    for part in parts:
        grown(history)
        txns.append(history.txn("query", [part]))
    grown(history, 200)
    write_log(tmp_path, history)
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=SMALL.segment_bytes))
    proposed = writer.retention.propose(NOW_US)
    close()
    assert proposed is not None
    for position, offset in proposed.places:
        behind = txns[-1].position if position <= txns[-1].position else position - 1
        assert offset == history.offset_after(behind)
    assert {sum(txn.position >= position for txn in txns) for position, _ in proposed.places} == {0, 1, 2, 3}


@pytest.mark.parametrize("looked_at_once", [1, 256])
def test_retention_by_time_goes_by_the_last_tick_before_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at_once: int
) -> None:
    """And not by later ones, though they stand in the same segment."""
    monkeypatch.setattr(retention, "TXNS_A_STEP", looked_at_once)
    history, hour = History(), 3_600_000_000
    parts = [history.batch("task", "t", [b"waits"], staged=True) for _ in range(2)]
    history.tick()
    grown(history)
    early = history.tick()
    for part in parts:
        last = history.txn("query", [part])
    history.clock += hour
    history.tick()
    grown(history)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    assert not any(early.position < first <= last.position + 1 for first in firsts)
    writer, _, close = opened(tmp_path, replace(SMALL, retention_us=hour // 2))
    proposed = None
    for _ in range(4):
        proposed = proposed or writer.retention.propose(history.ticks[1][1] + hour // 2 + 1)
    close()
    assert proposed is not None
    assert proposed.places == tuple((first, history.offset_after(last.position)) for first in firsts[1:] if first < early.position)


def test_retention_looks_for_transactions_among_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the writer's thread does at once is bounded however long the log is, and in the end it comes to the same."""
    history = sample(160, size=1500, txns=True)
    write_log(tmp_path, history)
    options = replace(SMALL, retention_bytes=3 * SMALL.segment_bytes)
    writer, _, close = opened(tmp_path, options)
    proposed = writer.retention.propose(NOW_US)
    close()
    monkeypatch.setattr(retention, "ROWS_A_STEP", 50)
    writer, _, close = opened(tmp_path, options)
    looks = [writer.retention.propose(NOW_US) for _ in range(-(-len(history.frames) // 50))]
    close()
    assert proposed is not None
    assert looks == [*[None] * (len(looks) - 1), proposed]


def test_a_state_takes_no_transaction_that_does_not_follow() -> None:
    history = History()
    part = history.batch("task", "t", [b"1", b"2"], staged=True)
    state = LogState()
    for frame in history.frames:
        state.apply(frame)
    assert (state.next_offset, state.dirty, set(state.staged)) == (0, False, {part.position})
    for positions, counts, total in (((1,), (2,), 2), ((part.position,), (1,), 1), ((part.position,) * 2, (2, 2), 4)):
        body = encode_body(TxnBody(positions, counts))
        wrong = Frame(Kind.TXN, body, producer=1, epoch=1, first_sequence=3, count=total, topic=1)
        wrong.stamp(state.view, state.position + 1, state.chain)
        with pytest.raises(FormatError, match="not staged"):
            state.copy().apply(wrong)
    state.apply(history.epoch("task"))
    assert not state.staged, "another epoch of the task's producer lets go what the one before staged"


def test_a_trim_that_does_not_know_of_a_transaction_removes_no_file_that_it_needs(tmp_path: Path) -> None:
    """One that was ordered when the transaction was not yet decided names an offset before it."""
    history = sample(160, size=1500, txns=True)
    history.txn("last", [history.frames[position - 1] for position in history.staged])
    write_log(tmp_path, history)
    txns = [frame for frame in history.frames if frame.kind == Kind.TXN]
    firsts = list_positions(str(tmp_path), "seg")
    over = [first for first in firsts if any(min(staged(txn)) < first <= txn.position for txn in txns)]
    offset = history.offset_after(over[-1] - 1)
    end = len(history.frames)
    history.trim(over[-1], offset)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    settle(writer)
    close()
    assert list_positions(str(tmp_path), "seg", include_trimmed=True)[0] < over[-1]
    reader = LogReader(tmp_path)
    assert reader.start == offset
    assert seen(scan(reader, offset, len(history.records))) == expected(history, offset)


def test_what_an_undecided_trim_lets_go_is_in_no_transaction() -> None:
    history = History()
    part = history.batch("task", "t", [b"1"], staged=True)
    state = LogState()
    for frame in history.frames:
        state.apply(frame)
    received = ReceivedTable(state)
    txn = history.txn("task", [part])
    assert not received.not_visible(txn)
    received.apply(history.trim(part.position + 1, 0))
    assert received.not_visible(txn) == f"nothing is staged at position {part.position}, or no longer"
