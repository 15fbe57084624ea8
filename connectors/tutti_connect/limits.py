"""Limits of all connectors; each connector has more of its own. Bytes, seconds, records."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # of a connector's name, which is a prefix of its producer and reader names
QUARANTINED_MAX = 10_000  # files of one record each
QUARANTINED_BYTES_MAX = 1024 * 1024 * 1024  # total of all files; one more record always fits
QUARANTINE_LOG_FILES = 16  # each file holds many messages
QUARANTINE_LOG_FILE_BYTES = 16 * 1024 * 1024  # of one file; one more message always fits
QUARANTINE_LOG_CHECK_S = 1.0  # between two checks for free space in a full directory
QUARANTINE_LOG_REPORT_S = 10.0  # between two log lines about quarantined messages
LABEL_CHARACTERS = 180  # in the file name of a quarantined record; file systems allow 255
