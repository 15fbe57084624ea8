"""What bounds every connector; each has more of its own. Bytes, seconds, records."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # of a connector: producers and readers are named by it and by where their records come from
QUARANTINED_MAX = 10_000  # files
LABEL_CHARACTERS = 180  # of a record in quarantine: a file's name has 255
