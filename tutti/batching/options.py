"""Batching options of a producer, and their validation."""

from __future__ import annotations

from typing import NamedTuple

from tutti import limits
from tutti.batching.encoder import Compression
from tutti.common.deadlines import check_seconds
from tutti.data.frames.schema import compression_flags
from tutti.errors import UsageError


class BatchingOptions(NamedTuple):
    """Batching options of a producer; sizes in bytes, times in seconds."""

    linger: float = 0.0
    batch_bytes: int = limits.BATCH_BYTES
    buffer_bytes: int = limits.BUFFER_BYTES
    block: bool = True
    compression: Compression = None
    delivery_timeout: float = limits.DELIVERY_TIMEOUT_US / 1e6
    staged: bool = False  # records stay invisible until a transaction commits them
    # bytes of records above a full buffer, or above a full spool, that `send` accepts without waiting
    overflow_bytes: int = 0
    dead_letters_denied: bool = False  # the spool moves a batch to `refused/` if the producer lacks the right to its topic


def checked_options(
    linger: float, batch_bytes: int, buffer_bytes: int, on_full: str, compression: Compression, delivery_timeout: float
) -> BatchingOptions:
    """Validate the options of a producer and return them.

    Raises:
        UsageError: an option is wrong. The message names the option.
    """
    check_seconds("linger", linger)
    check_seconds("delivery_timeout", delivery_timeout)
    check_bytes("batch_bytes", batch_bytes)
    check_bytes("buffer_bytes", buffer_bytes)
    if not limits.KIB <= batch_bytes <= limits.BATCH_BYTES_MAX:
        raise UsageError(f"batch_bytes={batch_bytes} is outside of {limits.KIB} to {limits.BATCH_BYTES_MAX}")
    if buffer_bytes < limits.BUFFER_BYTES_MIN:
        raise UsageError(f"buffer_bytes={buffer_bytes} is too small: at least {limits.BUFFER_BYTES_MIN}")
    if on_full not in ("block", "raise"):
        raise UsageError(f"on_full={on_full!r} is unknown: use 'block' or 'raise'")
    if delivery_timeout <= linger:
        raise UsageError(f"delivery_timeout={delivery_timeout:g} must be longer than linger={linger:g}")
    compression_flags(compression)
    return BatchingOptions(
        linger, min(batch_bytes, buffer_bytes // 2), buffer_bytes, on_full == "block", compression, delivery_timeout
    )


def check_bytes(what: str, value: object) -> None:
    """Raise a `UsageError` that names the option `what`, unless `value` is an int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{what} must be a whole number of bytes, not {value!r}")
