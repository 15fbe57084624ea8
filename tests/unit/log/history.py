"""Makes logs for tests: frames as a group of one would order them, and beside them, made independently, what they mean."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa

from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.bodies import (
    AbortBody,
    Entry,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    Voter,
    decode_body,
    encode_body,
)
from tutti.data.frames.frame import SEQUENCED, STAGED, Frame, Kind
from tutti.data.frames.schema import BATCH_SCHEMA, compression_flags, encode_batch
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.log.files.data_directory import DataDirectory, open_directory
from tutti.log.files.layout import list_positions
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.upkeep.scrubber import LogScrubber
from tutti_gateway.log.writer import LogWriter

Compression = Literal["lz4", "zstd"] | None
COMPRESSIONS: tuple[Compression, ...] = (None, "lz4", "zstd")
SMALL = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0)
THREE_SEGMENTS = replace(SMALL, retention_bytes=3 * SMALL.segment_bytes)
NOW_US = 1_900_000_000_000_000  # later than all records of a history
LOG = bytes(range(16))
VIEW = (1 << 16) | 1
GATEWAY, GROUP = "g1", "test"


@dataclass
class Record:
    """A record as the log's readers must see it; `position` is its frame's."""

    position: int
    topic: str
    producer: str
    sequence: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None
    tick: int
    view: int


class History:
    """Frames in order. Every method adds one and returns it; `frames[i]` has position i + 1."""

    def __init__(self, *, begin: bool = True, voters: int = 1) -> None:
        self.frames: list[Frame] = []
        self.records: list[Record] = []
        self.staged: dict[int, list[Record]] = {}
        self.void: set[int] = set()
        self.windows: list[tuple[int, int]] = []
        self.topics: dict[str, int] = {}
        self.producers: dict[str, list[int]] = {}  # name: number, epoch, sequence
        self.names: dict[int, str] = {}
        self.ticks: list[tuple[int, int, int]] = []
        self.view_id = VIEW
        self.clock = 1_700_000_000_000_000
        if begin:
            self.roster(voters)
            self.view()

    def branch(self, position: int, counter: int) -> History:
        """Another log, the same up to a position (between windows), that goes on in another view; new producers are to be used."""
        assert self.settled(position) == position
        other = History(begin=False)
        other.frames = self.frames[:position]
        other.records = [record for record in self.records if record.position <= position]
        other.void = {one for one in self.void if one <= position}
        other.windows = [window for window in self.windows if window[1] <= position]
        other.ticks = [tick for tick in self.ticks if tick[2] <= position]
        for frame in other.frames:
            if frame.kind == Kind.TOPIC:
                other.topics[decode_body(TopicBody, frame.body).name] = frame.topic
            elif frame.kind == Kind.EPOCH:
                other.names[frame.producer] = decode_body(EpochBody, frame.body).name
        other.clock = self.clock
        other.view(counter)
        return other

    def _add(self, frame: Frame) -> Frame:
        previous = self.frames[-1].header_crc if self.frames else 0
        frame.stamp(self.view_id, len(self.frames) + 1, previous)
        self.frames.append(frame)
        return frame

    def roster(self, voters: int = 1, learners: int = 0, log: bytes = LOG) -> Frame:
        listed = tuple(
            Voter(number, f"g{number}", bytes(16), f"127.0.0.1:{7400 + number}", number <= voters)
            for number in range(1, voters + learners + 1)
        )
        body = RosterBody(GROUP, log, listed)
        return self._add(Frame(Kind.ROSTER, encode_body(body)))

    def view(self, counter: int = 1) -> Frame:
        self.view_id = (counter << 16) | 1
        return self._add(Frame(Kind.VIEW, encode_body(ViewBody((1,)))))

    def topic(self, name: str) -> Frame:
        self.topics[name] = len(self.topics) + 1
        return self._add(Frame(Kind.TOPIC, encode_body(TopicBody(name)), topic=self.topics[name]))

    def epoch(self, name: str) -> Frame:
        if name not in self.producers:
            number = len(self.names) + 1
            self.producers[name] = [number, 0, 0]
            self.names[number] = name
        entry = self.producers[name]
        entry[1] += 1
        body = EpochBody(name, bytes(16), entry[2], b"")
        return self._add(Frame(Kind.EPOCH, encode_body(body), producer=entry[0], epoch=entry[1]))

    def batch(
        self,
        producer: str,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[list[tuple[str, bytes | None]] | None] | None = None,
        progress: bytes = b"",
        compression: Compression = None,
        staged: bool = False,
    ) -> Frame:
        if topic not in self.topics:
            self.topic(topic)
        if producer not in self.producers:
            self.epoch(producer)
        number, epoch, sequence = self.producers[producer]
        count = len(values)
        times = [self.clock + i for i in range(count)]
        self.clock += count
        keys = keys or [None] * count
        headers = headers or [None] * count
        pairs = [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers]
        columns = cast("list[list[Any]]", [list(keys), list(values), times, pairs])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
        body = encode_batch(pa.record_batch(arrays, schema=BATCH_SCHEMA), compression)
        frame = Frame(
            Kind.BATCH,
            memoryview(body),
            progress=progress,
            flags=compression_flags(compression) | (STAGED if staged else 0),
            raw_length=body_sizes(memoryview(body), len(BATCH_SCHEMA)).raw_bytes,
            producer=number,
            epoch=epoch,
            first_sequence=sequence + 1,
            count=count,
            topic=self.topics[topic],
            origin=1,
            min_timestamp=times[0],
            max_timestamp=times[-1],
        )
        self._add(frame)
        self.producers[producer][2] += count
        tick = self.ticks[-1][0] if self.ticks else 0
        records = self.staged.setdefault(frame.position, []) if staged else self.records
        for i in range(count):
            records.append(
                Record(
                    frame.position,
                    topic,
                    producer,
                    sequence + 1 + i,
                    keys[i],
                    values[i],
                    times[i],
                    headers[i],
                    tick,
                    self.view_id,
                )
            )
        return frame

    def txn(self, producer: str, frames: Sequence[Frame], progress: bytes = b"") -> Frame:
        """Make staged batches visible, as those of a producer."""
        if producer not in self.producers:
            self.epoch(producer)
        number, epoch, sequence = self.producers[producer]
        parts = [self.staged.pop(frame.position) for frame in frames]
        counts = tuple(map(len, parts))
        frame = Frame(
            Kind.TXN,
            encode_body(TxnBody(tuple(frame.position for frame in frames), counts)),
            progress=progress,
            producer=number,
            epoch=epoch,
            first_sequence=sequence + 1,
            count=sum(counts),
            topic=frames[0].topic,
            origin=1,
            min_timestamp=min(frame.min_timestamp for frame in frames),
            max_timestamp=max(frame.max_timestamp for frame in frames),
        )
        self._add(frame)
        self.producers[producer][2] += sum(counts)
        for record in [record for part in parts for record in part]:
            sequence += 1
            record.position, record.producer, record.sequence = frame.position, producer, sequence
            record.tick, record.view = self.ticks[-1][0] if self.ticks else 0, self.view_id
            self.records.append(record)
        return frame

    def tick(self) -> Frame:
        number = len(self.ticks) + 1
        self.clock += 1000
        self.ticks.append((number, self.clock, len(self.frames) + 1))
        return self._add(Frame(Kind.TICK, encode_body(TickBody(number, self.clock))))

    def offsets(self, reader: str, offset: int) -> Frame:
        return self._add(Frame(Kind.OFFSETS, encode_body(OffsetsBody({reader: offset}))))

    def trim(self, position: int, offset: int) -> Frame:
        return self._add(Frame(Kind.TRIM, encode_body(TrimBody(position, offset))))

    def forget(self, name: str) -> Frame:
        number, epoch, _ = self.producers.pop(name)
        return self._add(Frame(Kind.FORGET, encode_body(ForgetBody((number,), epoch))))

    def abort(self, position: int) -> Frame:
        """Void the batches of the producer of the batch at `position` from there on."""
        first = self.frames[position - 1]
        self.windows.append((position, len(self.frames) + 1))
        body = AbortBody(position, "no space", Entry(bytes(16), first.epoch, first.first_sequence - 1, b""))
        frame = self._add(Frame(Kind.ABORT, encode_body(body), producer=first.producer, epoch=first.epoch))
        for other in self.frames[position - 1 : -1]:
            if other.kind == Kind.BATCH and (other.producer, other.epoch) == (first.producer, first.epoch):
                self.void.add(other.position)
        self.records = [record for record in self.records if record.position not in self.void]
        self.producers[self.names[first.producer]][2] = first.first_sequence - 1
        return frame

    def settled(self, position: int) -> int:
        """The last place at or below a position where a frontier may stop: not between a void batch and its ABORT."""
        for start, end in reversed(self.windows):
            if start <= position < end:
                position = start - 1
        return position

    def offsets_of(self, frames: Sequence[Frame]) -> list[int]:
        """Offset of each frame: how many records that are not void stand before it."""
        found, at, index = [], 0, 0
        for frame in frames:
            while index < frame.position - 1:
                other = self.frames[index]
                at += self._visible(other)
                index += 1
            found.append(at)
        return found

    def offset_after(self, position: int) -> int:
        """Records committed up to and including a position."""
        return sum(map(self._visible, self.frames[:position]))

    def _visible(self, frame: Frame) -> int:
        """How many records become visible with a frame."""
        return frame.count if frame.kind in SEQUENCED and not frame.staged and frame.position not in self.void else 0


def opened(
    path: Path | str, options: LogOptions = SMALL, storage: Storage | None = None
) -> tuple[LogWriter, Recovered, Callable[[], None]]:
    """An open writer of a directory, what it recovered, and how to let both go."""
    directory: DataDirectory = open_directory(str(path), gateway=GATEWAY, group=GROUP, storage=storage)
    try:
        writer, recovered = LogWriter.open(directory, options, storage)
    except BaseException:
        directory.close()
        raise

    def close() -> None:
        writer.close()
        directory.close()

    return writer, recovered, close


def decide(writer: LogWriter, history: History, start: int, end: int) -> None:
    """Decide positions start..end, as the node does: the frontier first, then the rows."""
    frames = history.frames[start - 1 : end]
    writer.frontier(end, history.offset_after(end))
    writer.decided(frames, history.offsets_of(frames), history.void)


def settle(writer: LogWriter) -> None:
    """Do the idle work of a writer until none is left."""
    while writer.idle():
        time.sleep(0.001)


def state_at(history: History, position: int) -> LogState:
    """Return the log state after the frame at a position."""
    state = LogState()
    for frame in history.frames[:position]:
        state.apply(frame, frame.position in history.void)
    return state


def write_log(
    path: Path | str, history: History, options: LogOptions = SMALL, *, step: int = 7, decided: int | None = None
) -> None:
    """Write a whole history, a sync every `step` frames, everything decided (or up to a position), and close."""
    writer, recovered, close = opened(path, options)
    done = len(recovered.tail) + recovered.state.position
    decided = len(history.frames) if decided is None else decided
    writer.write_hard_state(HardState(history.view_id, history.view_id, history.view_id))
    upto = recovered.state.position
    while done < len(history.frames):
        some = history.frames[done : done + step]
        writer.append(some)
        writer.sync()
        done += len(some)
        until = min(done, decided)
        if until > upto:
            decide(writer, history, upto + 1, until)
            upto = until
    if upto < decided:
        decide(writer, history, upto + 1, decided)
    close()


def sample(batches: int = 60, *, size: int = 300, voters: int = 1, txns: bool = False) -> History:
    """A log with a bit of everything, several small segments long, with transactions if told to."""
    history = History(voters=voters)
    staged: list[Frame] = []
    for number in range(batches):
        topic, producer = f"topic{number % 3}", f"producer{number % 4}"
        values = [b"v%d-%d" % (number, i) * (size // 8) for i in range(1 + number % 5)]
        keys = [None if i % 2 else b"k%d" % i for i in range(len(values))]
        headers = [[("h", b"x"), ("n", None)] if i == 1 else None for i in range(len(values))]
        batch = history.batch(
            producer,
            topic,
            values,
            keys=keys,
            headers=headers,
            progress=b"p%d" % number,
            compression=COMPRESSIONS[number % 3],
        )
        if number % 10 == 7:
            history.tick()
        if txns and number % 7 == 2:
            tasks = [("first task", "topic1"), ("second task", "topic2"), ("first task", "topic1")]
            staged += [history.batch(task, name, values, compression=COMPRESSIONS[number % 3], staged=True) for task, name in tasks]
        if txns and number % 21 == 15:  # of two tasks in turn, some of it from segments before
            history.txn("query", sorted(staged, key=lambda frame: frame.producer), b"batch %d" % number)
            staged = []
        if number % 20 == 11:
            history.batch(producer, topic, [b"also void"])
            history.abort(batch.position)
            history.epoch(producer)
        if number % 25 == 13:
            history.offsets("reader", number)
        if number % 30 == 17:
            history.forget(producer)
    return history


def other_boot(path: Path | str) -> None:
    """Make the directory look as after a reboot: the live page says nothing."""
    live = Path(path) / "live"
    if live.exists():
        os.truncate(live, 0)


def no_change(path: Path) -> None:
    """Leave the directory as its gateway did."""
    assert path.exists()


def no_indexes(path: Path) -> None:
    """As after a reboot, without index files."""
    other_boot(path)
    for file in (path / "log").glob("*.idx"):
        file.unlink()


def expected(history: History, start: int = 0, end: int | None = None) -> list[dict[str, object]]:
    """What a scan of all columns must give, record by record."""
    return [
        {
            "offset": offset,
            "topic": record.topic,
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp,
            "headers": record.headers and [{"key": key, "value": value} for key, value in record.headers],
            "gateway": GATEWAY,
            "producer": record.producer,
            "sequence": record.sequence,
            "view": record.view,
            "tick": record.tick,
        }
        for offset, record in enumerate(history.records)
        if start <= offset < (len(history.records) if end is None else end)
    ]


def seen(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """The records of batches, timestamps as integers."""
    found: list[dict[str, object]] = []
    for batch in batches:
        if "timestamp" in batch.schema.names:
            at = batch.schema.get_field_index("timestamp")
            batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
        found += batch.to_pylist()
    return found


def firsts(path: Path) -> list[int]:
    """Return the first positions of the segments, including segments that retention is about to remove."""
    return list_positions(path, "seg", include_trimmed=True)  # type: ignore[arg-type]  # only the path is used


def fit(path: Path, history: History) -> list[int]:
    """The segments with which the log may begin: no ABORT reaches over their starts."""
    return [first for first in firsts(path) if history.settled(first - 1) == first - 1]


def trimmed(path: Path, history: History, keep: int = 2) -> tuple[int, int]:
    """Write the history, then a TRIM that leaves some segments; position and offset with which the log begins."""
    write_log(path, history)
    position = fit(path, history)[-keep]
    offset = history.offset_after(position - 1)
    end = len(history.frames)
    history.trim(position, offset)
    for number in range(3):
        history.batch("late", "late", [b"late %d" % number])
    writer, _, close = opened(path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    settle(writer)
    close()
    return position, offset


def no_snapshots(path: Path) -> None:
    """As after a reboot, without index files and snapshots."""
    no_indexes(path)
    for file in (path / "log").glob("*.snap"):
        file.unlink()


def one_producer() -> History:
    """A log that knows one producer and one gateway."""
    history = History()
    history.batch("stays", "t", [b"x"])
    return history


def forget_names(history: History) -> History:
    """The log gives another producer and another gateway a number, and forgets them."""
    history.roster(2)
    history.batch("~gone", "t", [b"x"])
    history.forget("~gone")
    history.roster(1)
    return history


def long_after(history: History) -> History:
    """Add batches that fill several segments."""
    for _ in range(160):
        history.batch("stays", "t", [b"x" * 1500])
    return history


def scrub_round(scrubber: LogScrubber) -> None:
    """Scrub until a round is complete, or until the scrubber finds a lost position."""
    rounds = scrubber.rounds
    while scrubber.lost is None and scrubber.rounds == rounds and not scrubber.scrub():
        continue
