"""Limits of the HTTP connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Connections
CONNECTIONS_MAX = 1024  # above this number, a new connection closes the one that has waited longest without a request
HEADER_BYTES_MAX = 16 * limits.KIB  # size of a request's head
HEAD_S = 10.0  # time for a request's head, after the connection or the previous answer
BODY_S = 30.0  # time for a request's body
SEND_S = 30.0  # a connection is closed if its peer does not read an answer for this time
# time and bytes for reading the rest of a body that is too large; without this, the peer may not receive the answer
LINGER_S, LINGER_BYTES_MAX = 2.0, 64 * limits.MIB
STOP_S = 10  # time for requests in progress when the process ends

# Posts
BODY_BYTES_MAX = 16 * limits.MIB  # size of a JSON body; the converted frame has the limits of a frame
RAW_BYTES_MAX = limits.RAW_BYTES_MAX  # decompressed size of an Arrow stream
FRAME_BYTES_MAX = limits.BODY_BYTES_MAX
RECORDS_A_POST_MAX = 65_536  # number of records in one post
ARROW_BATCHES_MAX = 1024  # number of batches in one stream
BODIES_BYTES_MAX = 128 * limits.MIB  # received bytes of all requests in progress
LOOP_BYTES_MAX = 256 * limits.KIB  # a larger body is parsed in a thread, so that other requests are answered in the meantime
PARSERS = 2  # threads that parse bodies
POSTS_MAX = 256  # number of concurrent posts with complete bodies
BUFFER_BYTES = 64 * limits.MIB  # buffer of the producer for posts without a producer name
DELIVERY_S = 10.0  # time to wait for a post's outcome
POST_S = 25.0  # time to determine the outcome of a post with a producer name, with new epochs if needed
TRIES_MAX = 8  # number of epochs that a post may start while other processes use the same producer name
FENCED_S_MIN, FENCED_S_MAX = 0.05, 1.0  # delay before the next epoch of a fenced producer; doubles
CONNECT_S = 5.0  # time for a producer to connect

# Producers by name
PRODUCERS_OPEN_MAX = 64  # number of open named producers; each has a connection and a buffer
PRODUCER_BUFFER_BYTES = 2 * FRAME_BYTES_MAX  # holds one post at a time
OPENERS = 8  # threads that open and close producers
WAITING_A_PRODUCER_MAX = 16  # number of posts that wait for earlier posts of the same producer
PRODUCER_NAME_BYTES_MAX = 140  # length of a caller's producer name; in the log, the connector's name and a dot precede it
SEQUENCE_MAX = 2**53  # largest integer that all JSON implementations represent exactly
POSTS_REMEMBERED = 1024  # number of posts of one producer that are kept to answer repeated posts
SEARCH_S = 5.0  # time to search the log for a repeated post that is not in the history
SEARCHERS = 2  # threads that search the log for repeated posts

# Spool
SPOOLERS = 16  # number of posts that wait for the spool's disk at the same time
SPOOL_S = 10.0  # time to wait for the spool's disk

# Receipts of posts that do not wait
RECEIPTS_MAX = 10_000  # number of receipts, with and without an outcome
RECEIPT_S = 900.0  # time for which a receipt is kept after its outcome is known

# Reads
PAGE_RECORDS, PAGE_RECORDS_MAX = 1_000, 10_000
PAGE_BYTES_MAX = 8 * limits.MIB  # size of an answer; one more record always fits
PAGE_S = 5.0  # time for scanning records that do not match
PAGE_ROWS = 1_000  # number of records scanned in one step
READERS = 8  # number of pages computed at the same time
READS_WAITING_MAX = 64  # number of requests that wait for a reader thread
STREAMS_MAX = 32  # number of concurrent streams; each uses a thread and up to one batch of the log
STREAM_ROWS = 256  # number of records sent in one write
STREAM_POLL_S = 1.0  # longest wait of a stream for records, before it checks whether it must end
HEARTBEAT_S = 10.0  # a stream without records sends a heartbeat after this time
READ_S = 10.0  # time for a gateway to answer

# Health
ARENAS_MAX = 2  # number of allocator arenas; with more, each thread would keep freed memory
POLL_S = 1.0  # interval between polls of the group
POLL_WAIT_S = 3.0  # longest wait for the first poll if there is a spool, and for the last poll at the end
CERTIFICATE_POLL_S = 10.0  # interval between checks for a renewed certificate

RETRY_AFTER_S = 1  # value of the Retry-After header
