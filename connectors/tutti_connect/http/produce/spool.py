"""Spool for posts with wait=false: keeps them on this host's disk until they commit, across restarts and outages of the group."""

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

#: Errors that end the spool's producer; its records stay on disk, and the next start sends them.
STAYS_IN_SPOOL = (Unknown, NotAllowed, Fenced)
OnOutcome = Callable[[Outcome | TuttiError], None]


class Spool:
    """A spool directory and its producer. Opening the spool needs no gateway."""

    def __init__(self, directory: str, url: str, prefix: str) -> None:
        """Open the spool, or create it; the producer first sends the records that an earlier process left there.

        Args:
            directory: directory that no other process uses.
            url: addresses of the gateways.
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
        """Write records durably to the spool, which commits them later and then calls `on_outcome` in the event loop.

        Raises:
            Problem: 503: the write took longer than `limits.SPOOL_S`; the records may still be committed later.
            TuttiError: the spool rejects the records, because they are too large or the spool is full.
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
        """Block until the records are delivered or the delivery timeout has passed; the rest stays on disk."""
        with contextlib.suppress(TuttiError):
            self.producer.close()
        self._threads.shutdown(wait=False)


def _stored_name(path: Path, prefix: str) -> str:
    """Return the producer's name from a file in the spool's directory, so that a moved directory keeps its producer."""
    make_directory(path)
    file = path / "producer"
    if not file.exists():
        new = path / f"producer.{os.getpid()}"
        new.unlink(missing_ok=True)
        write_new(new, f"{prefix}.spool-{secrets.token_hex(6)}\n", 0o644)
        new.replace(file)
    return file.read_text("utf-8").strip()
