"""Accumulators without a delivery: the test acts as the I/O thread."""

from __future__ import annotations

from typing import Any

from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import check_progress, check_record
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Failure, Receipt
from tutti.data.frames.schema import decode_batch


def feed_of(**options: Any) -> Accumulator:
    return Accumulator(BatchingOptions(**options))


def send(feed: Accumulator, value: bytes | None = b"x", topic: str = "t", progress: bytes | None = None, **more: Any) -> Receipt:
    record = check_record(value, more.get("key"), more.get("timestamp"), more.get("headers", ()))
    return feed.add(topic, record, check_progress(progress), more.get("on_delivery"))


def closed(feed: Accumulator) -> list[list[bytes | None]]:
    """Values of the batches that are closed by now, and of the open one when it is closed too."""
    with feed.lock:
        feed.close_open()
        for batch in feed.queue:
            feed.seal(batch)  # as `head` does, for what a signal kept from it
    return [decode_batch(batch.body).column(1).to_pylist() for batch in feed.queue]


def deliver(feed: Accumulator, count: int | None = None, failure: Failure | None = None) -> None:
    """Give the oldest batches their outcome."""
    taken = [feed.queue.popleft() for _ in range(len(feed.queue) if count is None else count)]
    for batch in taken:
        batch.resolve(0, failure)
    feed.finished(taken)
