"""A session: one epoch of the producer. Scans the directory, sends the rows of its files in order, and records the outcomes."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tutti.batching.receipt import Receipt
from tutti.errors import BufferFull, TuttiError
from tutti.producer import Producer
from tutti_connect.files import limits
from tutti_connect.files.discovery.candidates import Candidate, CandidateFinder
from tutti_connect.files.discovery.directory import ScannedFile, is_opaque
from tutti_connect.files.discovery.ledger import File, Ledger, Piece, State
from tutti_connect.files.disposal import Disposal
from tutti_connect.files.formats.batches import Builder, Frame
from tutti_connect.files.formats.file_reader import FileReader
from tutti_connect.files.formats.rows import BadRow, Rows, Unreadable
from tutti_connect.files.position import FilePosition
from tutti_connect.quarantine import as_base64

if TYPE_CHECKING:
    from tutti_connect.files.connector import Connector

LOG = logging.getLogger("tutti.files")


class _PendingPiece(NamedTuple):
    """A piece of a file that was read, and waits for the commit of its last frame (number `last`). A piece with records is
    `sent`.
    """

    piece: Piece
    last: int
    sent: bool


class Session:
    """Copies files during one epoch of the producer.

    An I/O thread calls `on_delivery`; one other thread calls all other methods.
    """

    def __init__(self, connector: Connector, ledger: Ledger, stop: threading.Event) -> None:
        """Start an epoch of the producer, which fences an older instance, and read the position to continue from.

        Raises:
            Unavailable: no gateway answers.
            Fenced: a newer instance has taken over.
            FormatError: another program wrote the progress in the log.
            WrongDirectory: the progress belongs to another ledger.
        """
        self._connector, self._ledger, self._stop = connector, ledger, stop
        config = connector.config
        self._config = config
        self._producer = Producer(
            config.gateways,
            producer=config.name,
            buffer_bytes=limits.BUFFER_BYTES,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
        )
        try:
            progress = self._producer.resume().progress
            position = FilePosition.decode(progress, config.name) if progress else None
            ledger.take_over(position, self._producer.epoch, config.name)
        except BaseException:
            self._producer.close()
            raise
        self._finder = CandidateFinder(config, ledger)
        self._disposal = Disposal(config, ledger)
        self._builder = Builder(ledger.id)
        self._pending_pieces: collections.deque[_PendingPiece] = collections.deque()
        self._outcomes: collections.deque[tuple[TuttiError | None, int, int]] = collections.deque()
        self._outcome_event = threading.Event()
        self._committed = 0  # number of committed frames
        self._ledger_write_at = 0.0
        self._retry_at: dict[str, float] = {}  # files that could not be read -> time of the next attempt
        self._has_more = False  # True if a growing file has more rows, because the last scan read only its next `PIECE_BYTES`

    def run(self) -> None:
        """Run until `stop` is set, and then deliver the sent records.

        Raises:
            TuttiError: the session has failed; a new session reads the uncommitted rows again.
        """
        self._disposal.carry_out()
        while not self._stop.is_set():
            started = time.monotonic()
            self._scan()
            self._wait(started + max(self._config.files.poll_ms / 1000, self._scan_s / limits.SCAN_TIME_SHARE))
        self._finish()

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def _scan(self) -> None:
        """Scan the directory, and read the files found."""
        connector, started = self._connector, time.monotonic()
        found = connector.directory.scan()
        connector.log_skipped()
        candidates = self._finder.candidates(found)
        for file in self._finder.renamed:
            self._disposal.add(file)
        self._scan_s = time.monotonic() - started
        connector.waiting = sum(map(self._bytes_left, candidates))
        self._has_more = False
        # Skip files with an uncommitted piece, because the position to continue from is known only after the commit.
        busy = {pending.piece.file for pending in self._pending_pieces}
        for candidate in candidates:
            if self._stop.is_set():
                return
            is_free = candidate.file is None or candidate.file.id not in busy
            if is_free and self._retry_at.get(candidate.seen.name, 0.0) <= started:
                self._read_candidate(candidate)
                connector.waiting = max(0, connector.waiting - self._bytes_left(candidate))
        for frame in self._builder.flush():
            self._send(frame)

    def _bytes_left(self, candidate: Candidate) -> int:
        """Return the bytes of a file that are not copied yet; for gzip and Parquet, the file's whole size."""
        size, file = candidate.seen.size, candidate.file
        return size if file is None or is_opaque(candidate.seen.name, self._config.files.format) else max(0, size - file.done)

    def _read_candidate(self, candidate: Candidate) -> None:
        """Read one file up to its current end."""
        seen = candidate.seen
        try:
            source = FileReader(str(self._connector.directory.root / seen.name), self._config)
        except OSError as error:
            self._retry_later(seen.name, error)
            return
        with source:
            file = self._ledger_entry(source, seen, candidate.file)
            if file is not None:
                self._read(source, file, seen.topic)

    def _retry_later(self, name: str, error: OSError) -> None:
        now = time.monotonic()
        self._retry_at = {other: at for other, at in self._retry_at.items() if at > now}
        self._retry_at[name] = now + limits.FILE_RETRY_S
        self._connector.failures += 1
        LOG.warning("%s: %s: next attempt in %g s", name, (error.strerror or str(error)).lower(), limits.FILE_RETRY_S)

    def _ledger_entry(self, source: FileReader, seen: ScannedFile, file: File | None) -> File | None:
        """Return the ledger entry of an opened file, or None if the connector need not read the file."""
        status = source.status
        if (status.st_ino, status.st_mtime_ns) != (seen.inode, seen.changed_ns) and not self._config.files.grows:
            return None  # another file now has this name; the next scan finds that file
        if file is not None and not self._is_continuation(source, seen, file):
            return None if file.state is State.CHANGED else self._ledger_entry(source, seen, None)
        if file is None:
            file = self._ledger.new_file(seen.name)
        elif file.state is State.COPIED:
            self._disposal.add_touched(file)
            return None
        file.name, file.state = seen.name, State.OPEN
        file.inode, file.size, file.changed_ns = status.st_ino, status.st_size, status.st_mtime_ns
        self._ledger.put(file)
        if self._config.files.grows and file.done == status.st_size:
            self._finder.read_to_end[file.id] = (status.st_size, status.st_mtime_ns)
            return None
        return file

    def _is_continuation(self, source: FileReader, seen: ScannedFile, file: File) -> bool:
        """True if the opened file begins with the content that was copied from the file of the ledger entry `file`.

        If the file begins with other content, log the change, and delete the entry or mark it as changed.
        """
        status, files = source.status, self._config.files
        copied = file.state in (State.COPIED, State.UNREADABLE, State.CHANGED)
        if source.has_copied_content(file.done, file.mark) and not (
            copied and (file.size != status.st_size or file.state != State.COPIED)
        ):
            if copied:  # the file was touched, or moved away and back, so only its stat fields changed
                file.inode, file.changed_ns = status.st_ino, status.st_mtime_ns
                self._ledger.put(file)
            return True
        if file.state is State.UNREADABLE and not file.done:
            self._ledger.remove(file)  # no part of the file is in the log
            return False
        if file.done or copied:
            self._log_changed(seen, file)
        if files.grows or files.changed == "take" or not (file.done or copied):
            self._ledger.remove(file)
            return False
        file.inode, file.size, file.changed_ns, file.state = status.st_ino, status.st_size, status.st_mtime_ns, State.CHANGED
        self._ledger.put(file)
        return False

    def _log_changed(self, seen: ScannedFile, file: File) -> None:
        self._connector.changed += 1
        grows, take = self._config.files.grows, self._config.files.changed == "take"
        what = 'no more of it is copied; rename it, or set changed = "take"'
        if grows or take:
            what = "it is read from its beginning"
        LOG.warning("%s differs from the content that is in the log up to row %d: %s", seen.name, file.row, what)

    def _read(self, source: FileReader, file: File, topic: str) -> None:
        piece = self._ledger.new_piece(file)
        sent = False
        blocks = source.rows(file.done, file.row)
        while (rows := self._next_rows(blocks, file, piece)) is not None:
            self._quarantine(rows.bad, file, piece)
            for frame in self._builder.add(rows, topic, file.name, piece, source):
                self._send(frame)
            sent = sent or bool(rows.values)
            self._connector.bytes += rows.at - piece.at
            piece.at, piece.row = rows.at, rows.row
            if self._stop.is_set():
                piece.state = State.OPEN
                break
        piece.mark, piece.ended = source.mark(piece.at), True
        self._ledger.put_piece(piece)
        self._pending_pieces.append(_PendingPiece(piece, self._builder.last, sent))
        if self._config.files.grows:
            status = source.status
            self._finder.read_to_end[file.id] = (status.st_size, status.st_mtime_ns)
            self._has_more = self._has_more or status.st_size - piece.at > limits.ROW_BYTES_MAX
        elif source.changed():
            LOG.warning("%s changed while it was read: write files elsewhere, and rename them when they are complete", file.name)

    def _next_rows(self, blocks: Iterator[Rows], file: File, piece: Piece) -> Rows | None:
        """Return the next rows of a file; at its end or after an error, set `piece.state` and return None."""
        piece.state = State.OPEN
        try:
            rows = next(blocks, None)
        except Unreadable as error:
            self._quarantine_rest(file, piece, error)
            piece.state = State.UNREADABLE
        except OSError as error:
            self._retry_later(file.name, error)
        else:
            if rows is None and not self._config.files.grows:
                piece.state = State.COPIED
            return rows
        return None

    def _quarantine(self, bad: list[BadRow], file: File, piece: Piece) -> None:
        """Write rejected rows durably to quarantine, before any later row is sent."""
        for one in bad:
            size = one.size or len(one.data)
            fields = {
                "file": file.name,
                "row": one.row,
                "at": one.at,
                "bytes": size,
                "row_base64": as_base64(one.data[: limits.KEPT_BYTES_MAX]),
            }
            if self._connector.quarantine.put(f"{file.name}-{one.row}", (self._ledger.id, str(file.id)), one.reason, fields):
                LOG.warning("%s row %d: quarantined: %s", file.name, one.row, one.reason)
            piece.bad += 1
            self._ledger.put_piece(piece)

    def _quarantine_rest(self, file: File, piece: Piece, error: Unreadable) -> None:
        """Log a file whose rest is unreadable, and add it to quarantine; the connector continues with other files."""
        fields = {"file": file.name, "rows_taken": piece.row, "at": piece.at, "bytes": file.size}
        self._connector.quarantine.put(f"{file.name}-file", (self._ledger.id, str(file.id)), str(error), fields)
        LOG.warning("%s is unreadable after row %d: %s", file.name, piece.row, error)
        piece.bad += 1

    # Frames in flight.

    def _send(self, frame: Frame) -> None:
        """Pass a frame to the producer when its buffer has space; give up when the connector stops.

        Raises:
            TuttiError: an earlier frame failed.
        """
        self._ledger.write()  # write first: after a crash, the frame's progress must refer to a piece that the ledger has
        outcome = partial(self.on_delivery, frame.number)
        while not self._stop.is_set():
            self._process_outcomes()
            try:
                receipt = self._producer.send_batch(frame.topic, frame.records, frame.position.encode(), outcome)
            except BufferFull:
                self._outcome_event.wait(limits.WAIT_S)
                continue
            if receipt.done() and receipt.error is not None:
                # a later frame must not be sent: its progress would mark the records of this frame as copied, too
                raise receipt.error
            return

    def on_delivery(self, number: int, error: TuttiError | None, receipt: Receipt) -> None:
        """Queue the outcome of a frame for the session's thread; the client calls this in an I/O thread."""
        self._outcomes.append((error, number, receipt.count))
        self._outcome_event.set()

    def _process_outcomes(self) -> None:
        """Process the queued outcomes, and apply each committed piece to its file.

        Raises:
            TuttiError: a frame failed.
        """
        self._outcome_event.clear()
        while self._outcomes:
            error, number, count = self._outcomes.popleft()
            if error is not None:
                raise error
            self._committed = max(self._committed, number)
            self._connector.records += count
            self._connector.reset_backoff()
        while self._pending_pieces and self._pending_pieces[0].last <= self._committed:
            pending = self._pending_pieces.popleft()
            file = self._ledger.apply_piece(pending.piece, sent=pending.sent)
            if file is not None and file.state is State.COPIED:
                self._connector.files += 1
                self._disposal.add(file)

    def _write_ledger(self) -> None:
        """Write committed pieces to the ledger, and carry out disposals."""
        self._ledger.write()
        self._disposal.carry_out()

    def _wait(self, deadline: float) -> None:
        """Process outcomes until the next scan is due: at the deadline (monotonic seconds), or at once if a file has more rows."""
        while not self._stop.is_set():
            self._process_outcomes()
            now = time.monotonic()
            if now >= self._ledger_write_at or not self._pending_pieces:
                self._ledger_write_at = now + limits.LEDGER_WRITE_S
                self._write_ledger()
            if now >= deadline or (self._has_more and not self._pending_pieces):
                return
            if self._pending_pieces:
                self._outcome_event.wait(min(limits.WAIT_S, deadline - now))
            else:
                self._stop.wait(deadline - now)

    def _finish(self) -> None:
        """Wait up to `limits.DELIVERY_S` for outcomes; the next instance reads rows without an outcome again."""
        self._producer.flush(limits.DELIVERY_S)
        self._process_outcomes()
        self._write_ledger()
