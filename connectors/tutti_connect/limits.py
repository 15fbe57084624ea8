"""What bounds every connector; each has more of its own. Bytes, seconds, records."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # of a connector: producers and readers are named by it and by where their records come from
QUARANTINED_MAX = 10_000  # files of one record each
QUARANTINED_BYTES_MAX = 1024 * 1024 * 1024  # of all of them; a record more fits in any case
QUARANTINE_LOG_FILES = 16  # files of many messages each
QUARANTINE_LOG_FILE_BYTES = 16 * 1024 * 1024  # of one of them; a message more fits in any case
QUARANTINE_LOG_LOOK_S = 1.0  # between two checks of a full directory
QUARANTINE_LOG_TELL_S = 10.0  # between two log lines about quarantined messages
LABEL_CHARACTERS = 180  # of a record in quarantine: a file's name has 255
