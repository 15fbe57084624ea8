"""The gate: what a client submitted is checked here as a whole, before anything of it is ordered or written.

The body's CRC is the producer's own, so damage on the way shows here; then comes its content, by a few comparisons when it is plain
and by Arrow's full validation when not, and the limits. What fails is answered with the reason and never reaches the stack; a next
batch of the same producer then meets a sequence gap, and its client decides what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tutti import limits as common_limits
from tutti.data.client_protocol import RefusedAnswer
from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.bodies import TxnBody, decode_body, encode_body
from tutti.data.frames.frame import Frame, Kind, payload_crc
from tutti.data.frames.plain_body import check_plain
from tutti.data.frames.schema import BATCH_SCHEMA, TIME_US_MAX, TIME_US_MIN, validate_body
from tutti.errors import FormatError, TooLarge
from tutti_gateway.core import limits

SEQUENCE_MAX = 2**63 - 1  # sequences are shown as int64


class Gate:
    """Checks what clients submit."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._inflated: dict[int, int] = {}  # session -> bytes decompressed in this turn

    def begin_turn(self) -> None:
        """Each client may have so much decompressed in a turn; what it sends beyond that it sends again."""
        if self._inflated:
            self._inflated.clear()

    def check(self, session: int, frames: Iterable[Frame], *, lane: bool = False) -> tuple[list[Frame], list[RefusedAnswer]]:
        """Frames of a session that may be ordered, or go into the lane, and refusals of the others."""
        good: list[Frame] = []
        refused: list[RefusedAnswer] = []
        for frame in frames:
            try:
                check_header(frame)
                if lane and (frame.progress or frame.staged or frame.kind != Kind.BATCH):
                    raise FormatError("an unordered batch has no progress and is in no transaction: those are of the ordered log")
                if frame.codec and not self._affordable(session, frame):
                    reason = (
                        f"more than {limits.INFLATED_BYTES_A_TURN_MAX} bytes at once would have to be decompressed; send it again"
                    )
                    refused.append(RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, "busy", reason, retry=True))
                    continue
                check_body(frame)
            except TooLarge as error:
                refused.append(_refusal(frame, "too_large", error))
            except FormatError as error:
                refused.append(_refusal(frame, "malformed", error))
            else:
                good.append(frame)
        return good, refused

    def _affordable(self, session: int, frame: Frame) -> bool:
        """Whether a compressed batch may be looked at in this turn, which takes as long as it takes to decompress."""
        size = body_sizes(frame.body, len(BATCH_SCHEMA)).raw_bytes
        spent = self._inflated.get(session, 0)
        if spent and spent + size > limits.INFLATED_BYTES_A_TURN_MAX:
            return False
        self._inflated[session] = spent + min(size, common_limits.RAW_BYTES_MAX)
        return True


def check_header(frame: Frame) -> None:
    """Check what the header says of a submitted batch, and that the body is the one that was sent.

    Raises:
        TooLarge: the batch exceeds a limit; the message names the limit.
        FormatError: the sequences are none, or the CRC does not fit.
    """
    if frame.body_length > common_limits.BODY_BYTES_MAX:
        raise TooLarge(f"the batch has {frame.body_length} bytes and the limit is {common_limits.BODY_BYTES_MAX} as it travels")
    if frame.raw_length > common_limits.RAW_BYTES_MAX:
        raise TooLarge(f"the batch has {frame.raw_length} bytes decompressed and the limit is {common_limits.RAW_BYTES_MAX}")
    if not 1 <= frame.first_sequence <= SEQUENCE_MAX - frame.count or not frame.count:
        raise FormatError(f"{frame.count} records from sequence {frame.first_sequence} are no batch: sequences start at 1")
    if not TIME_US_MIN <= frame.min_timestamp <= frame.max_timestamp <= TIME_US_MAX:
        raise FormatError(
            f"timestamps from {frame.min_timestamp} to {frame.max_timestamp} us are outside of the years 1 to 9999, or out of order"
        )
    found = payload_crc(frame.progress, frame.body)
    if found != frame.body_crc:
        raise FormatError(
            f"the batch arrived damaged: its CRC is {found:#010x} and its header says {frame.body_crc:#010x}; send it again"
        )


def check_body(frame: Frame) -> None:
    """Check that the body is a valid batch of what the header says.

    Raises:
        TooLarge: a record exceeds the limit.
        FormatError: anything else; the message says what was wrong.
    """
    if frame.kind == Kind.TXN:
        _check_txn(frame)
        return
    layout = check_plain(frame)
    if layout and layout.key_size + layout.value_size <= common_limits.RECORD_BYTES_MAX:
        return
    batch = validate_body(frame, common_limits.RAW_BYTES_MAX)
    if batch.nbytes > common_limits.RECORD_BYTES_MAX:  # only then can one of its records be too large
        _check_records(batch)


def _check_txn(frame: Frame) -> None:
    body = decode_body(TxnBody, frame.body)
    plain = not frame.flags and not frame.raw_length and encode_body(body) == bytes(frame.body)
    if not body.good(common_limits.STAGED_BATCHES_MAX) or not plain or sum(body.counts) != frame.count:
        raise FormatError(
            f"a transaction names 1 to {common_limits.STAGED_BATCHES_MAX} staged batches, each once, each of its records, "
            "and no flags"
        )


def _check_records(batch: pa.RecordBatch) -> None:
    keys, values = (_lengths(batch.column(number)) for number in (0, 1))
    largest = int((keys + values).max())
    if largest > common_limits.RECORD_BYTES_MAX:
        raise TooLarge(f"a record's key and value have {largest} bytes and the limit is {common_limits.RECORD_BYTES_MAX}")


def _lengths(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Bytes of each value of a validated binary column; what a null covers counts too, since it travels."""
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    ends: npt.NDArray[np.int64] = offsets.to_numpy().astype(np.int64)
    return ends[1:] - ends[:-1]


def _refusal(frame: Frame, code: str, error: Exception) -> RefusedAnswer:
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, str(error), retry=False)
