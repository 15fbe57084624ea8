"""Looks at the machine, one finding each: what was found, whether it will do, and what to do if not."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from tutti import limits as common_limits
from tutti.errors import remedy
from tutti_gateway.cli.common.output import bytes_text
from tutti_gateway.core import limits

PACKAGES = ("tutti-ingest", "pyarrow", "pynacl", "numpy", "msgspec", "orjson", "google-crc32c")
PORT_NAMES = ("clients", "group", "reads", "admin")
_SYNCS = 40
_SYNC_BYTES = 256
#: A commit takes at least one sync; above this a person notices.
SYNC_MS_MAX = 50.0
OPEN_FILES_MIN = 1024
_CONNECT_WAIT_S = 0.5


class Finding(NamedTuple):
    """One look: its subject, what was found, whether that will do, and what to do if it will not."""

    subject: str
    good: bool
    found: str
    do: str = ""


def python() -> Finding:
    """The running interpreter."""
    found = f"{platform.python_version()} at {sys.executable}"
    good = (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.platform == "linux"
    return Finding("python", good, f"{found} on {platform.system()}", "run Tutti on Linux with Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    """The libraries that a gateway and a client need."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    text = ", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else "")
    return Finding("packages", not missing, text, f"{sys.executable} -m pip install tutti-ingest")


def compiled() -> Finding:
    """Whether producers send by what was compiled at installation."""
    from tutti.batching.append import compiled

    if compiled is not None:
        return Finding("send()", True, f"compiled, {compiled.__file__}")
    what = "not compiled: without gcc and Python's headers (python3-dev) at installation, or with TUTTI_SWIFT=0"
    return Finding("send()", True, f"{what}, records of 100 B go at two thirds of the rate")


def open_files() -> Finding:
    """How many files and sockets a process may open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    do = f"`ulimit -n {limits.SESSIONS_MAX * 2}` before a gateway is started: each client takes a descriptor"
    return Finding("open files", soft >= OPEN_FILES_MIN, f"{soft} (at most {hard})", do)


def ports(base: int) -> Finding:
    """Whether the four ports of a gateway at `base` are free, or a gateway of ours has them."""
    taken = ports_taken(base)
    if not taken:
        return Finding("ports", True, f"{base} to {base + 3} are free")
    who = _gateway_at(base)
    if who:
        return Finding("ports", True, f"{base} to {base + 3} belong to gateway {who}, which is running")
    return Finding("ports", False, f"in use by another program: {taken}", "choose another base port, or stop that program")


def ports_taken(base: int) -> str:
    """Which of a gateway's four ports are in use, and what for they would be; "" when all are free."""
    taken = [(port, name) for port, name in enumerate(PORT_NAMES, base) if not _is_free(port)]
    return ", ".join(f"{port} ({name})" for port, name in taken)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _gateway_at(port: int) -> str | None:
    """The name of the gateway whose admin port stands beside `port`, None if none answers."""
    import http.client

    import orjson

    connection = http.client.HTTPConnection("127.0.0.1", port + 3, timeout=_CONNECT_WAIT_S)
    try:
        connection.request("GET", "/v1/status")
        told = orjson.loads(connection.getresponse().read(common_limits.MIB))
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
        return None
    finally:
        connection.close()
    return str(told["gateway"]) if isinstance(told, dict) and "gateway" in told else None


def disk_space(directory: Path) -> Finding:
    """Whether the file system of `directory` has room for a log."""
    place = nearest(directory)
    needed = common_limits.DISK_LOW_BYTES + (common_limits.PREPARED_SEGMENTS + 1) * common_limits.SEGMENT_BYTES
    free = shutil.disk_usage(place).free
    do = f"make room: a gateway takes up to {bytes_text(needed)} before the first record, and refuses new ones below " + bytes_text(
        common_limits.DISK_LOW_BYTES
    )
    return Finding("disk space", free >= needed, f"{bytes_text(free)} free at {place}", do)


def sync_time(directory: Path) -> Finding:
    """How long the disk takes to make a small write durable."""
    place = nearest(directory)
    times_ms = []
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".tutti-doctor-") as file:
            for _ in range(_SYNCS):
                os.write(file.fileno(), bytes(_SYNC_BYTES))
                begun = time.perf_counter()
                os.fdatasync(file.fileno())
                times_ms.append((time.perf_counter() - begun) * 1000)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Finding(
            "fdatasync", False, f"{place}: {reason}", remedy(error, "name a directory that can be written to: --data DIR")
        )
    times_ms.sort()
    middle, late = times_ms[_SYNCS // 2], times_ms[-1]
    do = "put the data on a faster disk: no commit is quicker than this"
    return Finding("fdatasync", middle <= SYNC_MS_MAX, f"p50 {middle:.2f} ms, worst {late:.2f} ms of {_SYNCS} at {place}", do)


def nearest(directory: Path) -> Path:
    """`directory`, or what is there of the way to it."""
    directory = directory.absolute()
    return next(place for place in (directory, *directory.parents) if place.is_dir())
