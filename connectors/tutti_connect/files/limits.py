"""Every bound of the connector from files. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

FILES_MAX = 200_000  # that the ledger knows; some 100 MB of memory
BLOCK_BYTES = 256 * limits.KIB  # read at once
ROW_BYTES_MAX = (
    2 * limits.RECORD_BYTES_MAX
)  # of a row as it stands in a file, quotes and escapes included; a longer one is no record
HEADER_BYTES_MAX = limits.MIB
COLUMNS_MAX = 4096
PARQUET_ROWS = 4096  # decoded at once
PIECE_BYTES = 64 * limits.MIB  # of one growing file before others have their turn
FRAME_BYTES = 256 * limits.KIB  # what one frame is meant to have; a record more fits in any case
FRAME_RECORDS = 16_384
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # key and value
RECORD_OVERHEAD_BYTES = 32
BUFFER_BYTES = 16 * limits.MIB  # of the producer
WINDOW_BYTES = 4096  # of a file's beginning, and of what lies before a place: they tell whether it is the file that it was
KEPT_BYTES_MAX = 64 * limits.KIB  # of a row in quarantine; the file has the rest
DELIVERY_S = 30.0  # then a frame's outcome is looked for by a new epoch
WAIT_S = 0.1  # between two looks at outcomes while something is on its way, at most
SETTLE_S = 0.5  # between two writes of what is committed into the ledger, which nothing depends on
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # before it begins again after a failure; doubled
LOOK_SHARE = 0.1  # of the time may go to looking what is in the directory
AGAIN_S = 10.0  # before a file that could not be opened is tried again
LEDGER_WAIT_S = 10.0  # for another process to let go of the ledger
