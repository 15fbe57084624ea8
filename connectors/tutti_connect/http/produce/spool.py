"""Spool for posts that do not wait.

It keeps the posts on this host's disk until they commit, across restarts and outages of the group.
"""

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
from tutti.runtime.durable_files import make_directory
from tutti.security.user_files import write_new
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import Records
from tutti_connect.http.produce.producers import Outcome, known_offset, send_post

#: Errors that end the spool's producer. Its records stay on disk, and commit after the next start.
STAYS_IN_SPOOL = (Unknown, NotAllowed, Fenced)
OnOutcome = Callable[[Outcome | TuttiError], None]


class Spool:
    """One directory, and the producer whose records it keeps. The spool can be opened while no gateway is available."""

    def __init__(self, directory: str, url: str, prefix: str) -> None:
        """Open the spool, and create it if missing; records of an earlier process are sent first.

        Args:
            directory: directory of this process only.
            url: URL of the gateways.
            prefix: prefix of the producer's name.

        Raises:
            ConfigError: the directory is unusable.
            TuttiError: another process uses the spool, or its content is corrupt.
        """
        path = Path(directory)
        try:
            name = _stored_name(path, prefix)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"spool: {directory} cannot be used ({reason}): {remedy(error, 'choose a writable directory')}"
            ) from error
        self.producer = Producer(
            url,
            name,
            spool=path / "records",
            on_full="raise",
            buffer_bytes=limits.BUFFER_BYTES,
            delivery_timeout=limits.DELIVERY_S,
        )
        self._threads = ThreadPoolExecutor(limits.SPOOLERS, "spooler")

    async def post(self, records: Records, on_outcome: OnOutcome) -> None:
        """Write records to the spool, which commits them later. `on_outcome` is called with the outcome if this process is still
        running.

        Raises:
            Problem: 503: the disk is too slow; the records may still commit.
            TuttiError: the records are rejected: too large, or the spool is full.
        """
        loop = asyncio.get_running_loop()

        def on_delivery(error: TuttiError | None, receipt: Receipt) -> None:
            outcome = Outcome(known_offset(receipt.offset)) if error is None else error
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(on_outcome, outcome)

        receipt = send_post(self.producer, records, None, on_delivery)
        try:
            await loop.run_in_executor(self._threads, partial(receipt.spooled, limits.SPOOL_S))
        except TimeoutError as error:
            raise Problem(503, f"the disk of the spool took longer than {limits.SPOOL_S:g} s", committed="unknown") from error

    def close(self) -> None:
        """Deliver as many records as possible within the time limit; the rest stays on disk. Blocks."""
        with contextlib.suppress(TuttiError):
            self.producer.close()
        self._threads.shutdown(wait=False)


def _stored_name(path: Path, prefix: str) -> str:
    """Return the producer's name, which is stored in the directory, so that it survives a move."""
    make_directory(path)
    file = path / "producer"
    if not file.exists():
        new = path / f"producer.{os.getpid()}"
        new.unlink(missing_ok=True)
        write_new(new, f"{prefix}.spool-{secrets.token_hex(6)}\n", 0o644)
        new.replace(file)
    return file.read_text("utf-8").strip()
