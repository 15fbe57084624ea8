"""The taker of an open batch: the short way of a record into it, for a thread at a time and without a lock.

Where a C compiler was there when this was installed it is `_append.c` that takes records in, in a third of the time; what that does
stands here. `TUTTI_SWIFT=0` in the environment does without.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Protocol, TypeVar

from tutti.batching.encoder import RECORD_OVERHEAD_BYTES
from tutti.batching.receipt import Batch, Receipt

_clock = time.time
_FORM = 2  # of what is compiled, that fits the rest

Put = Callable[[Any], Receipt | None]
Method = TypeVar("Method", bound=Callable[..., Any])


class Taker(Protocol):
    """What takes records into a batch until it is closed."""

    def close(self) -> None:
        """Take nothing more. Whoever closes it has the batch to himself then.

        Raises:
            ValueError: another thread is within it.
        """


def _found() -> ModuleType | None:
    """What was compiled, if it was, fits and is wanted."""
    if os.environ.get("TUTTI_SWIFT") == "0":
        return None
    try:
        from tutti.batching import _append  # noqa: PLC0415 - there or not, and wanted or not
    except ImportError:
        return None
    return _append if _append.FORM == _FORM else None


compiled = _found()


def take(batch: Batch) -> tuple[Taker, Put]:
    """What takes records into the batch from now on, and what it is called by: see `generator`."""
    if compiled is not None:
        made = compiled.Taker(batch, Receipt)
        return made, made
    running = generator(batch)
    next(running)
    return running, running.send


def swiftly(send: Method) -> Method:
    """The method `send` of a producer, whose first lines need no interpreter where that was compiled."""
    if compiled is None:
        return send
    method: Any = functools.update_wrapper(compiled.Send(send), send)
    return method  # type: ignore[no-any-return]  # it is called as `send` is


def generator(batch: Batch) -> Generator[Receipt | None, Any, None]:
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
