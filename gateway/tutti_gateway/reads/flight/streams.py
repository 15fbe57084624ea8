"""Streams of records: a range with an end, or a range that follows the log.

A stream is an iterator. A thread of the Flight library requests the next batch after the network has accepted the previous one, so
nothing is prefetched. A slow reader therefore occupies at most three batches and one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from pyarrow import flight

from tutti import limits as common_limits
from tutti.data.frames.columns import check_columns, schema_of
from tutti.data.histograms import LATENCY_BOUNDS_US, Histogram
from tutti.errors import Behind, Damaged
from tutti.log.read.reader import DecidedEnd
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit, Lease
from tutti_gateway.reads.common.idle_connections import Call
from tutti_gateway.reads.common.memory_budget import MemoryBudget
from tutti_gateway.reads.logs.ranges import ResolvedRange
from tutti_gateway.reads.logs.served_logs import ServedLog, ServedLogs
from tutti_gateway.reads.protocol.flight_errors import ReadError, converting_corruption, corruption_error, flight_error
from tutti_gateway.reads.protocol.tickets import Ticket

US = 1_000_000
METADATA_KEY = b"tutti"
Batch = pa.RecordBatch | tuple[pa.RecordBatch, pa.Buffer]
"""An item of a stream: a batch, with or without application metadata."""


class StreamMeters:
    """Counters of reads. Concurrent streams may lose an increment, which does not matter in a graph."""

    def __init__(self) -> None:
        self.opened = 0
        self.records = 0
        self.bytes = 0
        self.batches = 0
        self.failed = 0
        self.batch_us = Histogram(LATENCY_BOUNDS_US)

    def read(self) -> dict[str, int]:
        """Return the number of records and bytes that all streams of this process have returned."""
        return {"records": self.records, "bytes": self.bytes}


class Stream:
    """One caller's stream, which raises only Flight errors, and releases its lease at the end or after an error."""

    def __init__(self, batches: Iterator[Batch], lease: Lease, call: Call, meters: StreamMeters) -> None:
        """Create a stream of `batches` for `call`. The stream holds `lease` until its end."""
        self._batches = batches
        self._lease = lease
        self._call = call
        self._meters = meters

    def __iter__(self) -> Stream:
        """Return this iterator, because the Flight library calls `iter` first."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        try:
            item = next(self._batches)
        except StopIteration:
            self._lease.release()
            raise
        except Exception as error:
            self._lease.release()
            self._meters.failed += 1
            raise flight_error(error) from error
        batch = item[0] if isinstance(item, tuple) else item
        self._meters.batches += 1
        self._meters.records += batch.num_rows
        self._meters.bytes += batch.nbytes
        return item


class Streams:
    """Opens streams, within the limits."""

    def __init__(
        self,
        served_logs: ServedLogs,
        report_corruption: Callable[[str, int], bool] = lambda lane, position: False,
    ) -> None:
        """Create the service.

        Args:
            served_logs: finds the log that a ticket requests.
            report_corruption: reports an unreadable position to the gateway, and returns True if other gateways hold it.
        """
        self._report_corruption = report_corruption
        self._served_logs = served_logs
        self.scans = ConcurrencyLimit("streams", limits.STREAMS_MAX, limits.BUSY_WAIT_US_MAX)
        self.followers = ConcurrencyLimit("follow streams", limits.FOLLOWERS_MAX, limits.BUSY_WAIT_US_MAX)
        self.meters = StreamMeters()
        self.memory = MemoryBudget()

    def open(self, ticket: Ticket, call: Call, is_cancelled: Callable[[], bool]) -> flight.FlightDataStream:
        """Open the stream that a ticket requests.

        Args:
            ticket: the request.
            call: the Flight call, which keeps its connection from counting as idle while the stream exists.
            is_cancelled: returns True if the caller has disconnected.

        Raises:
            ReadError: the ticket is wrong, or the limit of streams is reached.
        """
        # If an error occurs below, the lease is garbage collected, which releases the slot.
        lease = (self.followers if ticket.follow else self.scans).acquire(is_cancelled)
        served = self._served_logs.find(ticket.lane)
        if ticket.follow:
            refuse_if_stalled(served)
        with converting_corruption(self._report_corruption, ticket.lane):
            resolved = served.ranges.resolve(ticket, is_cancelled)
        schema = schema_of(check_columns(ticket.columns)).with_metadata({METADATA_KEY: metadata(served, resolved)})
        if ticket.follow or resolved.end is None:
            batches = self._follow(served, ticket, resolved, is_cancelled)
        else:
            batches = iter(self._scan(served, ticket, resolved.start, resolved.end))
        self.meters.opened += 1
        stream = Stream(batches, lease, call, self.meters)
        return flight.GeneratorStream(schema, stream)  # type: ignore[arg-type]  # the library also accepts pairs

    def _batch_bytes(self) -> int:
        """Return the size in bytes up to which a stream joins small frames. More concurrent streams mean a smaller size.

        A stream that waits for its reader holds about three times that size: a batch in gRPC, and the next batch with computed
        columns.
        """
        streams = max(1, self.scans.used + self.followers.used)
        share = limits.READ_BUFFERS_BYTES // (limits.READ_BATCHES_A_STREAM * streams)
        return min(max(share, common_limits.READ_BATCH_BYTES_MIN), common_limits.READ_BATCH_BYTES_MAX)

    def _scan(
        self, served: ServedLog, ticket: Ticket, start: int, end: int, *, sequential: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a committed range.

        Args:
            sequential: whether this stream has just read the records before `start`.
        """
        reached = start
        try:
            batches = scan(
                served.reader,
                start,
                end,
                topics=ticket.topics,
                columns=ticket.columns,
                rows_max=common_limits.READ_BATCH_ROWS_MAX,
                bytes_max=self._batch_bytes(),
                sequential=sequential,
            )
            while (batch := self._next_batch(batches)) is not None:
                # Check this at each batch, because a stop of the gateway must not wait for the end of a long scan.
                if served.watch.stopping:
                    raise _stopping()
                yield batch
                reached += batch.num_rows
                del batch  # lets gRPC free this batch before the next one is built
        except Damaged as error:
            # With a topic filter, the rows sent do not show which offset the scan has reached, so the error then names no offset.
            where = {"offset": reached} if ticket.topics is None else {}
            raise corruption_error(error, self._report_corruption, served.lane, **where) from error

    def _next_batch(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        # The reservation ends when the batch exists, because the allocated bytes then include the batch.
        with self.memory.reserve_batch():
            began = time.monotonic_ns()
            batch = next(batches, None)
            if batch is not None:
                self.meters.batch_us.add((time.monotonic_ns() - began) // 1000)
            return batch

    def _follow(
        self, served: ServedLog, ticket: Ticket, resolved: ResolvedRange, is_cancelled: Callable[[], bool]
    ) -> Iterator[Batch]:
        """Yield committed records from the start of the range, and wait at the frontier for more.

        The last batch of each scan carries the offset that the scan reached, from which a reader can continue elsewhere.
        """
        at, end = resolved.start, resolved.end
        schema = schema_of(check_columns(ticket.columns))
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
        while end is None or at < end:
            frontier = served.watch.now()
            upto = frontier.offset if end is None else min(frontier.offset, end)
            # Without new records, an empty batch after each beat lets both ends notice a broken connection.
            if upto <= at:
                frontier = served.watch.wait(at, limits.FOLLOW_BEAT_US, is_cancelled)
                if served.watch.stopping:
                    raise _stopping()
                if is_cancelled():
                    return
                if frontier.offset <= at:
                    refuse_if_stalled(served)
                    yield empty, _progress(at, frontier)
                continue
            began = time.monotonic()
            last = empty
            # Each batch is sent one step late, because the last batch of the scan must carry the offset reached.
            try:
                for batch in self._scan(served, ticket, at, upto, sequential=at > resolved.start):
                    if last is not empty:
                        yield last
                    last = batch
            except (ReadError, Behind):
                if last is not empty:
                    yield last  # valid: the error concerns only the records after this batch
                raise
            # The scan has covered all offsets below `upto`, even if a topic filter has removed the last records.
            at = upto
            yield last, _progress(at, frontier)
            # Pause, so that small batches that are committed one after another reach the caller in one message.
            time.sleep(max(0.0, limits.FOLLOW_GAP_US / US - (time.monotonic() - began)))


def metadata(served: ServedLog, resolved: ResolvedRange) -> bytes:
    """Return the metadata of a stream's schema: the log, its start, the frontier and the range."""
    return msgspec.json.encode(
        {
            "log": served.reader.log,
            **served.about,
            "start": served.reader.start,
            "frontier": resolved.frontier.offset,
            "range": (resolved.start, resolved.end),
        }
    )


def refuse_if_stalled(served: ServedLog) -> None:
    """Refuse to wait for new records at a stalled gateway.

    Raises:
        ReadError: `unavailable`.
    """
    if served.watch.silent:
        raise ReadError("unavailable", "this gateway has stalled: continue at another gateway, from the offset reached")


def _stopping() -> ReadError:
    return ReadError("stopping", "this gateway is stopping: continue at another gateway, from the offset reached")


def _progress(at: int, frontier: DecidedEnd) -> pa.Buffer:
    return pa.py_buffer(msgspec.json.encode({"next": at, "frontier": frontier.offset}))
