"""The taker of an open batch: the short way of a record into it, for a thread at a time and without a lock."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from gateway.client.encode import RECORD_OVERHEAD_BYTES
from gateway.client.receipt import Batch, Receipt

_clock = time.time


def take(batch: Batch) -> Generator[Receipt | None, Any, None]:
    """Takes records without progress, timestamp and headers: a value (bytes) or (value, key, on_delivery) at each `send`.

    It answers with the receipt, or None to what has to go another way, and ends where there is no room. Who calls has the batch
    to itself meanwhile, as no two threads can be within a generator. What strikes in the middle of a record ends it, too.
    """
    values, keys, times, room, clock = batch.values, batch.keys, batch.times, batch.room, _clock
    receipt: Receipt | None = None
    try:
        while True:
            item = yield receipt
            if item.__class__ is bytes and keys is None:
                left = room - len(item) - RECORD_OVERHEAD_BYTES
                if left < 0:
                    return
                batch.room = room = left
                receipt = Receipt(batch, len(values))
                values.append(item)
                times.append(clock())
                continue
            receipt = None
            value, key, on_delivery = (item, None, None) if item.__class__ is bytes else item
            if value.__class__ is not bytes or (key is not None and key.__class__ is not bytes):
                continue
            left = room - len(value) - RECORD_OVERHEAD_BYTES - (0 if key is None else len(key))
            if left < 0:
                return
            batch.room = room = left
            if key is not None and keys is None:
                batch.keys = keys = [None] * len(values)
            receipt = Receipt(batch, len(values))
            values.append(value)
            if keys is not None:
                keys.append(key)
            if on_delivery is not None:
                if batch.callbacks is None:
                    batch.callbacks = []
                batch.callbacks += (receipt, on_delivery)
            times.append(clock())
    except BaseException:
        batch.level()
        raise
