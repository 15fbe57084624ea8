"""What bounds every connector; each has more of its own. Bytes, seconds, records."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # of a connector: producers and readers are named by it and by where their records come from
QUARANTINED_MAX = 10_000  # files
LABEL_CHARACTERS = 180  # of a record in quarantine: a file's name has 255
PAGE_CONNECTIONS_MAX = 32  # to the page of metrics; one more is closed at once
PAGE_S = 10.0  # for a request to it and its answer, and between two on one connection
PAGE_HEAD_BYTES_MAX = 16_384  # of a request to it
