"""Checks the batches that clients submit, before the gateway orders them or writes them to its disk.

The producer computes the CRC of the body, so the check also detects corruption on the network. A plain body needs only a few
comparisons. A body that is not plain needs Arrow's full validation. An invalid batch is refused with the reason, and never reaches
the stack. After a refusal, the next batch of the same producer has a sequence gap, and the client decides what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import google_crc32c
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

SEQUENCE_MAX = 2**63 - 1  # readers get sequences as int64


class BatchValidator:
    """Validates the batches that clients submit."""

    def __init__(self) -> None:
        """Create a validator."""
        self._decompressed: dict[int, int] = {}  # session -> bytes decompressed in this iteration

    def reset_budgets(self) -> None:
        """Reset each client's budget of decompressed bytes for the next iteration."""
        if self._decompressed:
            self._decompressed.clear()

    def check(self, session: int, frames: Iterable[Frame], *, lane: bool = False) -> tuple[list[Frame], list[RefusedAnswer]]:
        """Return the valid frames of a session, and a refusal for each other frame.

        Args:
            session: number of the session, for its budget of decompressed bytes.
            frames: batches that the client of the session has submitted.
            lane: whether the batches go to this gateway's lane instead of the ordered log.
        """
        good: list[Frame] = []
        refused: list[RefusedAnswer] = []
        for frame in frames:
            try:
                check_header(frame)
                if lane and (frame.progress or frame.staged or frame.kind != Kind.BATCH):
                    raise FormatError(
                        "an unordered batch has progress or belongs to a transaction: only the ordered log has progress and "
                        "transactions"
                    )
                # Without a budget, one client could hold up the socket thread, because a small body may decompress to 32 MiB.
                if frame.codec and not self._within_budget(session, frame):
                    reason = (
                        f"the batches of this client exceed {limits.INFLATED_BYTES_A_TURN_MAX} decompressed bytes at once; "
                        "send this batch again"
                    )
                    refused.append(RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, "busy", reason, retry=True))
                    continue
                check_body(frame)
            except TooLarge as error:  # permanent: the client must split the batch
                refused.append(_refusal(frame, "too_large", error))
            except FormatError as error:
                refused.append(_refusal(frame, "malformed", error))
            else:
                good.append(frame)
        return good, refused

    def _within_budget(self, session: int, frame: Frame) -> bool:
        """True if the session's budget suffices to decompress the batch, or if this is the session's first batch in the
        iteration.
        """
        size = body_sizes(frame.body, len(BATCH_SCHEMA)).raw_bytes
        spent = self._decompressed.get(session, 0)
        if spent and spent + size > limits.INFLATED_BYTES_A_TURN_MAX:
            return False
        # A false stated size must not use up the budget: a batch above `RAW_BYTES_MAX` is refused before decompression.
        self._decompressed[session] = spent + min(size, common_limits.RAW_BYTES_MAX)
        return True


def lone_valid(frame: Frame) -> bool:
    """True if an uncompressed batch from `decode_lone_submit` is valid and plain. If False, `BatchValidator` finds the reason."""
    count = frame.count
    if (
        not 1 <= frame.first_sequence <= SEQUENCE_MAX - count
        or not TIME_US_MIN <= frame.min_timestamp <= frame.max_timestamp <= TIME_US_MAX
        or google_crc32c.value(frame.body) != frame.body_crc
    ):
        return False
    # A layout exists only for at least one record. The body is small, so no record in it exceeds the limit of a record.
    return check_plain(frame) is not None


def check_header(frame: Frame) -> None:
    """Check the header of a submitted batch, and the CRC of its body.

    Raises:
        TooLarge: the batch exceeds a limit; the message has the limit.
        FormatError: the sequences or timestamps are invalid, or the CRC does not match.
    """
    if frame.body_length > common_limits.BODY_BYTES_MAX:
        raise TooLarge(f"the batch has {frame.body_length} bytes on the wire and the limit is {common_limits.BODY_BYTES_MAX}")
    if frame.raw_length > common_limits.RAW_BYTES_MAX:
        raise TooLarge(f"the batch has {frame.raw_length} bytes decompressed and the limit is {common_limits.RAW_BYTES_MAX}")
    if not 1 <= frame.first_sequence <= SEQUENCE_MAX - frame.count or not frame.count:
        raise FormatError(
            f"a batch of {frame.count} records from sequence {frame.first_sequence} is invalid: it needs at least one record, and "
            "sequences start at 1"
        )
    if not TIME_US_MIN <= frame.min_timestamp <= frame.max_timestamp <= TIME_US_MAX:
        raise FormatError(
            f"timestamps from {frame.min_timestamp} to {frame.max_timestamp} us are outside the years 1 to 9999, or out of order"
        )
    # The CRC comes last, because it reads the whole body, while the checks of the header read a few numbers.
    found = payload_crc(frame.progress, frame.body)
    if found != frame.body_crc:
        raise FormatError(
            f"the batch arrived corrupt: its CRC is {found:#010x} and its header has {frame.body_crc:#010x}; send the batch again"
        )


def check_body(frame: Frame) -> None:
    """Check that the body is a valid batch and agrees with the header.

    Raises:
        TooLarge: a record exceeds the limit.
        FormatError: the body is invalid; the message has the fault.
    """
    if frame.kind == Kind.TXN:
        _check_txn(frame)
        return
    # A few comparisons replace Arrow's full validation for plain bodies, which are the most frequent.
    layout = check_plain(frame)
    if layout and layout.key_size + layout.value_size <= common_limits.RECORD_BYTES_MAX:
        return
    batch = validate_body(frame, common_limits.RAW_BYTES_MAX)
    if batch.nbytes > common_limits.RECORD_BYTES_MAX:  # a batch below the limit of a record has no record above it
        _check_records(batch)


def _check_txn(frame: Frame) -> None:
    body = decode_body(TxnBody, frame.body)
    plain = not frame.flags and not frame.raw_length and encode_body(body) == bytes(frame.body)
    if not body.good(common_limits.STAGED_BATCHES_MAX) or not plain or sum(body.counts) != frame.count:
        raise FormatError(
            f"the transaction is malformed: it must name 1 to {common_limits.STAGED_BATCHES_MAX} staged batches, each once, "
            f"whose counts add up to its {frame.count} records, and have no flags"
        )


def _check_records(batch: pa.RecordBatch) -> None:
    keys, values = (_lengths(batch.column(number)) for number in (0, 1))
    largest = int((keys + values).max())
    if largest > common_limits.RECORD_BYTES_MAX:
        raise TooLarge(f"the key and value of a record have {largest} bytes and the limit is {common_limits.RECORD_BYTES_MAX}")


def _lengths(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Return the size in bytes of each value of a validated binary column, including the bytes that null values occupy."""
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    ends: npt.NDArray[np.int64] = offsets.to_numpy().astype(np.int64)
    return ends[1:] - ends[:-1]


def _refusal(frame: Frame, code: str, error: Exception) -> RefusedAnswer:
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, str(error), retry=False)
