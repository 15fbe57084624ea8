"""Every bound of the connector from Kafka. Bytes, seconds, records."""

from __future__ import annotations

from gateway.core import limits

MESSAGES_A_TURN = 10_000  # taken from Kafka's client at once; a partition that waits for room has so many at most beside its buffer
TURN_S = 0.02  # for so long a turn waits for messages: Kafka's client gives what it has when it is over
OPENERS = 4  # threads that open and close producers
KAFKA_S = 10.0  # for Kafka to answer a question
DELIVERY_S = 30.0  # then a frame's outcome is looked for by a new epoch
HANDOVER_S = 5.0  # at most, to deliver what is on its way of partitions that another instance gets
LOOK_S = 0.5  # between two looks at how much Kafka has
CHECK_S = 5.0  # between two looks whether topics are those that they were
REPORT_S = 5.0  # between two commits of Kafka's own offsets, which others read the lag from
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, limits.RETRY_US_MAX / 1e6  # before a partition begins again; doubled
FENCED_S_MIN, FENCED_S_MAX = 5.0, 60.0  # the same where it was fenced: by then Kafka has told whoever lost it
BUFFER_BYTES_ALL = 256 * limits.MIB  # of all producers, as long as each has its least
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = limits.MIB, 16 * limits.MIB  # of one
FRAME_BYTES = 512 * limits.KIB  # what one frame is meant to have; a record more fits in any case
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # key, value and headers
RECORD_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES = 32, 16  # at least what columns take for one beside its bytes
