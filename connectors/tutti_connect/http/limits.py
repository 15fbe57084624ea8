"""Limits of the HTTP connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Connections
CONNECTIONS_MAX = 1024  # above this number, a new connection closes the one that has waited longest without a request
HEADER_BYTES_MAX = 16 * limits.KIB
HEAD_S = 10.0  # time for a request's head, after the connection or the previous answer
BODY_S = 30.0  # time for a request's body
SEND_S = 30.0  # a connection is closed if its peer does not read an answer for this time
# reading of the rest of a body that is too large, so that the peer receives the answer
LINGER_S, LINGER_BYTES_MAX = 2.0, 64 * limits.MIB
STOP_S = 10  # time for requests in progress when the process ends

# Posts
BODY_BYTES_MAX = 16 * limits.MIB  # size of a JSON body; the converted frame has the limits of a frame
RAW_BYTES_MAX = limits.RAW_BYTES_MAX  # decompressed size of an Arrow stream
FRAME_BYTES_MAX = limits.BODY_BYTES_MAX
RECORDS_A_POST_MAX = 65_536
ARROW_BATCHES_MAX = 1024  # number of batches in one stream
BODIES_BYTES_MAX = 128 * limits.MIB  # received bytes of all requests in progress
LOOP_BYTES_MAX = 256 * limits.KIB  # a larger body is parsed in a thread, so that other requests are answered in the meantime
PARSERS = 2
POSTS_MAX = 256  # number of concurrent posts with complete bodies
BUFFER_BYTES = 64 * limits.MIB  # buffer of the producer for posts without a producer name
DELIVERY_S = 10.0  # time to wait for a post's outcome
POST_S = 25.0  # time to determine the outcome with new epochs
TRIES_MAX = 8  # epochs that a post starts in competition with other processes
FENCED_S_MIN, FENCED_S_MAX = 0.05, 1.0  # delay before the next epoch of a fenced producer; doubles
CONNECT_S = 5.0  # time for a producer to connect

# Producers by name
PRODUCERS_OPEN_MAX = 64  # each has a connection and a buffer
PRODUCER_BUFFER_BYTES = 2 * FRAME_BYTES_MAX  # holds one post at a time
OPENERS = 8  # threads that open and close producers
WAITING_A_PRODUCER_MAX = 16  # posts that wait for earlier posts of their producer
PRODUCER_NAME_BYTES_MAX = 140  # after the connector's name and a dot
SEQUENCE_MAX = 2**53  # largest integer that all JSON implementations represent exactly
POSTS_REMEMBERED = 1024  # number of posts of one producer that are kept to answer repeated posts
SEARCH_S = 5.0  # time to search the log for a repeated post that is not in the history
SEARCHERS = 2

# Spool
SPOOLERS = 16  # number of posts that wait for the spool's disk at the same time
SPOOL_S = 10.0  # time to wait for the spool's disk

# Receipts of posts that do not wait
RECEIPTS_MAX = 10_000
RECEIPT_S = 900.0  # time for which a receipt is kept after its outcome is known

# Reads
PAGE_RECORDS, PAGE_RECORDS_MAX = 1_000, 10_000
PAGE_BYTES_MAX = 8 * limits.MIB  # size of an answer; one more record always fits
PAGE_S = 5.0  # time for scanning records that do not match
PAGE_ROWS = 1_000  # number of records scanned in one step
READERS = 8  # number of pages computed at the same time
READS_WAITING_MAX = 64  # requests that wait for a reader thread
STREAMS_MAX = 32  # each uses a thread and up to one batch of the log
STREAM_ROWS = 256  # number of records sent in one write
STREAM_POLL_S = 1.0
HEARTBEAT_S = 10.0
READ_S = 10.0  # time for a gateway to answer

# Health
ARENAS_MAX = 2  # number of allocator arenas; with more, each thread would keep freed memory
POLL_S = 1.0  # interval between polls of the group
POLL_WAIT_S = 3.0
CERTIFICATE_POLL_S = 10.0  # interval between checks for a renewed certificate

RETRY_AFTER_S = 1  # value of the Retry-After header
