"""The disk and the clock of one gateway, as a test wants them: a small library between the gateway and libc (shim.c)."""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_CONTROL = struct.Struct("<qiiiiqi4x")
_CLOCK = struct.Struct("<q")
_NUMBER = struct.Struct("<i")
_PLACES = {"sync_errno": 8, "write_errno": 12, "read_errno": 16, "sync_delay_us": 20, "loop_delay_us": 32}
_HITS = 24


def build(directory: Path) -> Path:
    """Compile the library into `directory`; its path."""
    library = directory / "shim.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Shim:
    """What one gateway's disk and clock do. All of it is as the machine's until something is set."""

    def __init__(self, library: Path, control: Path) -> None:
        """Make the file that tells the library what to do."""
        control.write_bytes(bytes(_CONTROL.size))
        self.environment = {"LD_PRELOAD": str(library), "TUTTI_SHIM": str(control)}
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    def clock(self, seconds: float) -> None:
        """Set the time of day so far from the machine's."""
        _CLOCK.pack_into(self._map, 0, int(seconds * 1e9))

    def set(self, what: str, number: int) -> None:
        """Set `sync_errno`, `write_errno` or `read_errno` (0: they work), `sync_delay_us` or `loop_delay_us`."""
        _NUMBER.pack_into(self._map, _PLACES[what], number)

    def calm(self) -> None:
        """The disk works; the clock stays as it was set."""
        for what in _PLACES:
            self.set(what, 0)

    @property
    def hits(self) -> int:
        """How many calls were made to fail."""
        return int(_CLOCK.unpack_from(self._map, _HITS)[0])

    def close(self) -> None:
        """Let the file go."""
        self._map.close()
