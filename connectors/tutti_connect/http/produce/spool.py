"""Posts that do not wait, kept on this host's disk until they commit: they outlive the process, and a group without a majority."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tutti.batching.receipt import Receipt
from tutti.errors import ConfigError, Fenced, NotAllowed, TuttiError, Unknown, remedy
from tutti.producer import Producer
from tutti.runtime.fsync import make_directory
from tutti.security.key_files import write_new
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import Records
from tutti_connect.http.produce.producers import Outcome, hand_over, known_offset

#: Of what ends the spool's producer: what is on the disk stays there, and commits when the next one is let in.
STAYS = (Unknown, NotAllowed, Fenced)
Known = Callable[[Outcome | TuttiError], None]


class Spool:
    """One directory, and the producer of the log whose records it keeps. Opened without a gateway."""

    def __init__(self, directory: str, url: str, prefix: str) -> None:
        """Open it, or make it; what an earlier process left in it goes out first.

        Args:
            directory: of this process alone.
            url: of the gateways.
            prefix: what the producer's name begins with.

        Raises:
            ConfigError: the directory cannot be used.
            TuttiError: another process uses it, or what is in it is damaged.
        """
        place = Path(directory)
        try:
            name = _name_in(place, prefix)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"spool: {directory} cannot be used ({reason}): {remedy(error, 'name a directory that this process may write')}"
            ) from error
        self.producer = Producer(
            url,
            name,
            spool=place / "records",
            on_full="raise",
            buffer_bytes=limits.BUFFER_BYTES,
            delivery_timeout=limits.DELIVERY_S,
        )
        self._threads = ThreadPoolExecutor(limits.SPOOLERS, "spooler")

    async def post(self, records: Records, known: Known) -> None:
        """Keep records on the disk; they will commit. `known` is called when their outcome is known, if this process lives then.

        Raises:
            Problem: 503: the disk did not take them in time; they may commit all the same.
            TuttiError: they are not taken: too large, no room.
        """
        loop = asyncio.get_running_loop()

        def told(error: TuttiError | None, receipt: Receipt) -> None:
            outcome = Outcome(known_offset(receipt.offset)) if error is None else error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(known, outcome)

        receipt = hand_over(self.producer, records, None, told)
        try:
            await loop.run_in_executor(self._threads, partial(receipt.spooled, limits.SPOOL_S))
        except TimeoutError as error:
            raise Problem(503, f"the disk of the spool took longer than {limits.SPOOL_S:g} s", committed="unknown") from error

    def close(self) -> None:
        """Deliver what can be; the rest stays on the disk. Blocks."""
        with contextlib.suppress(TuttiError):
            self.producer.close()
        self._threads.shutdown(wait=False)


def _name_in(place: Path, prefix: str) -> str:
    """The producer's name: it stays with the directory, wherever that is moved."""
    make_directory(place)
    file = place / "producer"
    if not file.exists():
        new = place / f"producer.{os.getpid()}"
        new.unlink(missing_ok=True)
        write_new(new, f"{prefix}.spool-{secrets.token_hex(6)}\n", 0o644)
        new.replace(file)
    return file.read_text("utf-8").strip()
