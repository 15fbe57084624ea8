"""One small hierarchy of errors, shared by gateways, clients and tools.

Every message says what was wrong (with the value), where, and what to do. `exit_code` is what a command that ends with the error
returns: 1 failed, 2 wrong use, 3 unavailable, 4 damage found.
"""

from __future__ import annotations

import errno


class TuttiError(Exception):
    """Base of everything that Tutti raises on purpose."""

    exit_code = 1


class ConfigError(TuttiError):
    """A configuration, an option or an address is wrong; the message names the key, the value and what is taken."""

    exit_code = 2


class UsageError(TuttiError, ValueError):
    """A call got an argument that it cannot take."""

    exit_code = 2


class FormatError(TuttiError):
    """Bytes do not have the form that they should have (a frame, a message, a file of another or a newer format)."""


class Damaged(FormatError):
    """Stored bytes fail their CRC or break the chain; names the position (`position`; 0: not known), the file and the byte."""

    exit_code = 4

    def __init__(self, message: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class DirectoryRefused(TuttiError):
    """A data directory cannot be used now: another process holds it, or the system does not let it be read or written."""


class WrongDirectory(DirectoryRefused):
    """A directory is not the one that was meant: another gateway's, group's or log's, of another format, or nobody's. Trying again
    does not help.
    """

    exit_code = 2


class DiskFull(TuttiError):
    """There is no room for the data; nothing of it was acknowledged."""


class DiskFailed(TuttiError):
    """A write or an fsync failed; the log takes no more writes until the gateway is started again."""


class Unavailable(TuttiError):
    """No gateway answered in time, or the one that did cannot serve the request now; the message names each and for how long."""

    exit_code = 3


class Behind(Unavailable):
    """The gateway's frontier is below one that the reader has already seen (C7); the reader waits or asks another gateway."""


class OffsetOutOfRange(UsageError):
    """A range starts below what the log still holds or beyond its frontier."""


class Refused(TuttiError):
    """A gateway refused a request; `code` is the machine-readable reason. `topic`: the refusal concerns this topic alone."""

    def __init__(self, message: str, code: str = "refused", topic: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.topic = topic


class NotAllowed(Refused):
    """Who asks is not known (`code` "token"), or may not do this ("rights"); asking again does not help."""


class Aborted(Refused):
    """The message is in no committed log, ever (C2)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "aborted")


class Fenced(Refused):
    """A newer instance of the same producer has begun an epoch; whether the message committed is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "fenced")


class TooLarge(Refused, UsageError):
    """A record or a batch exceeds a limit; the message names the limit."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, "too_large")


class Unknown(TuttiError):
    """The delivery deadline passed without an outcome; a new send under the same identity commits at most once (C2)."""


class BufferFull(TuttiError):
    """A producer's buffer has no room now, and it was told to raise rather than to wait."""


class InvariantViolated(TuttiError):
    """Something that may never happen was about to happen (DESIGN 9); the gateway stops rather than go on."""


def invariant(condition: object, message: str) -> None:
    """Raise `InvariantViolated` unless `condition` holds. Unlike `assert` it stays on under `python -O`."""
    if not condition:
        raise InvariantViolated(message)


def disk_remedy(gateway: str, others_decide: bool | None = None) -> str:
    """Return how a gateway gets its vote when it has another disk than the roster names.

    Args:
        gateway: its name.
        others_decide: True if the other gateways are a majority of the roster; False if they never are, as in a group of two;
            None if that is not known.
    """
    replace = f"`tutti members replace {gateway}`"
    force = (
        f"stop {gateway}, run `tutti roster force` at the gateways that remain, and add {gateway} with an empty directory "
        f"(`tutti members add {gateway} HOST:P`)"
    )
    if others_decide is None:
        return f"run {replace}, which needs a majority of the roster without {gateway}; without one, as in a group of two, {force}"
    return f"run {replace}" if others_decide else force


_DISK = "the disk or its file system failed: see the kernel's log (dmesg), and repair or replace it"
_REMEDIES = {
    errno.EIO: _DISK,
    errno.EUCLEAN: _DISK,
    errno.EBADMSG: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "free space there, or raise the quota of this account",
    errno.EROFS: "its file system is mounted read-only: mount it for writing; after errors of the disk it mounts itself so (dmesg)",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "raise the limit of open files of this machine (fs.file-max)",
    errno.ENOMEM: "free memory on this machine, or raise the limit of this process",
    errno.ESTALE: "its network file system lost it: mount that again",
    errno.ENOLCK: "its file system gives no locks: use a local one",
}


def remedy(error: OSError, otherwise: str = "check the path, its owner and mode") -> str:
    """Return what to do about an error of the operating system; `otherwise` where the path or its permissions are wrong."""
    return _REMEDIES.get(error.errno or 0, otherwise)
