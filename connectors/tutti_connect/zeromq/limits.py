"""Limits of the ZeroMQ connectors. Bytes, seconds, messages."""

from __future__ import annotations

from tutti import limits

MESSAGES_A_BATCH = 4096  # number of messages read from the socket in one batch
BYTES_A_BATCH = 4 * limits.MIB  # bytes read from the socket in one batch; the last message may exceed this
SOCKET_POLL_S = 0.02  # longest wait for messages, or for space in the buffer, before other work
HIGH_WATER_MARK = 1000  # default number of messages that ZeroMQ buffers for one connection
HIGH_WATER_MARK_MAX = 1_000_000
MESSAGE_BYTES_MAX = 2 * limits.RECORD_BYTES_MAX  # size of one message part; a peer that sends a larger part is disconnected
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # size of key and value
RECORD_OVERHEAD_BYTES = 32  # size of a record's other fields in a frame, besides key and value
FRAME_BYTES = 256 * limits.KIB  # largest size of a frame of the log that has more than one record
TOPICS_MAX = 1000  # number of different topics in the messages to one instance
ENDPOINTS_MAX = 64  # number of endpoints of one connector
BUFFER_BYTES = 32 * limits.MIB  # size of received messages that are not committed; the producer has a buffer of this size, too
DELIVERY_S = 30.0  # delivery timeout of a frame; afterwards a new epoch of the producer determines the frame's outcome
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # delay before a restart; doubles with each failure
DRAIN_S = 1.0  # after SIGTERM: time to read the messages that ZeroMQ has buffered
KEPT_FRAMES_MAX = 16  # number of frames of a rejected message that quarantine keeps
KEPT_BYTES_MAX = 64 * limits.KIB  # number of bytes that quarantine keeps of each frame of a rejected message
POLL_S = 0.2  # longest wait for records before the connector reads new subscriptions
SLOW_MS_MAX = 20  # longest wait between send attempts to a slow subscriber; starts at 1 and doubles
SUBSCRIPTION_CHECK_RECORDS = 128  # number of published records after which the connector reads new subscriptions
SUBSCRIPTIONS_A_CHECK = 1000  # number of subscriptions that the connector reads before it continues publishing
SUBSCRIPTION_BYTES_MAX = 1024  # size of one prefix; a peer that sends a larger prefix is disconnected
START_POLL_S = 0.2  # interval of the check whether the log exists
SAVE_S = 1.0  # interval between offset commits; a restart after a crash repeats the records of this time
READER_PATIENCE_S = 10.0  # time to wait for a gateway before the connector logs that none answers
LINGER_MS = 2000  # after SIGTERM: time for ZeroMQ to send the messages that it has buffered
PREVIOUS_MAX = 100_000  # number of topics whose last offset the connector keeps in memory
