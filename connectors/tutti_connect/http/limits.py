"""Limits of the HTTP connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Connections
CONNECTIONS_MAX = 1024  # at this limit, a new connection closes an idle one, of the network with the most idle connections
HEADER_BYTES_MAX = 16 * limits.KIB  # size of a request's head
HEAD_S = 10.0  # time to receive a request's head, from the start of the connection or from the previous answer
BODY_S = 30.0  # time to receive a request's body
SEND_S = 30.0  # a connection is closed if its peer does not read an answer for this time
# time and size limits for reading the rest of a rejected body, so that a peer that still sends receives the answer
LINGER_S, LINGER_BYTES_MAX = 2.0, 64 * limits.MIB
STOP_S = 10  # time to answer requests in progress after SIGTERM

# Posts: HTTP requests that send records to the log
BODY_BYTES_MAX = 16 * limits.MIB  # size of a request body; the frame made from it has its own limit
RAW_BYTES_MAX = limits.RAW_BYTES_MAX  # decompressed size of an Arrow stream
FRAME_BYTES_MAX = limits.BODY_BYTES_MAX
RECORDS_A_POST_MAX = 65_536  # number of records in one post
ARROW_BATCHES_MAX = 1024  # number of batches in one stream
BODIES_BYTES_MAX = 128 * limits.MIB  # received bytes of all requests in progress
LOOP_BYTES_MAX = 256 * limits.KIB  # a thread parses larger bodies, so that the event loop can answer other requests meanwhile
PARSERS = 2  # threads that parse bodies
POSTS_MAX = 256  # number of posts in progress; a post counts from the end of its body
BUFFER_BYTES = 64 * limits.MIB  # buffer of the producer for posts without a producer name
DELIVERY_S = 10.0  # time to wait until the log has committed or refused a post
POST_S = 25.0  # time for a post with a producer name, including the epochs that determine its outcome
TRIES_MAX = 8  # attempts of one post, for example while other processes take over its producer
FENCED_S_MIN, FENCED_S_MAX = 0.05, 1.0  # delay between two attempts of one post; doubles with each failure
CONNECT_S = 5.0  # time for a producer to connect

# Producers by name
PRODUCERS_OPEN_MAX = 64  # number of open named producers; each has a connection and a buffer
PRODUCER_BUFFER_BYTES = 2 * FRAME_BYTES_MAX  # holds one post at a time
OPENERS = 8  # threads that open and close producers
WAITING_A_PRODUCER_MAX = 16  # number of posts that wait for earlier posts of the same producer
PRODUCER_NAME_BYTES_MAX = 140  # length of a caller's producer name; in the log, the connector's name and a dot precede it
SEQUENCE_MAX = 2**53  # JSON implementations that use floats represent all integers up to this one exactly
POSTS_REMEMBERED = 1024  # number of recent posts of each producer that a process keeps, so that it recognises repeated posts
SEARCH_S = 5.0  # time to search the log for a repeated post whose offset is unknown
SEARCHERS = 2  # threads that search the log for repeated posts

# Spool
SPOOLERS = 16  # threads in which posts wait until their records are on the spool's disk
SPOOL_S = 10.0  # time to wait until the spool has written a post to its disk

# Receipts of posts that do not wait
RECEIPTS_MAX = 10_000  # number of receipts, with and without an outcome
RECEIPT_S = 900.0  # time for which a receipt is kept after its outcome is known

# Reads
PAGE_RECORDS, PAGE_RECORDS_MAX = 1_000, 10_000
PAGE_BYTES_MAX = 8 * limits.MIB  # size of an answer with more than one record
PAGE_S = 5.0  # time for scanning records that do not match
PAGE_ROWS = 1_000  # number of records scanned in one step
READERS = 8  # threads that compute pages
READS_WAITING_MAX = 64  # number of requests that wait for a reader thread
STREAMS_MAX = 32  # number of concurrent streams; each uses a thread and up to one batch of the log
STREAM_ROWS = 256  # number of records sent in one write
STREAM_POLL_S = 1.0  # longest wait of a stream for records; afterwards the stream checks whether it must end
HEARTBEAT_S = 10.0  # a stream without records sends a heartbeat after this time
READ_S = 10.0  # time for a gateway to answer

# Health
ARENAS_MAX = 2  # number of malloc arenas; each arena keeps freed memory, and by default about every thread gets its own arena
POLL_S = 1.0  # interval between polls of the group
POLL_WAIT_S = 3.0  # longest poll, and with a spool also the longest wait for a gateway at the start
CERTIFICATE_POLL_S = 10.0  # interval between checks for a renewed certificate

RETRY_AFTER_S = 1  # value of the Retry-After header
