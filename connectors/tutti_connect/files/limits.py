"""Limits of the files connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

FILES_MAX = 200_000  # known to the ledger; about 100 MB of memory
BLOCK_BYTES = 256 * limits.KIB  # of one read
ROW_BYTES_MAX = 2 * limits.RECORD_BYTES_MAX  # of a row in a file, including quotes and escapes; a longer row is rejected
HEADER_BYTES_MAX = limits.MIB
COLUMNS_MAX = 4096
PARQUET_ROWS = 4096  # decoded in one batch
PIECE_BYTES = 64 * limits.MIB  # of one growing file before other files have their turn
FRAME_BYTES = 256 * limits.KIB  # target size of one frame; one more record always fits
FRAME_RECORDS = 16_384
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # key and value
RECORD_OVERHEAD_BYTES = 32
BUFFER_BYTES = 16 * limits.MIB  # of the producer's buffer
WINDOW_BYTES = 4096  # of a file's start, and before a position: their digest identifies the content
KEPT_BYTES_MAX = 64 * limits.KIB  # of a quarantined row; the file has the rest
DELIVERY_S = 30.0  # afterwards a new epoch finds out a frame's outcome
WAIT_S = 0.1  # longest time between two checks for outcomes while frames are in flight
SETTLE_S = 0.5  # between two writes of settled pieces to the ledger; correctness does not depend on it
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # before a restart after a failure; doubles
LOOK_SHARE = 0.1  # share of the time that directory scans may take
AGAIN_S = 10.0  # before the next attempt to open a file after a failure
LEDGER_WAIT_S = 10.0  # for another process to release the ledger
