"""Every bound of the HTTP connector. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Connections
CONNECTIONS_MAX = 1024  # for one more the one that waits longest without a request gives way
HEADER_BYTES_MAX = 16 * limits.KIB
HEAD_S = 10.0  # for a request's head, from the connection or the end of the answer before
BODY_S = 30.0  # for its body
SEND_S = 30.0  # that the other side may take nothing of an answer before it is cut
LINGER_S, LINGER_BYTES_MAX = 2.0, 64 * limits.MIB  # a body that is too large is read on to let its answer be heard
STOP_S = 10  # for what is under way when it is told to end

# Posts
BODY_BYTES_MAX = 16 * limits.MIB  # of JSON; what it becomes has the bounds of a frame
RAW_BYTES_MAX = limits.RAW_BYTES_MAX  # of an Arrow stream, decompressed
FRAME_BYTES_MAX = limits.BODY_BYTES_MAX
RECORDS_A_POST_MAX = 65_536
ARROW_BATCHES_MAX = 1024  # of one stream
BODIES_BYTES_MAX = 128 * limits.MIB  # of all requests, as far as they came
LOOP_BYTES_MAX = 256 * limits.KIB  # a larger body is parsed in a thread of its own: others are answered meanwhile
PARSERS = 2
POSTS_MAX = 256  # in hand at a time, with whole bodies
BUFFER_BYTES = 64 * limits.MIB  # of the producer of posts without a name
DELIVERY_S = 10.0  # for a post's outcome
POST_S = 25.0  # to find it out with new epochs
TRIES_MAX = 8  # epochs that a post begins, where other processes begin theirs
FENCED_S_MIN, FENCED_S_MAX = 0.05, 1.0  # before it takes the producer back; doubled
CONNECT_S = 5.0  # for a producer to begin

# Producers by name
PRODUCERS_OPEN_MAX = 64  # each has a connection and a buffer
PRODUCER_BUFFER_BYTES = 2 * FRAME_BYTES_MAX  # one post at a time
OPENERS = 8  # threads that open and close them
WAITING_A_PRODUCER_MAX = 16  # posts that wait for those before them
PRODUCER_NAME_BYTES_MAX = 140  # behind the connector's
SEQUENCE_MAX = 2**53  # what JSON's numbers carry everywhere
POSTS_REMEMBERED = 1024  # of one producer, to answer a repeat
SEARCH_S = 5.0  # for a repeated post that is not remembered, in the log
SEARCHERS = 2

# Spool
SPOOLERS = 16  # posts that wait for its disk at a time
SPOOL_S = 10.0  # for its disk

# Receipts of posts that do not wait
RECEIPTS_MAX = 10_000
RECEIPT_S = 900.0  # after the outcome

# Reads
PAGE_RECORDS, PAGE_RECORDS_MAX = 1_000, 10_000
PAGE_BYTES_MAX = 8 * limits.MIB  # of the answer; one record more fits in any case
PAGE_S = 5.0  # for looking through records that are not wanted
PAGE_ROWS = 1_000  # looked at together
READERS = 8  # pages made at a time
READS_WAITING_MAX = 64  # and that wait for that
STREAMS_MAX = 32  # each has a thread and up to one batch of the log
STREAM_ROWS = 256  # sent together
STREAM_POLL_S = 1.0
HEARTBEAT_S = 10.0
READ_S = 10.0  # for a gateway to answer

# Health
ARENAS_MAX = 2  # of the allocator: each thread else keeps freed memory of its own
LOOK_S = 1.0  # between two looks at the group
LOOK_WAIT_S = 3.0
CERTIFICATE_LOOK_S = 10.0  # between two looks whether the certificate is a new one

RETRY_AFTER_S = 1  # told to who is to come again
