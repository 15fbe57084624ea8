"""AsyncReceipt: the common interface of `Receipt` and of the receipt of a record that still waits for space in the buffer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from tutti.errors import TuttiError


class AsyncReceipt(Protocol):
    """The result of `AsyncProducer.send()` or `send_batch()`.

    `await receipt` waits for the outcome, and returns the offset or raises the error, as `Receipt.result()` does. Several
    coroutines may await one receipt. A cancelled `await` neither cancels the record nor changes its outcome.
    """

    @property
    def topic(self) -> str:
        """The topic of the record."""

    @property
    def count(self) -> int:
        """The number of records that the receipt represents."""

    @property
    def offset(self) -> int | None:
        """The offset of a committed record, or of the first record of a batch; -1 if it is unknown. None without a commit."""

    @property
    def error(self) -> TuttiError | None:
        """The error of a failed record; None for other records."""

    @property
    def lane(self) -> str:
        """The lane of an unordered record, in the form of `Reader(origin=...)`; empty for ordered and for unsent records."""

    @property
    def left(self) -> bool:
        """True if this process may have sent the record. A failed record that was not sent is in no log."""

    def done(self) -> bool:
        """Return True if the outcome is known."""

    def spooled(self, timeout: float | None = None) -> None:
        """As `Receipt.spooled`. The call blocks, so make it in a thread: `await asyncio.to_thread(receipt.spooled)`."""

    def processed_by(self, query: str, timeout: float | None = None) -> int:
        """As `Receipt.processed_by`. The call blocks, so make it in a thread, as `spooled`."""

    def __await__(self) -> Generator[Any, None, int]:
        """Wait for the outcome."""
