"""Checks of Python, packages, ports, file limits and disk on this machine. Each check returns a `Finding`."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from tutti import limits as common_limits
from tutti.errors import install_remedy, remedy
from tutti_gateway.cli.common.output import bytes_text
from tutti_gateway.core import limits

PACKAGES = ("tutti-ingest", "pyarrow", "pynacl", "numpy", "msgspec", "orjson", "google-crc32c")
#: Packages that show whether the extra of a role is installed.
EXTRAS = {
    "gateway": ("h11", "prometheus-client", "rich", "starlette", "structlog", "uvicorn"),
    "spark": ("pyspark",),
    "kafka": ("confluent-kafka", "kafka-python"),
}
PORT_NAMES = ("clients", "group", "reads", "admin")
_SYNCS = 40
_SYNC_BYTES = 256
#: Largest acceptable median time of an fdatasync. Each commit waits for at least one fdatasync, and users notice a longer wait.
SYNC_MS_MAX = 50.0
OPEN_FILES_MIN = 1024
_INSTALL = install_remedy(python=sys.executable)
_CONNECT_WAIT_S = 0.5


class Finding(NamedTuple):
    """Result of one check.

    Attributes:
        subject: what was checked.
        good: whether the check passed.
        found: the observed value.
        do: remedy if the check failed, or if an extra is not complete.
        skipped: whether the check is for an extra that is not installed and that nobody asked for.
    """

    subject: str
    good: bool
    found: str
    do: str = ""
    skipped: bool = False


def python() -> Finding:
    """Check that the running Python version and the operating system are supported."""
    found = f"{platform.python_version()} at {sys.executable}"
    good = (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.platform == "linux"
    return Finding("python", good, f"{found} on {platform.system()}", "run Tutti on Linux with Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    """Check that the packages that gateways and clients need are installed."""
    return _packages("packages", PACKAGES, _INSTALL)


def extra_packages(extra: str) -> Finding:
    """Check that the packages of an extra are installed."""
    names = EXTRAS[extra] + (EXTRAS["gateway"] if extra == "kafka" else ())  # the extra kafka contains the extra gateway
    return _packages(f"{extra} packages", names, install_remedy(extra, sys.executable))


def not_installed(extra: str) -> Finding | None:
    """Return a finding, which is not a failure, if packages of an extra are not installed, otherwise None."""
    missing = [name for name in EXTRAS[extra] if _version(name) is None]
    if not missing:
        return None
    names = ", ".join(missing)
    if len(missing) == len(EXTRAS[extra]):
        return Finding(extra, True, f"not installed: the extra {extra} adds {names}", skipped=True)
    # A part of the packages does not show that the extra is wanted: applications use the same packages.
    do = f"if you need the role {extra} here, {install_remedy(extra, sys.executable)}; then run tutti doctor --role {extra}"
    return Finding(extra, True, f"not complete, so not checked: {names} missing", do, skipped=True)


def _packages(subject: str, names: Sequence[str], do: str) -> Finding:
    versions = {name: _version(name) for name in names}
    missing = ", ".join(name for name, found in versions.items() if found is None)
    text = ", ".join(f"{name} {found}" for name, found in versions.items() if found is not None)
    return Finding(subject, not missing, "; ".join(filter(None, [text, missing and f"missing: {missing}"])), do)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def compiled() -> Finding:
    """Report whether `Producer.send` uses the compiled extension. Without the extension, the check also passes."""
    try:
        from tutti.batching.appender import compiled
    except ModuleNotFoundError as error:
        return Finding("send()", False, f"cannot be checked: {error.name} is not installed", _INSTALL)
    if compiled is not None:
        return Finding("send()", True, f"compiled, {compiled.__file__}")
    what = "not compiled: gcc or Python's headers (python3-dev) were missing at installation, or TUTTI_SWIFT=0 is set"
    return Finding("send()", True, f"{what}; records of 100 B reach two thirds of the rate")


def open_files() -> Finding:
    """Check that a process may open enough files and sockets."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    do = f"run `ulimit -n {limits.SESSIONS_MAX * 2}` before starting a gateway: each client uses one descriptor"
    return Finding("open files", soft >= OPEN_FILES_MIN, f"{soft} (at most {hard})", do)


def ports(base: int) -> Finding:
    """Check that the four ports from `base` on are free, or belong to a running gateway."""
    in_use = ports_in_use(base)
    if not in_use:
        return Finding("ports", True, f"{base} to {base + 3} are free")
    gateway = _gateway_at(base)
    if gateway:
        return Finding("ports", True, f"{base} to {base + 3} belong to gateway {gateway}, which is running")
    return Finding("ports", False, f"in use by another program: {in_use}", "choose another base port, or stop that program")


def ports_in_use(base: int) -> str:
    """Return text that lists the used ports among the four from `base` on, or "" if all four are free."""
    in_use = [(port, name) for port, name in enumerate(PORT_NAMES, base) if not _is_free(port)]
    return ", ".join(f"{port} ({name})" for port, name in in_use)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _gateway_at(port: int) -> str | None:
    """Return the name of the gateway with base port `port`, or None if no gateway answers at its admin port."""
    import http.client

    import orjson

    connection = http.client.HTTPConnection("127.0.0.1", port + 3, timeout=_CONNECT_WAIT_S)
    try:
        connection.request("GET", "/v1/status")
        status = orjson.loads(connection.getresponse().read(common_limits.MIB))
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
        return None
    finally:
        connection.close()
    return str(status["gateway"]) if isinstance(status, dict) and "gateway" in status else None


def data_directory(directory: Path) -> Finding:
    """Report whether the data directory exists, and check that it is a directory."""
    if directory.is_dir():
        return Finding("data directory", True, f"{directory.absolute()} exists")
    if directory.exists():
        return Finding("data directory", False, f"{directory} is not a directory", "choose a directory with --data DIR")
    return Finding("data directory", True, f"{directory} is missing: the gateway creates it, below {nearest(directory)}")


def disk_space(directory: Path) -> Finding:
    """Check that the file system of `directory` has enough free space for a new gateway."""
    existing = nearest(directory)
    needed = common_limits.DISK_LOW_BYTES + (common_limits.PREPARED_SEGMENTS + 1) * common_limits.SEGMENT_BYTES
    free = shutil.disk_usage(existing).free
    do = (
        f"free some space: a gateway uses up to {bytes_text(needed)} before the first record, and rejects records below "
        + bytes_text(common_limits.DISK_LOW_BYTES)
    )
    return Finding("disk space", free >= needed, f"{bytes_text(free)} free at {existing}", do)


def sync_time(directory: Path) -> Finding:
    """Check that a small durable write (fdatasync) on the file system of `directory` is fast enough."""
    existing = nearest(directory)
    times_ms = []
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".tutti-doctor-") as file:
            for _ in range(_SYNCS):
                os.write(file.fileno(), bytes(_SYNC_BYTES))
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                times_ms.append((time.perf_counter() - started) * 1000)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Finding("fdatasync", False, f"{existing}: {reason}", remedy(error, "choose a writable directory with --data DIR"))
    times_ms.sort()
    median, worst = times_ms[_SYNCS // 2], times_ms[-1]
    do = "put the data on a faster disk: this time bounds the commit latency"
    return Finding("fdatasync", median <= SYNC_MS_MAX, f"p50 {median:.2f} ms, worst {worst:.2f} ms of {_SYNCS} at {existing}", do)


def nearest(directory: Path) -> Path:
    """Return `directory` if it exists, otherwise its nearest existing parent."""
    directory = directory.absolute()
    return next(existing for existing in (directory, *directory.parents) if existing.is_dir())
