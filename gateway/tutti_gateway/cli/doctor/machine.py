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
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv4Address, IPv6Address, ip_address
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
_TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


class Finding(NamedTuple):
    """Result of one check.

    Attributes:
        subject: what was checked.
        good: whether the check passed.
        found: the observed value.
        do: remedy if the check failed, or if an extra is not complete.
        skipped: whether the check is for an extra that is not installed and that the user has not named.
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
    """Check that the four ports from `base` on are free on all addresses of this host, or belong to a running gateway."""
    in_use = {port: addresses for port in range(base, base + len(PORT_NAMES)) if (addresses := _listening_addresses(port))}
    if not in_use:
        return Finding("ports", True, f"{base} to {base + 3} are free on all addresses of this host")
    gateways = [_gateway_at(address, base + 3) for address in in_use.get(base + 3, ())]
    where = ", ".join(sorted({str(address) for addresses in in_use.values() for address in addresses}))
    if all(gateways) and gateways:
        return Finding("ports", True, f"{base} to {base + 3} on {where} belong to {gateways[0]}, which is running")
    names = ", ".join(f"{port} ({PORT_NAMES[port - base]})" for port in in_use)
    return Finding(
        "ports", False, f"in use by another program: {names} on {where}", "choose another base port, or stop that program"
    )


def ports_in_use(base: int) -> str:
    """Return text that lists the used ports of 127.0.0.1 among the four from `base` on, or "" if all four are free."""
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


def _listening_addresses(port: int) -> list[IPv4Address | IPv6Address]:
    """Return the addresses of this host at which a process listens on a port, from the kernel's tables of TCP sockets."""
    found = []
    for table in _TCP_TABLES:
        with suppress(OSError):  # a host without IPv6 lacks the second table
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                address, _, number = local.partition(":")
                if state == _LISTEN and int(number, 16) == port:
                    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                    # The kernel prints each 32-bit word of the address as a number in the byte order of the host.
                    found.append(ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))
    return found


def _gateway_at(address: IPv4Address | IPv6Address, port: int) -> str:
    """Return the gateway whose admin port this is, as text; empty if no gateway answers."""
    import http.client
    import ssl

    import orjson

    anyone = ssl.create_default_context()  # the check sends no secret, so it needs no proof of the gateway's identity
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    plain = http.client.HTTPConnection(str(address), port, timeout=_CONNECT_WAIT_S)
    encrypted = http.client.HTTPSConnection(str(address), port, timeout=_CONNECT_WAIT_S, context=anyone)
    # A gateway with tokens shows its status, which has its name, only with a token.
    for connection, page, key in ((plain, "/v1/status", "gateway"), (encrypted, "/healthz", "status")):
        try:
            connection.request("GET", page)
            answer = orjson.loads(connection.getresponse().read(common_limits.MIB))
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
            continue
        finally:
            connection.close()
        if isinstance(answer, dict) and key in answer:
            return f"gateway {answer[key]}" if key == "gateway" else "a gateway with a certificate"
    return ""


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
