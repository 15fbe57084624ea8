"""Every bound of the connectors of ZeroMQ. Bytes, seconds, messages."""

from __future__ import annotations

from tutti import limits

MESSAGES_A_TURN = 4096  # taken from the socket at once
BYTES_A_TURN = 4 * limits.MIB  # likewise; one message more fits in any case
TURN_S = 0.02  # for so long a turn waits for messages, or for room
HIGH_WATER_MARK = 1000  # messages that ZeroMQ holds for one connection
HIGH_WATER_MARK_MAX = 1_000_000
MESSAGE_BYTES_MAX = 2 * limits.RECORD_BYTES_MAX  # of one frame of a message; who sends a larger one is disconnected
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # key and value
RECORD_OVERHEAD_BYTES = 32
FRAME_BYTES = 256 * limits.KIB  # what one frame of the log is meant to have; a record more fits in any case
TOPICS_MAX = 1000  # that one instance begins by what messages name
ENDPOINTS_MAX = 64
HELD_BYTES_MAX = 32 * limits.MIB  # taken and not committed, and as much again in the producer
DELIVERY_S = 30.0  # then a frame's outcome is looked for by a new epoch
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, 5.0  # before it begins again; doubled
DRAIN_S = 1.0  # at the end, to take what ZeroMQ holds
KEPT_FRAMES_MAX = 16  # of a message in quarantine
KEPT_BYTES_MAX = 64 * limits.KIB  # of each frame of a message in quarantine
POLL_S = 0.2  # for records to publish, before subscribers are looked at again
SLOW_MS_MAX = 20  # between two tries to send to a subscriber that has no room; from 1 on, doubled
HEAR_RECORDS = 128  # between two looks at subscribers while a batch is published
HEARD_A_TURN = 1000  # of what subscribers say
SUBSCRIPTION_BYTES_MAX = 1024  # of one prefix; who sends a larger one is disconnected
BEGIN_LOOK_S = 0.2  # between two looks whether the log has begun
SAVE_S = 1.0  # between two saves of what was published: so much comes again after a crash
READER_PATIENCE_S = 10.0  # for a gateway to answer, before that is told
LINGER_MS = 2000  # at the end, to send what was published
PREVIOUS_MAX = 100_000  # topics of which the offset before is known
