"""Ports for tests: each is lent to one test at a time on this machine, from below the ephemeral range of the system.

A port that the system chose, and that a test closes so that another process can open it, belongs to no process in between.
Another test can get it, an outgoing connection can use it, or a client that retries it can connect to itself. Tests that name a
port before it is opened, or open it twice, therefore get it here. A test that only listens uses port 0.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, END = 10_000, 32_000  # the ephemeral range begins at 32,768
GATEWAY_PORTS = 4  # clients, group, reads, admin
GATEWAY_STEP = 10  # between two gateways of `tutti dev`


def free_port() -> int:
    """Return one port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return consecutive ports."""
    return _lent(count, 1, list(range(count)))


def free_base(gateways: int = 1) -> int:
    """Return the base port of a gateway, with three free ports after it, and the same at +10, +20, ... for further gateways."""
    places = [GATEWAY_STEP * place + distance for place in range(gateways) for distance in range(GATEWAY_PORTS)]
    return _lent(GATEWAY_STEP * gateways, GATEWAY_STEP, places)[0]


def _lent(size: int, step: int, places: list[int]) -> list[int]:
    """Return the next ports at which no process listens."""
    for _ in range(500):
        first = _next(size, step)
        ports = [first + place for place in places]
        if all(map(_free, ports)):
            return ports
    raise RuntimeError(f"no {len(places)} free ports were found between {FIRST} and {END}")


def _next(size: int, step: int) -> int:
    """Advance the mark that all tests of this machine share; at the end of the range it starts again."""
    path = Path(tempfile.gettempdir()) / f"tutti-test-ports-{os.getuid()}"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        said = mark.read()
        first = int(said) if said.isdigit() else random.randrange(FIRST, END)
        first += -first % step
        if not FIRST <= first <= END - size:
            first = FIRST
        mark.seek(0)
        mark.truncate()
        mark.write(str(first + size))
    return first


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
