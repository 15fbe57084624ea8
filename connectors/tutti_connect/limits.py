"""Limits that all connectors share, in bytes, seconds and records. Each connector has further limits of its own."""

from __future__ import annotations

NAME_BYTES_MAX = 100  # length of a connector's name, which is the prefix of the names of its producers and readers
QUARANTINED_MAX = 10_000  # number of files in a quarantine directory; each contains one record
QUARANTINED_BYTES_MAX = 1024 * 1024 * 1024  # total size of the files in a quarantine directory; the last record may exceed it
QUARANTINE_LOG_FILES = 16  # number of files of a `QuarantineLog`; each contains many messages
QUARANTINE_LOG_FILE_BYTES = 16 * 1024 * 1024  # size at which a file of a `QuarantineLog` ends; the last message may exceed it
QUARANTINE_LOG_CHECK_S = 1.0  # pause after a full directory or a failed write, before the next attempt
QUARANTINE_LOG_REPORT_S = 10.0  # interval between log lines about quarantined messages
LABEL_CHARACTERS = 180  # length of the label in the file name of a quarantined record; file systems allow 255
