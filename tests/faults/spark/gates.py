"""Gates: places in a micro-batch where a job stands still as long as a file says so: what is killed is killed exactly there.

planned   its end is in the offset log, no task runs
reading   a task has some of its records and waits for more
read      all rows are there, the state is stored, nothing is written
written   the sink has the rows, the commit log has not the batch
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STEPS = ("planned", "reading", "read", "written")
_LOOK_S = 0.02
_STAND_S = 300.0  # a gate that nobody opens fails the job


def pass_through(directory: str, batch: int, step: str) -> None:
    """Called by the job: say who is here, and stand still while the gate is closed.

    Raises:
        TimeoutError: nobody opened it.
    """
    closed = Path(directory, f"{batch}-{step}.closed")
    if not closed.exists():
        return
    Path(directory, f"{batch}-{step}.{os.getpid()}.here").touch()
    deadline = time.monotonic() + _STAND_S
    while closed.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened the gate {step} of micro-batch {batch}")
        time.sleep(_LOOK_S)


class Gates:
    """The other side: closes gates before the job comes to them, sees who stands there, opens them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def close(self, batch: int, step: str) -> None:
        """Whoever comes there stands still."""
        (self.directory / f"{batch}-{step}.closed").touch()

    def open(self, batch: int, step: str) -> None:
        """Whoever stands there goes on, and so does who comes later."""
        (self.directory / f"{batch}-{step}.closed").unlink()

    def here(self, batch: int, step: str) -> list[int]:
        """Process ids of those who came to it while it was closed."""
        return sorted(int(file.name.split(".")[1]) for file in self.directory.glob(f"{batch}-{step}.*.here"))
