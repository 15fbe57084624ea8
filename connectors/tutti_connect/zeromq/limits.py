"""Limits of the ZeroMQ connectors. Bytes, seconds, messages."""

from __future__ import annotations

from tutti import limits

MESSAGES_A_BATCH = 4096  # number of messages read from the socket in one batch
BYTES_A_BATCH = 4 * limits.MIB  # bytes read from the socket in one batch; one more message always fits
SOCKET_POLL_S = 0.02  # time of one wait for messages, or for free space
HIGH_WATER_MARK = 1000  # default number of messages that ZeroMQ buffers for one connection
HIGH_WATER_MARK_MAX = 1_000_000
MESSAGE_BYTES_MAX = 2 * limits.RECORD_BYTES_MAX  # size of one message part; a peer that sends a larger part is disconnected
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # size of key and value
RECORD_OVERHEAD_BYTES = 32  # size of a record in a frame, besides key and value
FRAME_BYTES = 256 * limits.KIB  # target size of one frame of the log; one more record always fits
TOPICS_MAX = 1000  # number of different topics that messages to one instance may have
ENDPOINTS_MAX = 64  # number of endpoints of one connector
BUFFER_BYTES = 32 * limits.MIB  # bytes of messages that are received but not committed; the producer buffers the same size again
DELIVERY_S = 30.0  # delivery timeout of a frame; afterwards a new epoch of the producer determines the frame's outcome
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # delay before a restart; doubles
DRAIN_S = 1.0  # time at the end for reading the messages that ZeroMQ buffers
KEPT_FRAMES_MAX = 16  # parts of a quarantined message that are kept
KEPT_BYTES_MAX = 64 * limits.KIB  # bytes of each part of a quarantined message that are kept
POLL_S = 0.2  # longest wait for records before the next check for subscriptions
SLOW_MS_MAX = 20  # longest wait between send attempts to a slow subscriber; starts at 1 and doubles
SUBSCRIPTION_CHECK_RECORDS = 128  # number of records between checks for subscriptions while a batch is published
SUBSCRIPTIONS_A_CHECK = 1000  # subscription messages read in one check
SUBSCRIPTION_BYTES_MAX = 1024  # size of one prefix; a peer that sends a larger prefix is disconnected
START_POLL_S = 0.2  # interval between checks for the start of the log
SAVE_S = 1.0  # interval between offset commits; after a crash, the records of this time are repeated
READER_PATIENCE_S = 10.0  # time to wait for a gateway before the failure is logged
LINGER_MS = 2000  # time at the end for sending published records
PREVIOUS_MAX = 100_000  # number of topics whose last offset is kept in memory
