"""Errors of gateways, clients and tools, in one hierarchy.

Every message names the problem with its value, the affected object, and the remedy. A command that fails returns the `exit_code` of
its error: 1 for a failure, 2 for wrong use, 3 for an unavailable gateway, 4 for corruption.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NoReturn


class TuttiError(Exception):
    """Base class of all errors that Tutti raises itself."""

    exit_code = 1


class ConfigError(TuttiError):
    """A configuration, an option or an address is wrong. The message contains the key, the value and the accepted values."""

    exit_code = 2


class WrongFile(ConfigError):
    """A file does not have the expected keys and values.

    The attribute `file` is its path, and `expected` identifies the expected kind of file, so that a command can report the kind
    that the file has instead.
    """

    def __init__(self, message: str, file: str, expected: str) -> None:
        super().__init__(message)
        self.file = file
        self.expected = expected


class UsageError(TuttiError, ValueError):
    """An argument of a call is not valid."""

    exit_code = 2


class FormatError(TuttiError):
    """Bytes do not have the expected format, or a file has an unknown or newer format version."""


class Damaged(FormatError):
    """Stored bytes fail their CRC or break the header chain.

    The message names the file and the byte offset. The attribute `position` is the log position; 0 means unknown.
    """

    exit_code = 4

    def __init__(self, message: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class DirectoryRefused(TuttiError):
    """A data directory cannot be used now: another process has locked it, or the system denies access."""


class WrongDirectory(DirectoryRefused):
    """A directory is not the expected one: it belongs to a different owner, or has a different format. A retry does not help."""

    exit_code = 2


class DiskFull(TuttiError):
    """The disk has no free space for the data. None of the data was acknowledged."""


class DiskFailed(TuttiError):
    """A write or an fsync failed, so the content of the disk is unknown.

    The log or spool accepts no more writes until its process restarts and scans the files.
    """


class Unavailable(TuttiError):
    """No gateway answered in time, or the gateway that answered cannot serve the request now.

    The message contains the result at each address and the time spent.
    """

    exit_code = 3


class Behind(Unavailable):
    """The frontier of the gateway is below a frontier that the reader has already seen (C7)."""


class OffsetOutOfRange(UsageError):
    """A range starts below the first available offset or ends above the frontier."""


class Refused(TuttiError):
    """A gateway rejected a request. The attribute `code` is the machine-readable reason.

    The attribute `topic` is the name of the topic if the gateway rejects only this topic.
    """

    def __init__(self, message: str, code: str = "refused", topic: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.topic = topic


class NotAllowed(Refused):
    """The credentials are invalid (`code` "token"), or lack a right (`code` "rights"). A retry does not help."""


class Aborted(Refused):
    """The log does not contain the record and never will (guarantee C2), also if the record was never sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "aborted")


class Fenced(Refused):
    """A newer instance of the same producer has begun an epoch. It is unknown whether the record commits."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "fenced")


class TooLarge(Refused, UsageError):
    """A record or a batch exceeds a limit. The message names the limit."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, "too_large")


class Unknown(TuttiError):
    """The record was sent, and the delivery deadline passed or the producer ended without an outcome. The record may still commit.

    A record that was never sent fails with `Aborted`, unless the record is in a spool. If the same producer sends the record again
    with the same epoch and sequence, the record commits at most once (guarantee C2).
    """


class BufferFull(TuttiError):
    """The producer's buffer is full, and `send` raises instead of blocking (`on_full="raise"`, or a call in `on_delivery`)."""


class InvariantViolated(TuttiError):
    """An invariant of the design (docs/design.md, section 9) would be violated. The gateway stops instead."""


def install_remedy(extra: str = "", python: str = "") -> str:
    """Return the remedy for a missing library: the command that installs Tutti with the extra that contains this library.

    Every error about a missing library uses this function, so that one place knows that the package is not on PyPI.

    Args:
        extra: extra in pyproject.toml that contains the library; "" for a library that every installation needs.
        python: interpreter to install the library for; "" for the one that `pip` on the search path belongs to.
    """
    pip = f"{python} -m pip" if python else "pip"
    target = f"'.[{extra}]'" if extra else "."
    return f"run {pip} install {target} in a checkout of Tutti, or name its wheel in place of the dot"


def misuse(text: str) -> Callable[..., NoReturn]:
    """Return a method that raises `UsageError`, for a protocol of Python that a class does not have."""

    def raise_error(*_: object) -> NoReturn:
        raise UsageError(text)

    return raise_error


def invariant(condition: object, message: str) -> None:
    """Raise `InvariantViolated` unless `condition` holds. Unlike `assert`, the check stays active under `python -O`."""
    if not condition:
        raise InvariantViolated(message)


def disk_remedy(gateway: str, others_decide: bool | None = None) -> str:
    """Return the remedy for a gateway whose disk is not the one in the roster, and which therefore has no vote.

    Args:
        gateway: name of the gateway.
        others_decide: whether the other gateways form a majority of the roster, which they never do in a group of two (None:
            unknown).
    """
    replace = f"`tutti members replace {gateway}`"
    force = (
        f"stop {gateway}, run `tutti roster force` at the gateways that remain, and add {gateway} with an empty directory "
        f"(`tutti members add {gateway} HOST:P`)"
    )
    if others_decide is None:
        return f"run {replace}, which needs a majority of the roster without {gateway}; without one, as in a group of two, {force}"
    return f"run {replace}" if others_decide else force


_DISK = "the disk or its file system failed: check the kernel log (dmesg), and repair or replace the disk"
_REMEDIES = {
    errno.EIO: _DISK,
    errno.EUCLEAN: _DISK,
    errno.EBADMSG: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "free space there, or raise the quota of this account",
    errno.EROFS: "its file system is read-only: mount it for writing, and check the kernel log (dmesg) for disk errors",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "raise the limit of open files of this machine (fs.file-max)",
    errno.ENOMEM: "free memory on this machine, or raise the limit of this process",
    errno.ESTALE: "the network file system lost the file: mount the file system again",
    errno.ENOLCK: "its file system does not support locks: use a local file system",
}


def remedy(error: OSError, otherwise: str = "check the path, its owner and mode") -> str:
    """Return the remedy for an error of the operating system. `otherwise` is the remedy for errors that have no own text."""
    return _REMEDIES.get(error.errno or 0, otherwise)
