"""What strangers send who are almost right."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator


def attack(port: int, data: bytes) -> None:
    """Send bytes, read what comes for a moment, go away."""
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.settimeout(0.02)
        with contextlib.suppress(OSError):
            link.sendall(data)
            for _ in range(5):
                if not link.recv(65536):
                    break


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Ways to be almost right."""
    chance = random.Random(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(made) + 1)
            match chance.randrange(5):
                case 0:
                    made[at : at + 1] = chance.randbytes(1)
                case 1:
                    del made[at : at + chance.randint(1, 40)]
                case 2:
                    made[at:at] = chance.randbytes(chance.randint(1, 40))
                case 3:
                    made[at:at] = made[chance.randrange(len(made) + 1) :][:200]
                case _:
                    del made[at:]
        yield bytes(made)
