"""Ports for tests: each lent to one test at a time on this machine, below the range that the system hands out by itself.

A port that the system chose, and that is closed to be opened again by who is tested, is nobody's in between: another test gets it,
a connection to anywhere leaves from it, or a client that tries it again and again meets itself there. So tests that name a port
before it is opened, or open it a second time, take it from here. Who only listens asks for port 0 and reads what it became.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, END = 10_000, 32_000  # the system's own begin at 32,768
GATEWAY_PORTS = 4  # clients, group, reads, admin
GATEWAY_STEP = 10  # between two gateways of `tutti dev`


def free_port() -> int:
    """One port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many ports, in a row."""
    return _lent(count, 1, list(range(count)))


def free_base(gateways: int = 1) -> int:
    """The port of a gateway, whose three neighbours are free too, and with them those at +10, +20, ... of further gateways."""
    places = [GATEWAY_STEP * place + distance for place in range(gateways) for distance in range(GATEWAY_PORTS)]
    return _lent(GATEWAY_STEP * gateways, GATEWAY_STEP, places)[0]


def _lent(size: int, step: int, places: list[int]) -> list[int]:
    """The next ports of which nobody else listens at any."""
    for _ in range(500):
        first = _next(size, step)
        ports = [first + place for place in places]
        if all(map(_free, ports)):
            return ports
    raise RuntimeError(f"no {len(places)} free ports were found between {FIRST} and {END}")


def _next(size: int, step: int) -> int:
    """Move the mark that all tests of this machine share; what is behind it is lent again when it has come round."""
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
