"""Store: the directory of a spool. Only one process uses the directory, and only one thread writes to it.

```
LOCK          locked by flock; contains the pid of the process that holds the lock
spool.json    state of the spool (commit_mark.py)
RESERVE       disk space for the next spool.json, freed on a full disk
00000007.seg  segments (block_format.py): each run of a producer writes new segments and never changes old ones
refused/      refused batches, one Arrow stream each, with the reason in the metadata of its schema
```

A segment is deleted when its records, and the records of all earlier segments, are committed or refused.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa

from tutti import limits
from tutti.batching.receipt import Batch, SpoolPosition
from tutti.data.frames.frame import payload_crc
from tutti.data.frames.schema import BATCH_SCHEMA, decode_batch
from tutti.errors import Damaged, DiskFailed, DiskFull, FormatError, WrongDirectory, invariant
from tutti.log.files.disk_space import is_disk_full
from tutti.log.files.storage import MediumError, Storage
from tutti.runtime.durable_files import make_directory, open_file
from tutti.spool.block_format import (
    HEAD_BYTES,
    Block,
    BlockIterator,
    Head,
    decode_head,
    encode_block,
    encode_head,
    is_torn,
    seed_of,
)
from tutti.spool.commit_mark import EpochStart, State, decode_mark, decode_state, encode_mark, encode_state
from tutti.spool.cursor import REMEDY, Cursor, Segment
from tutti.spool.disk_space import keep_reserve, replace, take_lock, unusable

LOCK, STATE, REFUSED, RESERVE = "LOCK", "spool.json", "refused", "RESERVE"
_REFUSED_FILE = re.compile(r"^(\d{8,})-(\d{12,})\.arrow$")
SEGMENT = re.compile(r"^(\d{8,})\.seg$")


class SpoolStore:
    """The files of one spool.

    Attributes:
        state: content of `spool.json`.
        segments: existing segments by number, in order.
        aside: start positions of refused batches, which are not sent again.
        refused_bytes: size of the files of refused batches.
        progress: the application's last progress in the spool; b"" means none.
    """

    def __init__(self, path: str, producer: str, segment_bytes: int, storage: Storage | None = None) -> None:
        """Open the directory, or create it.

        Raises:
            DirectoryRefused: another process uses the directory, or the system denies access now.
            WrongDirectory: the directory belongs to another producer, is not a spool, or is not writable.
            Damaged: a file fails its CRC, or is missing or incomplete.
            FormatError: a newer release wrote the spool.
        """
        self.path = os.path.abspath(path)
        self.storage = storage or Storage()
        self.segments: dict[int, Segment] = {}
        self.progress = b""
        self._segment_bytes = segment_bytes
        self._producer = producer
        self._current: tuple[Segment, int, int] | None = None  # the segment being written, its descriptor and its CRC seed
        self._cursor: Cursor | None = None
        self._lock = -1
        try:
            make_directory(self.path)
            self._check_is_spool()
            self._lock = take_lock(self._file(LOCK), self.path)
        except OSError as error:
            raise unusable(error, self.path) from error
        try:
            self._open()
        except OSError as error:
            self.close()
            raise unusable(error, self.path) from error
        except BaseException:
            self.close()
            raise

    # -- opening

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _check_is_spool(self) -> None:
        """Raise if the directory has files and is not a spool. Called before this process creates a file in the directory."""
        names = set(os.listdir(self.path)) - {LOCK, STATE + ".tmp", "lost+found"}
        if STATE not in names and names:
            raise WrongDirectory(
                f"{self.path} is not a spool: it has {min(names)!r} and no {STATE}; give the producer an empty directory"
            )

    def _open(self) -> None:
        try:
            with open(self._file(STATE), "rb", opener=open_file) as file:
                self.state = decode_state(file.read(1 << 20))
        except FileNotFoundError:
            # A new spool gets a random id, which each mark contains, so that a mark in the log identifies its spool.
            self.state = State(secrets.token_bytes(16), self._producer)
            self._write_state()
        except (Damaged, FormatError) as error:
            raise type(error)(f"spool {self.path}: {error}") from error
        if self.state.producer != self._producer:
            raise WrongDirectory(
                f"spool {self.path} belongs to producer {self.state.producer!r}, not to {self._producer!r}: "
                "give each producer its own directory"
            )
        numbers = sorted(int(match[1]) for name in os.listdir(self.path) if (match := SEGMENT.match(name)))
        for number in numbers:
            if number < self.state.first:
                self.storage.remove(self._segment_path(number))  # a crash prevented its deletion
        self._load_segments([number for number in numbers if number >= self.state.first])
        self.aside = set(self.state.aside)
        self.refused_bytes = 0
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._file(REFUSED)):
                self.refused_bytes += entry.stat().st_size
                # A batch with a file in `refused/` is refused, even if a crash prevented its entry in the state.
                if match := _REFUSED_FILE.match(entry.name):
                    self.aside.add(SpoolPosition(int(match[1]), int(match[2]) - 1))

    def _load_segments(self, numbers: list[int]) -> None:
        """Determine the valid length of each segment: from the head of the next segment, or by a scan of the last segment."""
        heads = {number: self._head(number, number == numbers[-1]) for number in numbers}
        there = [number for number in numbers if heads[number] is not None]
        # All segments up to `sent` must exist, because they may contain records that are not committed.
        wanted = range(self.state.first, max([*there, self.state.sent]) + 1)
        for missing in (number for number in wanted if number not in there):
            raise Damaged(
                f"spool {self.path} has lost segment {self._segment_path(missing)}, with records that may be uncommitted: "
                f"restore the file; {REMEDY}"
            )
        for number in there:
            following, own = heads.get(number + 1), heads[number]
            path = self._segment_path(number)
            if following is not None:
                if os.path.getsize(path) < following.before_end:
                    raise Damaged(f"{path} is truncated: it had {following.before_end} bytes of records; {REMEDY}")
                self.segments[number] = Segment(number, path, following.before_end, following.before_records)
            else:
                self.segments[number] = self._scan(number, path)
            # If the last segment has no records, use the progress of earlier segments, which its head contains.
            if own is not None and number == there[-1]:
                self.progress = self.progress or own.progress

    def _head(self, number: int, last: bool) -> Head | None:
        """Return the head of a segment. If a crash interrupted the creation of the segment, delete the file and return None."""
        path = self._segment_path(number)
        fd = self.storage.open(path)
        try:
            size = self.storage.size(fd)
            head = decode_head(self.storage.read(fd, HEAD_BYTES, 0))
            if head.number != number or head.id != self.state.id:
                raise FormatError("it belongs to another spool")
        except (Damaged, FormatError) as error:
            # The last run ended while it created this file, which therefore has no blocks.
            if last and size <= HEAD_BYTES and number > self.state.sent:
                self.storage.remove(path)
                return None
            raise Damaged(f"{path} cannot be read: {error}; {REMEDY}") from error
        finally:
            self.storage.close(fd)
        return head

    def _scan(self, number: int, path: str) -> Segment:
        """Scan the last segment, and return it with its valid length.

        Raises:
            Damaged: the segment is corrupt before its torn end.
        """
        fd, seed = self.storage.open(path), seed_of(self.state.id, number)
        try:
            walk, wrong = BlockIterator(lambda size, at: self.storage.read(fd, size, at), number, seed), ""
            try:
                for block in walk:
                    self.progress = decode_mark(block.progress)[1] or self.progress
            except FormatError as error:
                wrong = str(error)
            size = self.storage.size(fd)
            if not is_torn(lambda size, at: self.storage.read(fd, size, at), walk.at, size, number, seed):
                raise Damaged(
                    f"{path} is corrupt after record {walk.records} of it ({wrong or 'a block is incomplete'}), and the bytes "
                    f"after it were durable; {REMEDY}"
                )
            # Sync the file, because a killed run may have written data without a sync, and new records depend on this data.
            self.storage.make_durable(fd)
            self.storage.make_names_durable(self.path)
        except MediumError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}; {REMEDY}") from error
        finally:
            self.storage.close(fd)
        return Segment(number, path, walk.at, walk.records)

    # -- state

    @property
    def used(self) -> int:
        """The size of the spool in bytes."""
        # Count at least 4 KiB per file, because a file uses at least one block of the disk.
        return sum(max(segment.end, 4 * limits.KIB) for segment in self.segments.values()) + self.refused_bytes

    def counts(self) -> dict[int, int]:
        """Return the number of records in each segment, by segment number."""
        return {segment.number: segment.records for segment in self.segments.values()}

    @property
    def end(self) -> SpoolPosition:
        """The position after the last record of the spool."""
        return max((segment.last for segment in self.segments.values()), default=SpoolPosition(0, 0))

    # -- writing

    def append(self, batches: Sequence[Batch], flags: int) -> list[tuple[SpoolPosition, int]]:
        """Write batches, whose bodies are compressed according to `flags`, and make them durable.

        Afterwards, each batch has the progress and the CRC of its frame, which contain the mark.

        Returns:
            For each batch: the position after the batch, and the byte offset after its block.

        Raises:
            DiskFull: the disk is full, and the store is unchanged.
            DiskFailed: a write or a sync failed, and it is unknown which of the batches are on the disk.
        """
        segment, fd, seed = self._writable()
        parts, travel, at, records = [], [], segment.end, segment.records
        progress = self.progress
        for batch in batches:
            records += batch.count
            position = SpoolPosition(segment.number, records)
            progress = batch.progress or progress  # repeat the last progress, because the log keeps only that of the last batch
            mark = encode_mark(self.state.id, position, progress)
            crc = payload_crc(mark, batch.body)
            block = _block_of(batch, position, mark, crc, flags, segment.end)
            head, body = encode_block(block, seed)
            parts += [head, body]
            at += len(head) + len(body)
            travel.append((position, mark, crc, at))
        try:
            # Write and sync all batches together; change the segment object only after both steps have succeeded.
            self.storage.write(fd, parts, segment.end)
            self.storage.make_durable(fd)
        except OSError as error:
            failure = self._failure(f"{segment.path} cannot be written", error)
            if isinstance(failure, DiskFull):
                with suppress(OSError):
                    self.storage.truncate(fd, segment.end)  # frees the space; if this fails, the next write overwrites these bytes
            raise failure from error
        segment.end, segment.records, self.progress = at, records, progress
        for batch, (_, mark, crc, _) in zip(batches, travel, strict=True):
            batch.progress, batch.crc = mark, crc
        return [(position, end) for position, _, _, end in travel]

    def _writable(self) -> tuple[Segment, int, int]:
        """Return the segment to write to; create a segment at the first write of this run, and when the segment is full."""
        current = self._current
        if current is not None and current[0].end < self._segment_bytes:
            return current
        before = max(self.segments.values(), key=lambda segment: segment.number, default=None)
        # Never reuse the number of a deleted segment, because marks in the log contain segment numbers.
        number = max(before.number if before is not None else 0, self.state.sent, self.state.first - 1) + 1
        path = self._segment_path(number)
        head = Head(number, self.state.id, before.end if before else 0, before.records if before else 0, self.progress)
        try:
            fd = self.storage.open(path, create=True)
            try:
                # Make the head durable first: without it, the next run does not know the valid length of the previous segment.
                self.storage.write(fd, [encode_head(head)], 0)
                self.storage.make_durable(fd)
                self.storage.make_names_durable(self.path)
            except BaseException:
                self.storage.close(fd)
                raise
        except OSError as error:
            raise self._failure(f"{path} cannot be created", error) from error
        if current is not None:
            self.storage.close(current[1])
        segment = self.segments[number] = Segment(number, path, HEAD_BYTES, 0)
        self._current = segment, fd, seed_of(self.state.id, number)
        return self._current

    def note_sent(self, segment: int, log: str, start: EpochStart) -> None:
        """Record durably that records of that segment may be sent from now on, in an epoch that began with `start`."""
        self._write_state(log=log, sent=segment, since=start)

    def note_aside(self, done: SpoolPosition, aside: tuple[SpoolPosition, ...]) -> None:
        """Record durably that the batches at positions `aside` are refused, and that all batches before `done` have outcomes."""
        # Keep refused batches above `done` that an earlier run moved to `refused/` and this run has not read yet.
        kept = {*aside, *(position for position in self.aside if position > done)}
        self._write_state(done=done, aside=tuple(sorted(kept)))
        self.aside = kept

    def prune(self, known: SpoolPosition, done: SpoolPosition, *, closing: bool = False) -> bool:
        """Delete the segments whose records are all before `done`. Return True if a segment was deleted."""
        current = self._current[0].number if self._current is not None and not closing else -1
        over = []
        for segment in self.segments.values():
            if (segment.last > done and segment.records) or segment.number == current or segment.number > done.segment:
                break
            over.append(segment)
        if not over:
            return False
        # Write the state before the deletion: after a crash between the two steps, the next start deletes these files.
        self._write_state(first=over[-1].number + 1, known=known, done=done)
        if self._cursor is not None and self._cursor.position.segment <= over[-1].number:
            self._cursor.close()  # an open file would keep its disk space after the deletion
        for segment in over:
            try:
                with suppress(FileNotFoundError):
                    self.storage.remove(segment.path)
            except OSError as error:
                raise self._failure(f"{segment.path} cannot be removed", error) from error
            del self.segments[segment.number]
        return True

    def refuse(self, block: Block, error: Exception) -> None:
        """Write a refused batch and the reason of the refusal to a file in `refused/`, durably."""
        directory = self._file(REFUSED)
        path = os.path.join(directory, f"{block.position.segment:08}-{block.before.records + 1:012}.arrow")
        metadata = {"topic": block.topic, "producer": self.state.producer, "reason": str(error)}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, BATCH_SCHEMA.with_metadata(metadata)) as writer:
            writer.write_batch(decode_batch(block.body))
        data = sink.getvalue().to_pybytes()
        try:
            if not os.path.isdir(directory):
                make_directory(directory)
                self.storage.make_names_durable(self.path)
            replace(self.storage, path, data)
        except OSError as failed:
            raise self._failure(f"{directory} cannot be written", failed) from failed
        self.refused_bytes += len(data)
        self.aside.add(block.before)

    # -- reading

    def seek(self, position: SpoolPosition) -> None:
        """Move the read position, so that `next_block` returns the block after that position."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = Cursor(self.segments, self.state.id, self.storage, position)

    def next_block(self) -> Block | None:
        """Return the next block, or None at the end. Repeated calls return the same block until `advance` is called.

        Raises:
            Damaged: the block cannot be read.
        """
        invariant(self._cursor is not None, "seek() must precede next_block()")
        return self._cursor.next() if self._cursor is not None else None

    def advance(self) -> None:
        """Mark the current block as processed, so that `next_block` returns the following block."""
        if self._cursor is not None:
            self._cursor.advance()

    @property
    def read_all(self) -> bool:
        """True if every written block was read or skipped."""
        return self._cursor is not None and self._cursor.position >= self.end

    def skip(self, before: SpoolPosition, position: SpoolPosition, end: int) -> bool:
        """Skip the block between two positions, which ends at byte `end`. Return False if the block is not the next one."""
        return self._cursor is not None and self._cursor.skip(before, position, end)

    def _segment_path(self, number: int) -> str:
        return self._file(f"{number:08}.seg")

    def _write_state(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, **changes)
        path, data, reserve = self._file(STATE), encode_state(state), self._file(RESERVE)
        try:
            try:
                replace(self.storage, path, data)
            except OSError as error:
                if not is_disk_full(error) or not os.path.exists(reserve):
                    raise
                # Give the space of the reserve to the state file: the delivery needs a new state, and frees disk space.
                self.storage.remove(reserve)
                replace(self.storage, path, data)
        except OSError as error:
            raise self._failure(f"{path} cannot be written", error) from error
        self.state = state  # replace the whole object, because other threads read the state without a lock
        keep_reserve(self.storage, reserve)  # create the reserve again before another write takes the space

    def _failure(self, what: str, error: OSError) -> DiskFull | DiskFailed:
        """Return `DiskFull` if `error` means a full disk, or else a `DiskFailed` whose message begins with `what`."""
        if is_disk_full(error):
            return DiskFull(f"spool {self.path}: {error.strerror}")
        return DiskFailed(f"spool {what}: {error.strerror}")

    def seal(self) -> None:
        """At a regular end of the producer, make the valid length of the current segment durable, in the head of a new segment."""
        if self._current is not None and self._current[0].records:
            # With a segment limit of 0, `_writable` creates a new segment.
            self._segment_bytes = 0
            self._writable()

    def close(self) -> None:
        """Close all files, and release the lock of the directory."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        if self._current is not None:
            self.storage.close(self._current[1])
            self._current = None
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _block_of(batch: Batch, position: SpoolPosition, mark: bytes, crc: int, flags: int, synced: int) -> Block:
    return Block(
        position,
        batch.topic,
        mark,
        batch.body,
        flags,
        batch.atomic,
        batch.count,
        batch.raw_length,
        crc,
        batch.min_timestamp,
        batch.max_timestamp,
        synced,
        0,
        0,
    )
