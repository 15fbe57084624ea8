"""Limits of all connectors; each connector has more of its own. Bytes, seconds, records."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # length of a connector's name, which is a prefix of its producer and reader names
QUARANTINED_MAX = 10_000  # number of files in a quarantine directory; each contains one record
QUARANTINED_BYTES_MAX = 1024 * 1024 * 1024  # total size of the files in a quarantine directory; one more record always fits
QUARANTINE_LOG_FILES = 16  # number of files of a `QuarantineLog`; each contains many messages
QUARANTINE_LOG_FILE_BYTES = 16 * 1024 * 1024  # size of one file; one more message always fits
QUARANTINE_LOG_CHECK_S = 1.0  # interval between checks for free space in a full directory
QUARANTINE_LOG_REPORT_S = 10.0  # interval between log lines about quarantined messages
LABEL_CHARACTERS = 180  # length of the label in the file name of a quarantined record; file systems allow 255
