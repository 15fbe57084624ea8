"""Limits of the files connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

FILES_MAX = 200_000  # number of files in the ledger, whose entries then take about 100 MB of memory
BLOCK_BYTES = 256 * limits.KIB  # size of one read
ROW_BYTES_MAX = 2 * limits.RECORD_BYTES_MAX  # size of a row in a file, including quotes and escapes; a longer row is rejected
HEADER_BYTES_MAX = limits.MIB  # size of the header row of a CSV file
COLUMNS_MAX = 4096  # number of columns of a file
PARQUET_ROWS = 4096  # number of rows decoded in one batch
PIECE_BYTES = 64 * limits.MIB  # bytes read from one growing file before the connector continues with the other files
FRAME_BYTES = 256 * limits.KIB  # largest size of a frame with more than one record
FRAME_RECORDS = 16_384  # number of records in one frame
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # size of key and value
RECORD_OVERHEAD_BYTES = 32  # size of a record's other fields in a frame, besides key and value
BUFFER_BYTES = 16 * limits.MIB  # size of the producer's buffer
# number of bytes that a fingerprint covers at the start of a file, and again before a position
WINDOW_BYTES = 4096
KEPT_BYTES_MAX = 64 * limits.KIB  # size of the part of a rejected row that quarantine keeps; the source file has the rest
DELIVERY_S = 30.0  # delivery timeout of a frame; afterwards a new epoch of the producer determines the frame's outcome
WAIT_S = 0.1  # longest time between two checks for outcomes while frames are in flight
LEDGER_WRITE_S = 0.5  # interval between writes of the ledger, apart from the write before each send
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # delay before a restart after a failure; doubles with each failure
SCAN_TIME_SHARE = 0.1  # largest share of the time that the connector spends on directory scans
FILE_RETRY_S = 10.0  # delay before the next attempt to open a file after a failure
LEDGER_WAIT_S = 10.0  # time to wait until another process releases the ledger
